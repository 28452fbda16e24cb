"""Writes the golden topic `tests/golden/inactive-v2`, once: run only to make a new version's.

It has an application and a producer that were forgotten, others that were not, and a run of a
producer that was fenced out under its name.

python -m tests.connector.topic_log.make_golden_inactive FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.ledger_store import INACTIVE_AGE_MS, LedgerStore
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.producer_connection import connect
from tests.connector.topic_log.make_golden_producers import CLAIMS
from tests.connector.topic_log.stores import FOLDER, Clock, messages, publish, with_clock, write

BEGUN_MS = 1_700_000_000_000


def main() -> None:
    (root,) = sys.argv[1:]
    if Path(root).exists():
        raise SystemExit(f"{root} exists: a golden file is never written again")
    names = (f"{number:032x}" for number in range(100))
    clock = Clock(BEGUN_MS)
    with patch("uuid.uuid4", side_effect=(SimpleNamespace(hex=name) for name in names)):
        store = with_clock(open_store(root), clock)
        ledger = ManagedLedger.create(store, FOLDER, 1, {"deduplication": True})
        for name in ("gone", "here"):
            sent = write(ledger, {0: messages([name], name, 7)})
            ledger.append(sent, application=(f"app-{name}", 3))
        LedgerStore(ledger).trim({0: 2})
        for claim in CLAIMS:
            connect(ledger, claim)
        ledger.write_snapshot()
        clock.now_ms += INACTIVE_AGE_MS
        sent = write(ledger, {0: messages(["again"], "here", 8)})
        ledger.append(sent, application=("app-here", 4), producer=CLAIMS[1])
        clock.now_ms += 1
        publish(ledger, "last", producer=CLAIMS[1])
        LedgerStore(ledger).forget_inactive()


if __name__ == "__main__":
    main()
