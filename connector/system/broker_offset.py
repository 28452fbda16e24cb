"""An offset of the broker query: how far it has read, what the time is, and whose turn it is.

Invariants: two offsets name a batch's input to the row, so a repeated batch steps at the same time
on the same rows; equal offsets have equal text; time never goes back. The offset names what is due,
whose lease has lapsed, and what is set aside: a clock is read once for each batch. Commands that
one topic's broker could not take in are kept for it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_spark.connector.system.lease import Lease
from pulsar_spark.connector.system.system_topics import SystemTopic
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import StaleCheckpointError
from pulsar_spark.records.stored_record import StoredFormat
from pulsar_spark.topic_name import TopicPartition

SHARD_PREFIX = "\x00shard/"
"""Begins the `subscription` of a record of `__dispatch` that has a shard; its key follows."""
OFFSET_RECORD = "\x00offset"
"""The `subscription` of the record that has the offset of the commit's batch."""

OFFSET_FORMAT: Final = StoredFormat(
    "An offset of the broker",
    version=3,
    checked_since=2,
    remedy="Delete the broker's checkpoint folder: it is rebuilt from __dispatch.",
)
"""The format in `__dispatch`; in Spark's checkpoint it has no checksum."""
NO_COMMIT: Final = -1
"""The commit number of a topic that does not exist."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A topic partition whose broker could not step: its state is that of the step before.

    `commands` is the next ledger of `__commands` that it has not taken in; `created` the
    subscriptions that its next step makes.
    """

    commands: int
    error: str
    created: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerOffset:
    """The end of a batch.

    `commands`: the next ledger of `__commands`. `hosted`: the last commit of each topic partition
    that has a broker. `lapsed`: the leases that lapsed, with the partitions where their consumers
    are subscribed; paths in offsets of version 1. `restored`: the batch takes the brokers' states
    from the ledgers of `__dispatch` before that one, as Spark's store has none. `dispatched`: the
    next ledger of `__dispatch` when the batch was planned; None in older versions. `partitions`:
    the known number by topic. `created`: durable subscriptions to make on partitions that are new.
    `aside`: partitions that the batch leaves out. `policies`: what namespaces with hosted topics
    say, by name, where they say anything.
    """

    commands: int = 0
    hosted: Mapping[TopicPartition, int] = field(default_factory=dict)
    now_ms: int = 0
    due: tuple[TopicPartition, ...] = ()
    lapsed: tuple[Lease | str, ...] = ()
    snapshot: bool = False
    restored: int | None = None
    dispatched: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    created: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    aside: Mapping[TopicPartition, Aside] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json_value(self) -> dict[str, Any]:
        topics: dict[str, dict[str, int]] = {}
        for (topic, partition), number in sorted(self.hosted.items()):
            topics.setdefault(topic, {})[str(partition)] = number
        return {
            **({} if self.dispatched is None else {"dispatched": self.dispatched}),
            "aside": [
                [*about, each.commands, each.error, *each.created]
                for about, each in sorted(self.aside.items())
            ],
            "commands": self.commands,
            "created": [[*about, *names] for about, names in sorted(self.created.items())],
            "due": [list(about) for about in self.due],
            "lapsed": [_lapsed_to_json(each) for each in self.lapsed],
            "now_ms": self.now_ms,
            "partitions": dict(sorted(self.partitions.items())),
            "policies": dict(sorted(self.policies.items())),
            "restored": self.restored,
            "snapshot": self.snapshot,
            "topics": topics,
            "version": OFFSET_FORMAT.version,
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> BrokerOffset:
        """CorruptFileError, or FutureVersionError if a newer one wrote it."""
        OFFSET_FORMAT.check_version(value.get("version"))
        return BrokerOffset._of(value)

    def to_json(self) -> bytes:
        """The text of a record of `__dispatch`."""
        return OFFSET_FORMAT.encode(self.to_json_value())

    @staticmethod
    def from_json(data: bytes) -> BrokerOffset:
        """Read `to_json`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        return BrokerOffset._of(OFFSET_FORMAT.decode(data))

    @staticmethod
    def _of(value: Mapping[str, Any]) -> BrokerOffset:
        try:
            return BrokerOffset(
                value["commands"],
                {
                    TopicPartition(topic, int(partition)): number
                    for topic, partitions in value["topics"].items()
                    for partition, number in partitions.items()
                },
                value["now_ms"],
                tuple(TopicPartition(*about) for about in value["due"]),
                tuple(_lapsed_from_json(each) for each in value["lapsed"]),
                value["snapshot"],
                value["restored"],
                value.get("dispatched"),
                value.get("partitions", {}),
                {
                    TopicPartition(topic, partition): tuple(names)
                    for topic, partition, *names in value.get("created", ())
                },
                {
                    TopicPartition(topic, partition): Aside(commands, error, tuple(created))
                    for topic, partition, commands, error, *created in value.get("aside", ())
                },
                value.get("policies", {}),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise OFFSET_FORMAT.damaged("", repr(error)) from error


def _lapsed_to_json(lapsed: Lease | str) -> Any:
    if isinstance(lapsed, str):
        return lapsed
    where = [list(each) for each in lapsed.partitions]
    return [lapsed.subscription, lapsed.consumer, lapsed.incarnation, where]


def _lapsed_from_json(value: Any) -> Lease | str:
    if isinstance(value, str):
        return value
    subscription, consumer, incarnation, partitions = value
    abouts = tuple(TopicPartition(*each) for each in partitions)
    return Lease(subscription, consumer, incarnation, partitions=abouts)


def last_shards(
    dispatch: SystemTopic, stop_ledger: int
) -> tuple[BrokerOffset | None, dict[TopicPartition, dict[str, bytes]]]:
    """(the last batch's offset, each broker's shards after it), from `__dispatch`."""
    offset = None
    brokers: dict[TopicPartition, dict[str, bytes]] = {}
    kept = (OFFSET_RECORD, SHARD_PREFIX)
    for stored in dispatch.read(0, stop_ledger, keep=lambda _, name: name.startswith(kept)):
        about, name, data = stored.record.about, stored.record.subscription, stored.record.data
        if name == OFFSET_RECORD:
            offset = BrokerOffset.from_json(data)
            continue
        shards = brokers.setdefault(about, {})
        if data:
            shards[name.removeprefix(SHARD_PREFIX)] = data
        else:
            shards.pop(name.removeprefix(SHARD_PREFIX), None)
    return offset, {about: shards for about, shards in brokers.items() if shards}


def last_offset(dispatch: SystemTopic, stop_ledger: int) -> BrokerOffset | None:
    """The offset of the last batch; None if `__dispatch` does not have it."""
    for ledger in range(stop_ledger - 1, dispatch.first_ledger() - 1, -1):
        for stored in dispatch.read(ledger, ledger + 1, keep=lambda _, name: name == OFFSET_RECORD):
            return BrokerOffset.from_json(stored.record.data)
    return None


def stale_checkpoint(root: Root) -> StaleCheckpointError:
    """The error for a checkpoint that is not the newest."""
    return StaleCheckpointError(
        f"This checkpoint is not the newest of the broker of {root.service_url}: one has run from "
        "another since, or this one is of another root. Start the broker from the newest, or with "
        "a new checkpoint folder, which takes up what the last broker said."
    )
