"""The decisions and the changelog: each record is in the index, and all of it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_spark.version import __version__
from tests.architecture.sources import REPOSITORY

DECISIONS = REPOSITORY / "docs" / "decisions"
SECTIONS = ("Context", "Decision", "Alternatives", "What it costs")
FILES = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))
RECORDS = [name for name in FILES if not name.startswith("0000")]
MOST_RECORDS = 40
"""A new record beyond this number is merged with one that it belongs to."""
MOST_WORDS = 15_000
"""All records, the template and the index together."""
MOST_CHANGELOG_LINES = 60
"""One version of the changelog fits on a screen or two."""
AREAS = (
    "Log and storage", "Positions and offsets", "Broker and state", "Subscriptions and delivery",
    "Transactions and producers", "Schema", "Client", "Spark hosting", "Housekeeping",
    "Operations", "Testing",
)  # fmt: skip


def text_of(name: str) -> str:
    return (DECISIONS / name).read_text(encoding="utf-8")


def test_the_index_names_every_decision_and_no_other() -> None:
    assert sorted(set(re.findall(r"\((\d{4}-[a-z0-9-]+\.md)\)", text_of("README.md")))) == FILES


def test_the_index_is_grouped_by_area_and_has_the_titles_of_the_records() -> None:
    index = text_of("README.md")
    assert tuple(re.findall(r"^## (.*)$", index, re.MULTILINE)) == AREAS
    rows = re.findall(r"^\| \[(\d{4})\]\((.*)\) \| (.*) \|$", index, re.MULTILINE)
    assert [name for _, name, _ in rows] == RECORDS
    for number, name, title in rows:
        assert text_of(name).splitlines()[0] == f"# {number}. {title}"


def test_decisions_are_few_short_and_numbered_without_gaps() -> None:
    assert [name[:4] for name in RECORDS] == [f"{n:04}" for n in range(1, len(RECORDS) + 1)]
    assert len(RECORDS) <= MOST_RECORDS
    words = sum(len(text_of(path.name).split()) for path in DECISIONS.glob("*.md"))
    assert words <= MOST_WORDS


@pytest.mark.parametrize("name", FILES)
def test_a_decision_has_context_decision_alternatives_and_costs(name: str) -> None:
    text = text_of(name)
    for section in SECTIONS:
        assert f"\n## {section}\n" in text, f"{name} lacks «## {section}»"
    number = "NNNN" if name.startswith("0000") else name[:4]
    assert text.startswith(f"# {number}. ")


def test_a_version_of_the_changelog_is_short() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert versions
    for version in versions:
        assert len(version.splitlines()) <= MOST_CHANGELOG_LINES, version.splitlines()[0]


def test_the_changelogs_newest_version_is_that_of_the_package() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.*?)\]", text, re.MULTILINE)[0] == __version__


def test_a_reference_to_a_decision_names_a_record_that_there_is() -> None:
    numbers = {name[:4] for name in FILES}
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *sources()]:
        for number in re.findall(
            r"(?:decision |docs/decisions/)(\d{4})", path.read_text(encoding="utf-8")
        ):
            assert number in numbers, f"{path} refers to decision {number}"


def sources() -> list[Path]:
    """Modules, whose comments refer to decisions."""
    return [
        path
        for folder in ("pulsar_spark", "connector", "state", "tests")
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
