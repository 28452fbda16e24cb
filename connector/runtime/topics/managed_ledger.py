"""A topic on disk: its state, kept up with the log, and the one way to commit to it.

Invariants: a commit takes effect at the instant its log file comes into being, and once; a commit
that was confirmed is durable; the state moves forward only; a commit is put only if it can be read
back and applied, and if the files that it names exist; a log file in a place that was emptied
before (left by a writer that slept through a clean-up) is never applied: `log_pointer` says how
that is known. A topic that was deleted has ended, whatever is made under its name: an object stands
for one topic, and raises TopicDeletedError from then on. A commit of an open transaction ends the
log: nobody sees it, and a writer that comes behind it waits until it is decided, or decides
(`_settle`).

Follows Pulsar's `ManagedLedgerImpl`; the log stands where Pulsar has ZooKeeper and a bookie quorum.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from pulsar_spark.connector.runtime.topics.activity import Announcer
from pulsar_spark.connector.runtime.topics.log_pointer import LOG_GRACE_MS, LogPointer, PointerFile
from pulsar_spark.connector.runtime.topics.log_snapshot import (
    decode_snapshot,
    encode_snapshot,
    snapshot_file,
)
from pulsar_spark.connector.runtime.topics.prefetch import LogTail
from pulsar_spark.connector.runtime.topics.transaction_decisions import TransactionDecisions
from pulsar_spark.connector.storage.data_files.commit_files import check_files, stored_apart
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader, cache_files
from pulsar_spark.connector.storage.data_files.sequence_ids import (
    SEQUENCE_COLUMNS,
    Rows,
    sequences_of,
)
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import (
    CorruptFileError,
    InvalidOptionError,
    PulsarliteError,
    TopicDeletedError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_spark.log.ledger_commit import LOG_FOLDER, Application, Commit, log_file
from pulsar_spark.log.ledger_log import CheckedCommit, TopicState
from pulsar_spark.log.producer_registry import ProducerClaim
from pulsar_spark.log.publication import (
    AlreadyCommitted,
    Check,
    NewLedger,
    Publication,
    embedded_files,
)
from pulsar_spark.log.transaction_attempt import MAX_TRANSACTION_TIMEOUT_MS, Transaction, TxnStatus
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.records.stored_record import readable
from pulsar_spark.model.topic_name import MAX_PARTITIONS, is_persistent

BROKERS_PATIENCE_MS = 10_000
"""The age of an open transaction that the broker aborts to publish letters; its owner repeats."""
SNAPSHOT_EVERY = 64
"""Commits between snapshots, at least."""
SNAPSHOT_LEDGERS = 64
"""One more commit between snapshots for each so many ledgers: a snapshot costs by ledger."""
IDLE_POINTER_POLL_S = 1.0
"""Seconds between two polls of the pointer by an idle reader, on a local disk."""
REMOTE_POINTER_POLL_S = 60.0
"""The same over a network: the log is trimmed only behind readers that slept for LOG_GRACE_MS."""
FRESH_MS = 5 * 60 * 1000
"""A file written so lately is there, over a network: if it was given up, the log still says so."""
TAIL_AT_ONCE = 63
"""Commits that are read before they are applied; on an object store 1, 2, 4, ... at once."""

_Answer = TypeVar("_Answer")
LedgerChoice = Callable[[Sequence[LedgerInfo]], Iterable[LedgerInfo]]
"""A choice of the new ledgers whose files are read next."""
Build = Callable[[TopicState, Commit], Commit | _Answer]
"""(state, the next commit, empty) -> the commit with what it says, or why there is none."""

_log = logging.getLogger(__name__)


class ManagedLedger:
    """One topic. Safe for several threads of one process; `state` is for reading only."""

    def __init__(
        self, store: ObjectStore, folder: str, topic: str | None = None,
        grace_ms: int = LOG_GRACE_MS,
    ) -> None:  # fmt: skip
        """Not loaded: `open` and `create` do that. `grace_ms` is for the PointerFile."""
        self.store, self.folder, self.topic = store, folder, topic or folder
        self.clock = store.clock.wall_ms
        self.state = TopicState(self.topic)
        """The state after the last `refresh` or commit; either may replace the object."""
        self._pointer_file = PointerFile(store, folder, grace_ms)
        self._pointer_polled_s = 0.0
        self._snapshot, self._is_snapshotting = -1, False
        self._undecided: tuple[Commit, int] | None = None  # (commit, when it was first seen)
        self._lock = threading.RLock()
        self._is_bound = False
        """True if it stands for the topic that `state` has, and for no later one of that name."""
        self._has_ended = False
        self._announcer = Announcer(store, self.topic)
        self._recent: dict[int, bytes] = {}
        """The last commits that were read, over a network, where `commits` would ask again."""
        self._asked: LogTail | None = None
        """The answers to the requests of the poll in progress."""
        self._requested_up_to = -1

    @classmethod
    def open(cls, store: ObjectStore, folder: str, topic: str | None = None) -> ManagedLedger:
        """The topic in that folder, as of now. TopicNotFoundError if there is none.

        `topic` is its name in errors. A process that opened it before gets the same object, brought
        up to date, and pays for the news only.
        """
        key = (os.getpid(), store, folder)
        ledger = _cache.get(key)
        if ledger is None or not ledger.catch_up():
            ledger = _cache[key] = cls.open_anew(store, folder, topic)
        return ledger

    @classmethod
    def known(cls, store: ObjectStore, folder: str) -> ManagedLedger | None:
        """The topic as this process saw it last, where a look costs a request.

        For who commits to it, and by that learns what is new. None if it has to be opened.
        """
        ledger = _cache.get((os.getpid(), store, folder)) if store.remote else None
        return None if ledger is None or ledger.has_ended else ledger

    @classmethod
    def open_anew(
        cls, store: ObjectStore, folder: str, topic: str | None = None,
        *, grace_ms: int = LOG_GRACE_MS,
    ) -> ManagedLedger:  # fmt: skip
        """As `open` where nobody has opened it before."""
        ledger = cls.open_log(store, folder, topic, grace_ms=grace_ms)
        ledger.check_exists()
        return ledger

    @classmethod
    def open_log(
        cls, store: ObjectStore, folder: str, topic: str | None = None,
        *, grace_ms: int = LOG_GRACE_MS,
    ) -> ManagedLedger:  # fmt: skip
        """As `open_anew`, also if the topic is deleted: then until it is made again."""
        ledger = cls(store, folder, topic, grace_ms)
        ledger._load()
        ledger._is_bound = True
        return ledger

    @classmethod
    def create(
        cls, store: ObjectStore, folder: str, partitions: int,
        settings: Mapping[str, Any] | None = None, *, topic: str | None = None,
    ) -> ManagedLedger:  # fmt: skip
        """A new topic. TopicExistsError if it exists, ConditionalWriteError in a careless store."""
        _check_partitions(partitions)
        store.check_writes()
        ledger = cls(store, folder, topic)

        def first(state: TopicState, new: Commit) -> Commit:
            if state.partitions:
                raise TopicExistsError(
                    f"Topic {ledger.topic} exists already. Open it, or choose another name."
                )
            return replace(
                new, partitions=partitions, settings=dict(settings) if settings else None
            )

        ledger.commit(first)
        ledger._is_bound = True
        return ledger

    def ledgers(self, partition: int) -> LedgerList:
        return self.state.ledgers(partition)

    def ask(self) -> bool:
        """Look for the next commit, for the `refresh` that follows: beside other requests."""
        number = self.state.number + 1
        data = self.store.get(self._path(number))
        self._asked = LogTail(number, [] if data is None else [data], is_end=data is None)
        self._requested_up_to = number if data is not None else number - 1
        return data is not None

    def prefetch_more(self, requested: LedgerChoice = lambda _: (), *, again: bool = True) -> None:
        """The same for what comes behind it, with the `requested` files of its ledgers.

        If nothing was there, look `again`.
        """
        asked, up_to = self._asked, self._requested_up_to
        if asked is None or asked.is_end:
            if again:
                self.ask()
                self._requested_up_to = up_to
            return
        follows = asked.first + len(asked.commits)
        requests: list[Callable[[], Any]] = [
            lambda: self.store.get(self._path(follows)),
            lambda: self.store.get(self._pointer_file.path),
            lambda: self._fetch(requested(asked.ledgers(self._path))),
        ]
        data, pointer, _ = self.store.answers(lambda do: do(), requests)
        found, vouching = ([], self._pointer_of(pointer)) if data is None else ([data], None)
        self._asked = LogTail(asked.first, asked.commits + found, vouching, is_end=data is None)

    def forget(self) -> None:
        """No `refresh` has followed."""
        self._asked = None

    @property
    def is_late(self) -> bool:
        """True if commits were found behind the first round: who relied on it looks again."""
        return self.state.number > self._requested_up_to

    def refresh(self) -> bool:
        """Apply the commits since the last look; False if there were none."""
        with self._lock:
            before = self.state.number
            self._follow()
            return self.state.number != before

    @property
    def has_ended(self) -> bool:
        """True if the topic was deleted, as far as is known."""
        return self._has_ended or self.state.is_deleted

    def check_exists(self) -> None:
        """TopicDeletedError if the topic has ended."""
        if self.has_ended:
            raise self._ended()

    def check_incarnation(self, incarnation: int) -> None:
        """TopicDeletedError if this is not the topic that had that number."""
        if self._has_ended or self.state.incarnation != incarnation:
            raise self._ended()

    @property
    def log_folder(self) -> str:
        """The folder in which its commits appear."""
        return join(self.folder, LOG_FOLDER)

    @property
    def is_undecided(self) -> bool:
        """True if an open transaction ends the log: its decision is no commit, and no news."""
        return self._undecided is not None

    def is_behind(self, number: int) -> bool:
        """True if there is a commit behind that number: one look at a local disk, no request."""
        if self.state.number > number:
            return True
        return not self.store.remote and self.store.size(self._path(number + 1)) is not None

    def catch_up(self) -> bool:
        """Refresh; False if the topic is not the one it was (deleted, and made again)."""
        with self._lock:
            if self._has_ended:
                return False
            last = self.store.get(self._path(self.state.number))
            if last is None:
                if self._pointer().removed < self.state.number:
                    return False
            elif self.state.commit_id.encode() not in last:
                return False
            with suppress(TopicDeletedError):
                self._follow() if last is not None else self._load()
            return not self._has_ended

    def append(
        self, ledgers: Sequence[NewLedger], *,
        application: tuple[str, int] | Application | None = None, term: int | None = None,
        deduplicate: bool | None = None, producer: ProducerClaim | None = None,
        leaves: bool = False, is_brokers: bool = False,
        transaction: Transaction | None = None, check: Check | None = None,
    ) -> Commit | AlreadyCommitted:  # fmt: skip
        """Publish ledgers whose files are written; AlreadyCommitted if they had been before.

        `application` is (id, version): published once, however often it is tried. With
        `deduplicate` (the topic's setting `deduplication` by default) a message whose sequence id
        its producer has used before is hidden. `producer` is registered already; `leaves`: this
        commit ends its registration. `is_brokers`: no producer excludes it. FencedError if a higher
        term has committed, ProducerFencedError or ProducerBusyError if the producer may not
        publish, FileReclaimedError if a file was given up meanwhile. With `transaction` the ledgers
        are only prepared: visible once it is committed. `check` raises where they may not follow a
        state of the topic.
        """
        if isinstance(application, tuple):
            application = Application(*application)
        ledgers = stored_apart(self.store, self.folder, ledgers)
        read = partial(self._read_sequences, embedded_files(ledgers))
        publication = Publication(
            ledgers, application, term, deduplicate, read, producer, leaves, is_brokers,
            transaction, check,
        )  # fmt: skip
        patience_ms = BROKERS_PATIENCE_MS if is_brokers else MAX_TRANSACTION_TIMEOUT_MS
        committed = self.commit(publication.commit_on, patience_ms=patience_ms)
        assert committed is not None
        return committed

    def grow(self, partitions: int) -> Commit | None:
        """Grow to so many partitions; None if it has as many."""
        _check_partitions(partitions)

        def build(state: TopicState, new: Commit) -> Commit | None:
            return replace(new, partitions=partitions) if partitions > state.partitions else None

        return self.commit(build)

    def delete(self) -> Commit:
        """End the topic, with all that it has. TopicDeletedError if it has ended before."""
        committed = self.commit(lambda _, new: replace(new, deleted=True))
        assert isinstance(committed, Commit)
        return committed

    def change_settings(
        self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]], *, waits: bool = True
    ) -> Commit | None:
        """Have what `change` makes of the settings; None if they are so already.

        Without `waits` also None, and no change, behind an open transaction.
        """

        def build(state: TopicState, new: Commit) -> Commit | None:
            requested = dict(change(state.settings))
            return None if requested == state.settings else replace(new, settings=requested)

        return self.commit(build, waits=waits)

    def commit(
        self, build: Build[_Answer], *,
        waits: bool = True, patience_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
    ) -> Commit | _Answer | None:  # fmt: skip
        """Commit what `build(state, new)` proposes, on the latest state.

        `build` is called again after every lost race. If it proposes no Commit, there is nothing
        to do: its answer is returned. Behind an open transaction the call waits until that is
        decided, or its time is over, or `patience_ms` if that is less; with `waits` False it
        returns None. FileReclaimedError if a file that the commit names is gone,
        UnreadableRecordError if the commit could not be read back: then nothing was stored.
        """
        commit_id = uuid.uuid4().hex
        clock, begun_s = self.store.clock, self.store.clock.monotonic_s()
        lost = 0
        while True:
            with self._lock:
                if self._has_ended:
                    raise self._ended()
                new = Commit(self.state.number + 1, commit_id, self.clock())
                proposal = build(self.state, new)
                if not isinstance(proposal, Commit):
                    return proposal
                if proposal.number <= self.state.number:  # `build` has brought the state up to date
                    continue
                self._announcer.announce()
                if self._try(proposal):
                    self._announcer.announce()  # again, if that took long
                    if not self._has_ended:
                        self._snapshot_if_due()
                    return proposal
                held_up = not self._settle(proposal.transaction, patience_ms)
            if held_up and not waits:
                return None
            if held_up:
                clock.sleep(pause_s(clock.monotonic_s() - begun_s, remote=self.store.remote))
            else:
                self.store.pause(lost)
            lost += 1

    def settle(self, patience_ms: int = MAX_TRANSACTION_TIMEOUT_MS) -> bool:
        """End an open transaction of the log if it is time, never wait; whether none is left."""
        with self._lock:
            self._follow()
            return self._settle(None, patience_ms)

    def reader(self, *, holds_small: bool = False) -> closing[LedgerFileReader]:
        """Reads the data files, to the end of its `with`; some are read again by this process."""
        place = self.store, self.folder, self.topic
        return closing(LedgerFileReader(*place, holds_small=holds_small))

    def commits(self, first: int, last: int) -> list[Commit] | None:
        """The commits from `first` to `last`, both included; None if some are gone."""
        numbers = range(first, last + 1)
        known = {number: self._recent[number] for number in numbers if number in self._recent}
        asked = [number for number in numbers if number not in known]
        found = dict(zip(asked, self._answers(map(self._path, asked)), strict=True))
        commits = []
        for number in numbers:
            data = known.get(number) or found[number]
            is_sure = number in known
            if data is None or (not is_sure and self._pointer_file.read().removed >= number):
                return None
            try:
                commit = self._decided(Commit.from_json(data, self._path(number), number))
            except CorruptFileError:
                if is_persistent(self.topic):
                    raise
                return None
            if commit is None:  # its decision was cleaned up, behind the log
                return None
            commits.append(commit)
        return commits

    def write_snapshot(self) -> None:
        """Store the present state, and let the pointer name it."""
        with self._lock:
            number, held = self.state.number, self.state.first_embedding
            path = join(self.folder, snapshot_file(number))
            data = readable(
                lambda: encode_snapshot(self.state),
                lambda stored, name: decode_snapshot(stored, self.topic, name, number),
                path,
            )
        self.store.put_if_absent(path, data)
        self._note(self._pointer_file.move(number, self.clock(), held))

    def _try(self, proposal: Commit) -> bool:
        """True if the proposal was committed. If not, the state has moved on."""
        path = self._path(proposal.number)
        checked: list[CheckedCommit] = []

        def read(stored: bytes, name: str) -> None:
            commit = Commit.from_json(stored, name, proposal.number)
            checked.append(self.state.checked(commit))

        data = readable(proposal.to_json, read, path)
        inside = proposal.embedded.keys()
        named = proposal.files - inside - self._fresh_files(proposal)
        check_files(self.store, self.folder, self.topic, named)
        if not self.store.put_if_absent(path, data) and self.store.get(path) != data:
            self._follow()
            return False
        # Ours, though its request may have seemed to fail. Was the place emptied before?
        if self._pointer_and_activity().removed >= proposal.number:
            self._load()
            if self.store.get(path) == data:
                self.store.delete(path)
            return False
        if proposal.deleted:
            self._has_ended = True
        elif proposal.transaction is None:
            self.state.apply_checked(*checked)
            cache_files(self.store, self.folder, proposal.embedded)
        return True

    def _follow(self) -> None:
        """Apply the commits after the state, or load anew where the log was cleaned up past it."""
        if self._has_ended:
            raise self._ended()
        known, self._undecided = self._undecided, None
        while True:
            found, pointer = self._tail(self.state.number + 1)
            if not found and pointer is None and not self._is_pointer_due():
                return
            if (pointer or self._pointer()).removed > self.state.number:
                self._load()
                return
            for data in found:
                number = self.state.number + 1
                try:
                    commit = Commit.from_json(data, self._path(number), number)
                    decided = self._decided(commit)
                    if decided is None:
                        known_before = known is not None and known[0] == commit
                        self._undecided = known if known_before else (commit, self.clock())
                        return
                    made_again = self.state.is_deleted and decided.partitions
                    self._check_same(ended=bool(decided.deleted or made_again))
                    self.state.apply(decided)
                    cache_files(self.store, self.folder, decided.embedded)
                    self._remember(number, data)
                except CorruptFileError:
                    if is_persistent(self.topic):
                        raise
                    # Lost when a machine stopped, with others perhaps: it takes up its number.
                    self.state.apply(Commit(number, "", self.state.timestamp_ms))
            if len(found) < TAIL_AT_ONCE:
                return

    def _decided(self, commit: Commit) -> Commit | None:
        """The commit, without effects if it was aborted; None while its transaction is open."""
        if commit.transaction is None:
            return commit
        decisions = TransactionDecisions(self.store, commit.transaction.id)
        status = decisions.status(commit.transaction.attempt)
        if status is TxnStatus.FORGOTTEN and self._pointer().removed >= commit.number:
            return None  # the commit is gone too: the next look finds it in a snapshot
        if status is TxnStatus.OPEN:
            return None
        return commit if status is TxnStatus.COMMITTED else commit.aborted()

    def _settle(self, mine: Transaction | None, patience_ms: int) -> bool:
        """True if the transaction `mine` may try its commit again.

        An open transaction that only lacks the decision is committed. One that is out of time, or
        an earlier try of the same application, is aborted. Any other is left to its owner.
        """
        if self._undecided is None:
            return True
        commit, since_ms = self._undecided
        open_ = commit.transaction
        assert open_ is not None
        if self._pointer().removed >= commit.number:
            self._load()  # the log was cleaned up past it
            return True
        decisions = TransactionDecisions(self.store, open_.id)
        waited_ms = self.clock() - min(since_ms, commit.timestamp_ms)
        out_of_time = waited_ms >= min(open_.timeout_ms, patience_ms)
        if open_.complete:
            decisions.commit(open_.attempt)
        elif out_of_time or (mine is not None and mine.application == open_.application):
            decisions.abort(open_.attempt)
        self._follow()
        return self._undecided is None

    def _fetch(self, ledgers: Iterable[LedgerInfo]) -> None:
        """Have the files of these at hand that are small."""
        with suppress(PulsarliteError), self.reader(holds_small=True) as reader:
            reader.fetch(ledgers)

    def _tail(self, number: int) -> tuple[list[bytes], LogPointer | None]:
        """The log files from `number` on, up to the first gap.

        With the pointer, if it was asked for beside the last request, which found nothing more.
        """
        found: list[bytes] = []
        ahead, asked = 1, self._asked
        if asked is not None and asked.first == number:
            self._asked, found = None, asked.commits
            if asked.is_end:
                return found, asked.pointer
        while len(found) < TAIL_AT_ONCE:
            first = number + len(found)
            paths = [self._path(each) for each in range(first, first + ahead)]
            in_background = self.store.remote and (bool(found) or self._is_pointer_due())
            before = len(found)
            *files, last = self._answers(
                [*paths, self._pointer_file.path] if in_background else paths
            )
            for data in files if in_background else (*files, last):
                if data is None:
                    is_behind = in_background and len(found) == before
                    return found, self._pointer_of(last) if is_behind else None
                found.append(data)
            ahead *= 2
        return found, None

    def _answers(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        return self.store.answers(self.store.get, paths)

    def _remember(self, number: int, data: bytes) -> None:
        if self.store.remote:
            self._recent[number] = data
            while len(self._recent) > TAIL_AT_ONCE:
                del self._recent[next(iter(self._recent))]

    def _load(self) -> None:
        """Start from the newest snapshot, or from the first commit, and go on to the end."""
        while True:
            pointer = self._pointer()
            state = TopicState(self.topic)
            if pointer.snapshot >= 0:
                name = join(self.folder, snapshot_file(pointer.snapshot))
                data = self.store.get(name)
                if data is None:
                    if self._pointer() != pointer:
                        continue
                    raise CorruptFileError(
                        f"Snapshot {name} of topic {self.topic} is missing. Restore it."
                    )
                state = decode_snapshot(data, self.topic, name, pointer.snapshot)
            if state.number >= self.state.number:
                which = attrgetter("incarnation", "is_deleted")
                self._check_same(ended=which(state) != which(self.state))
                self.state = state
            self._follow()
            self._check_no_gap()
            if self.state.number >= 0:
                return
            if self._pointer().snapshot < 0:
                raise TopicNotFoundError(
                    f"Topic {self.topic} does not exist in {self.store.root}. Create it, publish "
                    "to it, or check the name and serviceUrl."
                )

    def _check_no_gap(self) -> None:
        """CorruptFileError if the log goes on behind a commit that is gone.

        Who publishes would take its number. Not over a network, where a listing is a request.
        """
        if self.store.remote or not is_persistent(self.topic):
            return
        next_ = self._path(self.state.number + 1)
        paths = (each.path for each in self.store.files(self.log_folder))
        later = (each for each in paths if len(each) == len(next_) and each > next_)
        if any(each.endswith(".json") for each in later):
            came_meanwhile = self.store.get(next_) is not None
            if not came_meanwhile and self._pointer().removed <= self.state.number:
                raise CorruptFileError(
                    f"Log file {next_} is missing, and later ones are there. Nothing was changed; "
                    "restore the file from a copy."
                )

    def _check_same(self, *, ended: bool) -> None:
        """TopicDeletedError if the topic for which this stands has ended: its state stays."""
        if ended and self._is_bound:
            self._has_ended = True
            raise self._ended()

    def _ended(self) -> TopicDeletedError:
        return TopicDeletedError(
            f"Topic {self.topic} was deleted, with its messages and subscriptions. If there is one "
            "of that name now, it is another: open it anew, and begin with a new checkpoint."
        )

    def _read_sequences(
        self, embedded: Mapping[str, bytes], ledger: LedgerInfo
    ) -> Mapping[str, tuple[Rows, Rows]]:
        place = self.store, self.folder, self.topic
        with closing(LedgerFileReader(*place, embedded=embedded)) as reader:
            return sequences_of(reader.read_table(ledger, SEQUENCE_COLUMNS))

    def _fresh_files(self, proposal: Commit) -> set[str]:
        """Files of messages that were just published: who wrote them has seen them stored."""
        if not self.store.remote:
            return set()
        now_ms = self.clock()
        new = (each for each in proposal.ledgers if each.seal is not None)
        return {each.file for each in new if abs(now_ms - each.max_publish_time_ms) < FRESH_MS}

    def _snapshot_if_due(self) -> None:
        """A snapshot now and then; if it fails, the commit stands all the same.

        Over a network nobody waits for it, unless it is late: this process may end before it.
        """
        ledgers = sum(map(len, map(self.state.ledgers, range(self.state.partitions))))
        every = max(SNAPSHOT_EVERY, ledgers // SNAPSHOT_LEDGERS)
        commits = self.state.number - max(self._snapshot, 0)
        if commits >= 2 * every:
            self._snapshot_now()
        elif commits >= every and not self._is_snapshotting:
            self._is_snapshotting = True
            self.store.in_background(self._snapshot_now)

    def _snapshot_now(self) -> None:
        try:
            self.write_snapshot()
        except (PulsarliteError, OSError, ArithmeticError, LookupError, ValueError) as error:
            _log.warning("No snapshot of topic %s at %s: %s", self.topic, self.state.number, error)
        finally:
            self._is_snapshotting = False

    def _pointer(self) -> LogPointer:
        return self._pointer_of(self.store.get(self._pointer_file.path))

    def _pointer_and_activity(self) -> LogPointer:
        """The pointer; beside it an announcement is renewed that soon holds no more."""
        if not (self.store.remote and self._announcer.is_late):
            return self._pointer()
        asked = (lambda: self.store.get(self._pointer_file.path), self._announcer.renew)
        data, _ = self.store.answers(lambda ask: ask(), asked)
        return self._pointer_of(data)

    def _pointer_of(self, data: bytes | None) -> LogPointer:
        self._pointer_polled_s = self.store.clock.monotonic_s()
        return self._note(self._pointer_file.parse(data))

    def _is_pointer_due(self) -> bool:
        every_s = REMOTE_POINTER_POLL_S if self.store.remote else IDLE_POINTER_POLL_S
        return self.store.clock.monotonic_s() - self._pointer_polled_s >= every_s

    def _note(self, pointer: LogPointer) -> LogPointer:
        self._snapshot = max(self._snapshot, pointer.snapshot)
        return pointer

    def _path(self, number: int) -> str:
        return join(self.folder, log_file(number))


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidOptionError(
            f"A topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}: each costs memory "
            "wherever the topic is open, and a place in every offset."
        )


_cache: dict[tuple[int, ObjectStore, str], ManagedLedger] = {}
