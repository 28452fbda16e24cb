"""What producers' commits say is read for ever, as it was written; a spoilt one is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.policies import read_policies
from pulsar_spark.errors import CorruptFileError, ProducerFencedError
from pulsar_spark.topic_log.chunked_messages import ChunkedMessages, ChunkRun
from pulsar_spark.topic_log.sequence_ranges import SequenceRange
from pulsar_spark.topic_name import NamespaceName
from tests.connector.topic_log.make_golden_producers import CLAIMS
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import (
    FOLDER,
    assert_is_rewritten_as_it_was,
    messages,
    rewrite,
    values_of,
    write,
)

GOLDEN = Path(__file__).parents[2] / "golden"
VERSIONS = ["producers-v2", "producers-v4"]
COMMITS = sorted(GOLDEN.glob(f"producers-v*/{FOLDER}/_log/0*[0-9].json"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / request.param, tmp_path / "golden")


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_what_producers_said_is_read(golden: Path, from_snapshot: bool) -> None:
    if not from_snapshot:
        (golden / FOLDER / "_log" / "pointer.json").unlink()
    store = open_store(str(golden))
    ledger = ManagedLedger.open_anew(store, FOLDER)
    state = ledger.state
    check_state(state)
    assert read_policies(store, NamespaceName("public", "default"))["deduplication"] is True
    sequences = state.partition(0).sequences
    assert sequences.floors == {"p": 9}
    assert sequences.ranges == {1: {"p": SequenceRange(20, 21, dense=True)}}
    assert state.partition(0).chunks == {
        2: (ChunkRun(0, "p-7", 0, 2, 3, 21),),
        3: (ChunkRun(0, "p-7", 2, 1, 3, 21),),
    }
    chunked = ChunkedMessages()
    for ledger_id, runs in state.partition(0).chunks.items():
        chunked.add(ledger_id, runs, 0)
    (message,) = chunked.messages_in(chunked.chunks)
    assert (tuple(message.first_chunk), tuple(message.position)) == ((2, 0), (3, 0))
    with pytest.raises(ProducerFencedError):
        ledger.append(write(ledger, {0: messages(["b"])}), producer=CLAIMS[0])
    ledger.append(
        write(ledger, {0: messages(["a9", "a10"], "p", 9)}), producer=CLAIMS[1], deduplicate=True
    )
    assert values_of(ledger)[-2:] == ["chunk 2", "a10"]


@pytest.mark.parametrize("path", COMMITS, ids=lambda path: f"{path.parts[-6]}-{path.stem[-1]}")
def test_a_commit_is_written_as_it_was(path: Path) -> None:
    assert_is_rewritten_as_it_was(path)


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
def test_a_commit_that_says_nonsense_is_refused(golden: Path, field: str, value: Any) -> None:
    log = golden / FOLDER / "_log"
    (log / "pointer.json").unlink()
    (path,) = (each for each in log.glob("*.json") if '"chunks":{"2"' in each.read_text())
    rewrite(path, **{field: value})
    with pytest.raises(CorruptFileError, match=path.name):
        ManagedLedger.open_anew(open_store(str(golden)), FOLDER)
