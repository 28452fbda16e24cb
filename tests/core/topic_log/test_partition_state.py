"""The hidden messages of a partition, while several threads look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from pulsar_spark.log.partition_state import HiddenMessages
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet


def first_entries(*ledger_ids: int) -> PositionSet:
    return PositionSet.of((each, 0) for each in ledger_ids)


def stored(*ledger_ids: int) -> list[Any]:
    return [Cursor(individually_deleted=first_entries(*ledger_ids)).to_json_value()]


class Interrupted(list[Any]):
    """A snapshot's cursors; whoever reads them first is overtaken by another thread."""

    meanwhile: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[Any]:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return super().__iter__()


def test_what_is_hidden_while_another_thread_reads_the_snapshot_stays_hidden() -> None:
    cursors = Interrupted(stored(3, 5))
    hidden = HiddenMessages(cursors)
    cursors.meanwhile = lambda: hidden.add(first_entries(7))
    hidden.since(5)
    assert hidden.since(0) == first_entries(3, 5, 7)
    hidden.add(first_entries(9))
    assert hidden.since(5) == first_entries(5, 7, 9)
    assert hidden.of([3, 4, 9]) == first_entries(3, 9)


def test_what_is_left_of_a_snapshot_may_be_added_to() -> None:
    hidden = HiddenMessages(stored(10, 9, 3))
    hidden.add(first_entries(12, 15))
    left = hidden.without_others([9, 12, 14, 15])
    left.add(first_entries(20))
    assert left.since(0) == first_entries(9, 12, 15, 20)
    assert hidden.since(0) == first_entries(3, 9, 10, 12, 15), "others may look at it still"


class Counted(list[int]):
    """Ids; counts those that were looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        type(self).looks += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        type(self).looks += len(self)
        return super().__iter__()


def test_a_look_behind_a_ledger_costs_what_is_hidden_behind_it() -> None:
    costs = []
    for count in (1_000, 10_000, 100_000):
        hidden = HiddenMessages()
        hidden.add(first_entries(*range(count)))
        ((held, ledger_ids),) = hidden._held
        hidden._held[0] = held, Counted(ledger_ids)
        Counted.looks = 0
        assert hidden.since(count - 3) == first_entries(*range(count - 3, count))
        costs.append(Counted.looks)
    assert all(after - before <= 4 for before, after in pairwise(costs)), costs  # it bisects
