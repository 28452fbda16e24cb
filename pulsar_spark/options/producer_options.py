"""Which of a sink's options go together.

Invariant: what contradicts itself is refused, never resolved in silence; the text says which
option to change. Follows Pulsar's `ProducerBuilderImpl` and `ProducerConfigurationData`.
"""

from __future__ import annotations

from typing import Any, Protocol

from pulsar_spark.errors import InvalidOptionError


class GivenOptions(Protocol):
    """What `Options` offers."""

    def __getitem__(self, name: str) -> Any:
        """The option's value, or its default."""

    def has(self, name: str) -> bool:
        """Whether the user gave it."""


def check_producer_options(options: GivenOptions) -> None:
    """InvalidOptionError names the options that exclude each other."""
    if options.has("deliverAt") and options.has("deliverAfter"):
        raise InvalidOptionError("Options deliverAt and deliverAfter exclude each other.")
    custom = options["messageRoutingMode"] == "CustomPartition"
    if custom != options.has("messageRouter") and options.has("messageRoutingMode"):
        raise InvalidOptionError(
            "messageRouter and messageRoutingMode CustomPartition go together: give both, or the "
            "router alone."
        )
    if options.has("producerLease") and not options.has("accessMode"):
        raise InvalidOptionError("Option producerLease needs accessMode.")
    if options.has("transactionTimeout") and not options["transactional"]:
        raise InvalidOptionError("Option transactionTimeout needs transactional true.")
    if options["chunkingEnabled"] and options["batchingEnabled"]:
        raise InvalidOptionError(
            "Batching and chunking of messages can't be enabled together: chunkingEnabled needs "
            "batchingEnabled false, so set that too."
        )
    if options.has("chunkMaxMessageSize") and not options["chunkingEnabled"]:
        raise InvalidOptionError("Option chunkMaxMessageSize needs chunkingEnabled.")
    if options["batcherBuilder"] == "KEY_BASED" and not options["batchingEnabled"]:
        raise InvalidOptionError(
            "batcherBuilder KEY_BASED says how messages share entries, and batchingEnabled is "
            "false: leave one of them out."
        )
    if options.has("schema") and options["schemaType"] not in ("JSON", "AVRO"):
        raise InvalidOptionError(
            "Option schema is the definition of a record: set schemaType to JSON or AVRO, or leave "
            "it out."
        )
