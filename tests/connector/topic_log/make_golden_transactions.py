"""Writes the golden root `tests/golden/transactions-v1`, once: run only to make a new version's.

Two topics: one is compacted, before and after a snapshot; both have a part of a transaction that
was committed, of one that was aborted, and of one that nobody has decided.

python -m tests.connector.topic_log.make_golden_transactions FOLDER
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa

from pulsar_spark.connector.housekeeping.compaction import compact
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.transaction_commit import commit_together
from pulsar_spark.connector.topic_log.transaction_decisions import (
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.topic_log.transaction_attempt import Transaction
from tests.connector.topic_log.stores import Clock, messages, publish, with_clock, write

FOLDERS = ("persistent/public/default/a", "persistent/public/default/b")
NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
OPEN = Transaction.of(("sink", 2), "open", TIMEOUT_MS)


def keyed(values: str) -> pa.Table:
    """The value of each message is its key in capitals."""
    keys = pa.array([value.lower() for value in values])
    return messages(values).append_column("key", keys)


def prepare(ledger: ManagedLedger, value: str, transaction: Transaction) -> object:
    """One topic's part."""
    return publish(ledger, value, transaction=transaction)


def main() -> None:
    (root,) = sys.argv[1:]
    if Path(root).exists():
        raise SystemExit(f"{root} exists: a golden file is never written again")
    names = (f"{number:032x}" for number in count())
    with patch("uuid.uuid4", side_effect=(SimpleNamespace(hex=name) for name in names)):
        store = with_clock(open_store(root), Clock(NOW_MS))
        a, b = (ManagedLedger.create(store, folder, 1) for folder in FOLDERS)
        a.append(write(a, {0: keyed("ABA")}))
        compact(a)
        a.write_snapshot()
        a.append(write(a, {0: keyed("CA")}))
        compact(a)
        for version, value in enumerate(("committed", "aborted")):
            transaction = Transaction.of(("sink", version), value, TIMEOUT_MS)
            prepares = [partial(prepare, each, value) for each in (a, b)]
            if value == "committed":
                commit_together(store, transaction, prepares)
            else:
                for each in prepares:
                    each(transaction)
                TransactionDecisions(store, transaction.id).abort(transaction.attempt)
        for ledger in (a, b):
            ledger.refresh()
            publish(ledger, "last")
        ClosedVersions(store, OPEN.id.partition("/")[0]).add([(7, 7), (8, 8)])
        publish(a, "open", transaction=OPEN)


if __name__ == "__main__":
    main()
