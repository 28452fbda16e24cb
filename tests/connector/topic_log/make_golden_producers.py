"""Writes the golden topic `tests/golden/producers-v2`, once: run only to make a new version's.

It has what a producer's commits say: chunks, ranges of sequence ids and a floor, producers.

python -m tests.connector.topic_log.make_golden_producers FOLDER
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.ledger_store import LedgerStore
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.policies import change_policies
from pulsar_spark.connector.topic_log.producer_connection import connect
from pulsar_spark.topic_log.chunked_messages import ChunkRun
from pulsar_spark.topic_log.producer_registry import ProducerAccessMode, ProducerClaim
from pulsar_spark.topic_name import NamespaceName
from tests.connector.topic_log.stores import FOLDER, Clock, messages, with_clock, write

CLAIMS = [
    ProducerClaim("old", ProducerAccessMode.EXCLUSIVE, "run-1"),
    ProducerClaim("new", ProducerAccessMode.EXCLUSIVE_WITH_FENCING, "run-2"),
]


def chunks(first: int, count: int) -> pa.Table:
    """Some of the three chunks of one message, as rows."""
    table = messages([f"chunk {number}" for number in range(first, first + count)])
    for name, values, kind in (
        ("uuid", ["p-7"] * count, pa.string()),
        ("chunk_id", range(first, first + count), pa.int32()),
        ("num_chunks_from_msg", [3] * count, pa.int32()),
        ("total_chunk_msg_size", [21] * count, pa.int64()),
    ):
        table = table.append_column(name, pa.array(values, kind))
    return table


def main() -> None:
    (root,) = sys.argv[1:]
    if Path(root).exists():
        raise SystemExit(f"{root} exists: a golden file is never written again")
    names = (f"{number:032x}" for number in range(100))
    with patch("uuid.uuid4", side_effect=(SimpleNamespace(hex=name) for name in names)):
        store = with_clock(open_store(root), Clock(1_700_000_000_000))
        change_policies(store, NamespaceName("public", "default"), deduplication=True)
        ledger = ManagedLedger.create(store, FOLDER, 1)
        holes = pa.concat_tables([messages(["a5"], "p", 5), messages(["a9"], "p", 9)])
        ledger.append(write(ledger, {0: holes}), deduplicate=True)
        ledger.append(write(ledger, {0: messages(["a20", "a21"], "p", 20)}), deduplicate=True)
        (first,) = write(ledger, {0: chunks(0, 2)}, batch=1)
        ledger.append([replace(first, chunks=(ChunkRun(0, "p-7", 0, 2, 3, 21),))])
        for claim in CLAIMS:
            connect(ledger, claim)
        LedgerStore(ledger).trim({0: 1})
        ledger.write_snapshot()
        (last,) = write(ledger, {0: chunks(2, 1)}, batch=1)
        ledger.append(
            [replace(last, chunks=(ChunkRun(0, "p-7", 2, 1, 3, 21),))], producer=CLAIMS[1]
        )


if __name__ == "__main__":
    main()
