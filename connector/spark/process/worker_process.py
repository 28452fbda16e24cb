"""The care for the Python processes in which Spark runs us.

Invariant: a process without it is only slower, or noisier.
"""

from __future__ import annotations

import gc
import os
import sys

_spared: set[int] = set()


def spare_the_garbage_collector() -> None:
    """Leave out of later collections what has been imported, if that is more than last time.

    Spark's worker collects garbage after each task, which walks every object that there is:
    40 to 60 ms, as long as reading 100,000 messages takes. Call it at the end of a task of any
    kind: each imports something else.
    """
    imported = len(sys.modules)
    if imported not in _spared:
        gc.collect()
        gc.freeze()
        _spared.add(imported)


def leave_if_hung_up() -> None:
    """For a reader's `stop`: end this planner process if Spark has hung up on it.

    Going on, PySpark would write into the closed socket and print the trace of a broken pipe into
    the user's terminal.
    """
    if isinstance(sys.exc_info()[1], (EOFError, ConnectionError)):
        os._exit(0)
