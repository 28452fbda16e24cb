"""Writes the golden topic `tests/golden/log-v1`, once: run only to make a new version's.

python -m tests.connector.topic_log.make_golden_log FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.ledger_store import LedgerStore
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from tests.connector.topic_log.stores import FOLDER, Clock, messages, with_clock, write


def main() -> None:
    (root,) = sys.argv[1:]
    if Path(root).exists():
        raise SystemExit(f"{root} exists: a golden file is never written again")
    clock = Clock(1_700_000_000_000)
    names = (f"{number:032x}" for number in range(100))
    with patch("uuid.uuid4", side_effect=(SimpleNamespace(hex=name) for name in names)):
        store = with_clock(open_store(root), clock)
        ledger = ManagedLedger.create(store, FOLDER, 2, {"deduplication": True})
        both = {0: messages(["a0", "a1", "a2"], "p", 0), 1: messages(["b0"], "p", 0)}
        ledger.append(write(ledger, both, batch=2), application=("query-1", 0), term=1)
        clock.now_ms += 1000
        repeated = {0: messages(["a2", "a3", "a4"], "p", 2)}
        ledger.append(write(ledger, repeated, batch=2), application=("query-1", 1), term=1)
        keeper = LedgerStore(ledger, grace_ms=0)
        keeper.trim({1: 2})
        ledger.write_snapshot()
        ledger.grow(3)
        ledger.append(write(ledger, {2: messages(["c0"])}))
        ledger.append(write(ledger, {2: messages(["c1"])}))
        write(ledger, {0: messages(["orphan"])})
        clock.now_ms *= 2
        keeper.reclaim_orphans(older_than_ms=0)
        keeper.merge_small_files()
        keeper.sweep()


if __name__ == "__main__":
    main()
