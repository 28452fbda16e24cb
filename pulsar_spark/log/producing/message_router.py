"""The choice of a message's partition.

Invariants: a keyed message goes to `hash(key) mod partitions` whatever the router, so a key stays
in one partition as long as their number stays; nothing here reads a clock or draws a number.
Follows Pulsar's `RoundRobinPartitionMessageRouterImpl`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.log.producing.batch_message_container import BatchLimits


@dataclass(frozen=True, slots=True)
class RoundRobinPartitionMessageRouter:
    """Spreads messages without a key over all partitions, from `start_index` on.

    With batching the clock decides, so that what is published together makes one batch; without,
    each message goes one partition further.
    """

    start_index: int
    batching: bool = True
    partition_switch_ms: int = 10
    """Milliseconds for which it stays with batching: the publish delay of 1 ms, times 10."""

    def choose_partitions(
        self, partitions: int, count: int, *, clock_ms: int = 0, message_number: int = 0
    ) -> NDArray[np.int32]:
        """The partitions of `count` unkeyed messages in a row; shape (count,), int32.

        `clock_ms` is the time at which they are published; `message_number` counts the unkeyed
        messages before them, and runs over as Java's counter does.
        """
        if self.batching:
            turn = clock_ms // max(1, self.partition_switch_ms) + self.start_index
            return np.full(count, turn % partitions, np.int32)
        counter = np.arange(count, dtype=np.int64) + (self.start_index + message_number)
        return (counter.astype(np.int32) % np.int32(partitions)).astype(np.int32)


@dataclass(slots=True)
class RoundRobinByBatch:
    """Round robin for one who has many messages at once: one partition for each batch.

    Pulsar stays on a partition for 10 ms, so that a batch fills up; this stays until it is full.
    """

    start_index: int
    limits: BatchLimits = field(default_factory=BatchLimits)
    _messages: int = 0
    _size_bytes: int = 0

    def choose_partitions(
        self, partitions: int, payload_sizes: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """The partition of each of these unkeyed messages, behind those before; shape (n,)."""
        joining = self._joining(payload_sizes)
        batches = self.limits.cut(payload_sizes[joining:])
        turns = np.repeat(np.arange(1, len(batches) + 1), batches)
        turns = np.concatenate((np.zeros(joining, np.int64), turns)) + self.start_index
        if len(batches):
            last = payload_sizes[len(payload_sizes) - int(batches[-1]) :]
            self.start_index += len(batches)
            self._messages, self._size_bytes = len(last), int(last.sum())
        else:
            self._messages += joining
            self._size_bytes += int(payload_sizes.sum())
        return (turns % partitions).astype(np.int32)

    def _joining(self, payload_sizes: NDArray[np.int64]) -> int:
        """The number of these that still go into the open batch."""
        if not self._messages or self.limits.is_full(self._messages, self._size_bytes):
            return 0
        room = self.limits.bytes_limit - self._size_bytes
        fitting = int(np.cumsum(payload_sizes).searchsorted(room, "right"))
        if self.limits.max_messages > 0:
            fitting = min(fitting, self.limits.max_messages - self._messages)
        return fitting


def partitions_of_keys(key_hashes: NDArray[np.int64], partitions: int) -> NDArray[np.int32]:
    """The partition of each keyed message, from the hashes of their keys; shape as given."""
    return (key_hashes % partitions).astype(np.int32)
