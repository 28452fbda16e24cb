"""An object shows itself as a small table, or as one line."""

from __future__ import annotations

import re

from pulsar_spark.model.described import LONGEST, Cells, Described, Grid


class Parcel(Described):
    def __init__(self, **facts: object) -> None:
        self.facts = facts

    def _facts(self) -> dict[str, object]:
        return self.facts


def words(parcel: Parcel) -> list[str]:
    """The texts between the tags."""
    return re.findall(r">([^<>]+)<", parcel._repr_html_())


def test_an_object_says_its_facts_in_one_line_and_in_a_table() -> None:
    parcel = Parcel(sent_to="ann", kilos=1200, fragile=True, note="")
    assert repr(parcel) == "Parcel(sent_to='ann', kilos=1200, fragile=True, note='')"
    assert words(parcel) == [
        "Parcel", "sent to", "ann", "kilos", "1,200", "fragile", "yes", "note", "-"
    ]  # fmt: skip


def test_what_an_object_says_is_escaped() -> None:
    bad = "<script>alert('&')</script>"
    page = Parcel(text=bad, data=bad.encode(), more={"a": bad}, rows=Grid([bad], [[bad]]))
    assert "<script" not in page._repr_html_()
    assert page._repr_html_().count("&lt;script&gt;") == 5
    assert Cells("<b>").text not in str(Cells("<b>"))


def test_what_is_long_or_no_text_is_cut_and_readable() -> None:
    (_, _, text, _, data) = words(Parcel(text="x" * 10_000, data=b"\xff" + b"y" * 10_000))
    assert len(text) == LONGEST
    assert text.endswith("…")
    assert data.startswith("\\xff")
    assert len(data) == LONGEST


def test_a_table_leaves_colours_to_the_page() -> None:
    page = Parcel(cells=Cells("█·"), rows=Grid(["a"], [[1]]))._repr_html_()
    assert "color" not in page
    assert "background" not in page
