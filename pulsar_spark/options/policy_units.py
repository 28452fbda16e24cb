"""The units of policies: parsers from given to stored values of times, sizes, counts, words.

Invariants: what is read depends on what is given alone, and has bounds; whatever is stored comes
back by `given`, and is stored alike again. Times are stored in milliseconds and given in seconds,
as `pulsar-admin` has them. Follows its `TimeUnitToSecondsConverter` and `ByteUnitToLongConverter`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pulsar_spark.broker.protocol.policies import INFINITE
from pulsar_spark.options.option_values import MOST_BYTES, MOST_DURATION_MS

MOST_COUNT: Final = 2**31 - 1
_NO_LIMIT: Final = "no limit"
_TIMES: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
                 "w": 7 * 86_400_000}  # fmt: skip
_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Unit(NamedTuple):
    """A kind of value: `stored` makes of what is given what is stored; ValueError if it can't.

    `given` is the way back, and `text` how it is printed.
    """

    stored: Callable[[Any], Any]
    expects: str
    given: Callable[[Any], Any] = lambda value: value
    text: Callable[[Any], str] = str


def time(least_ms: int, *, infinite: bool = False, off: bool = False, default: str = "s") -> Unit:
    """Seconds; with `infinite` -1 is no limit, and with `off` 0 is none either.

    `default` is the unit of a text that names none, as `pulsar-admin` has it.
    """

    def stored(value: Any) -> int:
        if isinstance(value, timedelta):
            milliseconds = value // timedelta(milliseconds=1)
        else:
            unit = default if isinstance(value, str) else "s"
            milliseconds = round(_number(value, _TIMES, unit))
        if infinite and (milliseconds == -1_000 or (off and milliseconds == 0)):
            return INFINITE
        return _within(milliseconds, least_ms, MOST_DURATION_MS)

    def given(value: int) -> float:
        return value if value == INFINITE else value // 1000 if value % 1000 == 0 else value / 1000

    expects = "a time, such as 30s, 100m, 3h, 2d or 5w; a number alone is seconds"
    if default == "m":
        expects += " in Python, and minutes on the command line, as for pulsar-admin"
    if least_ms:
        expects += f"; {_in_units(least_ms, _TIMES)} or more"
    return Unit(
        stored, expects + ("; -1 for no limit" if infinite else ""), given,
        lambda value: _NO_LIMIT if value == INFINITE else _in_units(value, _TIMES),
    )  # fmt: skip


def size(least: int, *, infinite: bool = False) -> Unit:
    """Bytes; with `infinite` -1 is no limit."""

    def stored(value: Any) -> int:
        size = round(_number(value, _SIZES, ""))
        return INFINITE if infinite and size == -1 else _within(size, least, MOST_BYTES)

    expects = "a size, such as 4096, 10M, 16G or 3T; a number alone is bytes"
    return Unit(
        stored, expects + ("; -1 for no limit" if infinite else ""),
        text=lambda value: _NO_LIMIT if value == INFINITE else _in_units(value, _SIZES),
    )  # fmt: skip


def count(least: int, most: int = MOST_COUNT) -> Unit:
    def stored(value: Any) -> int:
        if isinstance(value, (bool, float)):
            raise ValueError  # noqa: TRY004 - whoever asks says what would be right
        return _within(int(value), least, most)

    off = "; 0 for no limit" if not least else ""
    return Unit(stored, f"a whole number, {least} to {most}{off}", text=lambda n: f"{n:,}")


def one_of(*words: str) -> Unit:
    known = {word.lower(): word for word in words}

    def stored(value: Any) -> str:
        if str(value).strip().lower() not in known:
            raise ValueError
        return known[str(value).strip().lower()]

    return Unit(stored, "one of " + ", ".join(words))


def some_of(*words: str) -> Unit:
    """One or more of these words, stored as a text in this order; given as a list, or such a text.

    The texts are those of `pulsar-admin`: words with commas between.
    """
    word = one_of(*words).stored

    def stored(value: Any) -> str:
        given = value.split(",") if isinstance(value, str) else list(value)
        chosen = {word(each) for each in given}
        if not chosen:
            raise ValueError
        return ",".join(each for each in words if each in chosen)

    return Unit(
        stored, "one or more of " + ", ".join(words) + ", with commas between",
        given=lambda value: value.split(","), text=lambda value: value.replace(",", ", "),
    )  # fmt: skip


def _switch(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError
    return word == "true"


SWITCH: Final = Unit(_switch, "true or false", text=lambda value: "on" if value else "off")


def _number(value: Any, units: Mapping[str, int], default: str) -> float:
    """A number, or a text of one and its unit, times that unit."""
    if isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - whoever asks says what would be right
    if isinstance(value, (int, float)):
        return value * units[default]
    one_case = str.upper if "K" in units else str.lower
    found = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
    if found is None or (unit := one_case(found[2]) or default) not in units:
        raise ValueError
    number = float(found[1]) if "." in found[1] else int(found[1])
    return number * units[unit]


def _within(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError
    return number


def _in_units(value: int, units: Mapping[str, int]) -> str:
    """In the largest unit of which it is a whole number."""
    if not value:
        return "0"
    unit = max((each for each in units if value % units[each] == 0), key=lambda each: units[each])
    return f"{value // units[unit]}{unit}"
