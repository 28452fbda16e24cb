"""Base85 is Python's own, to the letter."""

from __future__ import annotations

import base64
import random

import pytest

from pulsar_spark.model.records import base85


@pytest.mark.parametrize("size", [*range(12), 1_000, 70_001])
def test_it_is_what_python_makes_of_the_same_bytes(size: int) -> None:
    for data in (random.Random(size).randbytes(size), bytes(size), b"\xff" * size):
        text = base64.b85encode(data).decode()
        assert base85.encoded(data) == text
        assert base85.decoded(text) == data


def test_what_python_refuses_is_refused() -> None:
    draw = random.Random(7)
    refused = 0
    for _ in range(2_000):
        text = "".join(draw.choices('09Az~!{}|\\ "é', k=draw.randrange(12)))
        try:
            expected = base64.b85decode(text)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match=r"base85|ascii"):
                base85.decoded(text)
        else:
            assert base85.decoded(text) == expected
    assert 500 < refused < 2_000
