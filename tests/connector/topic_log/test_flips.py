"""Damage of every kind of file: a named error or the same rows, never others, fewer or none."""

from __future__ import annotations

import random
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.ledger_commit import COMMIT_FORMAT
from tests.connector.reading import messages
from tests.connector.topic_log.flips import damages, files_of, make_topic, outcome, read_all
from tests.connector.topic_log.stores import FOLDER, rewrite
from tests.golden import ROOT

EVERY = 997


@pytest.mark.parametrize("snapshot", [True, False], ids=["with a snapshot", "without"])
def test_a_flipped_bit_or_a_cut_end_gives_a_named_error_or_the_same_rows(
    tmp_path: Path, snapshot: bool
) -> None:
    seed = random.randrange(EVERY)
    print(f"every {EVERY}th bit and byte, from number {seed}")
    make_topic(tmp_path, snapshot=snapshot)
    expected = read_all(tmp_path)
    assert [len(each) for each in expected[0]] == [11, 6]
    found = {
        outcome(damage, lambda: read_all(tmp_path), expected)
        for damage in chain.from_iterable(
            damages(file, EVERY, EVERY, seed) for file in files_of(tmp_path)
        )
    }
    assert found <= {"CORRUPT_FILE", "FUTURE_VERSION", "TOPIC_NOT_FOUND", "same"}
    assert "CORRUPT_FILE" in found


@pytest.mark.parametrize(
    "change",
    [
        {"first_row": -1},
        {"first_row": 1},
        {"batch_sizes": [[1e30, 1]]},
        {"batch_sizes": [[1, 10**30]]},
        {"batch_sizes": [[4, 1]]},
        {"size_bytes": -1},
        {"partition": -1},
        {"seal": [1]},
        {"seal": [790, -1]},
        {"seal": [1 << 70, 5]},
        {"min_publish_time_ms": 1e9},
    ],
    ids=str,
)
def test_numbers_that_a_commit_can_not_have_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    root = shutil.copytree(ROOT, tmp_path / "root")
    log = root / FOLDER / "_log"
    (log / "pointer.json").unlink()
    path = log / f"{1:020d}.json"
    ledgers = COMMIT_FORMAT.decode(path.read_bytes())["ledgers"]
    rewrite(path, ledgers=[ledgers[0] | change, *ledgers[1:]])
    with pytest.raises(CorruptFileError, match=path.name):
        messages(root, "orders")


@pytest.mark.parametrize(
    ("seal", "why"), [([1, 0], "it has .* bytes, and had 1"), (None, "footer has another")]
)
def test_a_file_that_is_not_the_one_that_was_published_is_refused(
    tmp_path: Path, seal: list[int] | None, why: str
) -> None:
    root = shutil.copytree(ROOT, tmp_path / "root")
    (file,) = (root / FOLDER / "data").iterdir()
    for path in (root / FOLDER / "_log").glob("0*[0-9].json"):
        moved = COMMIT_FORMAT.decode(path.read_bytes()).get("moved")
        if moved:
            size, crc32 = seal or (file.stat().st_size, moved[0][5] ^ 1)
            rewrite(path, moved=[[*each[:4], size, crc32] for each in moved])
    with pytest.raises(CorruptFileError, match=f"{file.name} of topic .* is damaged: .*{why}"):
        messages(root, "orders")
