"""An offset of the broker query: how far it has read, what the time is, and whose turn it is.

Invariants: with the offset before it, it names a batch's input to the row, so a batch that is
repeated steps at the same time on the same rows; equal offsets have equal text; time never goes
back. What is due, and whose lease has lapsed, is named in it: a clock is read once for each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_spark.stored_record import StoredFormat
from pulsar_spark.stream_offset import TopicPartition

_REMEDY: Final = "Delete the broker's checkpoint folder: it is rebuilt from __dispatch."
OFFSET_FORMAT: Final = StoredFormat("An offset of the broker", version=1, remedy=_REMEDY)
"""In Spark's checkpoint."""
RECORD_FORMAT: Final = StoredFormat(
    "An offset of the broker", version=2, checked_since=2, remedy=_REMEDY
)
"""In `__dispatch`."""
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
                tuple(value["lapsed"]),
                value["snapshot"],
                value["restored"],
                value.get("dispatched"),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise OFFSET_FORMAT.damaged("", repr(error)) from error
