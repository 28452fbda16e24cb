"""A process of this machine, named so that another process can tell that it is gone.

Invariants: a living process is never taken for one that is gone; a process of another machine,
container, boot or time namespace is taken to live, and so is every process where the system lacks
`/proc` (its lease decides then); a process id that was given to a later process is told from the
first by the time at which its process started.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

UNKNOWN: Final = ""
"""The identity where the system can't tell; it is never gone."""
_PROC: Final = Path("/proc")


def this_process() -> str:
    """The identity of the calling process: machine, process id and start, with spaces between."""
    return _identity_of(os.getpid())  # a fork has another one than its parent


def is_gone(identity: str) -> bool:
    """True if that is a process of this machine, and has ended."""
    machine, _, rest = identity.rpartition("/")
    mine, _, _ = this_process().rpartition("/")
    try:
        process, started = map(int, rest.split())
    except ValueError:
        return False
    if not machine or machine != mine or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        pass
    now = _stat(str(process))
    if now is None:  # hidden from this user, or gone just now: the next look tells
        return False
    state, threads, begun = now
    return begun != started or (state in "ZX" and threads <= 1)


@lru_cache(maxsize=1)
def _identity_of(process: int) -> str:
    if not sys.platform.startswith("linux"):
        return UNKNOWN
    now = _stat("self", process)
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        time = _PROC / "self/ns/time"
        times = time.stat().st_ino if time.exists() else 0
    except OSError:
        return UNKNOWN
    if now is None or not boot:
        return UNKNOWN
    return f"{socket.gethostname()} {boot} {namespace} {times}/{process} {now[2]}"


def _stat(name: str, process: int | None = None) -> tuple[str, int, int] | None:
    """(state, number of threads, start in ticks since the boot); None if it can't be read.

    None too if it is of another process than that: `/proc` may be of another namespace.
    """
    try:
        text = (_PROC / name / "stat").read_text()
        number, _, rest = text.partition(" (")
        fields = rest.rpartition(") ")[2].split()
        if process is not None and int(number) != process:
            return None
        return fields[0], int(fields[17]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
