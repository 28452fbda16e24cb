"""docs/from-pulsar.md has each command of pulsar-admin, and what it says of it is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.from_pulsar_page import (
    ELSEWHERE,
    NOT_HERE,
    OPTIONS_NOT_HERE,
    RECORDED,
    commands,
    missing_options,
    verdict,
)

COMMANDS = json.loads(RECORDED.read_text(encoding="utf-8"))["commands"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-pulsar.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("group", COMMANDS)
def test_each_command_of_pulsar_admin_has_its_row(group: str) -> None:
    section = TEXT.split(f"\n## {group}\n")[1].split("\n## ")[0]
    rows = {
        command: said
        for names, said in re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)
        for command in re.findall(r"`([^`]+)`", names)
    }
    assert rows == {command: verdict(group, command) for command in COMMANDS[group]}


@pytest.mark.parametrize("group", COMMANDS)
def test_what_is_said_to_be_here_is_a_command(group: str) -> None:
    for command in COMMANDS[group]:
        said = verdict(group, command)
        if said == "here":
            assert command in commands(group)
        elif said.startswith("here as"):
            noun, name = re.findall("`(.*)`", said)[0].split(" ")
            assert name in commands(noun), said
        else:
            assert said.startswith("not here: ")
            assert command not in commands(group)


def test_each_option_of_a_command_that_is_here_is_here_or_said_to_be_missing() -> None:
    assert missing_options(COMMANDS).keys() == OPTIONS_NOT_HERE.keys()


def test_nothing_is_explained_that_pulsar_admin_does_not_have() -> None:
    for group, known in ELSEWHERE.items():
        assert known.keys() <= COMMANDS[group].keys(), group
    every = {command for known in COMMANDS.values() for command in known}
    for pattern, _ in NOT_HERE:
        assert any(re.fullmatch(pattern, each) for each in every), pattern


def test_a_command_that_nobody_has_thought_of_is_no_row() -> None:
    with pytest.raises(KeyError):
        verdict("topics", "fly")
