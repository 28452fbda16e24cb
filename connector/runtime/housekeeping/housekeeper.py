"""The housekeeping of a broker, concurrent to its batches: it compacts, merges and deletes.

Invariants: no batch waits for it, nor it for an open transaction; each thing that it does is a
commit of a topic's log, so it may be killed anywhere and run in two processes at once, and a
compaction that somebody else made first is given up; a topic in trouble is left for later, and the
others go on. Of many topics a turn looks at those that had news or for which it is time, and at a
few of the others. Time is the root's clock. Follows Pulsar's compaction monitor and ledger
trimming.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from pulsar_spark.broker.protocol.commands import CloseConsumer
from pulsar_spark.connector.runtime.housekeeping.compaction import backlog_bytes, compact
from pulsar_spark.connector.runtime.housekeeping.idle_subscriptions import IdleSubscriptions
from pulsar_spark.connector.runtime.housekeeping.inactive_topics import InactiveTopics
from pulsar_spark.connector.runtime.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.runtime.system_topics.lease import LEASES
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.activity import ActivityWatch
from pulsar_spark.connector.runtime.topics.ledger_store import (
    FILE_GRACE_MS,
    MERGED_FILE_BYTES,
    ORPHAN_AGE_MS,
    LedgerStore,
    delete_temporaries,
    sweep_deleted,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import NamespaceWatch
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options import topic_policies

EVERY_S: Final = 60.0
"""Seconds between two polls. Pulsar: brokerServiceCompactionMonitorIntervalInSeconds."""
FEW: Final = 100
"""So many topics are all looked at each time."""
ROUND_S: Final = 3600.0
"""Seconds of a round over all topics, on a local disk."""
REMOTE_ROUND_S: Final = 24 * 3600.0
"""Seconds of a round over all topics, over a network."""
VACUUM_EVERY_S: Final = 600.0
"""The least seconds between two vacuums of a topic."""
RARELY_S: Final = 3600.0
"""Seconds between two searches for the remains of killed processes and for inactive producers."""
EMBEDDED_AGE_MS: Final = 60 * 60 * 1000
"""The age at which a data file inside its commit is copied into one of its own."""
FILES_TO_MERGE: Final = 32
"""New files of a topic that make merging worth its while."""
FORGET_AFTER_MS: Final = 30 * 24 * 60 * 60 * 1000
"""Milliseconds for which an inactive application is remembered: a query that was away for longer
may publish its last micro-batch once more. `topics tidy` takes a shorter time."""
SYSTEM_GRACE_MS: Final = 2 * 60 * 1000
"""Milliseconds for which trimmed files of the system topics stay on a local disk.

Their names are in the memory of all that follow these topics, and in each snapshot of their logs.
"""
REMOTE_SYSTEM_GRACE_MS: Final = 10 * 60 * 1000
"""The same over a network, where a tidying takes requests."""
SYSTEM_MERGED_BYTES: Final = 8 << 20
"""Bytes of small files that become one: they are trimmed again within hours."""
REMOTE_RARELY_S: Final = 6 * RARELY_S
"""The same over a network, where each look is a request."""
NOBODY: Final = "nobody"
PLACES: Final = (LEASES, "_broker")
"""Folders, beside those of topics, in which a killed process leaves temporary files."""

_log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The housekeeper's owner does not want it any more."""


@dataclass(slots=True)
class _Observed:
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
        self._activity = ActivityWatch(root.store, round_s=round_s)
        self._idle = IdleSubscriptions(root)
        self._seen: dict[str, _Observed] = {}
        self._reported: dict[str, tuple[int, int]] = {}
        """The topics that a broker was asked to serve, by folder: (incarnation, partitions)."""
        self._rarely_s = -inf
        self._rarely_every_s = REMOTE_RARELY_S if root.store.remote else RARELY_S
        self._is_over = False
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        self._end = self._clock.repeat(EVERY_S, self.run_once, "housekeeping", coalesce=True)

    def end(self) -> None:
        """Leave all as it is. What is under way is given up at its next rows."""
        self._is_over = True
        if self._end is not None:
            self._end()

    def run_once(self) -> None:
        """Look at each topic once, of many at some, and do what it is time for."""
        try:
            for name in self._turn_of():
                self._go_on()
                self._time.pop(name, None)
                self._attempt(partial(self._look_after, self._topics[name]), name)
            if self._is_time(self._rarely_s):
                self._rarely_s = self._clock.monotonic_s()
                self._attempt(self._vacuum_root, "the root")
        except _StoppedError:
            pass

    # -- inside --------------------------------------------------------------------------------

    def _turn_of(self) -> list[str]:
        """The topics to look at now."""
        now_s = self._clock.monotonic_s()
        known = self._topics
        remote = self._root.store.remote
        find_s = RARELY_S if remote else VACUUM_EVERY_S
        are_few = len(known) <= FEW and not remote
        if are_few or now_s - self._found_s >= find_s:
            self._found_s = now_s
            self._topics = {str(each): each for each in self._root.find()}
        if len(self._topics) <= FEW and not remote:
            return sorted(self._topics)
        new = self._topics.keys() - known.keys() if known else set()
        timely = {name for name, at_s in self._time.items() if at_s <= now_s}
        return sorted(self._activity.busy(self._topics) | new | timely & self._topics.keys())

    def _next_poll_s(self, name: str, at_s: float) -> None:
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
        # The broker has the system topics open: what their logs name is in memory once.
        ledger = self._root.open(topic) if topic.is_system else self._root.open_log(topic)
        if ledger is not None and ledger.state.is_deleted:
            if ledger.state.tombstones:  # whoever deleted it was killed
                self._next_poll_s(str(topic), self._clock.monotonic_s())
                sweep_deleted(self._root.store, ledger.folder, ledger.topic)
            return
        if ledger is None:
            return
        ledger.settle()
        if not topic.is_system:
            namespace_policies = self._namespaces.policies(topic.namespace)
            policies = topic_policies.applied(ledger.state.settings, namespace_policies)
            if self._inactive.delete(ledger, policies):
                return
            self._next_poll_s(ledger.topic, self._inactive.until_s(ledger, policies))
            if expires_ms := policies["subscription_expiration_time_ms"].value:
                self._next_poll_s(ledger.topic, self._clock.monotonic_s() + VACUUM_EVERY_S)
            self._idle.delete(ledger, expires_ms)
            self._compact(ledger, policies["compaction_threshold_bytes"].value)
            if policies["retention_time_ms"].source != "default":
                self._have_served(ledger)
        self._vacuum(ledger, is_system=topic.is_system)

    def _have_served(self, ledger: ManagedLedger) -> None:
        """Have the broker trim a topic to which nobody ever subscribed: its retention is said.

        A broker serves each partition of which it was told something, be it of no consequence.
        """
        reported = (ledger.state.incarnation, ledger.state.partitions)
        if self._reported.get(ledger.folder) == reported:
            return
        self._reported[ledger.folder] = reported
        nobody = CloseConsumer(NOBODY, NOBODY, 0)
        abouts = (TopicPartition(ledger.topic, number) for number in range(reported[1]))
        commands = SystemTopic(self._root, COMMANDS)
        commands.append([Record.of(topic_partition, NOBODY, nobody) for topic_partition in abouts])

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

    def _vacuum(self, ledger: ManagedLedger, *, is_system: bool) -> None:
        """Merge, give up and delete, as far as the log says that there is something to do."""
        seen, now_s = self._seen.setdefault(ledger.folder, _Observed()), self._clock.monotonic_s()
        grace_ms = FILE_GRACE_MS
        if is_system:
            grace_ms = REMOTE_SYSTEM_GRACE_MS if self._root.store.remote else SYSTEM_GRACE_MS
        store = LedgerStore(ledger, grace_ms=grace_ms, waits=False)
        if now_s - seen.tidied_s < VACUUM_EVERY_S:
            self._next_poll_s(ledger.topic, seen.tidied_s + VACUUM_EVERY_S)
            if is_system and not self._root.store.remote:
                store.sweep()
            return
        seen.tidied_s = now_s
        seen.merged_files = min(seen.merged_files, len(ledger.state.files))
        publish_ms = (each.max_publish_time_ms for each in ledger.state.embedded_ledgers)
        is_old = min(publish_ms, default=inf) <= ledger.clock() - EMBEDDED_AGE_MS
        if is_old or len(ledger.state.files) - seen.merged_files >= FILES_TO_MERGE:
            size = SYSTEM_MERGED_BYTES if is_system else MERGED_FILE_BYTES
            store.merge_small_files(up_to_bytes=size, progress=self._go_on)
            seen.merged_files = len(ledger.state.files)
            _release_memory()
        is_time = self._is_time(seen.rarely_s)
        if is_time:
            seen.rarely_s = now_s
            store.reclaim_orphans()
            store.forget_inactive(older_than_ms=FORGET_AFTER_MS)
        graves = ledger.state.tombstones.values()
        if graves:
            self._next_poll_s(ledger.topic, now_s + VACUUM_EVERY_S)
        if is_time or any(ledger.clock() - each.since_ms >= grace_ms for each in graves):
            store.sweep()

    def _vacuum_root(self) -> None:
        before_ms = self._clock.wall_ms() - ORPHAN_AGE_MS
        for folder in PLACES:
            delete_temporaries(self._root.store, join(folder), before_ms)
        forget_decisions(self._root)

    def _is_time(self, last_s: float) -> bool:
        return self._clock.monotonic_s() - last_s >= self._rarely_every_s


def _release_memory() -> None:
    """Return to the system what a merge has freed; glibc keeps 20 to 40 MB of it otherwise."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
