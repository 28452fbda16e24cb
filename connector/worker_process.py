"""What our tasks do for the Python process that runs them, which Spark keeps for later tasks.

Invariant: done once a process, at the end of its first task; a process without it is only slower.
"""

from __future__ import annotations

import gc

_spared: list[int] = []


def spare_the_garbage_collector() -> None:
    """Once a process: leave out of later collections what its first task has imported.

    Spark's worker collects garbage after each task, which walks every object that there is:
    40 to 60 ms, as long as reading 100,000 messages takes.
    """
    if not _spared:
        gc.collect()
        gc.freeze()
        _spared.append(gc.get_freeze_count())
