"""What S3 and Google answer beyond «done», and what becomes of it: conflicts, a dead line."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from pulsar_spark.connector.runtime.reading import offset_store
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.log_pointer import POINTER_FILE, PointerFile
from pulsar_spark.connector.runtime.topics.log_snapshot import snapshot_file
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import change_policies, read_policies
from pulsar_spark.connector.runtime.topics.transaction_decisions import (
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.connector.spark.data_source import PulsarliteDataSource
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.remote_store import FIRST_RETRIES
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import (
    BucketNotFoundError,
    InvalidOptionError,
    PulsarliteError,
    StorageError,
    StorageUnavailableError,
)
from pulsar_spark.log.ledger_commit import Commit, log_file
from pulsar_spark.log.transaction_attempt import Transaction, TxnStatus
from pulsar_spark.model.topic_name import NamespaceName
from tests.connector.reading import Run
from tests.connector.storage.object_service import ObjectService, serving
from tests.connector.topic_log.stores import FOLDER, messages, publish, values_of, write
from tests.connector.topics import send

pytest.importorskip("obstore")
CONFLICT = (409, "ConditionalRequestConflict")


@pytest.fixture(params=["s3", "gs"])
def service(request: pytest.FixtureRequest) -> Iterator[ObjectService]:
    with serving(request.param) as running:
        yield running


def store_of(service: ObjectService) -> ObjectStore:
    return open_store(service.root(), service.options)


def topic_of(service: ObjectService, *, partitions: int = 1) -> ManagedLedger:
    return ManagedLedger.create(store_of(service), FOLDER, partitions)


def opened(service: ObjectService) -> ManagedLedger:
    return ManagedLedger.open_anew(store_of(service), FOLDER)


def given_of(service: ObjectService) -> dict[str, Any]:
    return {f"storage.{name}": value for name, value in service.options.items()}


def test_a_file_is_replaced_by_whoever_saw_the_last(service: ObjectService) -> None:
    store = store_of(service)
    assert store.compare_and_swap("p", None, b"1")
    assert not store.compare_and_swap("p", None, b"x")
    _, token = store.get_versioned("p")
    assert token is not None
    assert store.compare_and_swap("p", token, b"2")
    assert not store.compare_and_swap("p", token, b"3"), "its token is of what was there"
    store.delete("p")
    assert not store.compare_and_swap("p", token, b"3"), "what was to be replaced is gone"
    assert store.get("p") is None


def test_snapshots_move_the_pointer_and_policies_are_set(service: ObjectService) -> None:
    ledger = topic_of(service)
    for value in "abc":
        publish(ledger, value)
        ledger.write_snapshot()
    assert PointerFile(ledger.store, FOLDER).read().snapshot == 3
    assert values_of(opened(service)) == ["a", "b", "c"]
    namespace = NamespaceName("public", "default")
    for requested in (True, False, None):
        assert (
            change_policies(ledger.store, namespace, deduplication=requested).get("deduplication")
            is requested
        )
        assert read_policies(ledger.store, namespace).get("deduplication") is requested


def test_a_swap_whose_answer_is_lost_is_not_made_twice(service: ObjectService) -> None:
    ledger = topic_of(service)
    publish(ledger, "a")
    ledger.write_snapshot()
    publish(ledger, "b")
    service.answer("PUT", POINTER_FILE, 503, applied=True)
    ledger.write_snapshot()
    assert PointerFile(ledger.store, FOLDER).read().snapshot == 2
    closed = ClosedVersions(ledger.store, "f" * 32)
    service.answer("PUT", "closed.json", 503, applied=True)
    closed.add([(3, 3)])
    assert closed.has(3)


@pytest.mark.parametrize("times", [1, 3])
def test_a_conflict_on_a_snapshot_is_no_snapshot(service: ObjectService, times: int) -> None:
    """S3 answers 409 while another request for that name is under way, and it may then fail."""
    ledger = topic_of(service)
    publish(ledger, "a")
    service.answer("PUT", snapshot_file(1), *CONFLICT, times=times)
    ledger.write_snapshot()
    assert PointerFile(ledger.store, FOLDER).read().snapshot == 1
    assert values_of(opened(service)) == ["a"]


def test_a_snapshot_that_can_not_be_stored_leaves_the_pointer(service: ObjectService) -> None:
    ledger = topic_of(service)
    publish(ledger, "a")
    service.answer("PUT", snapshot_file(1), *CONFLICT, times=10**6)
    with pytest.raises(StorageUnavailableError, match="honour conditional writes"):
        ledger.write_snapshot()
    assert PointerFile(ledger.store, FOLDER).read().snapshot == -1
    assert values_of(opened(service)) == ["a"]


def test_a_conflict_on_a_commit_or_a_topic_is_tried_again(service: ObjectService) -> None:
    service.answer("PUT", log_file(0), *CONFLICT, times=2)
    ledger = topic_of(service)
    service.answer("PUT", log_file(1), *CONFLICT, times=2)
    commit = publish(ledger, "a")
    assert isinstance(commit, Commit)
    assert commit.number == 1
    assert values_of(opened(service)) == ["a"]


def test_a_conflict_on_a_decision_is_tried_again(service: ObjectService) -> None:
    transaction = Transaction.of(("query", 7), "me", 60_000)
    service.answer("PUT", ".json", *CONFLICT, times=2)
    decisions = TransactionDecisions(store_of(service), transaction.id)
    assert decisions.commit("me") is TxnStatus.COMMITTED
    assert TransactionDecisions(store_of(service), transaction.id).committed()


def test_a_conflict_on_a_spilled_offset_is_tried_again(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_store, "LARGEST_INLINE_BYTES", 10)
    given = given_of(service)
    send(service.root(), "t", ["a", "b"], **given)
    run = Run(service.root(), topic="t", startingOffsets="earliest", **given)
    service.answer("PUT", ".json", *CONFLICT, times=2)
    batch = run.next()
    assert batch is not None
    again = Run(service.root(), topic="t", start=batch.start, **given)
    assert [each["value"] for each in again.read(batch)] == [b"a", b"b"]


@pytest.mark.parametrize("status", [503, 0])
def test_a_commit_whose_answer_is_lost_is_one_commit(service: ObjectService, status: int) -> None:
    ledger = topic_of(service)
    service.answer("PUT", log_file(1), status, applied=True)
    publish(ledger, "a")
    service.answer("PUT", log_file(2), status, applied=True, times=3)
    publish(ledger, "b")
    assert values_of(opened(service)) == ["a", "b"]


def test_a_file_that_is_swept_while_it_is_read_is_not_there_and_not_damaged(
    service: ObjectService,
) -> None:
    ledger = topic_of(service)
    ledger.append(write(ledger, {0: messages([f"{n:09}" * 1000 for n in range(400)])}))
    (each,) = ledger.ledgers(0)
    key = f"root/{FOLDER}/{each.file}"
    service.before.append(("GET", each.file, lambda: service.objects.pop(key)))
    with pytest.raises(FileNotFoundError, match="not there") as caught:
        values_of(ledger)
    assert isinstance(caught.value, PulsarliteError)


@pytest.mark.parametrize("status", [503, 0, 429])
def test_a_dead_line_while_a_file_is_read_is_no_damage(service: ObjectService, status: int) -> None:
    given = given_of(service)
    send(service.root(), "t", ["a", "b"], **given)
    run = Run(service.root(), topic="t", startingOffsets="earliest", **given)
    batch = run.planned()
    assert batch is not None
    service.answer("GET", ".parquet", status, times=10**6)
    with pytest.raises(StorageUnavailableError, match="Nothing stored is damaged") as caught:
        run.read(batch)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), StorageUnavailableError)
    service.answers.clear()
    assert [each["value"] for each in run.read(batch)] == [b"a", b"b"], "it reads on"


def test_a_service_that_does_not_answer_is_asked_so_often_and_then_told(
    service: ObjectService,
) -> None:
    ledger = topic_of(service)
    service.answer("PUT", log_file(1), 503, "SlowDown", times=2)
    assert isinstance(publish(ledger, "a"), Commit), "asked again, as max_retries says"
    service.answer("PUT", log_file(2), 503, "SlowDown", times=3)
    with pytest.raises(StorageUnavailableError, match=r"storage\.max_retries"):
        publish(ledger, "b")
    assert values_of(opened(service)) == ["a"]
    service.answer("PUT", log_file(2), 403, "AccessDenied")
    with pytest.raises(StorageError, match="may not do this") as caught:
        publish(ledger, "c")
    assert not isinstance(caught.value, StorageUnavailableError)


@pytest.mark.slow
def test_a_service_that_has_answered_is_asked_for_as_long_as_the_timeout_says(
    service: ObjectService,
) -> None:
    given = {name: each for name, each in service.options.items() if name != "max_retries"}
    given["retry_timeout"] = "3m"
    store = open_store(service.root(), given)
    service.answer("PUT", "first", 503, "SlowDown", times=FIRST_RETRIES + 1)
    with pytest.raises(StorageUnavailableError):
        store.create("first", b"a")
    assert store.create("first", b"a")
    service.answer("PUT", "second", 503, "SlowDown", times=FIRST_RETRIES + 1)
    assert store.create("second", b"a")


def test_a_bucket_that_is_not_there_is_told_when_the_data_frame_is_made(
    service: ObjectService,
) -> None:
    given = {**given_of(service), "serviceUrl": service.root("nowhere"), "topic": "t"}
    rows = StructType().add("value", StringType())
    for make in (
        lambda: PulsarliteDataSource(given).schema(),
        lambda: PulsarliteDataSource(given).writer(rows, overwrite=False),
        lambda: PulsarliteDataSource(given).streamWriter(rows, overwrite=False),
        lambda: PulsarliteDataSource({**given, "subscriptionName": "s"}).schema(),
    ):
        with pytest.raises(BucketNotFoundError, match="create it, or correct serviceUrl"):
            make()


def test_nothing_that_is_done_in_a_bucket_that_is_not_there_goes_on_for_ever(
    service: ObjectService,
) -> None:
    store = open_store(service.root("nowhere"), service.options)
    for attempt in (
        lambda: ManagedLedger.create(store, FOLDER, 1),
        lambda: ManagedLedger.open(store, FOLDER),
        lambda: change_policies(store, NamespaceName("public", "default"), deduplication=True),
        lambda: TransactionDecisions(store, Transaction.of(("a", 1), "b", 60_000).id).commit("b"),
        lambda: ClosedVersions(store, "f" * 32).add([(1, 1)]),
        lambda: store.compare_and_swap("p", None, b""),
        lambda: store.compare_and_swap("p", '{"e_tag": "x", "version": "1"}', b""),
        lambda: store.folders(""),
        lambda: store.touch("p", b""),
    ):
        with pytest.raises(BucketNotFoundError):
            attempt()


def test_an_option_that_the_store_does_not_have_is_told_when_the_data_frame_is_made() -> None:
    with pytest.raises(InvalidOptionError, match=r"Did you mean storage\.allow_http"):
        PulsarliteDataSource({"path": "s3://b/r", "topic": "t", "storage.aws_alow_http": "true"})
    source = PulsarliteDataSource(
        {"path": "s3://b/r", "topic": "t", "storage.aws_allow_http": "true"}
    )
    assert source.root.service_url == "s3://b/r"


def test_a_service_that_honours_no_condition_is_told_and_not_tried_for_ever(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_spark.connector.storage.object_store.LOST_RACE_PAUSE_S", 0.0)
    service.answer("PUT", "policies.json", 412, "PreconditionFailed", times=10**6)
    with pytest.raises(StorageUnavailableError, match="honour conditional writes"):
        change_policies(store_of(service), NamespaceName("public", "default"), deduplication=True)


def test_a_snapshot_that_fails_for_a_dead_line_does_not_fail_the_commit(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_ledger, "SNAPSHOT_EVERY", 1)
    ledger = topic_of(service)
    service.answer("PUT", snapshot_file(1), 503, times=3)
    assert isinstance(publish(ledger, "a"), Commit)
    assert isinstance(publish(ledger, "b"), Commit)
    assert PointerFile(ledger.store, FOLDER).read().snapshot == 2
