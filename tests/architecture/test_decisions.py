"""The decisions: each is in the index, and has the sections that make it one."""

from __future__ import annotations

import re

import pytest

from tests.architecture.sources import REPOSITORY

DECISIONS = REPOSITORY / "docs" / "decisions"
SECTIONS = ("Context", "Decision", "Alternatives", "What it costs")
FILES = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))


def test_the_index_names_every_decision_and_no_other() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\((\d{4}-[a-z0-9-]+\.md)\)", index))) == FILES


def test_no_two_decisions_have_the_same_number() -> None:
    numbers = [name[:4] for name in FILES]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("name", FILES)
def test_a_decision_has_context_decision_alternatives_and_costs(name: str) -> None:
    text = (DECISIONS / name).read_text(encoding="utf-8")
    for section in SECTIONS:
        assert f"\n## {section}\n" in text, f"{name} lacks «## {section}»"
    number = "NNNN" if name.startswith("0000") else name[:4]
    assert text.startswith(f"# {number}. ")
