"""Topics looked after: made, deleted, ended, emptied.

Invariants: each change is one commit of the topic's log, so a process that is killed leaves the
topic as it was or as it is to be; a deleted topic's files are deleted behind that commit, by who
comes next if need be; what somebody may lose by it has to be forced. Follows Pulsar's `Topics`.
"""

from __future__ import annotations

from typing import Final

from pulsar_spark.connector.system.subscription_admin import subscriptions
from pulsar_spark.connector.topic_log.ledger_store import sweep_deleted
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError, TopicInUseError
from pulsar_spark.topic_log.producer_registry import ProducerRegistry
from pulsar_spark.topic_name import (
    NON_PERSISTENT,
    PERSISTENT,
    NamespaceName,
    TopicName,
    check_user_topic,
)

DOMAINS: Final = (PERSISTENT, NON_PERSISTENT)


class Topics:
    """The topics of one root. A name is `orders`, `tenant/namespace/orders`, or a full one."""

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self._root = root

    def list(self, namespace: str | None = None, *, system: bool = False) -> list[str]:
        """The full names of the topics of a namespace, or of all, in order.

        `system`: also of those that Pulsarlite makes and writes itself.
        """
        tenant = local = None
        if namespace is not None:
            parsed = NamespaceName.parse(namespace)
            tenant, local = parsed.tenant, parsed.local_name
        found = (each for domain in DOMAINS for each in self._root.find(tenant, local, domain))
        return [
            str(each)
            for each in found
            if (system or not each.is_system) and self._root.open_found(each) is not None
        ]

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic. TopicExistsError if it is there already."""
        name = TopicName.parse(topic)
        if name.is_partition:
            raise InvalidOptionError(
                f"{name} is the name of a partition: create {name.partitioned_topic_name} with "
                "--partitions."
            )
        self._root.create(check_user_topic(name, "created"), partitions)

    def delete(self, topic: str, *, force: bool = False) -> int:
        """Delete a topic with its messages; how many files were deleted.

        A topic that is made again under its name is another: no consumer, checkpoint, producer or
        acknowledgement of the old one reaches it. TopicInUseError if it has subscriptions, or
        producers that it knows of, unless `force`: then consumers and queries that read it fail
        with TopicDeletedError. To delete a deleted topic finishes what a killed process began.
        """
        name = self._users(topic, "deleted")
        ledger = self._root.open_log(name)
        if ledger is None or (ledger.state.is_deleted and not ledger.state.tombstones):
            ledger = self._root.open(name)  # TopicNotFoundError, and why
        if not ledger.state.is_deleted:
            if not force:
                self._check_unused(ledger)
            ledger.delete()
        return sweep_deleted(self._root.store, name.storage_path, ledger.topic)

    # -- inside --------------------------------------------------------------------------------

    def _users(self, topic: str, to_be: str) -> TopicName:
        """The name; InvalidTopicNameError if it is a system topic's, or a partition's."""
        name = check_user_topic(TopicName.parse(topic), to_be)
        if name.is_partition:
            raise InvalidOptionError(
                f"{name} is a partition, and can't be {to_be} alone: name the whole topic, "
                f"{name.partitioned_topic_name}."
            )
        return name

    def _check_unused(self, ledger: ManagedLedger) -> None:
        names = sorted({each.name for each in subscriptions(self._root, ledger.topic)})
        present = ProducerRegistry.from_json_value(ledger.state.producers).present
        now_ms = ledger.clock()
        producers = sorted(name for name, each in present.items() if each.lapses_ms > now_ms)
        used = [
            f"{what} {', '.join(which)}"
            for what, which in (("subscriptions", names), ("producers", producers))
            if which
        ]
        if used:
            raise TopicInUseError(
                f"Topic {ledger.topic} has {' and '.join(used)}. Delete them first (pulsarlite "
                f"topics unsubscribe), or say --force: whoever reads or writes it then fails."
            )
