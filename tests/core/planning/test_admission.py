"""Admission: its laws, and an obvious implementation over plain lists of messages."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.consumer.admission import Admission, Waiting, fair_shares
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position
from tests.core.partition import LEDGERS, MESSAGES, Message, listed, made, message_sets, repeatable

Messages = frozenset[Message]
requested = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30))
limits = st.one_of(st.none(), st.integers(1, 2 * len(MESSAGES)))
ends = st.one_of(st.none(), st.sampled_from([Position(2, 3), Position(5, -1), Position(9, 4)]))


def ledgers(count: int, entries: int, batch: int, message_bytes: int) -> LedgerList:
    """Equal ledgers 0 to count - 1."""
    sizes = BatchSizes(((batch, entries),))
    size_bytes = sizes.messages * message_bytes
    return LedgerList(LedgerInfo(n, 0, "", 0, sizes, size_bytes, 0, 0) for n in range(count))


def waiting(count: int, entries: int = 1, batch: int = 1, message_bytes: int = 1) -> Waiting:
    return Waiting(Cursor(), ledgers(count, entries, batch, message_bytes))


def counts(admission: Admission, partitions: dict[str, Waiting], turn: int = 0) -> dict[str, int]:
    taken = replace(admission, turn=turn).admit(partitions)
    return {key: messages.count(partitions[key].ledgers) for key, messages in taken.items()}


@repeatable
@given(message_sets, limits, ends)
def test_what_is_taken_is_the_first_of_what_waits(
    done: Messages, most: int | None, up_to: Position | None
) -> None:
    cursor = Cursor().acknowledge(made(done))
    side = Waiting(cursor, LEDGERS, up_to)
    rest = [m for m in MESSAGES if m not in done and (up_to is None or m[:2] <= up_to)]
    assert listed(side.take(most)) == rest[:most]
    assert side.count() == len(rest)
    if most is not None:
        assert side.count(most) == min(most, len(rest))


@repeatable
@given(requested, st.integers(0, 100))
def test_shares_are_fair(wants: dict[str, int], most: int) -> None:
    shares = fair_shares(wants, most)
    assert list(shares) == list(wants)
    assert sum(shares.values()) == min(most, sum(wants.values())), "nothing is left over"
    for want, share in zip(wants.values(), shares.values(), strict=True):
        assert share <= want
        if share < want:
            assert all(other <= share + 1 for other in shares.values()), "somebody has much more"
    assert shares == shared_one_by_one(wants, most)


def shared_one_by_one(wants: dict[str, int], most: int) -> dict[str, int]:
    """The obvious way: round by round, one for each who wants one more, first come first."""
    shares = dict.fromkeys(wants, 0)
    while most and any(shares[key] < wants[key] for key in wants):
        for key, want in wants.items():
            if most and shares[key] < want:
                shares[key] += 1
                most -= 1
    return shares


@repeatable
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 50)), max_size=5),
    limits,
    st.one_of(st.none(), st.integers(1, 600)),
    st.integers(0, 7),
)
def test_a_batch_is_within_its_limits_and_never_empty_while_something_waits(
    shapes: list[tuple[int, int, int]], most: int | None, size_bytes: int | None, turn: int
) -> None:
    partitions = {
        str(number): waiting(count, 2, batch, message_bytes)
        for number, (count, batch, message_bytes) in enumerate(shapes)
    }
    taken = counts(Admission(most, size_bytes), partitions, turn)
    there = sum(each.count() for each in partitions.values())
    assert bool(taken) == bool(there)
    if most is not None:
        assert sum(taken.values()) <= most
    if size_bytes is not None:
        sizes = [shapes[int(key)][2] * count for key, count in taken.items()]
        assert sum(sizes) <= size_bytes + max(shape[2] for shape in shapes) if sizes else True
    if most is None and size_bytes is None:
        assert sum(taken.values()) == there


def test_a_limit_ends_inside_an_entry_and_the_next_batch_goes_on_there() -> None:
    side = waiting(1, entries=2, batch=10)
    first = side.take(13)
    assert str(first) == "0:0 0:1/10[0-2]"
    rest = Waiting(Cursor().acknowledge(first), side.ledgers).take(None)
    assert str(rest) == "0:1/10[3-9]"


def test_a_message_larger_than_the_limit_passes_alone() -> None:
    partitions = {"large": waiting(3, message_bytes=1000)}
    assert counts(Admission(max_bytes=10), partitions) == {"large": 1}


def test_bytes_go_by_the_size_of_messages() -> None:
    partitions = {"small": waiting(100, message_bytes=10), "large": waiting(100, message_bytes=100)}
    assert counts(Admission(max_bytes=1000), partitions) == {"small": 50, "large": 5}


def test_bytes_that_one_partition_does_not_need_are_another_s() -> None:
    partitions = {"few": waiting(2, message_bytes=10), "many": waiting(100, message_bytes=10)}
    assert counts(Admission(max_bytes=1000), partitions) == {"few": 2, "many": 98}


def test_a_large_message_passes_when_it_is_its_partition_s_turn() -> None:
    partitions = {"small": waiting(100), "large": waiting(1, message_bytes=1000)}
    admitted = [counts(Admission(max_bytes=10), partitions, turn) for turn in range(2)]
    assert {"large": 1} in [{k: v for k, v in each.items() if k == "large"} for each in admitted]


def test_partitions_take_turns_where_there_is_not_one_message_each() -> None:
    # "trickle" has one message each time; the others have plenty: nobody may starve.
    partitions = {"a": waiting(50), "b": waiting(50), "trickle": waiting(1)}
    admitted = [counts(Admission(max_messages=1), partitions, turn) for turn in range(3)]
    assert admitted == [{"a": 1}, {"b": 1}, {"trickle": 1}]


def test_the_minimum_holds_a_batch_back_until_it_is_reached_or_the_delay_is_over() -> None:
    partitions = {"a": waiting(2), "b": waiting(1)}
    admission = Admission(min_messages=4, max_delay_ms=1000)
    assert admission.admit(partitions, now_s=0) == {}
    assert admission.admit(partitions, now_s=0.999) == {}
    assert admission.admit(partitions, now_s=1).keys() == {"a", "b"}
    assert admission.admit({**partitions, "c": waiting(1)}, now_s=0).keys() == {"a", "b", "c"}
    assert admission.admit(partitions).keys() == {"a", "b"}, "AvailableNow"


def test_a_look_costs_what_it_admits_not_what_waits() -> None:
    built: list[int] = []

    class Counted(LedgerList):
        def first_after(self, ledger_id: int) -> LedgerInfo | None:
            built.append(ledger_id + 1)
            return super().first_after(ledger_id)

    side = Waiting(Cursor(), Counted(ledgers(5000, 1, 10, 10)))
    for admission in (Admission(max_messages=25), Admission(max_bytes=250)):
        built.clear()
        assert admission.admit({"a": side})["a"].count(side.ledgers) == 25
        assert max(built) < 5
