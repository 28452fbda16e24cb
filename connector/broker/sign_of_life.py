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
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Final

from pulsar_spark.connector.spark.polling import REMOTE_MOST_PAUSE_S
from pulsar_spark.connector.system.lease import RARELY, RENEWALS, REST_AFTER_S, LeaseWatch
from pulsar_spark.connector.topic_log.news import NEWEST
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import (
    BrokerBusyError,
    CorruptFileError,
    FutureVersionError,
    PulsarliteError,
)
from pulsar_spark.records.stored_record import StoredFormat

SIGNS: Final = "_broker"
SIGN_OF_LIFE: Final = f"{SIGNS}/alive.json"
SIGN_FORMAT: Final = StoredFormat("A broker's sign of life", version=2, checked_since=1)
DEAD_AFTER_MS: Final = 10_000
"""A broker that was not seen to sign for so long may be taken over, on a local disk, ..."""
REMOTE_DEAD_AFTER_MS: Final = 60_000
"""... on an object store, where a sign is a request, ..."""
RESTING_DEAD_AFTER_MS: Final = 5 * 60_000
"""... and there while nothing happens: a sign each 100 s costs half a cent a day."""
CALLED_MS: Final = round(2 * REMOTE_MOST_PAUSE_S * 1000)
"""How long a broker that rests has to show life once there is news."""
LOOK_EVERY_S: Final = 0.25
"""How often a sign that may have been left behind is looked at, on a local disk, ..."""
REMOTE_LOOK_EVERY_S: Final = 4.0
"""... on an object store, ..."""
RESTING_LOOK_EVERY_S: Final = 15.0
"""... and there while nothing happens."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sign:
    """Who serves a root, and for how long that is to be believed, which version 1 did not say.

    `id` tells brokers of one process apart.
    """

    host: str
    process: int
    id: str
    holds_ms: int = DEAD_AFTER_MS

    @property
    def content(self) -> bytes:
        return SIGN_FORMAT.encode(asdict(self))

    @property
    def rests(self) -> bool:
        return self.holds_ms == RESTING_DEAD_AFTER_MS

    def is_gone(self) -> bool:
        """Whether it was a process of this machine that is no more."""
        if self.host == socket.gethostname():
            with suppress(PermissionError):
                try:
                    os.kill(self.process, 0)
                except ProcessLookupError:
                    return True
        return False


def shows_life(root: Root) -> bool:
    """Whether a broker of that root signed lately, by this machine's clock: a look, no proof."""
    sign = SignOfLife(root)
    written_ms, shown = sign.written_ms(), sign.shown()
    if written_ms is None or (shown is not None and shown.is_gone()):
        return False
    return root.clock.wall_ms() - written_ms < sign.holds_ms(shown)


class SignOfLife:
    """The sign of one broker. Making it writes nothing yet."""

    def __init__(self, root: Root) -> None:
        self._store, self._service_url = root.store, root.service_url
        self._dead_after_ms = REMOTE_DEAD_AFTER_MS if root.store.remote else DEAD_AFTER_MS
        renewals = RARELY if root.store.remote else RENEWALS
        self._sign_every_s = self._dead_after_ms / 1000 / renewals
        me = (socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._me = _Sign(*me, self._dead_after_ms)
        self._shown_s = -inf
        self._newest: bytes | None = None
        """The content of NEWEST, when that was seen to change, and when it is asked for again."""
        self._newest_s = self._ask_s = -inf
        self._end: Callable[[], None] | None = None

    def begin(self, waits: Callable[[], bool] = lambda: False) -> None:
        """Show it once no other broker shows life; a sign left behind is watched.

        BrokerBusyError if another does, unless this one `waits`, which is asked at each look then.
        """
        watch = LeaseWatch(self._store.clock)
        first_ms: int | None = None
        known: tuple[int | None, bytes | None] = (None, None)
        while True:
            held, token = self._store.get_versioned(SIGN_OF_LIFE)
            other, written_ms = _sign_in(held), self.written_ms()
            if other is not None and other.id == self._me.id:  # its answer was lost
                break
            over = written_ms is None or (other is not None and other.is_gone())
            rests = other is not None and other.rests
            signs = {SIGN_OF_LIFE: written_ms}
            if rests:  # news that came behind its sign calls it
                newest = self._store.get(NEWEST)
                known = known if known[0] == written_ms else (written_ms, newest)
                signs |= {NEWEST: written_ms} if newest != known[1] else {}
            lease_ms = {SIGN_OF_LIFE: self.holds_ms(other), NEWEST: CALLED_MS}
            if over or watch.lapsed(signs, lease_ms.__getitem__):
                if self._store.compare_and_swap(SIGN_OF_LIFE, token, self._me.content):
                    break
                written_ms = None  # it is another one's by now
            elif first_ms is not None and written_ms != first_ms and not waits():
                who = f"process {other.process} on {other.host}" if other else "a newer version"
                raise BrokerBusyError(
                    f"A broker serves {self._service_url} already: {who}. Stop that one, or "
                    "use it: consumers and sinks need no handle. Another can stand by "
                    "(standby=True, --standby): it serves once that one is gone."
                )
            first_ms = written_ms
            remote_s = RESTING_LOOK_EVERY_S if rests else REMOTE_LOOK_EVERY_S
            self._store.clock.sleep(remote_s if self._store.remote else LOOK_EVERY_S)
        self._shown_s = self._store.clock.monotonic_s()

    def keep(self) -> None:
        """From now on the clock renews it, until `remove`."""
        self._end = self._store.clock.repeat(
            self._sign_every_s, self._renew, "sign of life", coalesce=True
        )

    def show(self, quiet_s: float) -> None:
        """Renew it if that is due: for a broker that lives as long as somebody calls it.

        It has heard of nothing for so long.
        """
        if self._store.clock.monotonic_s() - self._shown_s >= self._sign_every_s:
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
            self._store.delete(SIGN_OF_LIFE)

    def written_ms(self) -> int | None:
        """When it was written last; None if there is none."""
        found = self._store.info(SIGN_OF_LIFE)
        return None if found is None else found.modified_ms

    def shown(self) -> _Sign | None:
        """The sign that is there; None if there is none, or it can't be read."""
        return _sign_in(self._store.get(SIGN_OF_LIFE))

    def holds_ms(self, shown: _Sign | None) -> int:
        """How long a broker with that sign is believed to live; None: of a newer version."""
        if shown is not None:
            return shown.holds_ms
        return RESTING_DEAD_AFTER_MS if self._store.remote else DEAD_AFTER_MS

    def _renew(self, quiet_s: float | None = None) -> None:
        now_s = self._store.clock.monotonic_s()
        rests = self._store.remote and (quiet_s or self._quiet_s()) >= REST_AFTER_S
        resting_s = RESTING_DEAD_AFTER_MS / 1000 / RARELY
        if rests and self._me.rests and now_s - self._shown_s < resting_s:
            return
        held, token = self._store.get_versioned(SIGN_OF_LIFE)
        shown = _sign_in(held)
        if shown is None or shown.id == self._me.id:  # else another has taken over
            holds_ms = RESTING_DEAD_AFTER_MS if rests else self._dead_after_ms
            me = replace(self._me, holds_ms=holds_ms)
            if not self._store.remote:
                self._store.touch(SIGN_OF_LIFE, me.content)
            elif not self._store.compare_and_swap(SIGN_OF_LIFE, token, me.content):
                return  # it has been taken over between two requests
            self._me, self._shown_s = me, now_s

    def _quiet_s(self) -> float:
        """For how long nobody has committed to anything, as far as is known."""
        now_s = self._store.clock.monotonic_s()
        if now_s >= self._ask_s:
            newest, self._ask_s = self._store.get(NEWEST), now_s + REMOTE_MOST_PAUSE_S
            if newest != self._newest or self._newest_s == -inf:
                self._newest, self._newest_s = newest, now_s
        return now_s - self._newest_s


def _sign_in(data: bytes | None) -> _Sign | None:
    try:
        return None if data is None else _Sign(**SIGN_FORMAT.decode(data))
    except (CorruptFileError, FutureVersionError, TypeError):
        return None
