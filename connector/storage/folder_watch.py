"""Waiting until a folder of a local disk gets a new name, without looking again and again.

Invariants: who waits is woken by each name that comes after `add`, and looks for itself whether it
was worth it; where the kernel can't tell (not Linux, another disk's files, too many who wait) the
wait is made of short sleeps. Uses inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from functools import cache
from math import ceil
from typing import Any, Final, NamedTuple

from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import StorageError

LEAST_STEP_S: Final = 0.001
MOST_STEP_S: Final = 0.005
"""Seconds between two checks where the kernel can't notify: ten within these."""
IDLE_WAITS: Final = 100
"""A check may take a hundredth of the time between two."""
_CREATED: Final = 0x100 | 0x80
"""IN_CREATE and IN_MOVED_TO."""


class Watched(NamedTuple):
    """A folder in which news appear, and whether there are any: a glance, cheap, which may err.

    For any thread.
    """

    folder: str
    has_activity: Callable[[], bool]


def has_activity(watched: Iterable[Watched]) -> bool:
    """True if one of these has news, or a glance failed: who polls then meets the error."""
    try:
        return any(each.has_activity() for each in watched)
    except (StorageError, OSError):
        return True


class FolderWatch(threading.local):
    """Waits for news in some folders of a store; each thread that waits is told for itself."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: set[str] = set()
        self._descriptor: _Descriptor | None = None

    def wait(self, folders: Iterable[str], seconds: float, until: Callable[[], bool]) -> None:
        """Return when that time has passed, or soon after `until()` is true.

        That turns true by new names in these folders only, or by what this process does.
        """
        reported = [self._add(folder) for folder in folders]
        clock = self._store.clock
        asked_s = clock.monotonic_s()
        end_s = asked_s + seconds
        step_s = min(max(LEAST_STEP_S, seconds / 10), MOST_STEP_S)
        while not until() and (now_s := clock.monotonic_s()) < end_s:
            if reported and all(reported):
                self._block(end_s - now_s)
            else:
                clock.sleep(min(max(step_s, (now_s - asked_s) * IDLE_WAITS), end_s - now_s))
            asked_s = clock.monotonic_s()

    def rest(self, watched: Collection[Watched], seconds: float) -> None:
        """Wait so long for news. What is there already can't be taken in yet, and is none."""
        if has_activity(watched):
            self._store.clock.sleep(seconds)
        else:
            self.wait((each.folder for each in watched), seconds, lambda: has_activity(watched))

    def _block(self, seconds: float) -> None:
        assert self._descriptor is not None
        names = select.poll()
        names.register(self._descriptor.number, select.POLLIN)
        if names.poll(ceil(seconds * 1000)):
            os.read(self._descriptor.number, 1 << 16)

    def _add(self, folder: str) -> bool:
        """True if the kernel tells of this folder."""
        if folder in self._known:
            return True
        path, libc = self._store.local_folder(folder), _inotify()
        if path is None or libc is None:
            return False
        if self._descriptor is None:
            number = libc.inotify_init1(os.O_CLOEXEC)
            if number < 0:
                return False
            self._descriptor = _Descriptor(number)
        if libc.inotify_add_watch(self._descriptor.number, os.fsencode(path), _CREATED) < 0:
            return False
        self._known.add(folder)
        return True


class _Descriptor:
    """Is closed with the last who knows it, which is not while anybody waits."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Not at the exit of the process: threads that wait may read it until then.
        weakref.finalize(self, os.close, number).atexit = False


@cache
def _inotify() -> Any:
    """The C library, if it has inotify."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "inotify_init1") else None
