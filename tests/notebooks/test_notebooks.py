"""Every notebook runs top to bottom, says what its stored outputs say, and asserts its results."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tests.notebooks.running import NOTEBOOKS, PICTURES, cleaned, reported, run, stored

PUBLIC = (
    "pulsar_spark", "pulsar_spark.aio", "pulsar_spark.examples", "pulsar_spark.pictures",
    "pulsar_spark.pulsar", "pulsar_spark.pulsar.schema", "pulsar_spark.testing",
)  # fmt: skip
"""What a notebook may import of this package."""
LARGEST_BYTES = 1_000_000
"""Of a notebook with its pictures: who clones the project gets all that were ever committed."""

of_each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code(notebook: Any) -> ast.Module:
    """Its cells as one program; lines for a shell are calls of IPython's."""
    cells = [each.source for each in notebook.cells if each.cell_type == "code"]
    shell = TransformerManager()  # type: ignore[no-untyped-call]
    return ast.parse("\n".join(map(shell.transform_cell, cells)))


def private_names(tree: ast.Module) -> Iterator[str]:
    """What it takes of this package that is not meant for users."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names]
            yield from (n for n in named if n.startswith("pulsar_spark") and n not in PUBLIC)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for each in node.names:
                whole = f"{module}.{each.name}"
                if not module.startswith("pulsar_spark") or whole in PUBLIC:
                    continue
                if module not in PUBLIC or each.name not in public_names_of(module):
                    yield whole
        elif isinstance(node, ast.Attribute) and re.match(r"_(?!_|exit$)", node.attr):
            yield node.attr


def public_names_of(module: str) -> set[str]:
    found = importlib.import_module(module)
    return set(getattr(found, "__all__", None) or (n for n in vars(found) if n[0] != "_"))


def test_there_is_a_first_notebook() -> None:
    assert [path.name for path in NOTEBOOKS][:1] == ["01-first-steps.ipynb"]


@pytest.mark.spark
@pytest.mark.slow
@of_each_notebook
def test_a_notebook_runs_top_to_bottom_and_says_what_is_stored(path: Path, tmp_path: Path) -> None:
    assert reported(run(path, tmp_path)) == reported(read(path)), "run: make notebooks"


@of_each_notebook
def test_a_notebook_is_committed_with_its_outputs_and_none_of_what_drifts(path: Path) -> None:
    notebook = read(path)
    cells = [each for each in notebook.cells if each.cell_type == "code"]
    assert [each.execution_count for each in cells] == list(range(1, len(cells) + 1))
    assert any(each.outputs for each in cells)
    assert notebook == stored(read(path)), "run: make notebooks"
    assert path.stat().st_size < LARGEST_BYTES


@of_each_notebook
def test_a_notebook_takes_public_names_only_and_asserts_its_results(path: Path) -> None:
    tree = code(read(path))
    assert list(private_names(tree)) == []
    assert any(isinstance(each, ast.Assert) for each in ast.walk(tree))


def test_private_names_are_found() -> None:
    program = """
import pulsar_spark.connector.spark.session
from pulsar_spark.connector import client
from pulsar_spark.pulsar import Client, client_errors
from pulsar_spark import pictures, session
from pulsar_spark.model import described as shown
client._engine
client.__class__
"""
    assert list(private_names(ast.parse(program))) == [
        "pulsar_spark.connector.spark.session",
        "pulsar_spark.connector.client",
        "pulsar_spark.pulsar.client_errors",
        "pulsar_spark.model.described",
        "_engine",
    ]


def notebook_with(*outputs: Any) -> Any:
    cell = nbformat.v4.new_code_cell("1", outputs=list(outputs))  # type: ignore[no-untyped-call]
    return nbformat.v4.new_notebook(cells=[cell])  # type: ignore[no-untyped-call]


def output(kind: str, **said: Any) -> Any:
    return nbformat.v4.new_output(kind, **said)  # type: ignore[no-untyped-call]


def test_what_drifts_by_nature_is_stored_without_it() -> None:
    for text, clean in {
        "/var/folders/x/pulsarlite-8dk2_a/topics": "/tmp/pulsarlite/topics",
        "in f (/scratch/ann/ipykernel_71/4094.py:17)": "in f (/tmp/…:17)",
        "<Thing object at 0x7fb7c10fe6c0>": "<Thing object at 0x…>",
        "consumer billing-7c3bee0798 of 10 at 3:0": "consumer billing-… of 10 at 3:0",
        "consumer texter-1663218153": "consumer texter-…",
        "published 2026-11-22 14:25:55.123": "published (a time)",
        "left 2013-01-01 05:15, flight 1234567890": "left 2013-01-01 05:15, flight 1234567890",
    }.items():
        assert cleaned(text) == clean
        assert cleaned(clean) == clean


def test_pictures_are_compared_by_their_being_there_and_logs_not_at_all() -> None:
    log = output("stream", name="stderr", text="WARN 1")
    lines = [output("stream", name="stdout", text=each) for each in ("a\n", "b\n")]
    drawn = [output("display_data", data={PICTURES[0]: each, "x/y": "z"}) for each in ("A", "B")]
    first = notebook_with(lines[0], log, lines[1], drawn[0])
    assert reported(first) == reported(notebook_with(*lines, drawn[1]))
    assert reported(first) != reported(notebook_with(*lines))
    assert reported(first) != reported(notebook_with(lines[0], drawn[0]))
    kept = stored(first).cells[0].outputs
    assert [each.output_type for each in kept] == ["stream", "display_data"]
    assert kept[0].text == "a\nb\n"
    assert kept[1].data == {PICTURES[0]: "A"}
