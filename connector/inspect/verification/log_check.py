"""A topic's log held against itself: its files, its snapshots, its ledgers and their sums.

Invariants: what a clean-up removes meanwhile is not missed; a log of which older commits are still
there is folded a second time, from the oldest place that it can be, and has to come to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from pulsar_spark.connector.inspect.verification.verified import Check, Difference
from pulsar_spark.connector.runtime.topics.log_pointer import PointerFile, log_numbers
from pulsar_spark.connector.runtime.topics.log_snapshot import decode_snapshot, snapshot_file
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.errors import DAMAGE
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.log.partition_state import PartitionState
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerSum

COMMITS_AT_ONCE: Final = 256


class StoredRows(NamedTuple):
    """Rows of a data file, and the ledger that they are of; of a compacted one the kept rows."""

    ledger: LedgerInfo
    rows: int
    compacted: bool


def stored_rows(state: TopicState, partitions: Iterable[int]) -> Iterator[StoredRows]:
    """All rows that the log refers to, by partition and ledger."""
    for number in partitions:
        part = state.partition(number)
        yield from (StoredRows(each, each.messages, compacted=False) for each in part.ledgers)
        if (compacted := part.compacted) is not None:
            for each in compacted.ledgers:
                kept = compacted.kept.of_ledgers([each.ledger_id]).count(compacted.ledgers)
                yield StoredRows(each, kept, compacted=True)


def check_log(ledger: ManagedLedger) -> Iterator[Difference]:
    """True if the topic's log is whole and agrees with itself."""
    yield from _gaps(ledger)
    try:
        yield from _second_fold(ledger)
    except DAMAGE as error:
        yield Difference.met(error, Check.LOG)
    yield from check_state(ledger.state)


def check_state(state: TopicState) -> Iterator[Difference]:
    """True if the ledgers are those that the log's sums and counters tell of."""
    yield from _ids(state)
    yield from _shared_rows(state)
    for number in range(state.partitions):
        yield from _sums(number, state.partition(number))


# -- files of the log ------------------------------------------------------------------------------


def _gaps(ledger: ManagedLedger) -> Iterator[Difference]:
    """Commits that are missing: behind one nobody reads on."""
    store, pointer = ledger.store, PointerFile(ledger.store, ledger.folder)
    removed = pointer.read().removed
    listed = log_numbers(store, ledger.folder)[0]
    last = max(listed, default=-1)
    missing = []
    for number in range(removed + 1, last):
        path = join(ledger.folder, log_file(number))
        # Listed later than it was looked for, or cleaned up since: then it is not missed.
        if number not in listed and store.size(path) is None and pointer.read().removed < number:
            missing.append(number)
    if missing:
        first = missing[0]
        more = f", and {len(missing) - 1:,} more," if missing[1:] else ""
        no_progress = ledger.state.number < last
        what = f"nobody sees what was committed behind it, up to {last}" if no_progress else (
            "a snapshot stands for it, and who reads from before that is stopped"
        )  # fmt: skip
        name = log_file(first)
        yield Difference(Check.LOG, f"commit {first}{more} is missing: {what}", file=name)


def _second_fold(ledger: ManagedLedger) -> Iterator[Difference]:
    """Fold the commits that are there from the oldest snapshot that is, and compare on the way."""
    removed = PointerFile(ledger.store, ledger.folder).read().removed
    end = ledger.state.number
    places = [n for n in sorted(log_numbers(ledger.store, ledger.folder)[1]) if removed < n <= end]
    folded: TopicState | None = TopicState(ledger.topic)
    if removed >= 0:
        folded = _snapshot(ledger, places.pop(0)) if places else None
    for place in places:
        if folded is None or not _folded(ledger, folded, place):
            return
        stored = _snapshot(ledger, place)
        if stored is not None:
            yield from _compared(stored, folded, snapshot_file(place))
            folded = stored
    if folded is not None and _folded(ledger, folded, end):
        yield from _compared(ledger.state, folded, log_file(end))


def _snapshot(ledger: ManagedLedger, number: int) -> TopicState | None:
    """The state that it has; None if it was cleaned up."""
    name = join(ledger.folder, snapshot_file(number))
    data = ledger.store.get(name)
    return None if data is None else decode_snapshot(data, ledger.topic, name, number)


def _folded(ledger: ManagedLedger, state: TopicState, up_to: int) -> bool:
    """True if the commits up to that one are still there: then the state has them now."""
    while state.number < up_to:
        first = state.number + 1
        commits = ledger.commits(first, min(first + COMMITS_AT_ONCE - 1, up_to))
        if commits is None:
            return False
        for commit in commits:
            state.apply(commit)
    return True


def _compared(stored: TopicState, folded: TopicState, file: str) -> Iterator[Difference]:
    """The differences of a state and the fold of the commits that lead to it."""
    where = f"{file} and the commits before it"
    if stored.partitions != folded.partitions or stored.next_ledger_id != folded.next_ledger_id:
        text = f"{where} disagree on the number of partitions or ledgers"
        yield Difference(Check.LOG, text, file=file)
        return
    for number in range(stored.partitions):
        one, other = stored.partition(number), folded.partition(number)
        if (ledger_id := _first_difference(one.ledgers, other.ledgers)) is not None:
            text = f"{where} disagree on ledger {ledger_id}"
            yield Difference(Check.LOG, text, number, ledger_id=ledger_id, file=file)
        elif _rest_of(one) != _rest_of(other):
            text = f"{where} disagree on what of partition {number} is hidden, trimmed or compacted"
            yield Difference(Check.LOG, text, number, file=file)
        elif None not in (one.published, other.published) and _sums_of(one) != _sums_of(other):
            text = f"{where} disagree on the sums of partition {number}"
            yield Difference(Check.SUM, text, number, file=file)


def _first_difference(one: Sequence[LedgerInfo], other: Sequence[LedgerInfo]) -> int | None:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return min(mine.ledger_id, theirs.ledger_id)
    longer = one if len(one) > len(other) else other
    shorter = min(len(one), len(other))
    return longer[shorter].ledger_id if len(longer) > shorter else None


def _rest_of(part: PartitionState) -> object:
    compacted = part.compacted and part.compacted.to_json_value()
    hidden = part.hidden.of(each.ledger_id for each in part.ledgers)
    return part.trimmed_up_to, part.messages, part.size_bytes, compacted, str(hidden)


def _sums_of(part: PartitionState) -> object:
    return part.published, part.removed


# -- ledgers ---------------------------------------------------------------------------------------


def _ids(state: TopicState) -> Iterator[Difference]:
    """A ledger's id is one of a gapless counter, and stands in one partition, in order."""
    seen: dict[int, int] = {}
    trimmed = -1
    for number in range(state.partitions):
        part = state.partition(number)
        trimmed = max(trimmed, part.trimmed_up_to.ledger_id)
        for before, after in pairwise(part.ledgers):
            if before.ledger_id >= after.ledger_id:
                text = f"ledger {after.ledger_id} stands behind ledger {before.ledger_id}"
                yield Difference(Check.LOG, text, number, ledger_id=after.ledger_id)
        for each in part.ledgers:
            ledger_id = each.ledger_id
            if seen.setdefault(ledger_id, number) != number:
                text = f"ledger {ledger_id} is in partitions {seen[ledger_id]} and {number}"
                yield Difference(Check.LOG, text, number, ledger_id=ledger_id)
            if each.partition != number or ledger_id >= state.next_ledger_id:
                text = f"ledger {ledger_id} of partition {each.partition} stands in {number}"
                yield Difference(Check.LOG, text, number, ledger_id=ledger_id)
    first = trimmed + 1
    if state.incarnation and trimmed < 0:  # earlier ones were of a topic that was deleted
        first = min(seen, default=state.next_ledger_id)
    lost = [each for each in range(first, state.next_ledger_id) if each not in seen]
    if lost:
        more = f", and {len(lost) - 1:,} more," if lost[1:] else ""
        text = f"ledger {lost[0]}{more} was published, is not trimmed, and is in no partition"
        yield Difference(Check.LOG, text, ledger_id=lost[0])


def _shared_rows(state: TopicState) -> Iterator[Difference]:
    """No row of a file is of two ledgers."""
    every = stored_rows(state, range(state.partitions))
    by_place = sorted(every, key=lambda each: (each.ledger.file, each.ledger.first_row))
    for (one, rows, _), (other, _, _) in pairwise(by_place):
        if one.file == other.file and one.first_row + rows > other.first_row:
            first, second = sorted((one.ledger_id, other.ledger_id))
            text = f"ledgers {first} and {second} have rows of {one.file} in common"
            yield Difference(
                Check.LOG, text, other.partition, ledger_id=other.ledger_id, file=one.file
            )


def _sums(number: int, part: PartitionState) -> Iterator[Difference]:
    """Compare the published messages with the stored and the removed ones."""
    there = sum(map(LedgerSum.of, part.ledgers), LedgerSum())
    size = sum(each.size_bytes for each in part.ledgers)
    if (part.messages, part.size_bytes) != (there.messages, size):
        text = (
            f"the log counts {part.messages:,} messages of {part.size_bytes:,} bytes, and its "
            f"ledgers have {there.messages:,} of {size:,}"
        )
        yield Difference(Check.SUM, text, number)
    if part.published == there + part.removed:
        return
    accounted = there + part.removed
    lacking = part.published.messages - accounted.messages
    doubled = next((e for e in part.ledgers if part.published + LedgerSum.of(e) == accounted), None)
    if doubled is not None:
        text = f"ledger {doubled.ledger_id} is one more than was published"
        yield Difference(Check.SUM, text, number, ledger_id=doubled.ledger_id)
        return
    if lacking > 0:
        why = f"{lacking:,} of them are neither there nor removed"
    elif lacking < 0:
        why = f"there are {-lacking:,} more"
    else:
        why = "a ledger's id, entries or digest is not the one that it was published with"
    text = f"{part.published.messages:,} messages were published, and {why}"
    yield Difference(Check.SUM, text, number)
