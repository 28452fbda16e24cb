"""Chunks put together by what the log says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.consumer.admission import Waiting
from pulsar_spark.log.chunked_messages import (
    ChunkedMessage,
    ChunkedMessages,
    ChunkLimits,
    ChunkPart,
    ChunkRun,
)
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.partition import repeatable


def run(entry_id: int, uuid: str, chunk_id: int, count: int = 1, of: int = 3) -> ChunkRun:
    return ChunkRun(entry_id, uuid, chunk_id, count, of, of * 10)


def folded(
    *ledgers: Sequence[ChunkRun], times_ms: Sequence[int] | None = None, **limits: int
) -> ChunkedMessages:
    chunks = ChunkedMessages(ChunkLimits(**limits))  # type: ignore[arg-type]
    for ledger_id, runs in enumerate(ledgers):
        chunks.add(ledger_id, runs, times_ms[ledger_id] if times_ms else 0)
    return chunks


def found(chunks: ChunkedMessages) -> dict[str, tuple[ChunkPart, ...]]:
    return {message.uuid: message.parts for message in chunks.messages_in(chunks.chunks)}


def test_a_message_stands_where_its_last_chunk_is() -> None:
    chunks = folded([run(4, "a", 0, 3)])
    (message,) = chunks.messages_in(chunks.chunks)
    assert message == ChunkedMessage("a", (ChunkPart(0, 4, 3),), 30)
    assert (message.first_chunk, message.position) == (Position(0, 4), Position(0, 6))
    assert chunks.uncounted == PositionSet.of([(0, 4), (0, 5)])


def test_chunks_of_several_messages_lie_between_each_other() -> None:
    chunks = folded(
        [run(0, "a", 0), run(1, "b", 0, 2)], [run(0, "a", 1), run(1, "b", 2), run(2, "a", 2)]
    )
    assert found(chunks) == {
        "b": (ChunkPart(0, 1, 2), ChunkPart(1, 1, 1)),
        "a": (ChunkPart(0, 0, 1), ChunkPart(1, 0, 1), ChunkPart(1, 2, 1)),
    }
    assert chunks.first_pending(0) is None


def test_a_message_in_the_making_is_no_message() -> None:
    chunks = folded([run(0, "a", 0, 2)])
    assert not found(chunks)
    assert chunks.first_pending(0) == Position(0, 0)
    assert chunks.uncounted == chunks.chunks


def test_a_message_sent_again_from_its_first_chunk_is_the_later_one() -> None:
    chunks = folded([run(0, "a", 0, 2)], [run(0, "a", 0, 3)])
    assert found(chunks) == {"a": (ChunkPart(1, 0, 3),)}
    assert chunks.given_up == 1


def test_a_chunk_seen_again_is_left_out() -> None:
    chunks = folded([run(0, "a", 0, 2)], [run(0, "a", 1, 1)], [run(0, "a", 1, 2)])
    assert found(chunks) == {"a": (ChunkPart(0, 0, 2), ChunkPart(2, 1, 1))}


def test_a_gap_gives_the_message_up() -> None:
    chunks = folded([run(0, "a", 0)], [run(0, "a", 2)])
    assert not found(chunks)
    assert (chunks.given_up, chunks.first_pending(0)) == (1, None)


def test_chunks_without_the_first_are_no_message() -> None:
    assert not found(folded([run(0, "a", 1, 2)]))


def test_a_message_of_another_size_under_the_same_name_is_not_mixed_in() -> None:
    assert not found(folded([run(0, "a", 0, 2)], [run(0, "a", 2, 2, of=4)]))


@pytest.mark.parametrize(("expire_ms", "complete"), [(60_000, False), (60_001, True), (0, True)])
def test_a_message_that_takes_too_long_is_given_up(expire_ms: int, complete: bool) -> None:
    chunks = folded(
        [run(0, "a", 0, 2)], [run(0, "a", 2)], times_ms=[0, 60_001], expire_ms=expire_ms
    )
    assert bool(found(chunks)) is complete


@pytest.mark.parametrize("auto_ack", [False, True])
def test_the_oldest_of_too_many_is_given_up_only_if_the_option_says_so(auto_ack: bool) -> None:
    begun = [run(entry, f"m{entry}", 0, 1, of=2) for entry in range(3)]
    ended = [run(entry, f"m{entry}", 1, 1, of=2) for entry in range(3)]
    chunks = folded(begun, ended, max_pending=2, auto_ack_oldest=auto_ack)
    assert sorted(found(chunks)) == (["m1", "m2"] if auto_ack else ["m0", "m1", "m2"])
    assert chunks.given_up == int(auto_ack)


@repeatable
@given(st.lists(st.sampled_from("abcd"), max_size=30), st.data())
def test_what_an_entry_is_does_not_depend_on_what_comes_later(
    order: list[str], data: st.DataObject
) -> None:
    """Chunks of up to four producers in any order, in ledgers cut anywhere."""
    sizes = {name: data.draw(st.integers(1, 4)) for name in "abcd"}
    sent = dict.fromkeys("abcd", 0)
    runs = []
    for name in order:
        number, chunk = divmod(sent[name], sizes[name])
        runs.append((f"{name}-{number}", chunk, sizes[name]))
        sent[name] += 1
    cuts = sorted(data.draw(st.sets(st.integers(0, len(runs)), max_size=4)))
    edges = [0, *cuts, len(runs)]
    chunks = ChunkedMessages()
    ended: list[str] = []
    for ledger_id, (first, stop) in enumerate(pairwise(edges)):
        part = [
            run(entry, uuid, chunk, 1, of)
            for entry, (uuid, chunk, of) in enumerate(runs[first:stop])
        ]
        chunks.add(ledger_id, part, 0)
        ended += [uuid for uuid, chunk, of in runs[first:stop] if chunk == of - 1]
        assert [message.uuid for message in chunks.messages_in(chunks.chunks)] == ended
        assert len(list(chunks.chunks.entries())) == stop
        assert len(list(chunks.uncounted.entries())) == stop - len(ended)
    for message in chunks.messages_in(chunks.chunks):
        assert sum(part.count for part in message.parts) == sizes[message.uuid[0]]


def side(chunks: ChunkedMessages, entries: int, cursor: Cursor) -> Waiting:
    sizes = BatchSizes(((1, entries),))
    ledgers = LedgerList([LedgerInfo(0, 0, "", 0, sizes, entries * 100, 0, 0)])
    return Waiting(cursor, ledgers, None, chunks.uncounted)


def test_admission_counts_a_chunked_message_once_and_takes_its_chunks_along() -> None:
    chunks = folded([run(1, "a", 0, 3), run(5, "b", 0, 2)])  # 0 and 4 are plain messages
    waiting = side(chunks, 7, Cursor(EARLIEST))
    assert waiting.count() == 3
    assert waiting.take(2) == PositionSet.of([(0, 0), (0, 3)])
    assert waiting.with_uncounted(waiting.take(1)) == PositionSet.of([(0, 0)])
    assert waiting.with_uncounted(waiting.take(2)) == PositionSet.of_range(0, 0, 3)
    everything = waiting.with_uncounted(waiting.take(None))
    assert everything == PositionSet.of_range(0, 0, 4), "b is not complete: it waits"
    after = side(chunks, 7, Cursor(Position(0, 4)))
    assert (after.count(), after.take(5)) == (0, PositionSet())


def test_admission_weighs_a_chunked_message_by_all_its_chunks() -> None:
    waiting = side(folded([run(0, "a", 0, 3), run(3, "b", 0, 3)]), 6, Cursor(EARLIEST))
    assert waiting.size_bytes(10_000) == 600
    assert (waiting.within_bytes(299), waiting.within_bytes(300)) == (0, 1)


class Counted(list[int]):
    """Ids of ledgers; counts the looks at all of them."""

    looks = 0

    def __contains__(self, ledger_id: object) -> bool:
        self.looks += 1
        return super().__contains__(ledger_id)

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()


def test_a_mass_trim_looks_once_at_the_ledgers_whatever_the_number_of_messages() -> None:
    pairs = 1_000
    known = folded(*[[run(0, f"m{n // 2}", n % 2, of=2)] for n in range(2 * pairs)])
    gone = Counted(range(2 * pairs - 1))
    assert known.needed(gone) == {2 * pairs - 2}
    assert gone.looks == 1


def test_a_chain_of_messages_that_stays_is_followed_to_its_begin() -> None:
    chain = [[run(0, f"m{n}", 1, of=2), run(1, f"m{n + 1}", 0, of=2)] for n in range(100)]
    known = folded(*chain)
    assert known.needed(range(99)) == frozenset(range(99)), "m99 ends in ledger 99, which stays"
    assert known.needed(range(100), begun_since_ms=1) == frozenset(), "m100 is too old"


def test_ledgers_come_in_order() -> None:
    chunks = folded([run(0, "a", 0)])
    with pytest.raises(ValueError, match="ledger 0 comes after ledger 0"):
        chunks.add(0, [], 0)


@pytest.mark.parametrize(
    "value", [[0, "a", 0, 1, 3], [0, 1, 0, 1, 3, 5], [0, "a", 0, 0, 3, 5], [0, "a", 2, 2, 3, 5]]
)
def test_a_malformed_run_is_refused(value: list[object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        ChunkRun.from_json(value)


def test_a_run_is_read_as_it_was_written() -> None:
    one = run(3, "producer-7", 1, 2)
    assert ChunkRun.from_json(one.to_json()) == one
