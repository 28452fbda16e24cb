"""The models hold within small bounds, their mutants don't, and their names are the code's."""

from __future__ import annotations

import re

import pytest

from docs.models.check import FOLDER, MODELS, Model, Mutant, check
from tests.architecture.sources import REPOSITORY

README = (FOLDER / "README.md").read_text(encoding="utf-8")
by_name = {model.name: model for model in MODELS}
MUTANTS = {
    f"{model.name}-{each.guard}": (model, each) for model in MODELS for each in model.mutants
}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below that heading of the README, without its two first lines."""
    part = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def actions(model: Model) -> set[str]:
    """What the model's next step may be."""
    defined = set(re.findall(r"^([a-z_]\w*)(?:\([\w, ]*\))? ==", model.source, re.MULTILINE))
    step = re.search(r"^Next ==(.*?)^Spec ==", model.source, re.MULTILINE | re.DOTALL)
    assert step
    return defined.intersection(re.findall(r"\w+", step[1]))


@pytest.mark.spark  # Java alone
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_holds_its_invariants_within_small_bounds(model: Model) -> None:
    result = check(model, model.small)
    assert result.broken is None, result.output
    assert result.states > 1_000


@pytest.mark.spark  # Java alone
@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_that_is_off_breaks_the_invariant_that_it_is_for(name: str) -> None:
    model, mutant = MUTANTS[name]
    assert check(model, mutant.bounds, mutant=mutant).broken == mutant.invariant


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_is_small_and_each_of_its_guards_has_a_mutant(model: Model) -> None:
    lines = model.source.splitlines()
    assert len(lines) < 150
    assert max(map(len, lines)) <= 100
    assert model.guards == [each.guard for each in model.mutants]
    assert {each.invariant for each in model.mutants} <= set(model.invariants)


def test_each_action_is_a_function_that_there_is() -> None:
    table = rows("Actions")
    assert {name: {row[1] for row in table if row[0] == name} for name in by_name} == {
        name: actions(model) for name, model in by_name.items()
    }
    for _, action, file, _ in table:
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {action}\(", text, re.MULTILINE), f"{file} has no {action}"


def test_the_readme_names_each_guard_and_what_breaks_without_it() -> None:
    found = [Mutant(row[1], row[2], {}) for row in rows("Guards")]
    assert found == [Mutant(m.guard, m.invariant, {}) for model in MODELS for m in model.mutants]


@pytest.mark.spark  # Java alone
def test_a_model_that_can_t_be_checked_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not come to an end"):
        check(MODELS[0], {})
