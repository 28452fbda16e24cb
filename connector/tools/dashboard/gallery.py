"""The pictures of the pages: hung up as data, drawn when a browser asks, each once.

Invariants: a picture's name follows from what it shows, so one that shows the same is neither drawn
nor sent again; names from messages and clients are cut and cleaned before they are drawn; one is
drawn at a time, since matplotlib's settings are the process's. All are `pulsar_spark.pictures`.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.connector.tools.dashboard.followed_queue import Point
from pulsar_spark.connector.tools.notebooks.drawing import (
    COLOURS,
    Event,
    Picture,
    canvas,
    legend,
    ring,
    strip,
    time_line,
)

MOST_PICTURES: Final = 200
"""So many are kept; who asks for one that was dropped looks at its page anew."""
LONGEST_LABEL: Final = 40
MOST_LANES: Final = 7
"""As many as there are colours."""
WIDTH: Final = 9.0

States = tuple[tuple[str, NDArray[np.int8]], ...]
"""(label, the state of each message) by row."""
UNITS: Final = (("days", 172_800, 86_400), ("hours", 7200, 3600), ("minutes", 120, 60))
"""(name, from how many seconds on it is used, its own seconds)."""


class _Row(NamedTuple):
    states: Mapping[int, NDArray[np.int8]]


class Gallery:
    """The pictures that pages have used lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._hung: OrderedDict[str, bytes | str] = OrderedDict()

    def cache_picture(self, kind: str, data: Any) -> str:
        """The name of the picture of that kind, a key of `KINDS`, that shows this."""
        packed = pickle.dumps((kind, data))
        name = hashlib.sha256(packed).hexdigest()[:32]
        with self._lock:
            self._hung.setdefault(name, packed)
            self._hung.move_to_end(name)
            while len(self._hung) > MOST_PICTURES:
                self._hung.popitem(last=False)
        return name

    def svg(self, name: str) -> str | None:
        """The picture; None if there is none of that name any more."""
        with self._drawing:
            with self._lock:
                held = self._hung.get(name)
            if not isinstance(held, bytes):
                return held
            kind, data = pickle.loads(held)  # noqa: S301 - `cache_picture` made it, in this process
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a script that the font lacks, say
                drawn = KINDS[kind](data).svg()
            with self._lock:
                if name in self._hung:
                    self._hung[name] = drawn
            return drawn


def label(text: str) -> str:
    """A name as it can be drawn, whoever chose it.

    >>> label("a\\x00b")
    'a·b'
    """
    clean = "".join(each if each.isprintable() else "·" for each in text)
    return clean if len(clean) <= LONGEST_LABEL else f"{clean[: LONGEST_LABEL - 1]}…"


def _backlog(points: Sequence[Point]) -> Picture:
    """The backlogs of the subscriptions with the most messages; the others are left out."""
    most: dict[str, int] = {}
    for _, backlogs in points:
        for name, backlog in backlogs.items():
            most[name] = max(backlog, most.get(name, 0))
    shown = sorted(most, key=lambda name: (-most[name], name))[:MOST_LANES]
    times = np.array([time_ms for time_ms, _ in points], "datetime64[ms]")
    with canvas("Messages that are not acknowledged, by time (UTC)", WIDTH, 2.8) as (made, axes):
        for name in shown:
            values = [backlogs.get(name, np.nan) for _, backlogs in points]
            axes.step(times, values, where="post", linewidth=1.6)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", linewidth=0.6)
        axes.tick_params(length=0)
        if shown:
            legend(axes, dict(zip(map(label, shown), COLOURS, strict=False)))
    return made


def _strip(rows: States) -> Picture:
    title = "Messages from the mark-delete position on, by partition"
    return strip([(label(name), _Row({0: states})) for name, states in rows], title, width=WIDTH)


def _ring(owners: Mapping[str, Sequence[tuple[int, int]]]) -> Picture:
    names = sorted(owners, key=lambda name: (-len(owners[name]), name))
    shown = {label(name): owners[name] for name in names[: MOST_LANES - 1]}
    if rest := names[MOST_LANES - 1 :]:
        shown[f"{len(rest)} others"] = [each for name in rest for each in owners[name]]
    return ring(shown, title="Which consumer gets which keys")


def _delays(lanes: Mapping[str, Sequence[tuple[float, str]]]) -> Picture:
    """(seconds from now, why) of each lane."""
    longest = max((at for held in lanes.values() for at, _ in held), default=0.0)
    unit, seconds = next(
        ((name, size) for name, least, size in UNITS if longest >= least), ("seconds", 1)
    )
    events = [
        Event(label(name), at / seconds, why) for name, held in lanes.items() for at, why in held
    ]
    return time_line(events, "When delayed messages come", unit=f"{unit} from now", width=WIDTH)


KINDS: Final[Mapping[str, Callable[[Any], Picture]]] = {
    "backlog": _backlog, "strip": _strip, "ring": _ring, "delays": _delays,
}  # fmt: skip
