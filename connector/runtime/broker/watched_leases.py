"""The leases of a root, as its broker watches them: who has shown no life for too long.

Invariants: a lease lapses by what the broker saw, on its own clock, or because the process that it
names has ended; each consumer of which a broker knows has a lease that can lapse, whether or not it
has a file. Over a network files are listed as seldom as they are renewed, and who rests is called
when it has news: it answers, or is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from math import ceil, inf
from typing import Final

from pulsar_spark.connector.runtime.system_topics.lease import (
    DEFAULT_LEASE_MS,
    IDLE_LEASE_MS,
    RARELY,
    RENEWALS,
    Lease,
    LeaseWatch,
    leases,
    read_lease,
)
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.polling import REMOTE_MOST_PAUSE_S
from pulsar_spark.connector.storage.process_identity import is_gone
from pulsar_spark.model.topic_name import TopicPartition

LEASES_EVERY_S: Final = 1.0
"""Seconds between two polls of the leases, on a local disk."""
GONE_EVERY_S: Final = 0.25
"""Seconds between two checks of the processes that leases name: no store is asked."""
CALL_MS: Final = 2_000 * int(REMOTE_MOST_PAUSE_S)
"""Milliseconds after its lease in which an idle consumer may notice activity and write a heartbeat.
"""

Known = Mapping[str, Mapping[TopicPartition, Lease]]
"""Lease -> where its consumer is subscribed."""


class WatchedLeases:
    """The leases of one root, as its broker watches them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self._clock = store, store.clock
        self._watch = LeaseWatch(self._clock, RARELY if store.remote else RENEWALS)
        self._held: dict[str, Lease | None] = {}
        self._written: dict[str, int] = {}
        """When the files were written, as of the last look."""
        self._poll_s = self._clock.monotonic_s()
        self._asked: dict[str, int] | None = None
        """The files as they were seen for the look that is under way, if it is time, ..."""
        self._requested_s = -inf
        """... and when they were listed."""
        self._moved: set[TopicPartition] = set()
        """Topic partitions with news since the last look."""
        self._notified: dict[str, int] = {}
        """The time, in ms, in which who rests and was called is to show life."""
        self._gone: list[str] = []
        """The leases whose processes have ended, as they were found last, ..."""
        self._gone_s = -inf
        """... and when these were looked for again."""

    def ask(self) -> bool:
        """Look at the files, if it is time, for the `over` that follows: beside other requests."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._poll_s:
            self._asked, self._requested_s = leases(self._store), now_s
        return False

    def prefetch_more(self) -> None:
        """Read what is new of it."""
        if self._asked is not None:
            self._read(self._asked)

    def forget(self) -> None:
        """No `over` has followed."""
        self._asked = None

    def over(self, known: Known) -> list[str]:
        """The paths of leases that are over, if it is time to look."""
        if self._clock.monotonic_s() < self._poll_s:
            return []
        if self._asked is None:
            self.ask()
        written, self._asked = self._asked or {}, None
        self._read(written)
        self._call(known)
        signs = {**dict.fromkeys(known), **written}
        over = self._watch.lapsed(signs, self._lease_ms, self._requested_s)
        self._poll_s = self._clock.monotonic_s() + LEASES_EVERY_S
        if self._store.remote:
            look_s = self._watch.poll_by_s(signs, self._lease_ms) if signs else inf
            self._poll_s = max(self._poll_s, look_s)
        return over

    def refresh(self) -> None:
        """Read the files that are new, and look for all processes: a newcomer may need a place."""
        new = [path for path in leases(self._store) if path not in self._held]
        found = self._store.answers(partial(read_lease, self._store), new)
        self._held |= dict(zip(new, found, strict=True))
        self._gone_s = -inf

    def gone(self) -> list[str]:
        """The leases whose processes have ended, as far as this machine can tell."""
        now_s = self._clock.monotonic_s()
        if now_s - self._gone_s >= GONE_EVERY_S:
            self._gone_s = now_s
            held = {path: each.process for path, each in self._held.items() if each is not None}
            ended = {each for each in {*held.values()} if is_gone(each)}
            self._gone = sorted(path for path, process in held.items() if process in ended)
        return self._gone

    def delete(self, path: str) -> None:
        """Delete the file of a consumer that no broker knows: if it comes, it writes again."""
        if self._held[path] is not None:
            self._store.delete(path)

    def wake_up(self, moved: Iterable[TopicPartition]) -> None:
        """A batch was planned in which these have news: who rests there is to wake."""
        if self._store.remote:
            self._moved.update(moved)
            soon_s = self._clock.monotonic_s() + DEFAULT_LEASE_MS / 1000 / RARELY
            self._poll_s = min(self._poll_s, soon_s)

    def _read(self, written: Mapping[str, int]) -> None:
        """Read the files that are new; over a network a consumer may have made its lease longer."""
        same = {path for path, held in self._held.items() if held is not None}
        if self._store.remote:
            same = {path for path in same if self._written.get(path) == written.get(path)}
        new = [path for path in written if path not in same]
        found = zip(new, self._store.answers(partial(read_lease, self._store), new), strict=True)
        held = {**self._held, **dict(found)}
        self._held = {path: held[path] for path in written}
        for path in new:  # who was called has answered
            self._notified.pop(path, None)
        self._written = dict(written)

    def _call(self, known: Known) -> None:
        """Expect those to show life that rest, and whose topics have news."""
        for path, places in known.items() if self._moved else ():
            held, lease_ms = self._held.get(path), next(iter(places.values())).lease_ms
            is_idle = held is not None and held.lease_ms == IDLE_LEASE_MS
            if is_idle and path not in self._notified and not self._moved.isdisjoint(places):
                quiet_ms = ceil(self._watch.quiet_s(path) * 1000)
                self._notified[path] = quiet_ms + lease_ms + CALL_MS
        self._moved.clear()

    def _lease_ms(self, path: str) -> int:
        lease = self._held.get(path)
        lease_ms = DEFAULT_LEASE_MS if lease is None else lease.lease_ms
        return min(lease_ms, self._notified.get(path, lease_ms))
