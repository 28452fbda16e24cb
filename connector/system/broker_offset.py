"""An offset of the broker query: how far it has read, what the time is, and whose turn it is.

Invariants: with the offset before it, it names a batch's input to the row, so a batch that is
repeated steps at the same time on the same rows; equal offsets have equal text; time never goes
back. What is due, whose lease has lapsed, and what is set aside, is named in it: a clock is read
once for each batch, and what one topic's broker could not take in is kept for it alone.
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
"""Before a shard's key, where a record of `__dispatch` has its subscription."""
OFFSET_RECORD = "\x00offset"
"""There too: the offset whose batch the commit was."""

_REMEDY: Final = "Delete the broker's checkpoint folder: it is rebuilt from __dispatch."
OFFSET_FORMAT: Final = StoredFormat("An offset of the broker", version=2, remedy=_REMEDY)
"""In Spark's checkpoint."""
RECORD_FORMAT: Final = StoredFormat(
    "An offset of the broker", version=2, checked_since=2, remedy=_REMEDY
)
"""In `__dispatch`."""
NO_COMMIT: Final = -1
"""The number of a topic that is not there."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A topic partition whose broker could not step: its state is as of before that.

    `commands` is the next ledger of `__commands` that it has not taken in; `created` the
    subscriptions that are to be made on it then.
    """

    commands: int
    error: str
    created: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerOffset:
    """Where the batch ends.

    `commands` is the next ledger of `__commands`; `hosted` the last commit of each topic
    partition that has a broker. `lapsed`: whose lease, and where they are subscribed; a path in
    offsets of version 1. `restored`: the batch takes the brokers' states from the ledgers
    of `__dispatch` before that one, as Spark's store has none. `dispatched` is the next ledger of
    `__dispatch` as the batch was planned; None in offsets of older versions. `partitions` are how
    many each topic is known to have; `created` the durable subscriptions that are made on those
    that came since. What is in `aside` is not in the batch.
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

    def to_json_value(self) -> dict[str, Any]:
        topics: dict[str, dict[str, int]] = {}
        for (topic, partition), number in sorted(self.hosted.items()):
            topics.setdefault(topic, {})[str(partition)] = number
        planned = {} if self.dispatched is None else {"dispatched": self.dispatched}
        return {
            **planned,
            "aside": [
                [*about, each.commands, each.error, *each.created]
                for about, each in sorted(self.aside.items())
            ],
            "commands": self.commands,
            "created": [[*about, *names] for about, names in sorted(self.created.items())],
            "due": [[topic, partition] for topic, partition in self.due],
            "lapsed": [_lapsed_to_json(each) for each in self.lapsed],
            "now_ms": self.now_ms,
            "partitions": dict(sorted(self.partitions.items())),
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
        """As a record of `__dispatch`."""
        return RECORD_FORMAT.encode(self.to_json_value())

    @staticmethod
    def from_json(data: bytes) -> BrokerOffset:
        """Read `to_json`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        return BrokerOffset._of(RECORD_FORMAT.decode(data))

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
                tuple(TopicPartition(topic, partition) for topic, partition in value["due"]),
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
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise OFFSET_FORMAT.damaged("", repr(error)) from error


def _lapsed_to_json(lapsed: Lease | str) -> Any:
    if isinstance(lapsed, str):
        return lapsed
    return [
        lapsed.subscription, lapsed.consumer, lapsed.incarnation,
        [list(each) for each in lapsed.partitions],
    ]  # fmt: skip


def _lapsed_from_json(value: Any) -> Lease | str:
    if isinstance(value, str):
        return value
    subscription, consumer, incarnation, partitions = value
    return Lease(
        subscription,
        consumer,
        incarnation,
        partitions=tuple(TopicPartition(*each) for each in partitions),
    )


def last_shards(
    dispatch: SystemTopic, stop_ledger: int
) -> tuple[BrokerOffset | None, dict[TopicPartition, dict[str, bytes]]]:
    """(the offset of the last batch, each broker's shards as of then), from `__dispatch`."""
    offset = None
    brokers: dict[TopicPartition, dict[str, bytes]] = {}

    def is_kept(_about: TopicPartition, name: str) -> bool:
        return name == OFFSET_RECORD or name.startswith(SHARD_PREFIX)

    for stored in dispatch.read(0, stop_ledger, keep=is_kept):
        about, name, data = stored.record.about, stored.record.subscription, stored.record.data
        if name == OFFSET_RECORD:
            offset = BrokerOffset.from_json(data)
            continue
        shards = brokers.setdefault(about, {})
        if data:
            shards[name.removeprefix(SHARD_PREFIX)] = data
        else:
            shards.pop(name.removeprefix(SHARD_PREFIX), None)
    return offset, brokers


def last_offset(dispatch: SystemTopic, stop_ledger: int) -> BrokerOffset | None:
    """Of the last batch; None if `__dispatch` does not tell."""
    for ledger_id in range(stop_ledger - 1, dispatch.first_ledger() - 1, -1):
        stored = next(dispatch.read(ledger_id, ledger_id + 1, keep=_is_offset), None)
        if stored is not None:
            return BrokerOffset.from_json(stored.record.data)
    return None


def _is_offset(_about: TopicPartition, name: str) -> bool:
    return name == OFFSET_RECORD


def stale_checkpoint(root: Root) -> StaleCheckpointError:
    """What to say of a checkpoint that is not the newest."""
    return StaleCheckpointError(
        f"This checkpoint is not the newest of the broker of {root.service_url}: one has run from "
        "another since, or this one is of another root. Start the broker from the newest, or with "
        "a new checkpoint folder, which takes up what the last broker said."
    )
