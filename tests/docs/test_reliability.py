"""Every row of docs/reliability.md names an invariant, a test and a mutant that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress

import pytest

from docs.models.check import MODELS
from tests import mutants
from tests.architecture.sources import REPOSITORY
from tests.client_torture.points import BY_NAME
from tests.invariants import INVARIANTS
from tests.simulation.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.mutants import MUTANTS as BROKERS

EVERY = 4
"""Which of the mutants one run tries."""
HEADER = ["", "", "invariant", "test", "mutant"]
PATCHES = {each.name: each for each in mutants.MUTANTS}
GUARDS = {f"{model.name}.{each.guard}": each for model in MODELS for each in model.mutants}


def rows() -> list[list[str]]:
    """The cells of each row of each table that promises something."""
    text = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    found: list[list[str]] = []
    promises = False
    for line, following in zip(text.splitlines(), [*text.splitlines()[1:], ""], strict=True):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if following.startswith("| --- "):
            promises = not cells[0]
            assert not promises or cells == HEADER
        elif promises and line.startswith("| ") and not line.startswith("| --- "):
            found.append(cells)
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_its_invariant_the_test_that_holds_it_and_the_mutant_that_breaks_it(
    row: list[str],
) -> None:
    assert len(row) == len(HEADER)
    assert all(row)
    named = [re.fullmatch(r"`([^`]+)`", cell) for cell in row[2:]]
    assert all(named), "each of the three is a name in backticks"
    invariant, test, mutant = (each[1] for each in named if each)
    assert_is_a_test(test)
    kind, _, name = mutant.partition(".")
    if kind == "mutants":
        assert (invariant, test) in [
            (PATCHES[name].invariant, each) for each in PATCHES[name].tests
        ]
    elif kind == "simulation":
        assert name in [each.__name__ for each in (*BROKERS, *CLUSTER_MUTANTS)]
        assert invariant in INVARIANTS
        assert test.startswith("simulation/")
    else:
        assert GUARDS[mutant].invariant == invariant


def assert_is_a_test(test: str) -> None:
    file, _, name = test.partition("::")
    text = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
    name, _, case = name.rstrip("]").partition("[")
    assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file} has no {name}"
    assert not case or case in BY_NAME


def test_there_are_rows() -> None:
    assert len(rows()) > 30


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_names_an_invariant_and_tests_that_there_are(mutant: mutants.Mutant) -> None:
    known = {invariant for model in MODELS for invariant in model.invariants}
    assert mutant.invariant in known | INVARIANTS.keys()
    assert mutant.tests
    for test in mutant.tests:
        assert_is_a_test(test)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_breaks_is_there(
    mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.patch(monkeypatch)


def test_no_invariant_is_named_for_nothing() -> None:
    assert set(INVARIANTS) <= {row[2].strip("`") for row in rows()}


def drawn() -> int:
    """A number below EVERY, the same for one commit and others for others; 0 outside of Git."""
    with suppress(FileNotFoundError):
        asked = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return int(done.stdout[:8] or "0", 16) % EVERY
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("first", [drawn()])
def test_a_mutant_is_noticed_by_each_of_its_tests(first: int) -> None:
    # All of them take minutes: `make mutants`.
    some = [each.name for each in mutants.MUTANTS][first::EVERY]
    print("again: python -m tests.mutants", *some)
    done = python("-m", "tests.mutants", *some)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("patch", ["lambda _: None", "lambda _: 1 / 0"])
def test_a_mutant_that_changes_nothing_or_can_t_be_made_is_told(patch: str) -> None:
    done = python(
        "-c",
        "from tests.mutants import Mutant, fails\n"
        f"print(fails(Mutant({patch}, '', ()), 'core/positions/test_base85.py'))",
    )
    assert done.stdout == "False\n"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Forks where no other threads are."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
