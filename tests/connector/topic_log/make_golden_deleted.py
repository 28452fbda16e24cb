"""Writes the golden topic `tests/golden/deleted-v5`, once: run only to make a new version's.

It was deleted and made again, with other partitions, before its snapshot; `gone` is deleted.

python -m tests.connector.topic_log.make_golden_deleted FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.ledger_store import sweep_deleted
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from tests.connector.topic_log.stores import FOLDER, Clock, messages, with_clock, write

GONE = f"{FOLDER}-gone"


def main() -> None:
    (root,) = sys.argv[1:]
    if Path(root).exists():
        raise SystemExit(f"{root} exists: a golden file is never written again")
    names = (f"{number:032x}" for number in range(100))
    with patch("uuid.uuid4", side_effect=(SimpleNamespace(hex=name) for name in names)):
        store = with_clock(open_store(root), Clock(1_700_000_000_000))
        first = ManagedLedger.create(store, FOLDER, 3, {"deduplication": True})
        first.append(write(first, {0: messages(["a", "b"])}), application=("query", 0))
        first.delete()
        second = ManagedLedger.create(store, FOLDER, 1)
        second.append(write(second, {0: messages(["c", "d"])}), application=("query", 0))
        second.write_snapshot()
        second.append(write(second, {0: messages(["e"])}))
        gone = ManagedLedger.create(store, GONE, 2)
        gone.append(write(gone, {0: messages(["x"])}))
        gone.delete()
        sweep_deleted(store, GONE, GONE)


if __name__ == "__main__":
    main()
