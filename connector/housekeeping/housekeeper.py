"""What a broker does for its root by itself, beside its batches: compacts, merges, deletes.

Invariants: no batch waits for it, nor it for an open transaction; each thing that it does is a
commit of a topic's log, so it may be killed anywhere and run in two processes at once, and a
compaction that somebody else made first is given up; a topic in trouble is left for later, and the
others go on. Of many topics a turn looks at those that had news or for which it is time, and at a
few of the others. Time is the root's clock. Follows Pulsar's compaction monitor and ledger
trimming.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from pulsar_spark.connector.housekeeping.compaction import backlog_bytes, compact
from pulsar_spark.connector.housekeeping.idle_subscriptions import IdleSubscriptions
from pulsar_spark.connector.housekeeping.inactive_topics import InactiveTopics
from pulsar_spark.connector.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.connector.system.lease import LEASES
from pulsar_spark.connector.system.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.topic_log.ledger_store import (
    FILE_GRACE_MS,
    MERGED_FILE_BYTES,
    ORPHAN_AGE_MS,
    LedgerStore,
    delete_temporaries,
    sweep_deleted,
)
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.news import NewsWatch
from pulsar_spark.connector.topic_log.policies import NamespaceWatch
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.options import topic_policies
from pulsar_spark.protocol.commands import CloseConsumer
from pulsar_spark.topic_name import TopicName, TopicPartition

EVERY_S: Final = 60.0
"""How often it looks. Pulsar: brokerServiceCompactionMonitorIntervalInSeconds."""
FEW: Final = 100
"""So many topics are all looked at each time."""
ROUND_S: Final = 3600.0
"""How long a round over all topics takes otherwise, on a local disk, ..."""
REMOTE_ROUND_S: Final = 24 * 3600.0
"""... and over a network."""
TIDY_EVERY_S: Final = 600.0
"""How often at most it tidies a topic."""
RARELY_S: Final = 3600.0
"""How often it looks for what killed processes have left, and who publishes no more."""
FILES_TO_MERGE: Final = 32
"""New files of a topic that make merging worth its while."""
FORGET_AFTER_MS: Final = 30 * 24 * 60 * 60 * 1000
"""How long who publishes nothing is remembered: a query that was away for longer than this may
publish its last micro-batch once more. `topics tidy` can be told a shorter time."""
SYSTEM_GRACE_MS: Final = 10 * 60 * 1000
"""How long trimmed files of the system topics stay."""
SYSTEM_MERGED_BYTES: Final = 8 << 20
"""How much of their small files becomes one: they are trimmed again within hours."""
REMOTE_RARELY_S: Final = 6 * RARELY_S
"""The same over a network, where each look is a request."""
NOBODY: Final = "nobody"
PLACES: Final = (LEASES, "_broker")
"""Folders, beside those of topics, in which a killed process leaves temporary files."""

_log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The housekeeper's owner does not want it any more."""


@dataclass(slots=True)
class _Seen:
    """When a topic was tidied, and how many files it had after a merge."""

    tidied_s: float = -inf
    merged_files: int = 0
    rarely_s: float = -inf


class Housekeeper:
    """Looks after one root from `begin` to `end`, in a thread of the root's clock."""

    def __init__(self, root: Root) -> None:
        self._root, self._clock = root, root.clock
        self._namespaces = NamespaceWatch(root.store)
        self._inactive = InactiveTopics(root)
        self._topics: dict[str, TopicName] = {}
        self._found_s = -inf
        self._time: dict[str, float] = {}
        """When it is time for topics, whether or not they have news."""
        round_s = REMOTE_ROUND_S if root.store.remote else ROUND_S
        self._news = NewsWatch(root.store, round_s=round_s)
        self._idle = IdleSubscriptions(root)
        self._seen: dict[str, _Seen] = {}
        self._told: dict[str, tuple[int, int]] = {}
        """By folder, the topics that a broker was told to serve: (incarnation, partitions)."""
        self._rarely_s = -inf
        self._rarely_every_s = REMOTE_RARELY_S if root.store.remote else RARELY_S
        self._is_over = False
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        self._end = self._clock.repeat(EVERY_S, self.turn, "housekeeping", coalesce=True)

    def end(self) -> None:
        """Leave all as it is. What is under way is given up at its next rows."""
        self._is_over = True
        if self._end is not None:
            self._end()

    def turn(self) -> None:
        """Look at each topic once, of many at some, and do what it is time for."""
        try:
            for name in self._turn_of():
                self._go_on()
                self._time.pop(name, None)
                self._attempt(partial(self._look_after, self._topics[name]), name)
            if self._is_time(self._rarely_s):
                self._rarely_s = self._clock.monotonic_s()
                self._attempt(self._tidy_root, "the root")
        except _StoppedError:
            pass

    # -- inside --------------------------------------------------------------------------------

    def _turn_of(self) -> list[str]:
        """The topics to look at now."""
        now_s = self._clock.monotonic_s()
        known = self._topics
        remote = self._root.store.remote
        find_s = RARELY_S if remote else TIDY_EVERY_S
        are_few = len(known) <= FEW and not remote
        if are_few or now_s - self._found_s >= find_s:
            self._found_s = now_s
            self._topics = {str(each): each for each in self._root.find()}
        if len(self._topics) <= FEW and not remote:
            return sorted(self._topics)
        new = self._topics.keys() - known.keys() if known else set()
        timely = {name for name, at_s in self._time.items() if at_s <= now_s}
        return sorted(self._news.busy(self._topics) | new | timely & self._topics.keys())

    def _look_again(self, name: str, at_s: float) -> None:
        """When there will be something to do, without any news."""
        self._time[name] = min(at_s, self._time.get(name, inf))

    def _go_on(self, *_: object) -> Callable[[int], object]:
        """Also what long work is to tell its progress, so that it ends with the housekeeper."""
        if self._is_over:
            raise _StoppedError
        return self._go_on

    def _attempt(self, action: Callable[[], None], what: str) -> None:
        try:
            action()
        except (PulsarliteError, OSError) as error:
            _log.warning("Housekeeping leaves %s for later: %s", what, error)

    def _look_after(self, topic: TopicName) -> None:
        ledger = self._root.open_log(topic)
        if ledger is not None and ledger.state.is_deleted:
            if ledger.state.tombstones:  # whoever deleted it was killed
                self._look_again(str(topic), self._clock.monotonic_s())
                sweep_deleted(self._root.store, ledger.folder, ledger.topic)
            return
        if ledger is None:
            return
        ledger.settle()
        if not topic.is_system:
            said = self._namespaces.policies(topic.namespace)
            policies = topic_policies.applied(ledger.state.settings, said)
            if self._inactive.delete(ledger, policies):
                return
            self._look_again(ledger.topic, self._inactive.until_s(ledger, policies))
            if expires_ms := policies["subscription_expiration_time_ms"].value:
                self._look_again(ledger.topic, self._clock.monotonic_s() + TIDY_EVERY_S)
            self._idle.delete(ledger, expires_ms)
            self._compact(ledger, policies["compaction_threshold_bytes"].value)
            if policies["retention_time_ms"].source != "default":
                self._have_served(ledger)
        self._tidy(ledger, is_system=topic.is_system)

    def _have_served(self, ledger: ManagedLedger) -> None:
        """Have the broker trim a topic to which nobody ever subscribed: its retention is said.

        A broker serves each partition of which it was told something, be it of no consequence.
        """
        told = (ledger.state.incarnation, ledger.state.partitions)
        if self._told.get(ledger.folder) == told:
            return
        self._told[ledger.folder] = told
        nobody = CloseConsumer(NOBODY, NOBODY, 0)
        abouts = (TopicPartition(ledger.topic, number) for number in range(told[1]))
        commands = SystemTopic(self._root, COMMANDS)
        commands.append([Record.of(about, NOBODY, nobody) for about in abouts])

    def _compact(self, ledger: ManagedLedger, threshold: int) -> None:
        if not threshold:
            return
        state = ledger.state
        much = [p for p in range(state.partitions) if backlog_bytes(state, p) > threshold]
        for each in compact(ledger, much, waits=False, progress=self._go_on) if much else ():
            _log.info(
                "Compacted %s, partition %s: kept %s of %s messages, up to %s",
                ledger.topic, each.partition, each.kept, each.read, each.horizon,
            )  # fmt: skip

    def _tidy(self, ledger: ManagedLedger, *, is_system: bool) -> None:
        """Merge, give up and delete, as far as the log says that there is something to do."""
        seen, now_s = self._seen.setdefault(ledger.folder, _Seen()), self._clock.monotonic_s()
        if now_s - seen.tidied_s < TIDY_EVERY_S:
            self._look_again(ledger.topic, seen.tidied_s + TIDY_EVERY_S)
            return
        seen.tidied_s = now_s
        grace_ms = SYSTEM_GRACE_MS if is_system else FILE_GRACE_MS
        store = LedgerStore(ledger, grace_ms=grace_ms, waits=False)
        seen.merged_files = min(seen.merged_files, len(ledger.state.files))
        if len(ledger.state.files) - seen.merged_files >= FILES_TO_MERGE:
            size = SYSTEM_MERGED_BYTES if is_system else MERGED_FILE_BYTES
            store.merge_small_files(up_to_bytes=size, progress=self._go_on)
            seen.merged_files = len(ledger.state.files)
        is_time = self._is_time(seen.rarely_s)
        if is_time:
            seen.rarely_s = now_s
            store.reclaim_orphans()
            store.forget_inactive(older_than_ms=FORGET_AFTER_MS)
        graves = ledger.state.tombstones.values()
        if graves:
            self._look_again(ledger.topic, now_s + TIDY_EVERY_S)
        if is_time or any(ledger.clock() - each.since_ms >= grace_ms for each in graves):
            store.sweep()

    def _tidy_root(self) -> None:
        before_ms = self._clock.wall_ms() - ORPHAN_AGE_MS
        for folder in PLACES:
            delete_temporaries(self._root.store, join(folder), before_ms)
        forget_decisions(self._root)

    def _is_time(self, last_s: float) -> bool:
        return self._clock.monotonic_s() - last_s >= self._rarely_every_s
