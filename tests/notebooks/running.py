"""Runs a notebook in a fresh folder, and says of its outputs what may not drift.

Invariants: a notebook sees nothing of earlier runs, and leaves nothing in its folder; `cleaned`
takes away what differs from run to run by nature, and cleans what is clean no further.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

from tests.architecture.sources import REPOSITORY

NOTEBOOKS: Final = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
LONGEST_CELL_S: Final = 240
TEXTS: Final = ("text/plain", "text/html", "text/markdown")
PICTURES: Final = ("image/png", "image/svg+xml")
_DRIFTS: Final = (
    # A run's own folder, and whatever else lies in folders for temporary files.
    (re.compile(r"/[\w./-]*/pulsarlite-[\w-]+"), "/tmp/pulsarlite"),
    (re.compile(r"(?<![\w/])/(?:private/)?(?:tmp|var/folders)/(?!pulsarlite)[\w./-]+"), "/tmp/…"),
    (re.compile(r"/[\w./-]*/ipykernel_\d+/\d+\.py"), "/tmp/…"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "…"),
    # A name that was made up ends in ten such digits, which happen to be decimal now and then.
    (re.compile(r"(?<=[a-z]-)[0-9a-f]{10}(?!\w)"), "…"),
    (re.compile(r"(?<![\w.])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{10,64}(?!\w)"), "…"),
    (re.compile(r"\b20(?!1\d)\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?"), "(a time)"),
)
"""What drifts, and what is said in its place. Flights of 2013 are data, and stay."""


def run(path: Path, folder: Path) -> Any:
    """The notebook as it is after its cells have run, in that empty folder. Raises what failed."""
    copy = folder / "notebook" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    # The kernel is this very Python, whatever kernels the user has made known to Jupyter.
    environment = {
        "JUPYTER_DATA_DIR": str(folder / "jupyter"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(folder),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        ),
    }
    notebook = nbformat.read(copy, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(copy.parent)}},
    )
    client.execute(env={**os.environ, **environment})
    left = [each.name for each in copy.parent.iterdir()]
    assert left == [path.name], f"{path.name} leaves files behind: {left}"
    return notebook


def stored(notebook: Any) -> Any:
    """The notebook as it is committed: its outputs without what drifts, its cells numbered."""
    number = 0
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            number += 1
            cell.execution_count = number
            cell.outputs = [_kept(each, number) for each in _joined(cell.outputs)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def reported(notebook: Any) -> list[list[tuple[str, str]]]:
    """What the outputs of each code cell say: (kind, text), and of pictures that there is one."""
    return [
        [
            (kind, text if kind not in PICTURES else "")
            for output in _joined(cell.outputs)
            for kind, text in _texts(output)
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def cleaned(text: str) -> str:
    """A text without what differs from run to run by nature."""
    for pattern, instead in _DRIFTS:
        text = pattern.sub(instead, text)
    return text


def _joined(outputs: list[Any]) -> list[Any]:
    """Without what is logged, and with printed lines in one piece, as they come in any pieces."""
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            if found and found[-1].output_type == "stream":
                found[-1].text += output.text
                continue
        found.append(output.copy())
    return found


def _kept(output: Any, number: int) -> Any:
    if output.output_type == "stream":
        output.text = cleaned(output.text)
        return output
    kinds = (*TEXTS, *PICTURES)
    output.data = {
        kind: cleaned(data) if kind in TEXTS else data
        for kind, data in output.data.items()
        if kind in kinds
    }
    if output.output_type == "execute_result":
        output.execution_count = number
    return output


def _texts(output: Any) -> list[tuple[str, str]]:
    if output.output_type == "stream":
        return [("stdout", cleaned(output.text))]
    data = output.data
    return [(kind, cleaned(data[kind])) for kind in (*TEXTS, *PICTURES) if kind in data]
