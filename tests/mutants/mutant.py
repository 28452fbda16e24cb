"""A mutant: the code broken in one place, and the tests that have to notice."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Patch = Callable[[Any], None]
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutant:
    """`tests` are of the form FOLDER/FILE.py::NAME; each has to fail once `patch` was applied."""

    patch: Patch
    invariant: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.patch.__name__


MUTANTS: list[Mutant] = []


def breaks(invariant: str, *tests: str) -> Callable[[Patch], Patch]:
    """Register what the decorated function, given pytest's monkeypatch, breaks."""

    def register(patch: Patch) -> Patch:
        MUTANTS.append(Mutant(patch, invariant, tests))
        return patch

    return register


def fails(mutant: Mutant, test: str) -> bool:
    """Whether the test runs, and fails, in a process in which the mutant was applied."""
    child = os.fork()
    if child == 0:
        status = int(pytest.ExitCode.INTERNAL_ERROR)
        try:
            status = _run(mutant, test)
        except Exception:  # noqa: BLE001 - whatever it is, the test did not run
            traceback.print_exc()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == pytest.ExitCode.TESTS_FAILED


def _run(mutant: Mutant, test: str) -> int:
    mutant.patch(pytest.MonkeyPatch())
    arguments = ["-q", "-x", "-p", "no:cacheprovider", str(TESTS / test)]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the mutant imported it
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main(arguments))
