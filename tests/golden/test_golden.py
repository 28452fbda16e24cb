"""What was stored once is read for ever; what a newer version has stored is refused."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pulsar_spark
from pulsar_spark.connector.runtime.broker.broker_heartbeat import HEARTBEAT_FILE, BrokerHeartbeat
from pulsar_spark.connector.runtime.broker.embedded_broker import CHECKPOINT, EmbeddedBroker
from pulsar_spark.connector.runtime.reading.offset_store import OffsetStore
from pulsar_spark.connector.runtime.topics.log_pointer import LogPointer
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import read_policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_decisions import (
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage.clock import SystemClock
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.admin.namespaces import TenantInfo
from pulsar_spark.errors import FutureVersionError, ProducerFencedError, TopicDeletedError
from pulsar_spark.log.chunked_messages import ChunkedMessages, ChunkRun
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.sequence_ranges import SequenceRange
from pulsar_spark.log.transaction_attempt import Transaction, TxnStatus
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_record import StoredFormat
from pulsar_spark.model.topic_name import NamespaceName
from tests.connector.reading import Run
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import (
    FOLDER,
    Clock,
    messages,
    publish,
    values_of,
    with_clock,
    write,
)
from tests.connector.topics import send
from tests.core.planning.test_stream_offset import golden_consumer_offset
from tests.golden import FUTURE, RECORDS, ROOT
from tests.golden.make import FORMATS, KINDS, SEEN, SPILLED, VALUES
from tests.golden.records import RECORDS_BY_NAME, STATES, later_offset, shard_files, state_of
from tests.golden.topics import (
    BEGUN_MS,
    CLAIMS,
    FOLDERS,
    GONE,
    INACTIVE,
    MADE_AGAIN,
    OPEN,
    PRODUCERS,
    SCHEMAS,
    SCHEMAS_FOLDER,
    TIMEOUT_MS,
    TOGETHER,
    topic_of,
)

COMMITS = sorted(ROOT.glob("persistent/*/*/*/_log/0*[0-9].json"))
TURNS = 12

# -- the logs ------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["from snapshots", "from the first commits on"])
def store(root: str, request: pytest.FixtureRequest) -> ObjectStore:
    """A copy of the golden root, with its snapshots or without."""
    if not request.param:
        for pointer in Path(root).glob("persistent/public/*/*/_log/pointer.json"):
            if (pointer.parent / f"{0:020d}.json").is_file():  # no commit was removed
                pointer.unlink()
    return with_clock(open_store(root), Clock(BEGUN_MS))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(shutil.copytree(ROOT, tmp_path / "root"))


def opened(store: ObjectStore, folder: str) -> ManagedLedger:
    ledger = ManagedLedger.open_anew(store, folder, topic_of(folder))
    check_state(ledger.state)
    return ledger


@pytest.mark.parametrize("path", COMMITS, ids=lambda path: f"{path.parts[-3]}-{path.stem[-2:]}")
def test_a_commit_is_written_as_it_was(path: Path) -> None:
    data = path.read_bytes()
    assert Commit.from_json(data, path.name, int(path.stem)).to_json() == data


def test_a_pointer_is_written_as_it_was() -> None:
    for path in ROOT.glob("persistent/*/*/*/_log/pointer.json"):
        assert LogPointer.from_json(path.read_bytes(), path.name).to_json() == path.read_bytes()


def test_messages_are_read_and_published(store: ObjectStore) -> None:
    ledger = opened(store, FOLDER)
    state = ledger.state
    values = [values_of(ledger, part) for part in range(3)]
    assert values == [["a0", "a1", "a2", "a3", "a4"], [], ["c0", "c1"]]
    assert (state.applications, state.term) == ({"query-1": 1}, 1)
    assert state.settings == {"deduplication": True}
    assert state.sequence_ids == {0: {"p": 4}, 1: {"p": 0}}
    assert [each.ledger_id for part in range(3) for each in ledger.ledgers(part)] == [0, 2, 3, 4]
    assert state.partition(1).trimmed_up_to.ledger_id == 1
    assert state.next_ledger_id == 5
    publish(ledger, "c2", partition=2)
    assert values_of(ledger, 2) == ["c0", "c1", "c2"]


def test_what_producers_published_is_read(store: ObjectStore) -> None:
    ledger = opened(store, PRODUCERS)
    part = ledger.state.partition(0)
    assert part.sequences.floors == {"p": 9}
    assert part.sequences.ranges == {1: {"p": SequenceRange(20, 21, dense=True)}}
    assert part.chunks == {
        2: (ChunkRun(0, "p-7", 0, 2, 3, 21),),
        3: (ChunkRun(0, "p-7", 2, 1, 3, 21),),
    }
    chunked = ChunkedMessages.of(part.chunks, part.ledgers)
    (message,) = chunked.messages_in(chunked.chunks)
    assert (tuple(message.first_chunk), tuple(message.position)) == ((2, 0), (3, 0))
    with pytest.raises(ProducerFencedError):
        ledger.append(write(ledger, {0: messages(["b"])}), producer=CLAIMS[0])
    ledger.append(
        write(ledger, {0: messages(["a9", "a10"], "p", 9)}), producer=CLAIMS[1], deduplicate=True
    )
    assert values_of(ledger)[-2:] == ["chunk 2", "a10"]


def test_schemas_are_read(store: ObjectStore) -> None:
    schemas = opened(store, SCHEMAS_FOLDER).state.schemas.schemas
    assert list(schemas) == SCHEMAS
    assert [info.definition for info in schemas] == [info.definition for info in SCHEMAS]


def test_who_was_forgotten_is_read(store: ObjectStore) -> None:
    topic = opened(store, INACTIVE)
    assert topic.state.applications == {"app-here": 4}
    assert topic.state.sequence_ids == {0: {"here": 8}}
    assert values_of(topic) == ["again", "last"]
    with pytest.raises(ProducerFencedError):
        publish(topic, "late", producer=CLAIMS[0])
    assert topic.state.producers is not None
    assert topic.state.producers["fenced_names"] == ["old"]


def test_a_topic_that_was_made_again_is_read_and_a_deleted_one_is_known(store: ObjectStore) -> None:
    state = opened(store, MADE_AGAIN).state
    assert (state.incarnation, state.is_deleted, state.partitions) == (3, False, 1)
    assert [each.ledger_id for each in state.ledgers(0)] == [1, 2]
    assert (state.settings, state.applications) == ({}, {"query": 0})
    assert len(state.tombstones) == 1
    with pytest.raises(TopicDeletedError):
        ManagedLedger.open_anew(store, GONE)
    deleted = ManagedLedger.open_log(store, GONE).state
    assert (deleted.is_deleted, deleted.next_ledger_id) == (True, 1)


def test_what_was_decided_and_compacted_is_read(store: ObjectStore) -> None:
    a, b = (opened(store, folder) for folder in TOGETHER)
    assert values_of(a) == ["A", "B", "A", "C", "A", "committed", "last"]
    assert values_of(b) == ["committed", "last"]
    compacted = a.state.partition(0).compacted
    assert compacted is not None
    assert compacted.horizon == Position(1, 0)
    assert compacted.kept == PositionSet.of_batch((0, 0), 3, 0b010).union(PositionSet.of([(1, 0)]))
    statuses = []
    for version, attempt in enumerate(("committed", "aborted", "open")):
        transaction = Transaction.of(("sink", version), attempt, TIMEOUT_MS)
        statuses.append(TransactionDecisions(store, transaction.id).status(attempt))
    assert statuses == [TxnStatus.COMMITTED, TxnStatus.ABORTED, TxnStatus.OPEN]
    closed = ClosedVersions(store, OPEN.id.partition("/")[0])
    assert [version for version in range(10) if closed.has(version)] == [7, 8]


def test_policies_and_tenants_are_read(root: str) -> None:
    store = open_store(root)
    assert read_policies(store, NamespaceName("public", "producers")) == {
        "deduplication": True,
        "policies": {"retention_size_bytes": -1, "retention_time_ms": 259_200_000},
    }
    assert read_policies(store, NamespaceName("public", "schemas")) == {
        "schema_compatibility_strategy": "BACKWARD_TRANSITIVE",
        "is_allow_auto_update_schema": False,
    }
    assert Admin(root).tenants.get("acme") == TenantInfo(("me", "you"), ("here",))


def test_the_root_is_verified(root: str) -> None:
    found = pulsar_spark.verify(root, deep=True)
    assert [each.differences for each in found if not each.ok] == []
    assert {topic_of(each) for each in FOLDERS} <= {str(each.topic) for each in found}


# -- the broker and its consumers ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpoint", [CHECKPOINT, None])
def test_a_consumer_goes_on_where_it_was(
    root: str, kind: str, checkpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the broker's checkpoint, and with what it wrote to `__dispatch` alone."""
    monkeypatch.setattr(stream_reader, "LONGEST_WAIT_S", 0.0)
    held: dict[str, Any] = json.loads((RECORDS / SEEN).read_text())[kind]
    broker = EmbeddedBroker(Root(root, {}), checkpoint)
    run = Run(
        root, topic="t", subscriptionName=f"s-{kind}", subscriptionType=kind, consumerName="c",
        maxMessagesPerTrigger=4, leaseTimeout="600s", start=held["offset"],
    )  # fmt: skip
    send(root, "t", ["new"])
    seen = held["seen"]
    for _ in range(TURNS):
        batch = run.next()
        seen += [] if batch is None else batch.values
        broker.until_quiet()
    assert sorted(seen) == sorted([*VALUES, "new"])


# -- records that lie elsewhere ------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS_BY_NAME)
def test_a_record_is_read_and_written_as_it_was(name: str) -> None:
    data, record = (RECORDS / name).read_bytes(), RECORDS_BY_NAME[name]
    assert record.read(data) == record.value
    if name.startswith("cursor"):  # with another zlib a packed form may differ by a byte
        assert record.read(record.write(record.value)) == record.value
    else:
        assert record.write(record.value) == data


@pytest.mark.parametrize("name", STATES)
def test_the_shards_of_a_broker_s_state_are_read_and_written_as_they_were(name: str) -> None:
    files = {each.name: each.read_bytes() for each in (RECORDS / name).iterdir()}
    state = state_of(files)
    state.check()
    assert shard_files(state) == files
    assert shard_files(STATES[name]()) == files


def test_an_offset_is_read_from_what_changed_since_one_in_a_file(root: str) -> None:
    stored = json.loads((RECORDS / SPILLED).read_text())
    assert OffsetStore(Root(root, {})).load(stored) == later_offset(golden_consumer_offset())


# -- the future ----------------------------------------------------------------------------------


def _opens(folder: str) -> Callable[[str], object]:
    return lambda root: ManagedLedger.open_anew(open_store(root), folder)


def _of_record(name: str) -> tuple[str, Callable[[str], object]]:
    read, file = RECORDS_BY_NAME[name].read, FUTURE / "records" / name
    return f"records/{name}", lambda _: read(file.read_bytes())


def _from_its_first_commit(root: str) -> None:
    (Path(root) / FOLDER / "_log" / "pointer.json").unlink()
    ManagedLedger.open_anew(open_store(root), FOLDER)


def _read_unsealed(root: str) -> None:
    """Read a data file as if its ledger's seal were that of the file that is there."""
    ledger = ManagedLedger.open_anew(open_store(root), FOLDER)
    with ledger.reader() as reader:
        reader.read_table(replace(ledger.ledgers(0)[0], seal=None), ["value"])


def _decision(root: str) -> TxnStatus:
    transaction = Transaction.of(("sink", 0), "committed", TIMEOUT_MS)
    return TransactionDecisions(open_store(root), transaction.id).status("committed")


REFUSED: dict[str, tuple[str, Callable[[str], object]]] = {
    "commit": (f"root/{FOLDER}/_log/{0:020d}.json", _from_its_first_commit),
    "pointer": (f"root/{FOLDER}/_log/pointer.json", _opens(FOLDER)),
    "snapshot": (f"root/{FOLDER}/_log/*.snapshot.parquet", _opens(FOLDER)),
    "data": (
        f"root/{FOLDER}/data/*.parquet",
        _read_unsealed,
    ),
    "decision": (f"root/_transactions/*/{0:020d}.*.json", _decision),
    "closed versions": (
        "root/_transactions/*/closed.json",
        lambda root: ClosedVersions(open_store(root), OPEN.id.partition("/")[0]).has(7),
    ),
    "policies": (
        "root/persistent/public/producers/~policies.json",
        lambda root: read_policies(open_store(root), NamespaceName("public", "producers")),
    ),
    "tenant": ("root/persistent/acme/~tenant.json", lambda root: Admin(root).tenants.get("acme")),
    "broker's checkpoint": (
        f"root/{CHECKPOINT}", lambda root: EmbeddedBroker(Root(root, {}), CHECKPOINT)
    ),
    "spilled offset": (
        f"records/{SPILLED}",
        lambda root: OffsetStore(Root(root, {})).load(
            json.loads((FUTURE / "records" / SPILLED).read_text())
        ),
    ),
    "shard": (
        "records/broker/topic*",
        lambda _: state_of(
            {each.name: each.read_bytes() for each in (FUTURE / "records" / "broker").iterdir()}
        ),
    ),
    "broker's offset": _of_record("broker-offset.json"),
    "cursor as bytes": _of_record("cursor.bin"),
    "cursor as JSON": _of_record("cursor.json"),
    "heartbeat": _of_record("heartbeat.json"),
    "stream offset": _of_record("offset.json"),
    "withheld messages": _of_record("withheld.json"),
    "record of a system topic": _of_record("wire.jsonl"),
}  # fmt: skip
"""The file of a future version, and a call that reads it, where it lies in a root of today."""


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_of_a_future_version_is_refused(root: str, kind: str) -> None:
    pattern, read = REFUSED[kind]
    (file,) = FUTURE.glob(pattern)
    if pattern.startswith("root/"):
        place = Path(root) / file.relative_to(FUTURE / "root")
        assert place.is_file()
        shutil.copy(file, place)
    before = {each: each.read_bytes() for each in (Path(root) / "persistent").rglob("0*.json")}
    with pytest.raises(FutureVersionError, match=r"version 2; this Pulsarlite knows up to 1\. Upd"):
        read(root)
    assert {each: each.read_bytes() for each in before} == before


def test_a_lease_of_a_future_version_gives_nobody_up() -> None:
    assert RECORDS_BY_NAME["lease.json"].read((FUTURE / "records/lease.json").read_bytes()) is None


def test_a_broker_of_a_future_version_lives_as_long_as_one_of_today(root: str) -> None:
    heartbeat = (FUTURE / "records/heartbeat.json").read_bytes()
    store = open_store(root)
    assert store.put_if_absent(HEARTBEAT_FILE, heartbeat)
    shown = BrokerHeartbeat(Root(root, {})).shown()
    assert shown is None
    assert BrokerHeartbeat(Root(root, {})).holds_ms(shown) == 10_000
    assert isinstance(store.clock, SystemClock)


def test_every_format_is_at_its_first_version_and_among_the_golden_ones() -> None:
    found = [each for each in gc.get_objects() if isinstance(each, StoredFormat)]
    known = {id(each) for each in FORMATS}
    assert {each.what for each in FORMATS if each.version != 1} == set()
    assert {each.what for each in found if id(each) not in known} == set()
