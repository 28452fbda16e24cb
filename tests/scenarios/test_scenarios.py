"""Each dialogue comes out as it is written."""

from __future__ import annotations

import pytest

from tests.scenarios.__main__ import FOLDER, played
from tests.scenarios.dialogue import Dialogue
from tests.scenarios.host import Host

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", [path.name for path in FILES])
def test_the_dialogue_comes_out_as_it_is_written(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert played(text) == text


def test_a_line_that_nobody_understands_is_an_error() -> None:
    with Host() as host, pytest.raises(ValueError, match="nobody understands"):
        Dialogue(host).say("orders explode")
