"""Which messages share a batch, that is an entry.

Invariants: batches keep the order in which messages came; none is empty; none has more than
`max_messages` messages or `max_bytes` bytes, but for a single message that is larger alone.
Follows Pulsar's `AbstractBatchMessageContainer` and `BatchMessageKeyBasedContainer`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

DEFAULT_MAX_MESSAGES: Final = 1000
DEFAULT_MAX_BYTES: Final = 128 * 1024
DEFAULT_MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full. Bytes are those of payloads before compression.

    `max_messages` of 0 or less sets no limit; `max_bytes` of 0 or less means `max_message_size`.
    """

    max_messages: int = DEFAULT_MAX_MESSAGES
    max_bytes: int = DEFAULT_MAX_BYTES
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE

    @property
    def bytes_limit(self) -> int:
        return self.max_bytes if self.max_bytes > 0 else self.max_message_size

    def have_enough_space(self, messages: int, size_bytes: int, next_bytes: int) -> bool:
        """Whether a message of `next_bytes` may join a batch that holds so many already."""
        return size_bytes + next_bytes <= self.bytes_limit and (
            self.max_messages <= 0 or messages < self.max_messages
        )

    def is_full(self, messages: int, size_bytes: int) -> bool:
        """Whether the batch is sent at once, whatever comes next."""
        return size_bytes >= self.bytes_limit or 0 < self.max_messages <= messages

    def cut(self, payload_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many messages each batch has, shape (batches,), int64; they sum to n.

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


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """A batch of one key: the places of its messages, and the sequence id it goes under."""

    sequence_id: int
    messages: tuple[int, ...]


def batch_key(key: str | None, ordering_key: bytes | None) -> str | None:
    """What messages of one key-based batch have in common: ordering key, else key, else none."""
    if ordering_key is not None:
        return base64.b64encode(ordering_key).decode()
    return key


def key_based_batches(keys: Iterable[str | None], sequence_ids: Iterable[int]) -> list[KeyedBatch]:
    """The batches of a key-based container, in the order in which they are sent.

    That is by each batch's highest sequence id, which is also the one on the wire. `keys` are
    those of `batch_key`, one a message, in the order in which they came.
    """
    groups: dict[str | None, list[int]] = {}
    highest: dict[str | None, int] = {}
    for place, (key, sequence_id) in enumerate(zip(keys, sequence_ids, strict=True)):
        groups.setdefault(key, []).append(place)
        highest[key] = max(highest.get(key, sequence_id), sequence_id)
    order = sorted(groups, key=lambda key: highest[key])
    return [KeyedBatch(highest[key], tuple(groups[key])) for key in order]


def key_based_order(
    key_codes: NDArray[np.int64], sequence_ids: NDArray[np.int64], containers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`key_based_batches` for many containers at once: (order of messages, sizes of batches).

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
