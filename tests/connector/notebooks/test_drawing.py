"""Pictures show what they are given, on light and on dark."""

from __future__ import annotations

import sys
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from pulsar_spark import pictures
from pulsar_spark.connector.runtime.system_topics import message_strip
from pulsar_spark.connector.tools.notebooks import drawing
from pulsar_spark.errors import MissingPackageError

DARK, LIGHT = "#111111", "#ffffff"


def cursor(*states: int, ledger: int = 0) -> SimpleNamespace:
    return SimpleNamespace(states={ledger: np.array(states, np.int8)})


def all_pictures() -> list[pictures.Picture]:
    return [
        pictures.strip([("received", cursor(1, 1, 0)), ("acknowledged", cursor(3, 1, 2))]),
        pictures.strip(cursor(*[3] * 5_000, 0, *[3] * 5_000)),
        pictures.ring({"ann": [(0, 40_000)], "bob": [(40_001, 65_535)]}, ["N14228", "N24211"]),
        pictures.time_line([("order 1", 0.0, "waits", 2.0), ("order 1", 2.0, "delivered")]),
    ]


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it: 3 is enough for graphics."""

    def luminance(colour: str) -> float:
        parts = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
        ]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("number", range(4))
def test_a_picture_has_no_background_and_is_the_same_each_time(number: int) -> None:
    first, again = (all_pictures()[number]._repr_png_() for _ in range(2))
    assert first == again
    pixels = imread(BytesIO(first[0]))
    assert pixels[0, 0, 3] == 0
    assert (pixels[..., 3] > 0.9).any()


@pytest.mark.parametrize("colour", [drawing.TEXT, *drawing.COLOURS])
@pytest.mark.parametrize("page", [LIGHT, DARK])
def test_text_and_colours_are_legible_on_light_and_on_dark(colour: str, page: str) -> None:
    assert contrast(colour, page) >= (4.0 if colour == drawing.TEXT else 3.0)


def test_a_single_hole_among_many_messages_is_seen() -> None:
    states = np.full(100_000, message_strip.ACKNOWLEDGED, np.int8)
    states[54_321] = message_strip.UNREAD
    assert message_strip.strip_text({0: states}).count("·") == 1
    assert len(message_strip.strip_text({0: states})) == message_strip.MOST_CHARACTERS


def test_a_strip_in_characters_has_one_a_message_in_order_of_ledgers() -> None:
    states = {7: np.array([1, 0], np.int8), 3: np.array([3, 2], np.int8)}
    assert message_strip.strip_text(states) == "█○▒·"
    assert message_strip.strip_text({}) == ""


def test_cursors_of_one_strip_stand_below_each_other_message_by_message() -> None:
    before = {3: np.array([3, 1], np.int8)}
    after = {4: np.array([1, 0, 0], np.int8)}  # ledger 3 was trimmed, ledger 4 came
    grid = message_strip.aligned([before, after])
    assert grid.tolist() == [[3, 1, 4, 4, 4], [3, 3, 1, 0, 0]]


def test_a_drawing_of_ones_own_has_the_style_and_leaves_matplotlib_as_it_was() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with pictures.canvas("Delays") as (picture, axes):
        axes.plot([0, 1], [0, 1])
    assert dict(mpl.rcParams) == before
    assert axes.title.get_color() == drawing.TEXT
    assert repr(picture) == "Picture('Delays')"


def test_without_matplotlib_a_picture_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pulsarlite\[demo\]'"):
        pictures.strip(cursor(1))


@pytest.mark.parametrize("name", [r"$\frac{$", "_private"])
def test_a_name_is_drawn_as_it_is_whatever_matplotlib_makes_of_such_text(name: str) -> None:
    for times, picture in (
        (2, pictures.ring({name: [(0, 10)]}, [name])),
        (2, pictures.time_line([(name, 0.0, name)])),
        (1, pictures.strip([(name, cursor(1, 0))])),
    ):
        assert picture.svg().count(name) == times
