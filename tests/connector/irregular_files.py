"""Things that may lie where a file should be, and make a process that reads them hang or die."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pulsar_spark.log.ledger_commit import MOST_COMMIT_BYTES


def sparse(path: Path, size_bytes: int) -> None:
    """A file of that length that takes no place on the disk."""
    with path.open("wb") as file:
        file.truncate(size_bytes)


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "endless": lambda path: sparse(path, 1 << 40),
    "large": lambda path: sparse(path, MOST_COMMIT_BYTES + 1),
}
