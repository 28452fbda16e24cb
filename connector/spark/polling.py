"""How long to wait between two looks for news: the longer nothing happens, the longer.

Invariants: what comes after a quiet time is found at most a tenth of that time later, and never
more than MOST_PAUSE_S; who has nothing to do looks four times a second. Whoever waits, for news,
for an answer or for a topic, looks as often as this says.
"""

from __future__ import annotations

from typing import Final

LEAST_PAUSE_S: Final = 0.01
"""Also where a tenth is less."""
MOST_PAUSE_S: Final = 0.25
REMOTE_PAUSE_S: Final = 0.2
"""On an object store, where each look is a request that costs money."""


def pause_s(quiet_s: float, *, remote: bool) -> float:
    """Until the next look, when there has been no news for so long."""
    if remote:
        return REMOTE_PAUSE_S
    return min(max(LEAST_PAUSE_S, quiet_s / 10), MOST_PAUSE_S)
