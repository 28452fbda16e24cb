"""Which files the architecture tests read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("pulsar_spark", "connector", "state")
TEXT_SUFFIXES = {
    "", ".py", ".md", ".cfg", ".toml", ".txt", ".ipynb", ".json", ".yml", ".yaml", ".in", ".sh",
}  # fmt: skip
NOT_OURS = {
    ".git", ".venv", "build", "dist", "__pycache__", "htmlcov", "pulsarlite-demo",
    "spark-warehouse", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis",
    ".ipynb_checkpoints", ".coverage",
}  # fmt: skip


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    """(path relative to the repository, text) of each Python file; links are not followed."""
    for path in files():
        relative = path.relative_to(REPOSITORY)
        if path.suffix == ".py" and relative.parts[0] in folders:
            yield relative.as_posix(), path.read_text(encoding="utf-8")


def texts() -> Iterator[tuple[str, str]]:
    """(path relative to the repository, text) of each file that a person wrote."""
    for path in files():
        if path.suffix in TEXT_SUFFIXES and path.stat().st_size < 2_000_000:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield path.relative_to(REPOSITORY).as_posix(), text


def files() -> Iterator[Path]:
    """Every file of the repository that is not made by a tool."""
    for folder, below, names in os.walk(REPOSITORY):
        below[:] = sorted(
            name
            for name in below
            if name not in NOT_OURS
            and not name.endswith(".egg-info")
            and not Path(folder, name, "pyvenv.cfg").exists()
            and not Path(folder, name).is_symlink()
        )
        for name in sorted(names):
            path = Path(folder, name)
            if not path.is_symlink() and name not in NOT_OURS:
                yield path
