"""Runs notebooks and stores their outputs: `python -m tests.notebooks [NAMES]`; all, or 01 02."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat

from tests.notebooks.running import NOTEBOOKS, run, stored


def main(names: list[str]) -> None:
    chosen = [path for path in NOTEBOOKS if not names or path.name.startswith(tuple(names))]
    if not chosen:
        raise SystemExit(f"no notebook begins with {' or '.join(names)}")
    for path in chosen:
        begun_s = time.monotonic()
        with TemporaryDirectory(prefix="notebook-") as folder:
            notebook = stored(run(path, Path(folder)))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        size = path.stat().st_size / 1000
        print(f"{path.name}: {time.monotonic() - begun_s:.0f} s, {size:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
