"""Every notebook runs top to bottom, in a folder of its own, and asserts its own results."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.architecture.sources import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def test_there_is_a_first_notebook() -> None:
    assert [path.name for path in NOTEBOOKS][:1] == ["01-first-steps.ipynb"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "notebook" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    # The kernel is this very Python, whatever kernels the user has made known to Jupyter.
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(copy, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(copy.parent)}},
    ).execute()
    assert [each.name for each in copy.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:  # type: ignore[no-untyped-call]
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
