"""Chunks of a partition: which make a message, and which entries are no message of their own.

A chunked message stands at the position of its last chunk; the chunks before it are no messages,
and are read by reference along with it. Invariants: the entries before it alone decide what an
entry is, so that every reader, at any time, sees the same messages; chunks of several messages may
lie between each other; a message is complete only if all its chunks came in order.

Follows Pulsar's `ConsumerImpl.processMessageChunk`, with the publish times of the chunks where
Pulsar takes the time at which they reach a consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from pyroaring import BitMap

from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet

DEFAULT_MAX_PENDING: Final = 10
DEFAULT_EXPIRE_MS: Final = 60_000
CHUNKS_KEPT_MS: Final = 3_600_000
"""Milliseconds for which the chunks of an incomplete message stay, though all have been read."""


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Consecutive chunks of one message, in consecutive entries of a ledger.

    `entry_id` and `chunk_id` are those of the first of `count` chunks; the message has
    `num_chunks` of them, and `total_bytes` of payload.
    """

    entry_id: int
    uuid: str
    chunk_id: int
    count: int
    num_chunks: int
    total_bytes: int

    def to_json(self) -> list[Any]:
        return [*astuple(self)]

    @staticmethod
    def from_json(value: Sequence[Any]) -> ChunkRun:
        """Read `to_json`. TypeError or ValueError if it is no run."""
        entry_id, uuid, chunk_id, count, num_chunks, total_bytes = value
        numbers = (entry_id, chunk_id, count, num_chunks, total_bytes)
        if not isinstance(uuid, str) or any(type(number) is not int for number in numbers):
            raise TypeError(f"{value!r} is no run of chunks")
        if min(numbers) < 0 or count < 1 or chunk_id + count > num_chunks:
            raise ValueError(f"{value!r} is no run of chunks")
        return ChunkRun(*value)


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Some chunks of a message, in order: `count` entries of a ledger from `entry_id` on."""

    ledger_id: int
    entry_id: int
    count: int


@dataclass(frozen=True, slots=True)
class ChunkedMessage:
    """A message of which all chunks exist."""

    uuid: str
    parts: tuple[ChunkPart, ...]
    total_bytes: int

    @property
    def position(self) -> Position:
        """The position of the last chunk, at which the message stands."""
        last = self.parts[-1]
        return Position(last.ledger_id, last.entry_id + last.count - 1)

    @property
    def first_chunk(self) -> Position:
        """The position of the first chunk: with `position`, Pulsar's `ChunkMessageIdImpl`."""
        return Position(self.parts[0].ledger_id, self.parts[0].entry_id)


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Pulsar's `maxPendingChunkedMessage` and its kin, for incomplete messages.

    With `auto_ack_oldest`, of more than `max_pending` incomplete messages the oldest is given up
    for good; otherwise it stays, as it would come again. A message is given up if its next chunk
    was published more than `expire_ms` after its first; 0 means never.
    """

    max_pending: int = DEFAULT_MAX_PENDING
    auto_ack_oldest: bool = False
    expire_ms: int = DEFAULT_EXPIRE_MS


@dataclass(slots=True)
class _Pending:
    """An incomplete message: its chunks so far, and the publish time of the first."""

    run: ChunkRun
    since_ms: int
    parts: tuple[ChunkPart, ...]
    next_chunk: int


@dataclass(slots=True)
class ChunkedMessages:
    """The chunked messages of one partition, from its chunks in the order of their positions."""

    limits: ChunkLimits = field(default_factory=ChunkLimits)
    last_ledger_id: int = -1
    given_up: int = 0
    """The number of messages that can't be complete any more."""
    _messages: dict[Position, ChunkedMessage] = field(default_factory=dict)
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _chunks: dict[int, BitMap] = field(default_factory=dict)
    _uncounted: dict[int, BitMap] = field(default_factory=dict)

    @staticmethod
    def of(
        chunks: Mapping[int, Sequence[ChunkRun]], ledgers: LedgerList | None = None
    ) -> ChunkedMessages:
        """The chunked messages of these chunks, without limits; times are the `ledgers`'."""
        known = ChunkedMessages(ChunkLimits(expire_ms=0))
        for ledger_id, runs in sorted(chunks.items()):
            info = None if ledgers is None else ledgers.get(ledger_id)
            known.add(ledger_id, runs, 0 if info is None else info.min_publish_time_ms)
        return known

    def add(self, ledger_id: int, runs: Sequence[ChunkRun], published_ms: int) -> None:
        """Go on to a ledger with chunks; ledgers come by ascending id, runs by entry id."""
        if ledger_id <= self.last_ledger_id:
            raise ValueError(f"ledger {ledger_id} comes after ledger {self.last_ledger_id}")
        self.last_ledger_id = ledger_id
        chunks, uncounted = BitMap(), BitMap()
        for run in runs:
            entries = range(run.entry_id, run.entry_id + run.count)
            chunks.update(entries)
            message = self._advance(ledger_id, run, published_ms)
            if message is None:
                uncounted.update(entries)
            else:
                self._messages[message.position] = message
                uncounted.update(entries[:-1])
        self._chunks[ledger_id], self._uncounted[ledger_id] = chunks, uncounted

    @property
    def chunks(self) -> PositionSet:
        """Every entry that is a chunk."""
        return PositionSet(self._chunks)

    @property
    def uncounted(self) -> PositionSet:
        """Every chunk that ends no message: an entry that no reader hands on."""
        return PositionSet(self._uncounted)

    def first_pending(self, since_ms: int) -> Position | None:
        """The first position of an incomplete message that was begun at that time or later."""
        begun = (_begin(held) for held in self._pending.values() if held.since_ms >= since_ms)
        return min(begun, default=None)

    def messages_in(self, positions: PositionSet) -> Iterator[ChunkedMessage]:
        """The messages that stand at these positions, in order."""
        for ledger_id in positions.ledger_ids:
            ends = self._chunks.get(ledger_id, BitMap()) - self._uncounted.get(ledger_id, BitMap())
            for entry_id in ends & positions.whole_entries(ledger_id):
                yield self._messages[Position(ledger_id, entry_id)]

    def chunks_of(self, positions: PositionSet) -> PositionSet:
        """Every chunk of the messages that stand at these positions."""
        return _entries_of(part for each in self.messages_in(positions) for part in each.parts)

    def abandoned(self, begun_before_ms: int) -> PositionSet:
        """Every chunk of messages that were given up, or begun before then and are incomplete."""
        used = [each.parts for each in self._pending.values() if each.since_ms >= begun_before_ms]
        used += [message.parts for message in self._messages.values()]
        return self.chunks.difference(_entries_of(part for parts in used for part in parts))

    def needed(self, gone: Collection[int], begun_since_ms: int = 0) -> frozenset[int]:
        """The ledgers among `gone` that have chunks of a message which stays.

        An incomplete message stays if it was begun at `begun_since_ms` or later.
        """
        trimmed = frozenset(gone)
        pending = (each for each in self._pending.values() if each.since_ms >= begun_since_ms)
        stays = {part.ledger_id for each in pending for part in each.parts}
        # From the last message on: what keeps a ledger ends in it, or in a later one.
        for message in reversed(self._messages.values()):
            last = message.position.ledger_id
            if last in stays or last not in trimmed:
                stays.update(part.ledger_id for part in message.parts)
        return trimmed & stays

    def _advance(self, ledger_id: int, run: ChunkRun, now_ms: int) -> ChunkedMessage | None:
        """Take in a run of chunks; the message that it completes, if it does."""
        held = self._pending.pop(run.uuid, None)
        if held is not None and self._is_over(held, run, now_ms):
            self.given_up += 1
            held = None
        if run.chunk_id == 0:
            self.given_up += held is not None  # sent again from its first chunk on
            part = ChunkPart(ledger_id, run.entry_id, run.count)
            held = _Pending(run, now_ms, (part,), run.count)
        elif held is None:
            return None
        else:
            seen = held.next_chunk - run.chunk_id
            if seen < run.count:
                part = ChunkPart(ledger_id, run.entry_id + seen, run.count - seen)
                held.parts += (part,)
                held.next_chunk = run.chunk_id + run.count
        if held.next_chunk == run.num_chunks:
            return ChunkedMessage(run.uuid, held.parts, run.total_bytes)
        self._pending[run.uuid] = held
        if self.limits.auto_ack_oldest and len(self._pending) > self.limits.max_pending:
            del self._pending[min(self._pending, key=lambda each: _begin(self._pending[each]))]
            self.given_up += 1
        return None

    def _is_over(self, held: _Pending, run: ChunkRun, now_ms: int) -> bool:
        """True if the incomplete message can't go on with that run."""
        if 0 < self.limits.expire_ms < now_ms - held.since_ms:
            return True
        if run.chunk_id == 0:
            return False
        same = (run.num_chunks, run.total_bytes) == (held.run.num_chunks, held.run.total_bytes)
        return run.chunk_id > held.next_chunk or not same


def _begin(held: _Pending) -> Position:
    return Position(held.parts[0].ledger_id, held.parts[0].entry_id)


def _entries_of(parts: Iterable[ChunkPart]) -> PositionSet:
    found: dict[int, BitMap] = {}
    for part in parts:
        entries = range(part.entry_id, part.entry_id + part.count)
        found.setdefault(part.ledger_id, BitMap()).update(entries)
    return PositionSet(found)


def chunks_to_json(chunks: Mapping[int, Sequence[ChunkRun]]) -> dict[str, Any] | None:
    """Runs by ledger id; None without chunks."""
    return {str(k): [run.to_json() for run in runs] for k, runs in chunks.items()} or None


def chunks_from_json(value: Mapping[str, Any]) -> dict[int, tuple[ChunkRun, ...]]:
    """Runs by ledger id, ascending. TypeError or ValueError if the value is wrong."""
    return {int(k): tuple(map(ChunkRun.from_json, value[k])) for k in sorted(value, key=int)}
