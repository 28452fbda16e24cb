"""Whether a message was stored before, by its producer's sequence ids.

Invariants: immutable; for each producer, what is persisted is never above what was pushed; a
message once accepted is not accepted again, unless storing it failed in between. Follows Pulsar's
`MessageDeduplication` for what a publisher asks one message (or one batch, or one chunk) at a time;
`fresh` is the form for each message of many, where Pulsar drops whole batches. `publication` does
the same for the files of a sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PRODUCER_INACTIVITY_TIMEOUT_MS: Final = 360 * 60_000
"""Pulsar's `brokerDeduplicationProducerInactivityTimeoutMinutes`."""


class MessageDupStatus(str, Enum):
    """What becomes of a message."""

    NOT_DUP = "NotDup"
    """Store it."""
    DUP = "Dup"
    """It is stored: confirm it, with the id -1:-1, and drop it."""
    UNKNOWN = "Unknown"
    """It is being stored: refuse it for now, and the producer sends it again."""


@dataclass(frozen=True, slots=True)
class MessageDeduplication:
    """The highest sequence ids of each producer of one topic partition."""

    highest_sequenced_pushed: Mapping[str, int] = field(default_factory=dict)
    highest_sequenced_persisted: Mapping[str, int] = field(default_factory=dict)
    inactive_producers: Mapping[str, int] = field(default_factory=dict)
    """Producers that left, and when."""

    def is_duplicate(
        self,
        producer: str,
        sequence_id: int,
        highest_sequence_id: int = 0,
        *,
        chunk_id: int = -1,
        num_chunks: int = -1,
    ) -> tuple[MessageDeduplication, MessageDupStatus]:
        """Take a message in, or refuse it. A batch has its lowest and its highest id (0: none).

        Of a chunked message only the last chunk is looked at.
        """
        if not is_last_chunk(chunk_id, num_chunks):
            return self, MessageDupStatus.NOT_DUP
        pushed = self.highest_sequenced_pushed.get(producer)
        if pushed is not None and sequence_id <= pushed:
            persisted = self.highest_sequenced_persisted.get(producer)
            if persisted is not None and sequence_id <= persisted:
                return self, MessageDupStatus.DUP
            return self, MessageDupStatus.UNKNOWN
        return self._pushed(producer, max(highest_sequence_id, sequence_id)), (
            MessageDupStatus.NOT_DUP
        )

    def fresh(
        self, producer: str, sequence_ids: NDArray[np.int64]
    ) -> tuple[MessageDeduplication, NDArray[np.bool_]]:
        """Take in those messages of many that were neither pushed before nor came up before.

        Shape (n,), in any order; the mask says which were taken in.
        """
        taken = np.zeros(len(sequence_ids), np.bool_)
        taken[np.unique(sequence_ids, return_index=True)[1]] = True
        pushed = self.highest_sequenced_pushed.get(producer)
        if pushed is not None:
            taken &= sequence_ids > pushed
        if not taken.any():
            return self, taken
        return self._pushed(producer, int(sequence_ids[taken].max())), taken

    def record_persisted(
        self,
        producer: str,
        sequence_id: int,
        highest_sequence_id: int = 0,
        *,
        chunk_id: int = -1,
        num_chunks: int = -1,
    ) -> MessageDeduplication:
        """A message that was taken in is stored."""
        if not is_last_chunk(chunk_id, num_chunks):
            return self
        stored = {producer: max(highest_sequence_id, sequence_id)}
        persisted = {**self.highest_sequenced_persisted, **stored}
        return replace(self, highest_sequenced_persisted=persisted)

    def reset_pushed(self) -> MessageDeduplication:
        """After storing failed: forget what was taken in and is not stored."""
        return replace(self, highest_sequenced_pushed=self.highest_sequenced_persisted)

    def last_sequence_id(self, producer: str) -> int:
        """The id that a producer learns as its last when it comes back; -1 if it is not known."""
        return self.highest_sequenced_pushed.get(producer, -1)

    def producer_added(self, producer: str) -> MessageDeduplication:
        """It is connected, so its ids are kept."""
        left = {k: v for k, v in self.inactive_producers.items() if k != producer}
        return replace(self, inactive_producers=left)

    def producer_removed(self, producer: str, now_ms: int) -> MessageDeduplication:
        return replace(self, inactive_producers={**self.inactive_producers, producer: now_ms})

    def purge_inactive(
        self, now_ms: int, timeout_ms: int = PRODUCER_INACTIVITY_TIMEOUT_MS
    ) -> MessageDeduplication:
        """Forget the producers that left longer ago than that."""
        gone = {k for k, left in self.inactive_producers.items() if left < now_ms - timeout_ms}
        maps = (
            self.highest_sequenced_pushed,
            self.highest_sequenced_persisted,
            self.inactive_producers,
        )
        if not gone:
            return self
        return MessageDeduplication(
            *({k: v for k, v in each.items() if k not in gone} for each in maps)
        )

    def to_json_value(self) -> dict[str, Any]:
        """What was pushed and not stored is left out: it comes again, or it never was."""
        return {
            "persisted": dict(sorted(self.highest_sequenced_persisted.items())),
            "inactive": dict(sorted(self.inactive_producers.items())),
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> MessageDeduplication:
        persisted = value["persisted"]
        return MessageDeduplication(persisted, persisted, value["inactive"])

    def _pushed(self, producer: str, sequence_id: int) -> MessageDeduplication:
        pushed = {**self.highest_sequenced_pushed, producer: sequence_id}
        return replace(self, highest_sequenced_pushed=pushed)


def is_last_chunk(chunk_id: int, num_chunks: int) -> bool:
    """Whether it is the last chunk of a message, or no chunk (id -1)."""
    return chunk_id in (-1, num_chunks - 1)
