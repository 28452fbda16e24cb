"""The pause between two polls: it grows with the time since the last activity.

Invariants: what comes after a quiet time is found at most a tenth of that time later, and never
more than MOST_PAUSE_S, or REMOTE_MOST_PAUSE_S on an object store; who has nothing to do looks four
times a second, or there each 30 s. Whoever waits, for news, for an answer or for a
topic, looks as often as this says.
"""

from __future__ import annotations

from typing import Final

LEAST_PAUSE_S: Final = 0.01
"""Also where a tenth is less."""
MOST_PAUSE_S: Final = 0.25
REMOTE_LEAST_PAUSE_S: Final = 0.05
"""The same on an object store, where each poll is a request."""
REMOTE_MOST_PAUSE_S: Final = 30.0
"""The longest pause on an object store: a broker and three consumers that poll so often cost half a
cent a day."""


def pause_s(quiet_s: float, *, remote: bool) -> float:
    """Until the next look, when there has been no news for so long."""
    if remote:
        return min(max(REMOTE_LEAST_PAUSE_S, quiet_s / 10), REMOTE_MOST_PAUSE_S)
    return min(max(LEAST_PAUSE_S, quiet_s / 10), MOST_PAUSE_S)
