"""Admission: how much of the waiting messages goes into the next micro-batch.

Invariants: no more messages than allowed, shared over the partitions so that none starves; a
limit may end inside an entry; at least one message passes, in turn of each partition, or a large
one would block its own for ever; a look costs the messages it admits, not those that wait. Spark's
`ReadLimit` has no composite that a Python source can use, so the limits are here. Follows
`KafkaMicroBatchStream.rateLimit`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet

Key = TypeVar("Key", bound=Hashable)
FEWEST: Final = 1_000
"""Messages of the first micro-batch: the size of Pulsar's receiver queue."""
MOST: Final = 1_000_000
BATCH_S: Final = 2.0
GROWTH: Final = 10
"""A micro-batch has at most so many times the messages of the one before."""
ALIKE: Final = 1.2
"""Two sizes that differ by less tell nothing of what a message costs."""
LEAST_S: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting messages of one partition: first all `granted`, then those that `cursor` lacks.

    Without a cursor only what is granted waits; without `up_to` there is no end. `uncounted` are
    entries that are no messages: they are not taken, and have no bytes.
    """

    cursor: Cursor | None
    ledgers: LedgerList
    up_to: Position | None = None
    uncounted: PositionSet = field(default_factory=PositionSet)
    granted: PositionSet = field(default_factory=PositionSet)

    def take(self, messages: int | None) -> PositionSet:
        """The next messages, at most so many (None: all); costs the ledgers it takes from."""
        gone = [each for each in self.granted.ledger_ids if self.ledgers.get(each) is None]
        taken = [self.granted.of_ledgers(gone)]  # so that their loss is seen
        for ledger, rest in self._rests():
            one = LedgerList([ledger])
            taken.append(rest if messages is None else rest.prefix(messages, one))
            if messages is not None:
                messages -= taken[-1].count(one)
                if messages <= 0:
                    break
        return PositionSet.union_of(taken)

    def count(self, most: int | None = None) -> int:
        """The number of waiting messages; stops counting at `most`."""
        waiting = 0
        for ledger, rest in self._rests():
            waiting += rest.count(LedgerList([ledger]))
            if most is not None and waiting >= most:
                return most
        return waiting

    def size_bytes(self, most: int, messages: int | None = None) -> int:
        """About how many payload bytes wait, in so many messages; stops counting at `most`."""
        size = counted = 0
        for ledger, rest in self._rests():
            weight, spread_over = self._spread(ledger)
            waiting = rest.count(LedgerList([ledger]))
            counted += waiting
            size += -(-waiting * weight // spread_over)
            if size >= most:
                return most
            if messages is not None and counted >= messages:
                break
        return size

    def within_bytes(self, size_bytes: int, most: int | None = None) -> int:
        """The number of the next messages with about so many payload bytes; at most `most`."""
        found = 0
        for ledger, rest in self._rests():
            waiting = rest.count(LedgerList([ledger]))
            weight, messages = self._spread(ledger)
            fitting = min(waiting, size_bytes * messages // weight)
            found += fitting
            size_bytes -= -(-fitting * weight // messages)
            if most is not None and found >= most:
                return most
            if fitting < waiting or size_bytes <= 0:
                break
        return found

    def with_uncounted(self, taken: PositionSet) -> PositionSet:
        """The messages, and the uncounted entries before the last of them."""
        if self.cursor is None or not self.uncounted or not taken:
            return taken
        ledger_id = taken.ledger_ids[-1]
        whole, parts = taken.whole_entries(ledger_id), taken.partial_entries(ledger_id)
        last = max(whole.max() if whole else -1, max(parts, default=-1))
        uncounted = self.uncounted.after(self.cursor.mark_delete_position)
        return taken.union(uncounted.up_to(Position(ledger_id, last)))

    def _spread(self, ledger: LedgerInfo) -> tuple[int, int]:
        """(payload bytes of the ledger, messages over which they are spread), each 1 at least.

        No message counts as less than a byte.
        """
        messages = ledger.messages
        if self.uncounted:
            whole = PositionSet.of_range(ledger.ledger_id, 0, ledger.entries - 1)
            messages = whole.difference(self.uncounted).count(LedgerList([ledger]))
        return max(ledger.size_bytes, ledger.messages, 1), max(messages, 1)

    def _rests(self) -> Iterator[tuple[LedgerInfo, PositionSet]]:
        """(ledger, its waiting messages), in order; the granted ones first."""
        for ledger_id in self.granted.ledger_ids:
            if granted := self.ledgers.get(ledger_id):
                yield granted, self.granted.of_ledgers([ledger_id])
        if self.cursor is None:
            return
        done, end = self.cursor.mark_delete_position, self.up_to or LATEST
        ledger = self.ledgers.first_at_or_after(done.ledger_id)
        while ledger is not None and ledger.ledger_id <= end.ledger_id:
            rest = PositionSet.between(LedgerList([ledger]), done, end).difference(self.uncounted)
            if rest := rest.difference(self.cursor.individually_deleted):
                yield ledger, rest
            ledger = self.ledgers.first_after(ledger.ledger_id)


@dataclass(slots=True)
class Admission:
    """The limits of one source (None means no limit), and its latest micro-batch."""

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay_ms: int = 15 * 60_000
    last_batch_s: float = 0.0
    """The time of the latest micro-batch, or of the source's start."""
    turn: int = 0
    """The partition that is served first when there is not one message each."""

    def admit(
        self, waiting: Mapping[Key, Waiting], now_s: float | None = None
    ) -> dict[Key, PositionSet]:
        """The messages of each partition for the next micro-batch; without any it is left out.

        Without a time any number is admitted, however small.
        """
        if self.min_messages is not None and now_s is not None:
            there = sum(each.count(self.min_messages) for each in waiting.values())
            waited_ms = (now_s - self.last_batch_s) * 1000
            if there < self.min_messages and waited_ms < self.max_delay_ms:
                return {}
        shares: Mapping[Key, int | None] = dict.fromkeys(waiting)
        if self.max_messages is not None or self.max_bytes is not None:
            shares = self._shares(waiting)
        taken = {key: waiting[key].take(share) for key, share in shares.items()}
        return {key: messages for key, messages in taken.items() if messages}

    def planned(self, now_s: float) -> None:
        """Take in that a micro-batch was planned."""
        self.last_batch_s = now_s
        self.turn += 1

    def _shares(self, waiting: Mapping[Key, Waiting]) -> dict[Key, int]:
        """The number of messages of each partition that gets some."""
        keys = [key for key, each in waiting.items() if each.count(1)]
        if not keys:
            return {}
        first = self.turn % len(keys)
        keys = keys[first:] + keys[:first]
        if self.max_bytes is None:
            requested = {key: waiting[key].count(self.max_messages) for key in keys}
        else:
            most = self.max_messages
            sizes = {key: waiting[key].size_bytes(self.max_bytes, most) for key in keys}
            sizes = fair_shares(sizes, self.max_bytes)
            requested = {key: waiting[key].within_bytes(sizes[key], most) for key in keys}
            # A message larger than the share would never pass, but for its partition's turn.
            requested[keys[0]] = max(1, requested[keys[0]])
        return requested if self.max_messages is None else fair_shares(requested, self.max_messages)


@dataclass(slots=True)
class Pace:
    """The size of a micro-batch of a shared subscription for which no option sets one.

    As many as are done in about BATCH_S. It begins with FEWEST, and only full micro-batches teach:
    of two sizes it sees what a message costs, and what a micro-batch costs whatever is in it (the
    trigger's interval too, which no source is told). Where that is more, they last twice that.
    """

    fewest: int = FEWEST
    size: int = 0
    queue: int = 0
    """The messages that the consumer may hold: a micro-batch, and the next while it runs, which may
    be larger if the last one was short."""
    fixed_s: float = 0.0
    message_s: float = 0.0
    last: tuple[int, float] | None = None
    """Messages of the last full micro-batch, and how long it took."""

    def __post_init__(self) -> None:
        self.size = self.fewest
        self.queue = 2 * self.size

    def took(self, messages: int, seconds: float) -> None:
        """Take in that a micro-batch with so many messages was over after that time."""
        if messages < self.size:
            return
        seconds = max(seconds, LEAST_S)
        self.size = self._next(messages, seconds)
        self.queue = self.size + self._within(self.size * max(1.0, BATCH_S / seconds))

    def _next(self, messages: int, seconds: float) -> int:
        last, self.last = self.last, (messages, seconds)
        if last is None:
            return self._within(messages * max(BATCH_S, 2 * seconds) / seconds)
        before, before_s = last
        if max(messages, before) > ALIKE * min(messages, before):
            self.message_s = max(0.0, (seconds - before_s) / (messages - before))
            self.fixed_s = max(0.0, seconds - self.message_s * messages)
        else:
            self.message_s = max(0.0, seconds - self.fixed_s) / messages
        due_s = max(BATCH_S, 2 * self.fixed_s) - self.fixed_s
        return self._within(due_s / max(self.message_s, LEAST_S / MOST))

    def _within(self, requested: float) -> int:
        return int(max(min(requested, GROWTH * self.size, MOST), self.fewest))


def fair_shares(requested: Mapping[Key, int], most: int) -> dict[Key, int]:
    """Split `most` so that nobody who wants more gets less than another does.

    Where it does not go into equal parts, those who stand first in `requested` get one more.

    >>> fair_shares({"a": 2, "b": 100, "c": 100}, 13)
    {'a': 2, 'b': 6, 'c': 5}
    """
    shares, left = dict.fromkeys(requested, 0), most
    unmet = sorted(requested, key=lambda key: requested[key], reverse=True)
    # Whoever wants no more than an equal part gets it all; the others share what is left then.
    while unmet and requested[unmet[-1]] * len(unmet) <= left:
        key = unmet.pop()
        shares[key] = requested[key]
        left -= requested[key]
    level, more = divmod(left, len(unmet) or 1)
    still = set(unmet)
    for place, key in enumerate(key for key in requested if key in still):
        shares[key] = level + (place < more)
    return shares
