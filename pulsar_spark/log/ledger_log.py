"""A topic's state: the fold of its commits, from number 0 to the newest.

Invariants: commits apply in order, each wholly or not at all; ledger ids are a gapless counter of
the log, through deletions too, so no two messages that were ever published under a name have the
same id; a data file is published by one commit only, and one that was given up by none; terms
never fall; each application's version only rises. Applying costs what the commit holds, not what
the topic holds (a merge, or a trim that leaves a hole, costs its partition).

Follows Pulsar's `ManagedLedgerImpl`, without its input and output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from pulsar_spark.errors import CorruptFileError, FileReclaimedError, TopicTerminatedError
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.log.last_active import LastActive
from pulsar_spark.log.ledger_commit import Commit, log_file
from pulsar_spark.log.partition_state import PartitionState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerColumn, LedgerInfo, LedgerList, LedgerSum
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.schema.schema_registry import SchemaRegistry

TERMINATED: Final = "terminated"
"""The setting of a topic to which nobody publishes any more."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A data file that nothing refers to, since when, and whether it was ever published.

    `embedded_in` is the number of the commit that contains it.
    """

    since_ms: int
    reclaimed: bool
    embedded_in: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedCommit:
    """A commit that may follow a state, and by partition what of that state it is about."""

    commit: Commit
    trims: Mapping[int, Mapping[int, LedgerInfo]]
    """The ledgers to trim, by their places."""
    compacted: Mapping[int, CompactedLedgers]
    hidden: Mapping[int, PositionSet]


class TopicState:
    """A topic as of one commit. Mutable, but the lists of ledgers it hands out are not."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.number = -1
        self.incarnation = 0
        """The commit that made it: 0, or one behind the deletion of those that had its name."""
        self.made_by = ""
        """The id of that commit. It differs for a topic that was made again by hand."""
        self.is_deleted = False
        self.commit_id = ""
        self.timestamp_ms = 0
        self.term = 0
        self.next_ledger_id = 0
        self.settings: dict[str, Any] = {}
        self.applications: dict[str, int] = {}
        self.last_active = LastActive()
        self.sequence_ids: dict[int, dict[str, int]] = {}
        self.producers: dict[str, Any] | None = None
        self.schemas = SchemaRegistry()
        self.files: Counter[str] = Counter()
        self.tombstones: dict[str, Tombstone] = {}
        self._partitions: list[PartitionState] = []

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    def partition(self, number: int) -> PartitionState:
        """One partition. Not to be changed."""
        return self._partitions[number]

    def ledgers(self, partition: int) -> LedgerList:
        """The partition's ledgers as of now; later commits don't change the list."""
        return self._partitions[partition].ledgers

    @property
    def records_sequences(self) -> bool:
        """True if every publication has its sequence ids: duplicates are, or were, dropped."""
        return bool(self.settings.get("deduplication") or self.sequence_ids)

    @property
    def is_terminated(self) -> bool:
        return bool(self.settings.get(TERMINATED))

    def check_takes_messages(self) -> None:
        """TopicTerminatedError if it takes none any more."""
        if self.is_terminated:
            raise TopicTerminatedError(
                f"Topic {self.topic} was terminated: it takes no messages any more. Publish to "
                "another, or delete it and make it again."
            )

    @property
    def first_embedding(self) -> int | None:
        """The oldest commit that contains a file, in use or given up lately; None if none does."""
        ledgers = (each.embedded_in for each in self.embedded_ledgers)
        graves = (each.embedded_in for each in self.tombstones.values())
        return min((each for each in chain(ledgers, graves) if each is not None), default=None)

    @property
    def embedded_ledgers(self) -> list[LedgerInfo]:
        """The ledgers whose files are inside commits."""
        ledgers = (each for part in self._partitions for each in part.ledgers)
        return [each for each in ledgers if each.embedded_in is not None]

    def highest_sequence_id(self, partition: int, producer: str) -> int | None:
        return self.sequence_ids.get(partition, {}).get(producer)

    def was_published(self, application: str, version: int) -> bool:
        """True if the application has published that version, or a later one."""
        return self.applications.get(application, -1) >= version

    def checked(self, commit: Commit) -> CheckedCommit:
        """The next commit, fit to be applied. CorruptFileError or FileReclaimedError if not."""
        self._check_header(commit)
        self._check_ledgers(commit)
        trims = self._check_trimmed(commit)
        self._check_moved(commit, trims)
        compacted, hidden = self._check_compacted(commit), self._check_hidden(commit)
        self._check_files(commit)
        return CheckedCommit(commit, trims, compacted, hidden)

    def apply(self, commit: Commit) -> None:
        """Apply the next commit. CorruptFileError or FileReclaimedError leave all as it was."""
        self.apply_checked(self.checked(commit))

    def apply_checked(self, checked: CheckedCommit) -> None:
        """Apply what `checked` gave, on the same state.

        Other threads see the ledgers change last, when all that is said of them is there.
        """
        commit = checked.commit
        if commit.deleted:
            self._delete(commit)
        self._apply_header(commit)
        for ledger in commit.ledgers:
            self._add(ledger, commit)
        for partition, messages in checked.hidden.items():
            self._partitions[partition].hidden.add(messages)
        self._know_sequence_ids(commit)
        self._move(commit)
        self._trim(commit, checked.trims)
        self._compact(commit, checked.compacted)
        for file in commit.reclaimed:
            self.tombstones[file] = Tombstone(commit.timestamp_ms, reclaimed=True)
        for file in commit.forgotten:
            del self.tombstones[file]
        self._forget_inactive(commit)
        changed = {*checked.trims, *(each.partition for each in commit.ledgers)}
        for partition in changed.union(each.partition for each in commit.moved):
            self._partitions[partition].show()

    def _check_header(self, commit: Commit) -> None:
        if commit.number != self.number + 1:
            raise self._refuse(commit, f"it follows number {self.number}")
        if commit.term is not None and commit.term < self.term:
            raise self._refuse(commit, f"its term {commit.term} is below term {self.term}")
        if commit.partitions is None:
            if self.number < 0:
                raise self._refuse(commit, "the first commit has to say how many partitions")
        elif commit.partitions < max(self.partitions, 1):
            raise self._refuse(commit, f"it leaves {commit.partitions} of {self.partitions}")
        if commit.deleted and replace(commit, deleted=False) != _nothing(commit):
            raise self._refuse(commit, "it deletes the topic, and says something else too")
        if commit.deleted and self.is_deleted:
            raise self._refuse(commit, "the topic was deleted before")
        application = commit.application
        if application and self.was_published(application.id, application.version):
            raise self._refuse(commit, f"{application} was published before")

    def _check_ledgers(self, commit: Commit) -> None:
        partitions = self.partitions if commit.partitions is None else commit.partitions
        for expected, ledger in enumerate(commit.ledgers, self.next_ledger_id):
            if ledger.ledger_id != expected:
                raise self._refuse(commit, f"ledger {ledger.ledger_id} should be {expected}")
            if not 0 <= ledger.partition < partitions:
                raise self._refuse(commit, f"there is no partition {ledger.partition}")
            if ledger.file in self.files:
                raise self._refuse(commit, f"{ledger.file} was published before")
        entries = {ledger.ledger_id: ledger.entries for ledger in commit.ledgers}
        for ledger_id, runs in commit.chunks.items():
            if any(run.entry_id + run.count > entries.get(ledger_id, 0) for run in runs):
                raise self._refuse(commit, f"it has no such chunks in ledger {ledger_id}")
        if not commit.sequence_ranges.keys() <= entries.keys():
            raise self._refuse(commit, "it has sequence ids of ledgers that it does not add")
        known = len(self.schemas.schemas)
        if sorted(commit.schemas) != list(range(known, known + len(commit.schemas))):
            raise self._refuse(commit, f"it adds schemas of versions {sorted(commit.schemas)}")
        named = (*commit.sequence_ids, *commit.hidden)
        if not all(0 <= partition < partitions for partition in named):
            raise self._refuse(commit, "it names a partition that is not there")

    def _check_trimmed(self, commit: Commit) -> dict[int, dict[int, LedgerInfo]]:
        """The places of the ledgers to trim, and those ledgers, by partition."""
        trims: dict[int, dict[int, LedgerInfo]] = {}
        for partition, ids in commit.trimmed.items():
            places = trims[partition] = {}
            for ledger_id in ids:
                place, ledger = self._find(commit, partition, ledger_id)
                if place in places:
                    raise self._refuse(commit, f"ledger {ledger_id} is trimmed twice")
                places[place] = ledger
        return trims

    def _check_moved(self, commit: Commit, trims: Mapping[int, Mapping[int, LedgerInfo]]) -> None:
        for moved in commit.moved:
            place, _ = self._find(commit, moved.partition, moved.ledger_id)
            if place in trims.get(moved.partition, {}):
                raise self._refuse(commit, f"ledger {moved.ledger_id} is moved and trimmed")
            if moved.file in self.files:
                raise self._refuse(commit, f"{moved.file} was published before")

    def _check_compacted(self, commit: Commit) -> dict[int, CompactedLedgers]:
        found: dict[int, CompactedLedgers] = {}
        for partition, value in commit.compacted.items():
            if not 0 <= partition < self.partitions:
                raise self._refuse(commit, f"there is no partition {partition}")
            try:
                each = found[partition] = CompactedLedgers.from_json_value(value)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise self._refuse(commit, f"what it compacts is malformed: {error!r}") from error
            before = self._partitions[partition].compacted
            if before is not None and each.horizon < before.horizon:
                raise self._refuse(commit, f"its horizon is behind {before.horizon}")
            if known := sorted(file for file in each.files if file in self.files):
                raise self._refuse(commit, f"{known[0]} was published before")
        return found

    def _check_hidden(self, commit: Commit) -> dict[int, PositionSet]:
        if not commit.hidden:
            return {}
        try:
            hidden = {
                partition: Cursor.from_json_value(value).individually_deleted
                for partition, value in commit.hidden.items()
            }
        except CorruptFileError as error:
            raise self._refuse(commit, f"what it hides is malformed: {error.message}") from error
        added = {(each.partition, each.ledger_id): each for each in commit.ledgers}
        for partition, messages in hidden.items():
            for ledger_id in messages.ledger_ids:
                ledger = added.get((partition, ledger_id))
                if ledger is None:
                    raise self._refuse(commit, "it hides messages of ledgers that it does not add")
                if not messages.fits(ledger):
                    raise self._refuse(commit, f"it hides what ledger {ledger_id} does not have")
        return hidden

    def _check_files(self, commit: Commit) -> None:
        named = commit.files
        for file in named & self.tombstones.keys():
            raise FileReclaimedError(
                f"File {file} of topic {self.topic} had been given up when commit "
                f"{commit.number} named it. Write the messages again, into a new file."
            )
        for file in commit.reclaimed:
            if file in self.files or file in self.tombstones or file in named:
                raise self._refuse(commit, f"{file} can't be given up: it is known")
        for file in commit.forgotten:
            if file not in self.tombstones:
                raise self._refuse(commit, f"{file} can't be forgotten: it is not given up")

    def _find(self, commit: Commit, partition: int, ledger_id: int) -> tuple[int, LedgerInfo]:
        if 0 <= partition < self.partitions:
            part = self._partitions[partition]
            place = part.ledgers.place(ledger_id)
            if place is not None:
                return place, part.column.at(place)
        raise self._refuse(commit, f"partition {partition} has no ledger {ledger_id}")

    def _apply_header(self, commit: Commit) -> None:
        self.number = commit.number
        self.commit_id = commit.commit_id
        self.timestamp_ms = commit.timestamp_ms
        if commit.partitions and not self.partitions:
            self.incarnation, self.is_deleted = commit.number, False
            self.made_by = commit.commit_id
        if commit.term is not None:
            self.term = commit.term
        if commit.application:
            self.applications[commit.application.id] = commit.application.version
        if commit.settings is not None:
            self.settings = dict(commit.settings)
        if commit.producers is not None:
            self.producers = dict(commit.producers)
        if commit.schemas:
            added = (schema for _, schema in sorted(commit.schemas.items()))
            self.schemas = SchemaRegistry((*self.schemas.schemas, *added))
        while self.partitions < (commit.partitions or 0):
            self._partitions.append(PartitionState())

    def _delete(self, commit: Commit) -> None:
        """Forget all but what the next topic of that name must not repeat."""
        embedded = {each.file: each.embedded_in for each in self.embedded_ledgers}
        for file in self.files:
            grave = Tombstone(commit.timestamp_ms, False, embedded.get(file))
            self.tombstones[file] = grave
        empty = TopicState(self.topic)
        for name in _OF_THE_LOG:
            setattr(empty, name, getattr(self, name))
        vars(self).update(vars(empty), is_deleted=True)

    def _know_sequence_ids(self, commit: Commit) -> None:
        """Take in each producer's highest id, and the ranges of ids by ledger.

        Of a producer without ranges, all ids up to the highest count as published.
        """
        reported: set[tuple[int, str]] = set()
        for ledger in commit.ledgers:
            if ranges := commit.sequence_ranges.get(ledger.ledger_id):
                self._partitions[ledger.partition].sequences.add(ledger.ledger_id, ranges)
                reported.update((ledger.partition, producer) for producer in ranges)
        for partition, by_producer in commit.sequence_ids.items():
            known = self.sequence_ids.setdefault(partition, {})
            for producer, highest in by_producer.items():
                known[producer] = max(highest, known.get(producer, highest))
                if (partition, producer) not in reported:
                    self._partitions[partition].sequences.raise_floor(producer, highest)

    def _add(self, ledger: LedgerInfo, commit: Commit) -> None:
        part = self._partitions[ledger.partition]
        part.column.append(ledger)
        if chunks := commit.chunks.get(ledger.ledger_id):
            part.chunks[ledger.ledger_id] = chunks
        part.messages += ledger.messages
        part.size_bytes += ledger.size_bytes
        part.published = part.published + LedgerSum.of(ledger)
        self.files[ledger.file] += 1
        self.next_ledger_id = ledger.ledger_id + 1

    def _move(self, commit: Commit) -> None:
        places: dict[int, dict[int, LedgerInfo | None]] = {}
        for moved in commit.moved:
            place, ledger = self._find(commit, moved.partition, moved.ledger_id)
            there = replace(
                ledger, file=moved.file, first_row=moved.first_row, seal=moved.seal,
                embedded_in=None,
            )  # fmt: skip
            places.setdefault(moved.partition, {})[place] = there
            self.files[moved.file] += 1
            self._release(ledger.file, commit.timestamp_ms, ledger.embedded_in)
        for partition, changed in places.items():
            part = self._partitions[partition]
            # Places stay, so that a trim in the same commit still finds its own.
            part.column = part.column.copy(0, len(part.column.ids), changed)

    def _trim(self, commit: Commit, trims: Mapping[int, Mapping[int, LedgerInfo]]) -> None:
        for partition, places in trims.items():
            part = self._partitions[partition]
            for ledger in places.values():
                part.messages -= ledger.messages
                part.size_bytes -= ledger.size_bytes
                if part.published is not None:
                    part.removed += LedgerSum.of(ledger)
                part.trimmed_up_to = max(part.trimmed_up_to, ledger.last)
                part.chunks.pop(ledger.ledger_id, None)
                part.sequences.trim(ledger.ledger_id)
                self._release(ledger.file, commit.timestamp_ms, ledger.embedded_in)
            stop, holes = len(part.column.ids), set(places)
            if holes == set(range(part.start, part.start + len(places))):
                part.start += len(places)
                if part.start <= max(stop // 2, 64):
                    continue
                holes = set()
            part.column = part.column.copy(part.start, stop, dict.fromkeys(holes))
            part.hidden = part.hidden.without_others(part.column.ids)
            part.start = 0

    def _compact(self, commit: Commit, compacted: Mapping[int, CompactedLedgers]) -> None:
        for partition, each in compacted.items():
            part = self._partitions[partition]
            self.files.update(each.files)
            for file in part.compacted_files:
                self._release(file, commit.timestamp_ms)
            part.compacted = each

    def _forget_inactive(self, commit: Commit) -> None:
        parts = self._partitions
        self.last_active.take_in(commit)
        for application in commit.inactive_applications:
            self.applications.pop(application, None)
        for producer in commit.inactive_producers:
            for known in (*self.sequence_ids.values(), *(p.sequences.floors for p in parts)):
                known.pop(producer, None)

    def _release(self, file: str, now_ms: int, embedded_in: int | None = None) -> None:
        self.files[file] -= 1
        if not self.files[file]:
            del self.files[file]
            self.tombstones[file] = Tombstone(now_ms, False, embedded_in)

    def _refuse(self, commit: Commit, why: str) -> CorruptFileError:
        return CorruptFileError(
            f"Log file {log_file(commit.number)} of topic {self.topic} does not fit: {why}. "
            "Nothing was changed; the log was altered by something other than Pulsarlite."
        )

    def to_snapshot(self) -> tuple[list[LedgerInfo], dict[str, Any]]:
        """(the ledgers, partition after partition; the small rest as JSON)."""
        rest: dict[str, Any] = {name: getattr(self, name) for name in _IN_SNAPSHOTS}
        rest["sequence_ids"] = {str(p): dict(each) for p, each in self.sequence_ids.items()}
        rest["tombstones"] = {
            file: [grave.since_ms, grave.reclaimed, grave.embedded_in]
            for file, grave in self.tombstones.items()
        }
        rest["partitions"] = [part.to_json_value() for part in self._partitions]
        rest.update(self.last_active.to_json_value())
        if self.incarnation:
            rest["incarnation"] = self.incarnation
        if self.made_by:
            rest["made_by"] = self.made_by
        if self.is_deleted:
            rest["deleted"] = True
        if self.producers is not None:
            rest["producers"] = self.producers
        if self.schemas.schemas:
            rest["schemas"] = self.schemas.to_json_value()
        return [ledger for part in self._partitions for ledger in part.ledgers], rest

    @staticmethod
    def from_snapshot(
        topic: str, ids: Sequence[int], files: Mapping[str, int], rest: Mapping[str, Any],
        row: Callable[[int], LedgerInfo],
    ) -> TopicState:  # fmt: skip
        """The state whose ledgers are built by `row(number)` when somebody asks for them.

        `ids` has one ledger id a row, partition after partition; `files` counts, for each data
        file, the rows that refer to it. KeyError, TypeError or ValueError if they don't agree.
        """
        state = TopicState(topic)
        for name, read in _IN_SNAPSHOTS.items():
            setattr(state, name, read(rest[name]))
        state.sequence_ids = {int(p): dict(each) for p, each in rest["sequence_ids"].items()}
        state.tombstones = {
            file: Tombstone(int(since_ms), bool(reclaimed), commit and int(commit))
            for file, (since_ms, reclaimed, commit) in rest["tombstones"].items()
        }
        state.last_active = LastActive.from_json_value(rest)
        state.incarnation = int(rest.get("incarnation", 0))
        state.made_by = str(rest.get("made_by", ""))
        state.is_deleted = bool(rest.get("deleted", False))
        state.producers = rest.get("producers")
        state.schemas = SchemaRegistry.from_json_value(rest.get("schemas", ()))
        state.files = Counter(files)
        first = 0
        for part in rest["partitions"]:
            last = first + int(part["ledgers"])
            column = LedgerColumn(ids[first:last], range(first, last), row)
            state._partitions.append(PartitionState.from_json_value(part, column))
            state.files.update(state._partitions[-1].compacted_files)
            first = last
        if first != len(ids):
            raise ValueError(f"{len(ids)} ledgers for partitions of {first}")
        return state


def _nothing(commit: Commit) -> Commit:
    """The commit without anything that it says."""
    return Commit(commit.number, commit.commit_id, commit.timestamp_ms)


_OF_THE_LOG: Final = (
    "number", "incarnation", "commit_id", "timestamp_ms", "term", "next_ledger_id", "tombstones",
)  # fmt: skip
"""Fields that stay when a topic is deleted: the log goes on."""
_IN_SNAPSHOTS: Final[dict[str, Callable[[Any], Any]]] = {
    "number": int, "commit_id": str, "timestamp_ms": int, "term": int, "next_ledger_id": int,
    "settings": dict, "applications": dict,
}  # fmt: skip
"""Fields that a snapshot has as they are, and how each is read."""
