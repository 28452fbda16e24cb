"""Lots, all drawn from one seed, so that a schedule can be had again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class ViolationError(AssertionError):
    """A promise was broken."""


class Lots:
    """A source of chance. Quick rather than even: these are drawn millions of times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def draw(self, low: int, high: int) -> int:
        """low to high, both included."""
        return low + int(self.random.random() * (high - low + 1))

    def one_in(self, count: int) -> bool:
        return self.random.random() * count < 1

    def draw_from(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.random() * len(choices))]

    def sample(self, rows: Sequence[T]) -> list[T]:
        return self.random.sample(rows, self.draw(1, len(rows)))
