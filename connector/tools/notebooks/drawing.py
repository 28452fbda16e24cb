"""The pictures of `pulsar_spark.pictures`: a cursor as a strip, a hash ring, a time line.

Invariants: no background and no black or white, so a picture is legible on light and on dark;
matplotlib is loaded by the first picture, and nothing of its global state is used or changed, so
a picture shows in any notebook, whatever its settings; same input, same picture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.system_topics.message_strip import (
    ACKNOWLEDGED,
    GONE,
    HELD,
    UNREAD,
    WAITING,
    aligned,
)
from pulsar_spark.errors import MissingPackageError
from pulsar_spark.log.producing.hashing import AUTO_SPLIT_SLOTS, murmur3_32_hash, sticky_key_slot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT: Final = "#7b7b82"
"""As far from white as from the dark of notebooks."""
LINES: Final = "#8888904d"
COLOURS: Final = ("#3d85c6", "#d07c28", "#2f9e6e", "#8e6fc9", "#d0494f", "#2f9aa6", "#a8862a")
STYLE: Final[Mapping[str, Any]] = {
    "font.family": ["DejaVu Sans"], "font.size": 9.0, "text.color": TEXT,
    "axes.labelcolor": TEXT, "axes.titlecolor": TEXT, "axes.edgecolor": LINES,
    "axes.titlesize": 10.0, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "xtick.color": TEXT, "ytick.color": TEXT,
    "grid.color": LINES, "figure.facecolor": "none", "axes.facecolor": "none",
    "savefig.facecolor": "none", "legend.frameon": False, "legend.fontsize": 8.5,
    "text.parse_math": False, "date.converter": "concise",
}  # fmt: skip
DOTS_AN_INCH: Final = 144
STATES: Final = {
    UNREAD: ("with nobody yet", "#88889055"),
    HELD: ("with a consumer", COLOURS[1]),
    WAITING: ("to come later", COLOURS[4]),
    ACKNOWLEDGED: ("acknowledged", COLOURS[0]),
}
"""The states of a message of a subscription: meaning and colour. GONE has none."""


class Event(NamedTuple):
    """Something that happened at one time, or lasted `until` another, in the lane of that name."""

    lane: str
    at: float
    kind: str
    until: float | None = None


class Cursor(Protocol):
    """The data of a `strip`, such as a subscription of `Client.topic_stats`."""

    @property
    def states(self) -> Mapping[int, NDArray[np.int8]]:
        """Ledger -> the state of each of its messages, a key of STATES."""


class Picture:
    """A figure that shows itself in any notebook; `figure` is matplotlib's, to change or save."""

    def __init__(self, figure: Figure, title: str) -> None:
        self.figure, self.title = figure, title

    def __repr__(self) -> str:
        return f"Picture({self.title!r})"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        data = BytesIO()
        what = {"Software": None, "Title": self.title}
        self.figure.savefig(data, format="png", dpi=DOTS_AN_INCH, metadata=what)
        width, height = self.figure.get_size_inches() * 96
        return data.getvalue(), {"width": round(width), "height": round(height)}

    def svg(self) -> str:
        """The same for a page: text that grows without blur, and is the same each time."""
        import matplotlib as mpl

        text = StringIO()
        with mpl.rc_context({"svg.hashsalt": "pulsarlite"}):
            what = {"Date": None, "Title": self.title}
            self.figure.savefig(text, format="svg", metadata=what)
        return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


@contextmanager
def canvas(title: str, width: float = 8.0, height: float = 3.0) -> Iterator[tuple[Picture, Axes]]:
    """A picture of your own in this style, in inches; what is drawn within the block has it.

        with canvas("Delays") as (picture, axes):
            axes.plot(hours, delays)

    MissingPackageError if there is no matplotlib.
    """
    try:
        import matplotlib as mpl
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "Pictures are drawn by matplotlib, which is not installed. Run: pip install "
            "'pulsarlite[demo]'"
        ) from error
    style: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        yield Picture(figure, title), axes
        figure.draw_without_rendering()


def strip(
    rows: Cursor | Sequence[tuple[str, Cursor]],
    title: str = "The messages of a subscription",
    *,
    width: float = 8.0,
    a_line: int | None = None,
) -> Picture:
    """A cursor as a strip with a cell a message: holes are where it is not acknowledged.

    Several are drawn below each other, each with what was done before: the cursor as it moves. A
    long one goes on below itself after `a_line` messages.
    """
    if isinstance(rows, Sequence):
        labels, grid = [each[0] for each in rows], aligned([each[1].states for each in rows])
    elif a_line is None:
        labels, grid = [""], aligned([rows.states])
    else:
        (whole,) = aligned([rows.states], sys.maxsize)
        grid = np.full((-(-len(whole) // a_line), a_line), GONE, np.int8)
        grid.flat[: len(whole)] = whole
        labels = [f"{first + 1:,}" for first in range(0, len(whole), a_line)]
    thick = 0.34 if len(labels) <= 12 else 0.15
    with canvas(title, width, 0.85 + thick * len(labels)) as (picture, axes):
        apart = grid.shape[1] <= 160
        gap = 0.14 if apart else 0.0
        used = [state for state in STATES if (grid == state).any()]
        for line, states in enumerate(grid):
            for state in used:
                runs = _runs(states == state, apart=apart)
                bars = [(first + gap / 2, count - gap) for first, count in runs]
                axes.broken_barh(bars, (line - 0.36, 0.72), facecolors=STATES[state][1])
        axes.set_yticks(range(len(labels)), labels, fontsize=9 if thick > 0.2 else 6)
        axes.set_xlim(0, max(1, grid.shape[1]))
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(length=0)
        axes.xaxis.set_visible(False)
        axes.spines[:].set_visible(False)
        legend(axes, {STATES[each][0]: STATES[each][1] for each in used})
    return picture


def ring(
    owners: Mapping[str, Iterable[tuple[int, int]]],
    keys: Iterable[str] = (),
    title: str = "Who gets which keys",
    *,
    size: float = 4.6,
    consistent_hashing: bool = True,
) -> Picture:
    """A Key_Shared subscription: each consumer's ranges of hash slots, and where keys fall.

    Ranges are as `key_hash_ranges` of a consumer of `Client.topic_stats`, both ends included.
    """
    with canvas(title, size * 1.4, size) as (picture, axes):
        axes.set_axis_off()
        axes.set_aspect("equal")
        colours = _colours(owners)
        for consumer, ranges in owners.items():
            for first, last in ranges:
                _arc(axes, first, last + 1, colours[consumer])
        for key in keys:
            slot = sticky_key_slot(murmur3_32_hash(key), consistent_hashing=consistent_hashing)
            x, y = _on_ring(slot)
            axes.plot([1.0 * x], [1.0 * y], "o", color=TEXT, markersize=4)
            axes.annotate(
                key, (1.1 * x, 1.1 * y), fontsize=8,
                ha="left" if x > 0.2 else "right" if x < -0.2 else "center",
                va="bottom" if y > 0.2 else "top" if y < -0.2 else "center",
            )  # fmt: skip
        axes.set_xlim(-1.7, 1.7)
        axes.set_ylim(-1.2, 1.2)
        legend(axes, colours, inside=True)
    return picture


def time_line(
    events: Iterable[Event | tuple[Any, ...]],
    title: str = "",
    *,
    unit: str = "s",
    width: float = 8.0,
    colours: Mapping[str, str] | None = None,
) -> Picture:
    """Events by time, a lane for each name, a colour for each kind; `at` and `until` in `unit`.

    Lanes and kinds stand in the order in which they come. An event is an `Event`, or a tuple of
    (lane, at, kind) or (lane, at, kind, until).
    """
    all_events = [Event(*each) for each in events]
    lanes = {name: number for number, name in enumerate(dict.fromkeys(e.lane for e in all_events))}
    kinds = {**_colours(dict.fromkeys(each.kind for each in all_events)), **(colours or {})}
    with canvas(title, width, 1.1 + 0.32 * len(lanes)) as (picture, axes):
        for lane, at, kind, until in all_events:
            if until is None:
                axes.plot([at], [lanes[lane]], "o", color=kinds[kind], markersize=6.5)
            else:
                bar = [(at, until - at)]
                axes.broken_barh(bar, (lanes[lane] - 0.18, 0.36), facecolors=kinds[kind])
        axes.set_yticks(range(len(lanes)), list(lanes))
        axes.set_ylim(len(lanes) - 0.4, -0.6)
        axes.set_xlabel(unit)
        axes.grid(axis="x", linewidth=0.6)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        legend(axes, kinds)
    return picture


def legend(axes: Axes, colours: Mapping[str, str], *, inside: bool = False) -> None:
    """Name -> colour, below the picture."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    if not handles:
        return
    if inside:
        axes.legend(handles=handles, loc="center", handlelength=0.9)
    else:
        axes.figure.legend(
            handles=handles, loc="outside lower left", ncols=min(5, len(handles)),
            handlelength=0.9, columnspacing=1.4,
        )  # fmt: skip


def _colours(names: Iterable[str]) -> dict[str, str]:
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def _runs(mask: NDArray[np.bool_], *, apart: bool) -> list[tuple[int, int]]:
    """(first, count) of the stretches that are true; each cell alone if they are to be apart."""
    places = np.flatnonzero(mask)
    if apart:
        return [(int(place), 1) for place in places]
    parts = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return [(int(part[0]), len(part)) for part in parts if len(part)]


def _on_ring(slot: float) -> tuple[float, float]:
    """From the top, clockwise."""
    angle = np.pi / 2 - 2 * np.pi * slot / AUTO_SPLIT_SLOTS
    return float(np.cos(angle)), float(np.sin(angle))


def _arc(axes: Axes, first: int, end: int, colour: str) -> None:
    from matplotlib.patches import Wedge

    to, begin = (90 - 360 * slot / AUTO_SPLIT_SLOTS for slot in (first, end))
    axes.add_patch(Wedge((0, 0), 1.0, begin, to, width=0.22, facecolor=colour, linewidth=0))
