"""The topics of the golden root, and what was done to each of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.runtime.topics.ledger_store import (
    INACTIVE_AGE_MS,
    LedgerStore,
    sweep_deleted,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import SchemaPolicies, change_policies
from pulsar_spark.connector.runtime.topics.producer_connection import connect
from pulsar_spark.connector.runtime.topics.transaction_commit import commit_together
from pulsar_spark.connector.runtime.topics.transaction_decisions import (
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.log.chunked_messages import ChunkRun
from pulsar_spark.log.producer_registry import ProducerAccessMode, ProducerClaim
from pulsar_spark.log.transaction_attempt import Transaction
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.schema.schema_registry import SchemaCompatibilityStrategy
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from tests.connector.topic_log.stores import FOLDER, Clock, messages, publish, write

BEGUN_MS: Final = 1_700_000_000_000
DEFAULT: Final = "persistent/public/default"
PRODUCERS: Final = "persistent/public/producers/orders"
SCHEMAS_FOLDER: Final = "persistent/public/schemas/orders"
INACTIVE: Final = f"{DEFAULT}/inactive"
MADE_AGAIN: Final = f"{DEFAULT}/made-again"
GONE: Final = f"{DEFAULT}/gone"
TOGETHER: Final = (f"{DEFAULT}/a", f"{DEFAULT}/b")
"""Two topics with parts of the same transactions; the first is compacted."""
FOLDERS: Final = (FOLDER, PRODUCERS, SCHEMAS_FOLDER, INACTIVE, MADE_AGAIN, *TOGETHER)
"""The folders of the topics that are there; GONE was deleted."""

CLAIMS: Final = [
    ProducerClaim("old", ProducerAccessMode.EXCLUSIVE, "run-1"),
    ProducerClaim("new", ProducerAccessMode.EXCLUSIVE_WITH_FENCING, "run-2"),
]
RECORD: Final = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
SCHEMAS: Final = [
    SchemaInfo(SchemaType.JSON, RECORD),
    SchemaInfo(SchemaType.AVRO, RECORD),
    SchemaInfo(SchemaType.INT32),
]
TIMEOUT_MS: Final = 60_000
OPEN: Final = Transaction.of(("sink", 2), "open", TIMEOUT_MS)


def make_topics(store: ObjectStore, clock: Clock) -> None:
    """Write all topics; the clock stands at BEGUN_MS again at the end."""
    for make in (make_producers, make_schemas, make_transactions, make_deleted):
        make(store)
    for make_later in (make_log, make_inactive):
        clock.now_ms = BEGUN_MS
        make_later(store, clock)
    clock.now_ms = BEGUN_MS


def make_log(store: ObjectStore, clock: Clock) -> None:
    """Make a topic of which messages were hidden, trimmed and merged, and a file given up."""
    ledger = _created(store, FOLDER, 2, {"deduplication": True})
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


def make_producers(store: ObjectStore) -> None:
    """Make a topic with chunks, ranges of sequence ids and a floor, and exclusive producers."""
    change_policies(
        store, NamespaceName("public", "producers"),
        deduplication=True, retention_size_bytes=-1, retention_time_ms=259_200_000,
    )  # fmt: skip
    ledger = _created(store, PRODUCERS, 1)
    holes = pa.concat_tables([messages(["a5"], "p", 5), messages(["a9"], "p", 9)])
    ledger.append(write(ledger, {0: holes}), deduplicate=True)
    ledger.append(write(ledger, {0: messages(["a20", "a21"], "p", 20)}), deduplicate=True)
    (first,) = write(ledger, {0: _chunks(0, 2)}, batch=1)
    ledger.append([replace(first, chunks=(ChunkRun(0, "p-7", 0, 2, 3, 21),))])
    for claim in CLAIMS:
        connect(ledger, claim)
    LedgerStore(ledger).trim({0: 1})
    ledger.write_snapshot()
    (last,) = write(ledger, {0: _chunks(2, 1)}, batch=1)
    ledger.append([replace(last, chunks=(ChunkRun(0, "p-7", 2, 1, 3, 21),))], producer=CLAIMS[1])


def _chunks(first: int, count: int) -> pa.Table:
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


def make_schemas(store: ObjectStore) -> None:
    """Make a topic with schemas in commits before and after a snapshot."""
    namespace = NamespaceName("public", "schemas")
    change_policies(store, namespace, schema_compatibility_strategy="BACKWARD_TRANSITIVE")
    change_policies(store, namespace, is_allow_auto_update_schema=False)
    ledger = _created(store, SCHEMAS_FOLDER, 1)
    topic = TopicName.parse("public/schemas/orders")
    policies = SchemaPolicies(SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE)
    for schema in SCHEMAS[:2]:
        register(ledger, topic, SinkSchema(schema, policies))
    ledger.write_snapshot()
    register(ledger, topic, SinkSchema(SCHEMAS[2], policies))


def make_inactive(store: ObjectStore, clock: Clock) -> None:
    """Make a topic that has forgotten an application and a producer, but not others."""
    ledger = _created(store, INACTIVE, 1, {"deduplication": True})
    for name in ("gone", "here"):
        ledger.append(write(ledger, {0: messages([name], name, 7)}), application=(f"app-{name}", 3))
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


def make_deleted(store: ObjectStore) -> None:
    """Make a topic that was deleted and made again before its snapshot, and a deleted one."""
    first = _created(store, MADE_AGAIN, 3, {"deduplication": True})
    first.append(write(first, {0: messages(["a", "b"])}), application=("query", 0))
    first.delete()
    second = _created(store, MADE_AGAIN, 1)
    second.append(write(second, {0: messages(["c", "d"])}), application=("query", 0))
    second.write_snapshot()
    second.append(write(second, {0: messages(["e"])}))
    gone = _created(store, GONE, 2)
    gone.append(write(gone, {0: messages(["x"])}))
    gone.delete()
    sweep_deleted(store, GONE, GONE)


def make_transactions(store: ObjectStore) -> None:
    """Make two topics with parts of a committed, an aborted and an undecided transaction.

    The first topic was compacted, before and after a snapshot.
    """
    a, b = (_created(store, folder, 1) for folder in TOGETHER)
    a.append(write(a, {0: _keyed("ABA")}))
    compact(a)
    a.write_snapshot()
    a.append(write(a, {0: _keyed("CA")}))
    compact(a)
    for version, value in enumerate(("committed", "aborted")):
        transaction = Transaction.of(("sink", version), value, TIMEOUT_MS)
        prepares = [partial(_prepare, each, value) for each in (a, b)]
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


def topic_of(folder: str) -> str:
    """The topic in that folder."""
    return folder.replace("/", "://", 1)


def _created(
    store: ObjectStore, folder: str, partitions: int, settings: Any = None
) -> ManagedLedger:
    return ManagedLedger.create(store, folder, partitions, settings, topic=topic_of(folder))


def _keyed(values: str) -> pa.Table:
    """The value of each message is its key in capitals."""
    keys = pa.array([value.lower() for value in values])
    return messages(values).append_column("key", keys)


def _prepare(ledger: ManagedLedger, value: str, transaction: Transaction) -> Any:
    return publish(ledger, value, transaction=transaction)
