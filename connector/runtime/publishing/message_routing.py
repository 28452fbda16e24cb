"""The partition of each row of a sink, as the sink's options say.

Invariants: rows of one key go to one partition while the number of partitions stays, unless the
user's own router decides; rows without a key stay in a partition for as many as fill an entry; a
partition that does not exist is an error before anything of the batch is kept. Follows Pulsar's
`PartitionedProducerImpl` and `MessageRouter`.
"""

from __future__ import annotations

import pkgutil
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.publishing.message_batching import batch_limits
from pulsar_spark.connector.runtime.publishing.outgoing_messages import PAYLOAD_SIZE
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.log.producing.hashing import java_string_hash_many, murmur3_32_hash_many
from pulsar_spark.log.producing.message_router import (
    RoundRobinByBatch,
    RoundRobinPartitionMessageRouter,
    partitions_of_keys,
)
from pulsar_spark.options.options import Options

MessageRouter = Callable[[pa.Table, int], Any]
"""A user's router: (messages, partitions) -> one partition, from 0 on, for each message."""

_HASH_MANY = {"JavaStringHash": java_string_hash_many, "Murmur3_32Hash": murmur3_32_hash_many}


class MessageRouting:
    """The router of one task for one topic; counts the messages without a key."""

    def __init__(self, options: Options, partitions_count: int, topic: str) -> None:
        self._options, self._partitions, self._topic = options, partitions_count, topic
        self._custom = message_router(options)
        self._unkeyed = 0
        self._start = random.randrange(1 << 30)  # noqa: S311 - no secret
        self._by_batch = RoundRobinByBatch(self._start, batch_limits(options))

    def partitions(self, messages: pa.Table) -> NDArray[np.int32] | int:
        """One partition a row, shape (rows,); one number if all rows go to the same.

        InvalidMessageError if the user's router names a partition that does not exist.
        """
        if self._partitions == 1:
            return 0
        if self._custom is not None:
            return self._chosen_by_user(self._custom, messages)
        keys = messages["key"] if "key" in messages.column_names else None
        if keys is None or keys.null_count == len(keys):
            return self._without_key(messages)
        hashes = _HASH_MANY[self._options["hashingScheme"]](keys.combine_chunks())
        chosen = partitions_of_keys(hashes, self._partitions)
        if keys.null_count:
            unkeyed = pc.is_null(keys)
            chosen[unkeyed.to_numpy()] = self._without_key(messages.filter(unkeyed))
        return chosen

    def _without_key(self, messages: pa.Table) -> NDArray[np.int32] | int:
        if self._options["messageRoutingMode"] == "SinglePartition":
            return self._start % self._partitions
        if self._options["batchingEnabled"]:
            sizes = messages[PAYLOAD_SIZE].to_numpy()
            return self._by_batch.choose_partitions(self._partitions, sizes)
        router = RoundRobinPartitionMessageRouter(self._start, batching=False)
        count = len(messages)
        chosen = router.choose_partitions(self._partitions, count, message_number=self._unkeyed)
        self._unkeyed += count
        return chosen

    def _chosen_by_user(self, router: MessageRouter, messages: pa.Table) -> NDArray[np.int32]:
        answer = router(messages.drop_columns([PAYLOAD_SIZE]), self._partitions)
        try:
            chosen = np.asarray(answer)
        except (TypeError, ValueError) as error:
            raise self._refused(f"a {type(answer).__name__}") from error
        if chosen.shape != (len(messages),) or not np.issubdtype(chosen.dtype, np.integer):
            found = f"{chosen.dtype} of shape {chosen.shape}"
            raise self._refused(f"{found} for {len(messages)} messages")
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < self._partitions:
            wrong = chosen[(chosen < 0) | (chosen >= self._partitions)][0]
            raise self._refused(f"partition {wrong}")
        return chosen.astype(np.int32)

    def _refused(self, found: str) -> InvalidMessageError:
        return InvalidMessageError(
            f"messageRouter {self._options['messageRouter']} gave {found} for {self._topic}, which "
            f"has {self._partitions} partitions. It has to give a sequence with one whole number, "
            "0 or more and below the number of partitions, for each message."
        )


def message_router(options: Options) -> MessageRouter | None:
    """The user's router, imported; None without one. InvalidOptionError if it can't be imported."""
    return imported(options, "messageRouter", "(messages, partitions)")


def imported(options: Options, option: str, takes: str) -> Callable[..., Any] | None:
    """The function that an option names; None without one. InvalidOptionError if there is none."""
    path = options[option]
    if path is None:
        return None
    try:
        found: Any = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOptionError(
            f"{option} {path} can't be imported: {error}. It takes package.module:function; "
            "the module has to be installed wherever Spark runs Python, or sent there with "
            "addPyFile."
        ) from error
    if not callable(found):
        raise InvalidOptionError(
            f"{option} {path} is a {type(found).__name__}: it has to be a function of {takes}."
        )
    function: Callable[..., Any] = found
    return function
