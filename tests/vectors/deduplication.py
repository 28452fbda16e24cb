"""Checks of deduplication by sequence id: a topic's log, to which publications are committed.

Three things stand beside each other: what Pulsar recorded, which must follow from Pulsar's own
numbers; what the log does; and a plain set of the ids that it has stored. The last two must agree,
always: a message is stored if its very id is not stored yet. Where Pulsar decides otherwise, the
reason is one of `differences`.

A message is in flight between its file and its commit. Pulsar reserves an id then; the log knows
of nothing until the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pulsar_spark.connector.storage.data_files.ledger_file import MESSAGE_SCHEMA
from pulsar_spark.connector.storage.data_files.sequence_ids import sequence_ranges, sequences_of
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.log.publication import NewLedger, Publication
from pulsar_spark.model.positions.ledger_info import BatchSizes
from tests.vectors.case import Case

PERSIST_FAILURE = "persist_failure_reset_pushed"


def check_deduplication(case: Case) -> None:
    walk = _Walk(case)
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        op = step.take("op")
        if op == "publish":
            walk.publish(step)
        elif op == "persisted":
            walk.persist(step)
        elif op.startswith(PERSIST_FAILURE):
            walk.fail()
        else:
            step.problems.append("this op is not known")
        walk.compare(step)
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]


@dataclass(frozen=True)
class _Message:
    """What is published at once: a message, a batch or a chunk, by its recorded fields."""

    producer: str
    lowest: int
    highest: int
    is_counted: bool
    """Of a chunked message the last chunk stands for it."""
    rows: pa.Table

    @staticmethod
    def of(step: Case) -> _Message:
        producer, lowest = step.take("producer"), step.take("sequence_id")
        highest = max(step.take("highest_sequence_id"), lowest)
        chunk_id, chunks = step.take("chunk_id", -1), step.take("num_chunks", -1)
        is_chunk = chunk_id >= 0
        names = ("producer_name", "sequence_id", "chunk_id", "num_chunks_from_msg")
        chunk = (chunk_id, chunks) if is_chunk else (None, None)
        rows = [(producer, each, *chunk) for each in range(lowest, highest + 1)]
        table = pa.table(
            {
                name: pa.array([row[place] for row in rows], MESSAGE_SCHEMA.field(name).type)
                for place, name in enumerate(names)
            }
        )
        return _Message(producer, lowest, highest, not is_chunk or chunk_id == chunks - 1, table)

    @property
    def ids(self) -> set[tuple[str, int]]:
        """(producer, sequence id) of each message by which it is known."""
        ids = range(self.lowest, self.highest + 1) if self.is_counted else ()
        return {(self.producer, each) for each in ids}


class _Log:
    """A topic of one partition that drops duplicates, in memory; its files are tables."""

    def __init__(self, files: Mapping[str, pa.Table], commits: Iterable[bytes] = ()) -> None:
        self.files = dict(files)
        self.commits: list[bytes] = []
        self.visible: list[tuple[str, int]] = []
        """(producer, sequence id) of the messages that a reader sees, but for chunks."""
        self._state = TopicState("persistent://public/default/vectors")
        first = Commit(0, "0", 0, partitions=1, settings={"deduplication": True})
        for data in commits or (first.to_json(),):
            self._apply(data)

    def copy(self) -> _Log:
        return _Log(self.files, self.commits)

    def highest(self) -> dict[str, int]:
        """By producer, as far as one is known."""
        return dict(self._state.sequence_ids.get(0, {}))

    def publication(self, rows: pa.Table) -> Publication:
        """A file with these rows: one entry. Nobody knows of it until it is committed."""
        file = f"data/{len(self.files)}"
        self.files[file] = rows
        size = rows.num_rows
        sequences = sequence_ranges(rows)
        ledger = NewLedger(0, file, 0, BatchSizes.of([size]), size, 0, 0, sequences=sequences)
        return Publication(
            [ledger], read_sequences=lambda held: sequences_of(self.files[held.file])
        )

    def commit(self, publication: Publication) -> list[tuple[str, int]]:
        """What becomes visible of it."""
        number = self._state.number + 1
        commit = publication.commit_on(self._state, Commit(number, str(number), 0))
        before = len(self.visible)
        if isinstance(commit, Commit):
            self._apply(commit.to_json())
        return self.visible[before:]

    def _apply(self, data: bytes) -> None:
        commit = Commit.from_json(data, f"{len(self.commits)}.json")
        self.commits.append(data)
        self._state.apply(commit)
        for ledger in commit.ledgers:
            hidden = self._state.partition(0).hidden.of([ledger.ledger_id]).row_mask(ledger)
            for producer, (rows, ids) in sequences_of(self.files[ledger.file]).items():
                self.visible += [(producer, each) for each in ids[~hidden[rows]].tolist()]


class _Walk:
    """One case being walked through."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.log = _Log({})
        self.stored: set[tuple[str, int]] = set()
        """All ids that the log has."""
        self.pushed: dict[str, int] = {}
        self.persisted: dict[str, int] = {}
        """Pulsar's numbers: the highest id of each producer, taken in and stored."""
        self.in_flight: list[tuple[_Message, Publication]] = []

    def publish(self, step: Case) -> None:
        message = _Message.of(step)
        status = self._pulsars_status(message)
        step.expect("status", status)
        self._compare_with_the_log(step, status, message)
        if status == "NotDup":
            self.in_flight.append((message, self.log.publication(message.rows)))
            if message.is_counted:
                self.pushed[message.producer] = message.highest
        step.expect("inflight_index_if_accepted", len(self.in_flight) - 1)

    def persist(self, step: Case) -> None:
        message, publication = self.in_flight.pop(step.take("which_inflight"))
        fresh = self._fresh(message)
        step.compare("stored by plain sets", fresh, self.log.commit(publication))
        self.stored.update(fresh)
        if message.is_counted:
            self.persisted[message.producer] = message.highest

    def fail(self) -> None:
        """What is in flight is never committed."""
        self.in_flight.clear()
        self.pushed = dict(self.persisted)

    def compare(self, step: Case) -> None:
        """After each step."""
        step.expect("pushed", self.pushed)
        step.expect("persisted_map", self.persisted)
        step.compare("visible by plain sets", sorted(self.stored), sorted(self.log.visible))
        highest: dict[str, int] = {}
        for producer, each in self.stored:
            highest[producer] = max(each, highest.get(producer, each))
        step.compare("highest by plain sets", highest, self.log.highest())
        if highest != self.persisted:
            self.case.on_purpose.add("stored_out_of_order")
        higher = [who for who, each in self.persisted.items() if each > highest.get(who, -1)]
        step.compare("higher at Pulsar only", [], higher)

    def _pulsars_status(self, message: _Message) -> str:
        """What follows from Pulsar's numbers."""
        nothing = message.lowest - 1
        if not message.is_counted or message.lowest > self.pushed.get(message.producer, nothing):
            return "NotDup"
        is_stored = message.lowest <= self.persisted.get(message.producer, nothing)
        return "Dup" if is_stored else "Unknown"

    def _compare_with_the_log(self, step: Case, status: str, message: _Message) -> None:
        """What the log would do if the message were committed now, and behind what is in flight."""
        log, fresh = self.log.copy(), self._fresh(message)
        step.compare("dropped by plain sets", fresh, log.commit(log.publication(message.rows)))
        if status == "Dup" and fresh:
            self.case.on_purpose.add("never_came")
        if status == "NotDup" and len(fresh) < len(message.ids):
            # Pulsar stores it twice, since it has forgotten the higher id.
            lowered = self.persisted.get(message.producer, -1) < max(message.ids - {*fresh})[1]
            step.compare("a duplicate is taken in where ids were lowered", True, lowered)
        if status == "Unknown":
            self.case.on_purpose.add("in_flight")
            later = self.log.copy()
            for other, _ in self.in_flight:
                later.commit(later.publication(other.rows))
            reserved = set().union(*(other.ids for other, _ in self.in_flight))
            step.compare(
                "dropped behind what is in flight",
                [each for each in fresh if each not in reserved],
                later.commit(later.publication(message.rows)),
            )

    def _fresh(self, message: _Message) -> list[tuple[str, int]]:
        """Of its ids, those that are not stored."""
        return sorted(message.ids - self.stored)
