"""A commit whose chunks, sequence ids or producers are damaged is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import CorruptFileError
from tests.connector.topic_log.stores import (
    rewrite,
)
from tests.golden import ROOT
from tests.golden.topics import PRODUCERS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunks", {"2": [[0, "p-7", 2, 2, 3, 21]]}),
        ("chunks", {"2": [[1, "p-7", 0, 2, 3, 21]]}),
        ("chunks", {"7": [[0, "p-7", 0, 2, 3, 21]]}),
        ("chunks", {"2": [[0, "p-7"]]}),
        ("sequence_ranges", {"7": {"p": [1, 2, 0]}}),
        ("sequence_ranges", {"2": {"p": [3, 2, 0]}}),
        ("sequence_ranges", {"2": {"p": [1, 2]}}),
        ("producers", {"topic": 5}),
    ],
)
def test_a_commit_that_says_nonsense_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    root = shutil.copytree(ROOT, tmp_path / "root")
    log = root / PRODUCERS / "_log"
    (log / "pointer.json").unlink()
    (path,) = (each for each in log.glob("*.json") if '"chunks":{"2"' in each.read_text())
    rewrite(path, **{field: value})
    with pytest.raises(CorruptFileError, match=path.name):
        ManagedLedger.open_anew(open_store(str(root)), PRODUCERS)
