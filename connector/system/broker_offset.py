"""An offset of the broker query: what its batch takes in, what the time is, and whose turn it is.

Invariants: an offset names its batch's input to the row, by itself and with the files, so a
repeated batch steps at the same time on the same rows; it costs what happened, however much the
broker hosts; equal offsets have equal text; time never goes back. It names what is due, whose lease
has lapsed, and what is set aside: a clock is read once for each batch. What is hosted in all is the
fold of the offsets (`hosted_topics`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
class BrokerOffset:
    """A batch, and its end.

    `commands`: the ledgers of `__commands` from the first up to before the second. `hosted`: the
    topic partitions that it concerns, each with the last commit before it and in it; the same
    twice if something else is said again or anew. `gone`: those hosted no more, as their topics
    are deleted, or spoken of behind that. `partitions`: the known number by topic, where it
    changed. `created`: durable subscriptions to make on partitions that are new. `lapsed`: the
    leases that lapsed, with the partitions where their consumers are subscribed; paths in offsets
    of version 1. `aside`: partitions that it sets aside; `again` those that were, and are tried
    with all that was kept for them; `kept` those that stay aside, and were spoken of. `policies`:
    what namespaces of hosted topics say, where it counts in this batch; what the `changed` ones say
    all of their topics hear. `growing`: topics with more partitions than is said. `renewed`:
    partitions whose states are written whole. `since`: the first ledgers of `__dispatch` and
    `__commands` that are needed behind it; None if they are not all said again. `dispatched`: the
    next ledger of `__dispatch` when the batch was planned; None in older versions. `restored`: it
    takes the brokers' states from the ledgers of `__dispatch` before that one, as Spark's store has
    none.

    Before version 4 an offset `is_whole`: hosted, partitions, aside and policies are all that there
    are, and the batch is its difference to the one before.
    """

    commands: tuple[int, int] = (0, 0)
    hosted: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    now_ms: int = 0
    due: tuple[TopicPartition, ...] = ()
    lapsed: tuple[Lease | str, ...] = ()
    restored: int | None = None
    dispatched: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    created: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    aside: Mapping[TopicPartition, Aside] = field(default_factory=dict)
    again: Mapping[TopicPartition, Aside] = field(default_factory=dict)
    kept: tuple[TopicPartition, ...] = ()
    gone: tuple[TopicPartition, ...] = ()
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    renewed: tuple[TopicPartition, ...] = ()
    since: tuple[int, int] | None = None
    is_whole: bool = False

    def is_same_batch(self, other: BrokerOffset) -> bool:
        """Whether both are of one batch, whichever version names it."""
        return self == other or (self.is_whole != other.is_whole and self._sign == other._sign)

    @property
    def _sign(self) -> tuple[Any, ...]:
        return self.commands[1], self.now_ms, self.due, self.lapsed, self.restored, self.dispatched

    def to_json_value(self) -> dict[str, Any]:
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), numbers in sorted(self.hosted.items()):
            topics.setdefault(topic, {})[str(partition)] = list(numbers)
        return {
            "again": _asides_to_json(self.again),
            "aside": _asides_to_json(self.aside),
            "changed": list(self.changed),
            "commands": list(self.commands),
            "created": [[*about, *names] for about, names in sorted(self.created.items())],
            "dispatched": self.dispatched,
            "due": [list(about) for about in self.due],
            "gone": [list(about) for about in self.gone],
            "growing": list(self.growing),
            "kept": [list(about) for about in self.kept],
            "lapsed": [_lapsed_to_json(each) for each in self.lapsed],
            "now_ms": self.now_ms,
            "partitions": dict(sorted(self.partitions.items())),
            "policies": dict(sorted(self.policies.items())),
            "renewed": [list(about) for about in self.renewed],
            "restored": self.restored,
            "since": None if self.since is None else list(self.since),
            "topics": topics,
            "version": OFFSET_FORMAT.version,
        }

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


def _of(value: Mapping[str, Any]) -> BrokerOffset:
    try:
        return _whole(value) if "snapshot" in value else _difference(value)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise OFFSET_FORMAT.damaged("", repr(error)) from error


def _difference(value: Mapping[str, Any]) -> BrokerOffset:
    return BrokerOffset(
        **_as_ever(value),
        commands=_pair(value["commands"]),
        hosted=_by_partition(value["topics"], _pair),
        again=_asides(value["again"]),
        kept=_abouts(value["kept"]),
        gone=_abouts(value["gone"]),
        changed=tuple(value["changed"]),
        growing=tuple(value["growing"]),
        renewed=_abouts(value["renewed"]),
        since=None if value["since"] is None else _pair(value["since"]),
    )


def _whole(value: Mapping[str, Any]) -> BrokerOffset:
    """Of version 3 and before. A snapshot wrote all states anew, and no other batch any."""
    same = _as_ever(value)
    stop, dispatched = value["commands"], same["dispatched"]
    hosted = _by_partition(value["topics"], lambda number: (number, number))
    since = None
    if value["snapshot"] and dispatched is not None:
        since = dispatched, min([stop, *(each.commands for each in same["aside"].values())])
    renewed = tuple(hosted) if value["snapshot"] else ()
    return BrokerOffset(
        **same, commands=(stop, stop), hosted=hosted, since=since, renewed=renewed, is_whole=True
    )


def _as_ever(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all versions have alike, if they have them."""
    return {
        "now_ms": value["now_ms"],
        "due": _abouts(value["due"]),
        "lapsed": tuple(_lapsed_from_json(each) for each in value["lapsed"]),
        "restored": value["restored"],
        "dispatched": value.get("dispatched"),
        "partitions": value.get("partitions", {}),
        "created": {
            TopicPartition(topic, partition): tuple(names)
            for topic, partition, *names in value.get("created", ())
        },
        "aside": _asides(value.get("aside", ())),
        "policies": value.get("policies", {}),
    }


def _by_partition(
    topics: Mapping[str, Mapping[str, Any]], read: Callable[[Any], tuple[int, int]]
) -> dict[TopicPartition, tuple[int, int]]:
    return {
        TopicPartition(topic, int(partition)): read(said)
        for topic, partitions in topics.items()
        for partition, said in partitions.items()
    }


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return first, second


def _abouts(value: Any) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(*about) for about in value)


def _asides_to_json(asides: Mapping[TopicPartition, Aside]) -> list[list[Any]]:
    return [
        [*about, each.commands, each.error, *each.created] for about, each in sorted(asides.items())
    ]


def _asides(value: Any) -> dict[TopicPartition, Aside]:
    return {
        TopicPartition(topic, partition): Aside(commands, error, tuple(created))
        for topic, partition, commands, error, *created in value
    }


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
