"""Writes all golden files anew: `python -m tests.golden.make`.

Until a release that changes a format: from then on the files of older versions stay as they are,
and those of the new version lie beside them.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pulsar_spark.broker.hosting.shards import SHARD_FORMAT
from pulsar_spark.broker.protocol.wire_format import WIRE_FORMAT
from pulsar_spark.connector.runtime.broker import broker_heartbeat as heartbeat
from pulsar_spark.connector.runtime.broker.embedded_broker import (
    CHECKPOINT,
    CHECKPOINT_FORMAT,
    EmbeddedBroker,
)
from pulsar_spark.connector.runtime.reading import offset_store
from pulsar_spark.connector.runtime.reading.offset_store import SPILLED_FORMAT, OffsetStore
from pulsar_spark.connector.runtime.system_topics import broker_offset, lease
from pulsar_spark.connector.runtime.topics.log_pointer import POINTER_FORMAT
from pulsar_spark.connector.runtime.topics.log_snapshot import SNAPSHOT_FORMAT
from pulsar_spark.connector.runtime.topics.policies import POLICIES_FORMAT
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_decisions import (
    CLOSED_FORMAT,
    DECISION_FORMAT,
)
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage.data_files.ledger_file import FILE_FORMAT
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.admin.namespaces import TENANT_FORMAT
from pulsar_spark.consumer import stream_offset
from pulsar_spark.consumer.suspect_messages import SUSPECTS_FORMAT
from pulsar_spark.log.ledger_commit import COMMIT_FORMAT
from pulsar_spark.model.positions.cursor import CURSOR_FORMAT
from pulsar_spark.model.records.stored_record import StoredFormat
from tests.connector.reading import Offset, Run
from tests.connector.topic_log.stores import FOLDER, Clock
from tests.connector.topics import send
from tests.core.planning.test_stream_offset import golden_consumer_offset
from tests.golden import FUTURE, GOLDEN, records, topics

FORMATS: Final[tuple[StoredFormat, ...]] = (
    CHECKPOINT_FORMAT, CLOSED_FORMAT, COMMIT_FORMAT, CURSOR_FORMAT, DECISION_FORMAT, FILE_FORMAT,
    POINTER_FORMAT, POLICIES_FORMAT, SHARD_FORMAT, SNAPSHOT_FORMAT, SPILLED_FORMAT,
    SUSPECTS_FORMAT, TENANT_FORMAT, WIRE_FORMAT, broker_offset.OFFSET_FORMAT, lease.LEASE_FORMAT,
    heartbeat.HEARTBEAT_FORMAT, stream_offset.OFFSET_FORMAT,
)  # fmt: skip
"""Every format that something is stored in."""
KINDS: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")
VALUES: Final = [f"a{number}" for number in range(10)]
"""The messages of the topic that the broker serves."""
SPILLED: Final = "offset-spilled.json"
SEEN: Final = "consumers.json"


def main() -> None:
    """Write the files of version 1, and of each format one of version 2."""
    for folder in (GOLDEN / "v1", FUTURE):
        shutil.rmtree(folder, ignore_errors=True)
    make(GOLDEN / "v1")
    with written_as(2):
        make(FUTURE)
    _leave_one_of_each(FUTURE)


@contextmanager
def written_as(version: int) -> Iterator[None]:
    """Have all formats written, and read, as if that were their version."""
    try:
        for each in FORMATS:
            object.__setattr__(each, "version", version)
        yield
    finally:
        for each in FORMATS:
            object.__setattr__(each, "version", 1)


def make(folder: Path) -> None:
    """Write a root, the records that lie elsewhere, and a checkpoint of Spark's."""
    root = Root(str(folder / "root"), {})
    (folder / "root").mkdir(parents=True)
    clock = Clock(topics.BEGUN_MS)
    ids = (uuid.UUID(int=number, version=4) for number in count())
    with (
        patch("uuid.uuid4", side_effect=ids),
        patch.object(stream_reader, "LONGEST_WAIT_S", 0.0),
        patch.object(root.store, "clock", clock),
    ):
        topics.make_topics(root.store, clock)
        Admin(root.service_url).tenants.create("acme", ["me", "you"], ["here"])
        consumers = _serve(root)
        first = Run(
            root.service_url, topic="orders", startingOffsets="earliest", maxMessagesPerTrigger=3
        )
        first.next()
        _write_records(folder / "records", root, consumers)
    _write_checkpoint(folder / "checkpoint", first.offset)
    for each in folder.rglob("*.lock"):
        each.unlink()
    shutil.rmtree(folder / "root" / "_activity", ignore_errors=True)


def _serve(root: Root) -> dict[str, Any]:
    """Have four consumers take a batch each; their offsets, and what they have seen."""
    send(root.service_url, "t", VALUES)
    consumers: dict[str, Any] = {}
    with EmbeddedBroker(root, CHECKPOINT) as broker:
        for kind in KINDS:
            run = Run(
                root.service_url, topic="t", subscriptionName=f"s-{kind}", subscriptionType=kind,
                consumerName="c", subscriptionInitialPosition="Earliest",
                maxMessagesPerTrigger=4, leaseTimeout="600s",
            )  # fmt: skip
            seen: list[str] = []
            while not seen:
                broker.until_quiet()
                batch = run.next()
                seen = [] if batch is None else batch.values
            consumers[kind] = {"offset": run.offset, "seen": seen}
        broker.until_quiet()
    return consumers


def _write_records(folder: Path, root: Root, consumers: dict[str, Any]) -> None:
    held = {name: each.write(each.value) for name, each in records.RECORDS_BY_NAME.items()}
    for name, state in records.STATES.items():
        for file, data in records.shard_files(state()).items():
            held[f"{name}/{file}"] = data
    held[SEEN] = json.dumps(consumers, indent=1, sort_keys=True).encode()
    held[SPILLED] = json.dumps(_spilled(root)).encode()
    for name, data in held.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _spilled(root: Root) -> dict[str, Any]:
    """A consumer's offset as what changed since one that lies in a file of the root."""
    whole = golden_consumer_offset()
    data = json.dumps(whole.to_json_value(), separators=(",", ":")).encode()
    path = offset_store.write_hashed(root.store, f"{FOLDER}/offsets/me-", data)
    store = OffsetStore(root)
    store.load({"spilled": path, "version": SPILLED_FORMAT.version})
    with patch.object(offset_store, "WHOLE_PARTITIONS", 0):
        return store.save(records.later_offset(whole))


def _write_checkpoint(folder: Path, offset: Offset) -> None:
    """Write what Spark keeps of a query of `orders` that was stopped after its first batch."""
    times = {"batchTimestampMs": topics.BEGUN_MS, "batchWatermarkMs": 0, "conf": {}}
    files = {
        "metadata": json.dumps({"id": str(uuid.UUID(int=1, version=4))}),
        "offsets/0": "\n".join(("v1", json.dumps(times), json.dumps(offset))),
        "commits/0": "v1\n" + json.dumps({"nextBatchWatermarkMs": 0}),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _leave_one_of_each(folder: Path) -> None:
    """Delete all files but one of each format, and whatever is none of these."""
    log, closed = f"root/{FOLDER}/_log", "root/_transactions/*/closed.json"
    patterns = (
        f"{log}/{0:020d}.json", f"{log}/pointer.json", f"{log}/*.snapshot.parquet",
        f"root/{FOLDER}/data/*.parquet", "root/persistent/public/producers/~policies.json",
        "root/persistent/acme/~tenant.json", closed, f"root/_transactions/*/{0:020d}.*.json",
        f"root/{CHECKPOINT}", "records/broker/topic*", *(f"records/{name}" for name in (
            "broker-offset.json", "cursor.*", "heartbeat.json", "lease.json", "offset.json",
            SPILLED, "withheld.json", "wire.jsonl",
        )),
    )  # fmt: skip
    kept = {file for pattern in patterns for file in folder.glob(pattern)}
    for each in sorted(folder.rglob("*"), reverse=True):
        if each.is_file() and each not in kept:
            each.unlink()
        elif each.is_dir() and not any(each.iterdir()):
            each.rmdir()


if __name__ == "__main__":
    main()
