"""Objects that describe themselves: a small table in a notebook, elsewhere one line.

Invariants: whatever it says is escaped; what is long is cut; the table takes its colours from the
page around it, so it is legible on light and on dark, and it says the same where a page takes all
styles away.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 300
"""Characters of one value."""
_LEFT: Final = 'style="text-align:left"'


class Described:
    """An object with a few facts, said once: `repr` and HTML are made from them."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        """The facts by name: texts, numbers, or a `Grid`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        rows = [[name.replace("_", " "), value] for name, value in self._facts().items()]
        return f"<b>{_text(type(self).__name__)}</b>{_table(rows)}"


@dataclass(frozen=True, slots=True)
class Grid:
    """Several things of one kind: a row each."""

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __repr__(self) -> str:
        return f"[{len(self.rows)}]"

    def __str__(self) -> str:
        return _table(self.rows, self.heads)


@dataclass(frozen=True, slots=True)
class Cells:
    """Characters that stand side by side, such as one for each message."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)

    def __str__(self) -> str:
        return f'<span style="font-family:monospace;white-space:nowrap">{_text(self.text)}</span>'


def _table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    lines = ["".join(f"<th {_LEFT}>{_text(each)}</th>" for each in heads)] if heads else []
    lines += ["".join(f"<td {_LEFT}>{_value(each)}</td>" for each in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _value(value: object) -> str:
    if isinstance(value, Grid | Cells):
        return str(value)
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, bytes):
        return _text(value[: LONGEST + 1].decode(errors="backslashreplace"))
    if isinstance(value, Mapping):
        return _text(", ".join(f"{name}: {each}" for name, each in value.items())) or "-"
    return _text(str(value))


def _text(text: str) -> str:
    return html.escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
