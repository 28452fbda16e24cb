"""An offset of the broker query: what its batch takes in, what the time is, and whose turn it is.

Invariants: an offset names its batch's input to the row, by itself and with the files, so a
repeated batch steps at the same time on the same rows; it costs what happened, however much the
broker hosts; equal offsets have equal text; time never goes back. It names what is due, whose lease
has lapsed, and what is set aside: a clock is read once for each batch. What is hosted in all is the
fold of the offsets (`hosted_topics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import StaleCheckpointError
from pulsar_spark.model.records.stored_record import StoredFormat
from pulsar_spark.model.topic_name import TopicPartition

SHARD_PREFIX = "\x00shard/"
"""Begins the `subscription` of a record of `__dispatch` that has a shard; its key follows."""
OFFSET_RECORD = "\x00offset"
"""The `subscription` of the record that has the offset of the commit's batch."""

OFFSET_FORMAT: Final = StoredFormat(
    "An offset of the broker",
    checked=True,
    remedy="Delete the broker's checkpoint folder: it is rebuilt from __dispatch.",
)
"""The format in `__dispatch`; in Spark's checkpoint it has no checksum."""
NO_COMMIT: Final = -1
"""The commit number of a topic that does not exist."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A topic partition whose broker could not step: its state is that of the step before.

    `commands` is the next ledger of `__commands` that it has not taken in; `created` the
    subscriptions that its next step makes.
    """

    commands: int
    error: str
    created: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """The part of a batch for one topic partition."""

    observed: tuple[int, int] | None = None
    """The last commit before it and in it; the same twice if something else is said again or anew.
    """
    created: tuple[str, ...] = ()
    """Durable subscriptions to make, as the partition is new."""
    quarantined: Quarantined | None = None
    """The quarantine of the partition, if it is quarantined."""
    again: Quarantined | None = None
    """The former quarantine of a partition that is tried again with its kept input."""
    is_kept: bool = False
    """True if the partition stays quarantined and has new input."""
    is_due: bool = False
    is_renewed: bool = False
    """Its state is written whole."""
    is_gone: bool = False
    """Hosted no more, as its topic is deleted, or spoken of behind that."""

    @property
    def has_activity(self) -> bool:
        return self.observed is not None and self.observed[1] > self.observed[0]

    def held_back(self, commands: int, error: str) -> Quarantined:
        """The input that a broker which could not step has not taken in, and the error."""
        new = Quarantined(commands, error, self.created)
        return new if self.again is None else replace(self.again, error=error)

    @property
    def is_ticked(self) -> bool:
        """True if it steps though nothing else may have happened."""
        return self.is_due or self.is_renewed or self.again is not None


@dataclass(frozen=True, slots=True)
class BrokerOffset:
    """A batch, and its end.

    `commands`: the ledgers of `__commands` from the first up to before the second. `parts`: the
    topic partitions that it concerns. `partitions`: the known number by topic, where it changed.
    `lapsed`: the leases that lapsed, with the partitions where their consumers are subscribed.
    `policies`: those of namespaces of hosted topics, where they
    count in this batch; the topics of the `changed` ones receive them. `growing`: topics with more
    partitions than are known. `since`: the first ledgers of `__dispatch` and `__commands` that are
    needed behind it; None if they are not all written again. `dispatched`: the next ledger of
    `__dispatch` when the batch was planned; None before the first. `restored`: it takes the
    brokers' states from the ledgers of `__dispatch` before that one, as Spark's store has none.
    """

    commands: tuple[int, int] = (0, 0)
    parts: Mapping[TopicPartition, PartitionBatch] = field(default_factory=dict)
    now_ms: int = 0
    lapsed: tuple[Lease, ...] = ()
    restored: int | None = None
    dispatched: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    since: tuple[int, int] | None = None

    def kept_since(self, abouts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first ledger of `__commands` that those of them take in that are tried again."""
        parts = ((topic_partition, self.parts.get(topic_partition)) for topic_partition in abouts)
        return {
            topic_partition: part.again.commands
            for topic_partition, part in parts
            if part and part.again
        }

    def to_json_value(self) -> dict[str, Any]:
        parts = sorted(self.parts.items())
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), part in parts:
            if part.observed is not None:
                topics.setdefault(topic, {})[str(partition)] = list(part.observed)
        value = {
            "again": [
                _quarantined_to_json(topic_partition, part.again)
                for topic_partition, part in parts
                if part.again
            ],
            "quarantined": [
                _quarantined_to_json(topic_partition, part.quarantined)
                for topic_partition, part in parts
                if part.quarantined
            ],
            "changed": list(self.changed),
            "commands": list(self.commands),
            "created": [
                [*topic_partition, *part.created] for topic_partition, part in parts if part.created
            ],
            "dispatched": self.dispatched,
            "growing": list(self.growing),
            "lapsed": [_lapsed_to_json(each) for each in self.lapsed],
            "now_ms": self.now_ms,
            "partitions": dict(sorted(self.partitions.items())),
            "policies": dict(sorted(self.policies.items())),
            "restored": self.restored,
            "since": None if self.since is None else list(self.since),
            "topics": topics,
            "version": OFFSET_FORMAT.version,
        }
        for name, is_so in _LISTED.items():
            value[name] = [
                list(topic_partition) for topic_partition, part in parts if getattr(part, is_so)
            ]
        return dict(sorted(value.items()))

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> BrokerOffset:
        """CorruptFileError, or FutureVersionError if a newer one wrote it."""
        OFFSET_FORMAT.check_version(value.get("version"))
        return _of(value)

    def to_json(self) -> bytes:
        """The text of a record of `__dispatch`."""
        return OFFSET_FORMAT.encode(self.to_json_value())

    @staticmethod
    def from_json(data: bytes) -> BrokerOffset:
        """Read `to_json`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        return _of(OFFSET_FORMAT.decode(data))


_LISTED: Final = {
    "due": "is_due", "gone": "is_gone", "kept": "is_kept", "renewed": "is_renewed",
}  # fmt: skip
"""A list of topic partitions in JSON -> what is true of them."""


def _of(value: Mapping[str, Any]) -> BrokerOffset:
    try:
        return _read(value)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise OFFSET_FORMAT.damaged("", repr(error)) from error


def _read(value: Mapping[str, Any]) -> BrokerOffset:
    return BrokerOffset(
        commands=_pair(value["commands"]),
        parts=_parts(value),
        now_ms=value["now_ms"],
        lapsed=tuple(_lapsed_from_json(each) for each in value["lapsed"]),
        restored=value["restored"],
        dispatched=value["dispatched"],
        partitions=value["partitions"],
        policies=value["policies"],
        changed=tuple(value["changed"]),
        growing=tuple(value["growing"]),
        since=None if value["since"] is None else _pair(value["since"]),
    )


def _parts(value: Mapping[str, Any]) -> dict[TopicPartition, PartitionBatch]:
    parts: dict[TopicPartition, dict[str, Any]] = {}
    for topic, partitions in value["topics"].items():
        for partition, numbers in partitions.items():
            parts[TopicPartition(topic, int(partition))] = {"observed": _pair(numbers)}
    for topic, partition, *names in value["created"]:
        parts.setdefault(TopicPartition(topic, partition), {})["created"] = tuple(names)
    for name in ("again", "quarantined"):
        for topic, partition, commands, error, *created in value[name]:
            held = Quarantined(commands, error, tuple(created))
            parts.setdefault(TopicPartition(topic, partition), {})[name] = held
    for name, is_so in _LISTED.items():
        for topic_partition in value[name]:
            parts.setdefault(TopicPartition(*topic_partition), {})[is_so] = True
    return {topic_partition: PartitionBatch(**each) for topic_partition, each in parts.items()}


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return first, second


def _quarantined_to_json(topic_partition: TopicPartition, quarantined: Quarantined) -> list[Any]:
    return [*topic_partition, quarantined.commands, quarantined.error, *quarantined.created]


def _lapsed_to_json(lapsed: Lease) -> Any:
    where = [list(each) for each in lapsed.partitions]
    return [lapsed.subscription, lapsed.consumer, lapsed.incarnation, where]


def _lapsed_from_json(value: Any) -> Lease:
    subscription, consumer, incarnation, partitions = value
    abouts = tuple(TopicPartition(*each) for each in partitions)
    return Lease(subscription, consumer, incarnation, partitions=abouts)


def stale_checkpoint(root: Root) -> StaleCheckpointError:
    """The error for a checkpoint that is not the newest."""
    return StaleCheckpointError(
        f"This checkpoint is not the newest of the broker of {root.service_url}: one has run from "
        "another since, or this one is of another root. Start the broker from the newest, or with "
        "a new checkpoint folder, which takes up what the last broker said."
    )
