"""The batches of messages: each becomes an entry.

Invariants: batches keep the order in which messages came; none is empty; none has more than
`max_messages` messages or `max_bytes` bytes, but for a single message that is larger alone.
Follows Pulsar's `AbstractBatchMessageContainer` and `BatchMessageKeyBasedContainer`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full. Bytes are those of payloads before compression.

    `max_messages` of 0 or less sets no limit; `max_bytes` of 0 or less means `max_message_size`.
    """

    max_messages: int = 1000
    max_bytes: int = 128 * 1024
    max_message_size: int = 5 * 1024 * 1024

    @property
    def bytes_limit(self) -> int:
        return self.max_bytes if self.max_bytes > 0 else self.max_message_size

    def is_full(self, messages: int, size_bytes: int) -> bool:
        """True if the batch is sent at once, whatever comes next."""
        return size_bytes >= self.bytes_limit or 0 < self.max_messages <= messages

    def cut(self, payload_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of messages of each batch, shape (batches,), int64; they sum to n.

        `payload_sizes` has shape (n,) and no negative number. The last batch may be one that
        waits for more: see `is_full`. Takes time by the number of batches, not of messages.
        """
        count = len(payload_sizes)
        most = self.max_messages if self.max_messages > 0 else count
        before = np.concatenate(([0], np.cumsum(payload_sizes, dtype=np.int64)))
        batches: list[int] = []
        start = 0
        while start < count:
            # As much as fits; `left` ends a batch at the message that fills it to the byte,
            # though messages without bytes follow.
            goal = int(before[start]) + self.bytes_limit
            stop = min(start + most, count)
            end = start + 1 + int(before[start + 1 : stop + 1].searchsorted(goal, "left"))
            if end > stop:
                end = stop
            elif before[end] > goal and end > start + 1:
                end -= 1
            batches.append(end - start)
            start = end
        return np.array(batches, np.int64)


def key_based_order(
    key_codes: NDArray[np.int64], sequence_ids: NDArray[np.int64], containers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Batches of one key each, by their highest sequence id: (order of messages, their sizes).

    `key_codes` and `sequence_ids` have shape (n,), equal codes mean equal keys; `containers` says
    how many messages each container holds, as `BatchLimits.cut` does. The order has shape (n,).
    """
    count = len(key_codes)
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    container = np.repeat(np.arange(len(containers)), containers)
    first, group = np.unique(
        container * (int(key_codes.max()) + 1) + key_codes, return_index=True, return_inverse=True
    )[1:]
    highest = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(highest, group, sequence_ids)
    order = np.lexsort((np.arange(count), first[group], highest[group], container))
    ends = np.flatnonzero(np.diff(group[order])) + 1
    return order, np.diff(np.concatenate(([0], ends, [count])))
