"""A broker's sign of life: a file that whoever serves a root writes again and again.

Invariants: every host shows the same sign, and respects it: while the file changes no other broker
begins; one that was left behind is watched for as long as it says that it holds, by the watcher's
own clock; of those that wait for it one begins. On an object store a broker that rests says that it
holds for long: if there is news then, it has CALLED_MS to show life. The file prevents a mistake,
no more: of two brokers that serve after all the older is fenced by its term.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Final

from pulsar_spark.connector.runtime.system_topics.lease import (
    HEARTBEAT_PATH,
    IDLE_AFTER_S,
    RARELY,
    RENEWALS,
    LeaseWatch,
)
from pulsar_spark.connector.runtime.topics.activity import NEWEST
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.polling import REMOTE_MOST_PAUSE_S
from pulsar_spark.connector.storage.process_identity import UNKNOWN, is_gone, this_process
from pulsar_spark.errors import (
    BrokerBusyError,
    CorruptFileError,
    FutureVersionError,
    PulsarliteError,
)
from pulsar_spark.model.records.stored_record import MOST_SMALL_RECORD_BYTES, StoredFormat

HEARTBEAT_FILE: Final = HEARTBEAT_PATH
HEARTBEAT_FORMAT: Final = StoredFormat(
    "A broker's sign of life", checked=True, most_bytes=MOST_SMALL_RECORD_BYTES
)
DEAD_AFTER_MS: Final = 10_000
"""Milliseconds without a heartbeat after which a broker may be replaced, on a local disk."""
REMOTE_DEAD_AFTER_MS: Final = 60_000
"""The same on an object store, where a heartbeat is a request."""
IDLE_DEAD_AFTER_MS: Final = 5 * 60_000
"""The same on an object store while the broker is idle: a request each 100 s costs half a cent a
day."""
NOTIFIED_MS: Final = round(2 * REMOTE_MOST_PAUSE_S * 1000)
"""Milliseconds within which an idle broker has to write a heartbeat after activity."""
POLL_EVERY_S: Final = 0.25
"""Seconds between two polls of a heartbeat that may be stale, on a local disk."""
REMOTE_POLL_EVERY_S: Final = 4.0
"""The same on an object store."""
IDLE_POLL_EVERY_S: Final = 15.0
"""The same on an object store while the broker is idle."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """The broker that serves a root, and the time for which others believe that it lives.

    `id` tells brokers of one process apart.
    """

    host: str
    process: int
    id: str
    holds_ms: int
    identity: str = UNKNOWN
    """The process as another on its machine can find it (`process_identity`)."""

    @property
    def content(self) -> bytes:
        return HEARTBEAT_FORMAT.encode(asdict(self))

    @property
    def is_idle(self) -> bool:
        return self.holds_ms == IDLE_DEAD_AFTER_MS


def is_alive(root: Root) -> bool:
    """True if a broker of that root signed lately, by this machine's clock: a look, no proof."""
    heartbeat = BrokerHeartbeat(root)
    written_ms, shown = heartbeat.written_ms(), heartbeat.shown()
    if written_ms is None or (shown is not None and is_gone(shown.identity)):
        return False
    return root.clock.wall_ms() - written_ms < heartbeat.holds_ms(shown)


class BrokerHeartbeat:
    """The sign of one broker. Making it writes nothing yet."""

    def __init__(self, root: Root) -> None:
        self._store, self._service_url = root.store, root.service_url
        self._dead_after_ms = REMOTE_DEAD_AFTER_MS if root.store.remote else DEAD_AFTER_MS
        renewals = RARELY if root.store.remote else RENEWALS
        self._heartbeat_every_s = self._dead_after_ms / 1000 / renewals
        me = (socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._me = _Heartbeat(*me, self._dead_after_ms, this_process())
        self._shown_s = -inf
        self._newest: bytes | None = None
        """The content of NEWEST, when that was seen to change, and when it is asked for again."""
        self._newest_s = self._ask_s = -inf
        self._end: Callable[[], None] | None = None

    def begin(
        self,
        waits: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Show it once no other broker shows life; a sign left behind is watched.

        BrokerBusyError if another does, unless this one `waits`, which is asked at each look then;
        and soon after this one's attempt `is_over`.
        """
        watch = LeaseWatch(self._store.clock)
        first_ms: int | None = None
        known: tuple[int | None, bytes | None] = (None, None)
        while True:
            held, token = self._store.get_versioned(HEARTBEAT_FILE)
            other, written_ms = _write(held), self.written_ms()
            if other is not None and other.id == self._me.id:  # its answer was lost
                break
            over = written_ms is None or (other is not None and is_gone(other.identity))
            is_idle = other is not None and other.is_idle
            signs = {HEARTBEAT_FILE: written_ms}
            if is_idle:  # news that came behind its sign calls it
                newest = self._store.get(NEWEST)
                known = known if known[0] == written_ms else (written_ms, newest)
                signs |= {NEWEST: written_ms} if newest != known[1] else {}
            lease_ms = {HEARTBEAT_FILE: self.holds_ms(other), NEWEST: NOTIFIED_MS}
            if over or watch.lapsed(signs, lease_ms.__getitem__):
                if self._store.compare_and_swap(HEARTBEAT_FILE, token, self._me.content):
                    break
                written_ms = None  # it is another one's by now
            elif is_over() or (first_ms is not None and written_ms != first_ms and not waits()):
                who = f"process {other.process} on {other.host}" if other else "a newer version"
                raise BrokerBusyError(
                    f"A broker serves {self._service_url} already: {who}. Stop that one, or "
                    "use it: consumers and sinks need no handle. Another can stand by "
                    "(standby=True, --standby): it serves once that one is gone."
                )
            first_ms = written_ms
            remote_s = IDLE_POLL_EVERY_S if is_idle else REMOTE_POLL_EVERY_S
            self._wait(remote_s if self._store.remote else POLL_EVERY_S, is_over)
        self._shown_s = self._store.clock.monotonic_s()

    def keep(self) -> None:
        """From now on the clock renews it, until `remove`."""
        self._end = self._store.clock.repeat(
            self._heartbeat_every_s, self._renew, "sign of life", coalesce=True
        )

    def show(self, quiet_s: float) -> None:
        """Renew it if that is due: for a broker that lives as long as somebody calls it.

        It has heard of nothing for so long.
        """
        if self._store.clock.monotonic_s() - self._shown_s >= self._heartbeat_every_s:
            try:
                self._renew(quiet_s)
            except (PulsarliteError, OSError) as error:
                _log.warning("The broker's sign of life was not renewed: %s", error)

    def remove(self) -> None:
        """Delete the file, unless a broker that has taken over has signed since."""
        if self._end is not None:
            self._end()
        shown = self.shown()
        if shown is not None and shown.id == self._me.id:
            self._store.delete(HEARTBEAT_FILE)

    def written_ms(self) -> int | None:
        """When it was written last; None if there is none."""
        found = self._store.info(HEARTBEAT_FILE)
        return None if found is None else found.modified_ms

    def shown(self) -> _Heartbeat | None:
        """The sign that is there; None if there is none, or it can't be read."""
        return _write(self._store.get(HEARTBEAT_FILE))

    def holds_ms(self, shown: _Heartbeat | None) -> int:
        """Milliseconds for which a broker with that heartbeat is believed to live."""
        if shown is not None:
            return shown.holds_ms
        return IDLE_DEAD_AFTER_MS if self._store.remote else DEAD_AFTER_MS

    def _renew(self, quiet_s: float | None = None) -> None:
        now_s = self._store.clock.monotonic_s()
        is_idle = self._store.remote and (quiet_s or self._quiet_s()) >= IDLE_AFTER_S
        resting_s = IDLE_DEAD_AFTER_MS / 1000 / RARELY
        if is_idle and self._me.is_idle and now_s - self._shown_s < resting_s:
            return
        held, token = self._store.get_versioned(HEARTBEAT_FILE)
        shown = _write(held)
        if shown is None or shown.id == self._me.id:  # else another has taken over
            holds_ms = IDLE_DEAD_AFTER_MS if is_idle else self._dead_after_ms
            me = replace(self._me, holds_ms=holds_ms)
            if not self._store.remote:
                self._store.touch(HEARTBEAT_FILE, me.content)
            elif not self._store.compare_and_swap(HEARTBEAT_FILE, token, me.content):
                return  # it has been taken over between two requests
            self._me, self._shown_s = me, now_s

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        clock = self._store.clock
        until_s = clock.monotonic_s() + seconds
        while not is_over() and (left_s := until_s - clock.monotonic_s()) > 0:
            clock.sleep(min(left_s, POLL_EVERY_S))

    def _quiet_s(self) -> float:
        """For how long nobody has committed to anything, as far as is known."""
        now_s = self._store.clock.monotonic_s()
        if now_s >= self._ask_s:
            newest, self._ask_s = self._store.get(NEWEST), now_s + REMOTE_MOST_PAUSE_S
            if newest != self._newest or self._newest_s == -inf:
                self._newest, self._newest_s = newest, now_s
        return now_s - self._newest_s


def _write(data: bytes | None) -> _Heartbeat | None:
    try:
        return None if data is None else _Heartbeat(**HEARTBEAT_FORMAT.decode(data))
    except (CorruptFileError, FutureVersionError, TypeError):
        return None
