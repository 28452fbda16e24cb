"""A broker's sign of life: a file that whoever serves a root writes again and again.

Invariants: every host shows the same sign, and respects it: while the file changes no other broker
begins; one that was left behind is watched for DEAD_AFTER_MS, by the watcher's own clock; of those
that wait for it one begins. The file prevents a mistake, no more: of two brokers that serve after
all the older is fenced by its term.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from typing import Final

from pulsar_spark.connector.system.lease import RARELY, RENEWALS, LeaseWatch
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
SIGN_FORMAT: Final = StoredFormat("A broker's sign of life", version=1, checked_since=1)
DEAD_AFTER_MS: Final = 10_000
"""A broker that was not seen to sign for so long may be taken over, on a local disk, ..."""
REMOTE_DEAD_AFTER_MS: Final = 5 * 60_000
"""... and on an object store, where a sign each 100 s costs half a cent a day."""
LOOK_EVERY_S: Final = 0.25
"""How often a sign that may have been left behind is looked at, on a local disk, ..."""
REMOTE_LOOK_EVERY_S: Final = 4.0
"""... and on an object store."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Signer:
    """Who serves a root; `id` tells brokers of one process apart."""

    host: str
    process: int
    id: str

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
    written_ms, signer = sign.written_ms(), sign.signer()
    if written_ms is None or (signer is not None and signer.is_gone()):
        return False
    return root.clock.wall_ms() - written_ms < sign.dead_after_ms


class SignOfLife:
    """The sign of one broker. Making it writes nothing yet."""

    def __init__(self, root: Root) -> None:
        self._store, self._service_url = root.store, root.service_url
        remote = self._store.remote
        self.dead_after_ms = REMOTE_DEAD_AFTER_MS if remote else DEAD_AFTER_MS
        self._sign_every_s = self.dead_after_ms / 1000 / (RARELY if remote else RENEWALS)
        self._look_every_s = REMOTE_LOOK_EVERY_S if remote else LOOK_EVERY_S
        self._me = _Signer(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._shown_s = -inf
        self._end: Callable[[], None] | None = None

    def begin(self, waits: Callable[[], bool] = lambda: False) -> None:
        """Show it once no other broker shows life; a sign left behind is watched.

        BrokerBusyError if another does, unless this one `waits`, which is asked at each look then.
        """
        watch = LeaseWatch(self._store.clock)
        first_ms: int | None = None
        while True:
            held, token = self._store.get_versioned(SIGN_OF_LIFE)
            other, written_ms = _signer_in(held), self.written_ms()
            if other == self._me:  # stored by a request whose answer was lost
                break
            over = written_ms is None or (other is not None and other.is_gone())
            if over or watch.lapsed({SIGN_OF_LIFE: written_ms}, lambda _: self.dead_after_ms):
                if self._store.compare_and_swap(SIGN_OF_LIFE, token, self._content):
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
            self._store.clock.sleep(self._look_every_s)
        self._shown_s = self._store.clock.monotonic_s()

    def keep(self) -> None:
        """From now on the clock renews it, until `remove`."""
        self._end = self._store.clock.repeat(
            self._sign_every_s, self._renew, "sign of life", coalesce=True
        )

    def show(self) -> None:
        """Renew it if that is due: for a broker that lives as long as somebody calls it."""
        if self._store.clock.monotonic_s() - self._shown_s >= self._sign_every_s:
            try:
                self._renew()
            except (PulsarliteError, OSError) as error:
                _log.warning("The broker's sign of life was not renewed: %s", error)

    def remove(self) -> None:
        """Delete the file, unless a broker that has taken over has signed since."""
        if self._end is not None:
            self._end()
        if self.signer() == self._me:
            self._store.delete(SIGN_OF_LIFE)

    def written_ms(self) -> int | None:
        """When it was written last; None if there is none."""
        found = self._store.info(SIGN_OF_LIFE)
        return None if found is None else found.modified_ms

    def signer(self) -> _Signer | None:
        """Who signed last; None if that can't be read."""
        return _signer_in(self._store.get(SIGN_OF_LIFE))

    @property
    def _content(self) -> bytes:
        return SIGN_FORMAT.encode(asdict(self._me))

    def _renew(self) -> None:
        if self.signer() in (self._me, None):  # else another has taken over
            self._store.touch(SIGN_OF_LIFE, self._content)
            self._shown_s = self._store.clock.monotonic_s()


def _signer_in(data: bytes | None) -> _Signer | None:
    try:
        return None if data is None else _Signer(**SIGN_FORMAT.decode(data))
    except (CorruptFileError, FutureVersionError, TypeError):
        return None
