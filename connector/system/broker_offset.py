"""An offset of the broker query: what its batch takes in, what the time is, and whose turn it is.

Invariants: an offset names its batch's input to the row, by itself and with the files, so a
repeated batch steps at the same time on the same rows; it costs what happened, however much the
broker hosts; equal offsets have equal text; time never goes back. It names what is due, whose lease
has lapsed, and what is set aside: a clock is read once for each batch. What is hosted in all is the
fold of the offsets (`hosted_topics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pulsar_spark.connector.system.lease import Lease
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
    version=4,
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
class PartitionBatch:
    """What a batch has for one topic partition that it concerns."""

    heard: tuple[int, int] | None = None
    """The last commit before it and in it; the same twice if something else is said again or anew.
    """
    created: tuple[str, ...] = ()
    """Durable subscriptions to make, as the partition is new."""
    aside: Aside | None = None
    """It is set aside, ..."""
    again: Aside | None = None
    """... or was, and is tried with all that was kept for it, ..."""
    is_kept: bool = False
    """... or stays aside, and was spoken of."""
    is_due: bool = False
    is_renewed: bool = False
    """Its state is written whole."""
    is_gone: bool = False
    """Hosted no more, as its topic is deleted, or spoken of behind that."""

    @property
    def has_news(self) -> bool:
        return self.heard is not None and self.heard[1] > self.heard[0]

    def held_back(self, commands: int, error: str) -> Aside:
        """What its broker has not taken in if it could not step, and why."""
        new = Aside(commands, error, self.created)
        return new if self.again is None else replace(self.again, error=error)

    @property
    def is_ticked(self) -> bool:
        """Whether it steps though nothing else may have happened."""
        return self.is_due or self.is_renewed or self.again is not None


@dataclass(frozen=True, slots=True)
class BrokerOffset:
    """A batch, and its end.

    `commands`: the ledgers of `__commands` from the first up to before the second. `parts`: the
    topic partitions that it concerns. `partitions`: the known number by topic, where it changed.
    `lapsed`: the leases that lapsed, with the partitions where their consumers are subscribed;
    paths in offsets of version 1. `policies`: what namespaces of hosted topics say, where it counts
    in this batch; what the `changed` ones say all of their topics hear. `growing`: topics with more
    partitions than is said. `since`: the first ledgers of `__dispatch` and `__commands` that are
    needed behind it; None if they are not all said again. `dispatched`: the next ledger of
    `__dispatch` when the batch was planned; None in older versions. `restored`: it takes the
    brokers' states from the ledgers of `__dispatch` before that one, as Spark's store has none.

    Before version 4 an offset `is_whole`: the partitions heard, those aside, their numbers and
    policies are all that there are, and the batch is its difference to the one before.
    """

    commands: tuple[int, int] = (0, 0)
    parts: Mapping[TopicPartition, PartitionBatch] = field(default_factory=dict)
    now_ms: int = 0
    lapsed: tuple[Lease | str, ...] = ()
    restored: int | None = None
    dispatched: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    since: tuple[int, int] | None = None
    is_whole: bool = False

    def kept_since(self, abouts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first ledger of `__commands` that those of them take in that are tried again."""
        parts = ((about, self.parts.get(about)) for about in abouts)
        return {about: part.again.commands for about, part in parts if part and part.again}

    def is_same_batch(self, other: BrokerOffset) -> bool:
        """Whether both are of one batch, whichever version names it."""
        return self == other or (self.is_whole != other.is_whole and self._sign == other._sign)

    @property
    def _sign(self) -> tuple[Any, ...]:
        due = {about for about, part in self.parts.items() if part.is_due}
        return self.commands[1], self.now_ms, due, self.lapsed, self.restored, self.dispatched

    def to_json_value(self) -> dict[str, Any]:
        parts = sorted(self.parts.items())
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), part in parts:
            if part.heard is not None:
                topics.setdefault(topic, {})[str(partition)] = list(part.heard)
        value = {
            "again": [_aside_to_json(about, part.again) for about, part in parts if part.again],
            "aside": [_aside_to_json(about, part.aside) for about, part in parts if part.aside],
            "changed": list(self.changed),
            "commands": list(self.commands),
            "created": [[*about, *part.created] for about, part in parts if part.created],
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
            value[name] = [list(about) for about, part in parts if getattr(part, is_so)]
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
_BEFORE_4: Final[Mapping[str, Any]] = {
    "again": (), "aside": (), "changed": (), "created": (), "dispatched": None, "gone": (),
    "growing": (), "kept": (), "partitions": {}, "policies": {}, "renewed": (), "since": None,
}  # fmt: skip
"""What older versions did not say, or not all of them."""


def _of(value: Mapping[str, Any]) -> BrokerOffset:
    try:
        return _whole(value) if "snapshot" in value else _read(value, _pair)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise OFFSET_FORMAT.damaged("", repr(error)) from error


def _whole(value: Mapping[str, Any]) -> BrokerOffset:
    """Of version 3 and before. A snapshot wrote all states anew, and no other batch any."""
    stop = value["commands"]
    said = {**_BEFORE_4, **value, "commands": (stop, stop)}
    offset = replace(_read(said, lambda number: (number, number)), is_whole=True)
    if not value["snapshot"]:
        return offset
    parts = {a: replace(part, is_renewed=bool(part.heard)) for a, part in offset.parts.items()}
    if offset.dispatched is None:
        return replace(offset, parts=parts)
    aside = (part.aside.commands for part in parts.values() if part.aside)
    return replace(offset, parts=parts, since=(offset.dispatched, min([stop, *aside])))


def _read(value: Mapping[str, Any], heard: Callable[[Any], tuple[int, int]]) -> BrokerOffset:
    return BrokerOffset(
        commands=_pair(value["commands"]),
        parts=_parts(value, heard),
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


def _parts(
    value: Mapping[str, Any], heard: Callable[[Any], tuple[int, int]]
) -> dict[TopicPartition, PartitionBatch]:
    said: dict[TopicPartition, dict[str, Any]] = {}
    for topic, partitions in value["topics"].items():
        for partition, numbers in partitions.items():
            said[TopicPartition(topic, int(partition))] = {"heard": heard(numbers)}
    for topic, partition, *names in value["created"]:
        said.setdefault(TopicPartition(topic, partition), {})["created"] = tuple(names)
    for name in ("again", "aside"):
        for topic, partition, commands, error, *created in value[name]:
            held = Aside(commands, error, tuple(created))
            said.setdefault(TopicPartition(topic, partition), {})[name] = held
    for name, is_so in _LISTED.items():
        for about in value[name]:
            said.setdefault(TopicPartition(*about), {})[is_so] = True
    return {about: PartitionBatch(**each) for about, each in said.items()}


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return first, second


def _aside_to_json(about: TopicPartition, aside: Aside) -> list[Any]:
    return [*about, aside.commands, aside.error, *aside.created]


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


def stale_checkpoint(root: Root) -> StaleCheckpointError:
    """The error for a checkpoint that is not the newest."""
    return StaleCheckpointError(
        f"This checkpoint is not the newest of the broker of {root.service_url}: one has run from "
        "another since, or this one is of another root. Start the broker from the newest, or with "
        "a new checkpoint folder, which takes up what the last broker said."
    )
