"""How long to wait between two looks for news: the longer nothing happens, the longer.

Invariants: what comes is found at most a tenth later than it would have been by looking all the
time; who has nothing to do looks a few times a second, and costs next to nothing.
"""

from __future__ import annotations

from typing import Final

LEAST_PAUSE_S: Final = 0.01
MOST_PAUSE_S: Final = 0.25
REMOTE_PAUSE_S: Final = 0.2
"""On an object store, where each look is a request that costs money."""


def pause_s(quiet_s: float, *, remote: bool) -> float:
    """Until the next look, when there has been no news for so long."""
    if remote:
        return REMOTE_PAUSE_S
    return min(max(LEAST_PAUSE_S, quiet_s / 10), MOST_PAUSE_S)
