"""Signs of life: small files that a living process writes again and again, and their watchers.

Invariants: a run of a consumer has a file of its own, named after subscription, consumer and
incarnation, and writes it before it subscribes. A watcher gives a writer up when the file has not
changed for longer than the lease that it names, by the watcher's own clock: the time in a file is
compared only with the time that was in it before. A consumer that ends with its process names that
process, and is given up as soon as a watcher on the same machine sees that it is gone; a query
under Spark may be back from its checkpoint, and names none. No command is spent on it. On an object
store who has nothing to do names a long lease, and renews it rarely; with the first news it is
short again.
Stands for the TCP connection and keep-alive of Pulsar's `ServerCnx`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import inf
from typing import Final
from urllib.parse import quote

from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.connector.storage.process_identity import UNKNOWN
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.model.records.stored_record import MOST_SMALL_RECORD_BYTES, StoredFormat
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.option_values import MOST_DURATION_MS

LEASES: Final = "_leases"
HEARTBEAT_PATH: Final = "_broker/alive.json"
"""The broker's own file; `heartbeat` has its contents."""
LEASE_FORMAT: Final = StoredFormat("Lease", checked=True, most_bytes=MOST_SMALL_RECORD_BYTES)
DEFAULT_LEASE_MS: Final = 30_000
"""The lease of a consumer whose file was never seen."""
IDLE_LEASE_MS: Final = 30 * 60_000
"""The lease of a consumer that rests: on an object store each renewal is a request."""
IDLE_AFTER_S: Final = 120.0
"""Seconds without activity after which a consumer that has nothing to acknowledge is idle."""
IDLE_HOLDS_S: Final = 60.0
"""Seconds after its last poll for which a consumer counts as idle."""
LONGEST_NAME: Final = 255
"""Bytes of a file's name, as file systems have them; what is longer is cut, and has its hash."""
RENEWALS: Final = 4
"""The number of renewals within a lease."""
RARELY: Final = 3
"""The number of renewals within a lease where a request costs money."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A run of a consumer that lives, and for how long without a further sign.

    `partitions`, those to which it is subscribed, come from the broker, not from the file.
    """

    subscription: str
    consumer: str
    incarnation: int
    lease_ms: int = DEFAULT_LEASE_MS
    partitions: tuple[TopicPartition, ...] = ()
    process: str = UNKNOWN
    """The process that the consumer ends with (`process_identity`), if none can take it up."""

    @property
    def path(self) -> str:
        name = f"{quote(self.subscription, safe='')}~{quote(self.consumer, safe='')}"
        run = f"~{self.incarnation}"
        if len(name + run) > LONGEST_NAME:
            run = f"~{sha256(name.encode()).hexdigest()}{run}"
        return join(LEASES, name[: LONGEST_NAME - len(run)] + run)

    def to_json(self) -> bytes:
        value = asdict(self)
        del value["partitions"]
        return LEASE_FORMAT.encode(value)

    @staticmethod
    def from_json(data: bytes) -> Lease | None:
        """The lease; None for other contents: nobody is given up on account of them."""
        try:
            value = LEASE_FORMAT.decode(data)
            lease = Lease(
                value["subscription"], value["consumer"], value["incarnation"], value["lease_ms"],
                process=value["process"],
            )  # fmt: skip
        except (CorruptFileError, FutureVersionError, KeyError, TypeError, ValueError):
            return None
        whole = type(lease.incarnation) is int and type(lease.lease_ms) is int
        whole = whole and isinstance(lease.process, str)
        return lease if whole and 0 < lease.lease_ms <= MOST_DURATION_MS else None


def leases(store: ObjectStore) -> dict[str, int]:
    """Path -> time of the last write in ms, of each lease below the root."""
    return {item.path: item.modified_ms for item in store.files(LEASES) if "~" in item.path}


def read_lease(store: ObjectStore, path: str) -> Lease | None:
    """The lease in the file; None if there is no such file."""
    data = store.get(path)
    return None if data is None else Lease.from_json(data)


class LeaseKeeper:
    """Writes a lease again and again, from the first `keep` until `stop`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self._clock = store, store.clock
        self._lease: Lease | None = None
        self._end: Callable[[], None] | None = None
        self._meant: Lease | None = None
        """The content that the file is to have. The owner and the clock each set a value of their
        own."""
        self._shown: tuple[int, float] = (0, -inf)
        """The lease in the file, in ms, and when it was written."""
        self._rested_s = -inf
        """When its owner said that it has nothing to do."""
        self._gap_s = self._confirmed_s = -inf
        """When a renewal came after the lease was over, and up to when the owner knows that it is
        not given up."""
        self._deciding = threading.Lock()
        """Held in no request: news don't wait for a renewal."""

    def keep(self, lease: Lease) -> None:
        """Renew it from now on. The file is written when this returns."""
        if lease == self._lease and self._end is not None:
            return
        with self._deciding:
            self._lease, self._meant = lease, replace(lease)
        self._write()
        if self._end is None:
            renewals = RARELY if self._store.remote else RENEWALS
            every_s = lease.lease_ms / 1000 / renewals
            self._end = self._clock.repeat(every_s, self._renew, "lease", coalesce=True)

    def rest(self, quiet_s: float) -> None:
        """Its owner has looked, and has had nothing to do for so long."""
        if self._store.remote and quiet_s >= IDLE_AFTER_S:
            self._rested_s = self._clock.monotonic_s()

    def wake(self) -> None:
        """Its owner has news: who watches is to know that it lives."""
        with self._deciding:
            self._rested_s = -inf
            if self._lease is None or self._meant is None:
                return
            if max(self._meant.lease_ms, self._shown[0]) <= self._lease.lease_ms:
                return
            self._meant = replace(self._lease)
        self._write()

    @property
    def is_overdue(self) -> bool:
        """True if the lease was over before it was renewed: its owner may be given up by now."""
        lease_ms, shown_s = self._shown
        is_over = lease_ms > 0 and self._clock.monotonic_s() - shown_s > lease_ms / 1000
        return is_over or self._gap_s > self._confirmed_s

    def confirm(self, asked_s: float) -> None:
        """The broker has answered what its owner asked then: it was not given up before."""
        self._confirmed_s = max(self._confirmed_s, asked_s)

    def stop(self, *, remove: bool = False) -> Lease | None:
        """Renew nothing more; `remove` the file if everybody concerned has been told.

        Returns the lease, if there was one.
        """
        if self._end is not None:
            self._end()
        if remove and self._lease is not None:
            self._store.delete(self._lease.path)
        return self._lease

    def _renew(self) -> None:
        assert self._lease is not None
        with self._deciding:
            lease_ms, now_s = self._lease.lease_ms, self._clock.monotonic_s()
            if now_s - self._rested_s < IDLE_HOLDS_S and lease_ms < IDLE_LEASE_MS:
                shown_ms, since_s = self._shown
                late_s = now_s - since_s - IDLE_LEASE_MS / 1000 / RARELY
                if shown_ms == IDLE_LEASE_MS and late_s < 0:
                    return
                lease_ms = IDLE_LEASE_MS
            self._meant = replace(self._lease, lease_ms=lease_ms)
        self._write()

    def _write(self) -> None:
        """Write what is meant, and again what was meant meanwhile: it may be overwritten."""
        written = None
        while written is not self._meant:
            written, now_s = self._meant, self._clock.monotonic_s()
            assert written is not None
            lease_ms, shown_s = self._shown
            if lease_ms > 0 and now_s - shown_s > lease_ms / 1000:
                self._gap_s = now_s
            self._store.touch(written.path, written.to_json())
            self._shown = written.lease_ms, now_s


class LeaseWatch:
    """The lapsed leases, as one watcher observes them.

    A pause between two looks counts for at most half a lease: the watched processes may have stood
    still along with the watcher, and get time to write.
    """

    def __init__(self, clock: Clock, renewals: int = RENEWALS) -> None:
        self._clock, self._renewals = clock, renewals
        self._polled_s = clock.monotonic_s()
        self._quiet: dict[str, tuple[int | None, float]] = {}
        """Path -> (its sign, seconds since it changed)."""

    def lapsed(
        self,
        signs: Mapping[str, int | None],
        lease_ms: Callable[[str], int],
        listed_s: float | None = None,
    ) -> list[str]:
        """Look at these: path -> when it was written last by whatever clock, None if it is gone.

        They are as of `listed_s`, by default of now: what came behind that is not known. Returns
        the paths whose leases are over, sorted; paths that are not given are forgotten.
        """
        now_s = self._clock.monotonic_s() if listed_s is None else listed_s
        since_s = now_s - self._polled_s
        self._polled_s = now_s
        over, quiet = [], {}
        for path, encode_identity in signs.items():
            lease_s = lease_ms(path) / 1000
            before = self._quiet.get(path)
            quiet_s = 0.0
            if before is not None and before[0] == encode_identity:
                quiet_s = before[1] + min(since_s, lease_s / 2)
            quiet[path] = encode_identity, quiet_s
            if quiet_s >= lease_s:
                over.append(path)
        self._quiet = quiet
        return sorted(over)

    def quiet_s(self, path: str) -> float:
        """For how long it has not changed, as of the last look."""
        return self._quiet.get(path, (None, 0.0))[1]

    def poll_by_s(self, paths: Iterable[str], lease_ms: Callable[[str], int]) -> float:
        """When to look at these again, by the watcher's clock: as often as they are renewed."""
        waits = []
        for path in paths:
            lease_s = lease_ms(path) / 1000
            quiet_s = self._quiet.get(path, (None, lease_s))[1]
            waits.append(min(lease_s / self._renewals, lease_s - quiet_s))
        return self._polled_s + min(waits)
