"""An offset of the broker query: how far it has read, what the time is, and whose turn it is.

Invariants: with the offset before it, it names a batch's input to the row, so a batch that is
repeated steps at the same time on the same rows; equal offsets have equal text; time never goes
back. What is due, and whose lease has lapsed, is named in it: a clock is read once for each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.stored_data import parse_json
from pulsar_spark.stream_offset import TopicPartition

VERSION: Final = 1
NO_COMMIT: Final = -1
"""The number of a topic that is not there."""


@dataclass(frozen=True, slots=True)
class BrokerOffset:
    """Where the batch ends.

    `commands` is the next ledger of `__commands`; `hosted` the last commit of each topic
    partition that has a broker. `restored`: the batch takes the brokers' states from the ledgers
    of `__dispatch` before that one, as Spark's store has none. `dispatched` is the next ledger of
    `__dispatch` as the batch was planned; None in offsets of older versions.
    """

    commands: int = 0
    hosted: Mapping[TopicPartition, int] = field(default_factory=dict)
    now_ms: int = 0
    due: tuple[TopicPartition, ...] = ()
    lapsed: tuple[str, ...] = ()
    snapshot: bool = False
    restored: int | None = None
    dispatched: int | None = None

    def to_json_value(self) -> dict[str, Any]:
        topics: dict[str, dict[str, int]] = {}
        for (topic, partition), number in sorted(self.hosted.items()):
            topics.setdefault(topic, {})[str(partition)] = number
        planned = {} if self.dispatched is None else {"dispatched": self.dispatched}
        return {
            **planned,
            "commands": self.commands,
            "due": [[topic, partition] for topic, partition in self.due],
            "lapsed": list(self.lapsed),
            "now_ms": self.now_ms,
            "restored": self.restored,
            "snapshot": self.snapshot,
            "topics": topics,
            "version": VERSION,
        }

    @staticmethod
    def from_json(data: bytes | str) -> BrokerOffset:
        """Read the JSON of `to_json_value`, with the same errors."""
        try:
            value = parse_json(data)
        except ValueError as error:
            raise _damaged(error) from error
        if not isinstance(value, dict):
            raise _damaged(f"it is a {type(value).__name__}")
        return BrokerOffset.from_json_value(value)

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> BrokerOffset:
        """CorruptFileError, or FutureVersionError if a newer one wrote it."""
        if value.get("version", 0) > VERSION:
            raise FutureVersionError(
                f"An offset of the broker has version {value['version']}, and this Pulsarlite "
                f"reads up to {VERSION}: update it to the one that wrote the checkpoint."
            )
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
                tuple(value["lapsed"]),
                value["snapshot"],
                value["restored"],
                value.get("dispatched"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(repr(error)) from error


def _damaged(why: object) -> CorruptFileError:
    return CorruptFileError(
        f"An offset of the broker is damaged: {why}. Delete the broker's checkpoint folder: it is "
        "rebuilt from __dispatch."
    )
