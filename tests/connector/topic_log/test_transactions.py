"""Several topics in one transaction: all of it becomes visible at one instant, or none of it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pulsar_spark.connector.runtime.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.producer_connection import claim_of, connect
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import commit_together
from pulsar_spark.connector.runtime.topics.transaction_decisions import TransactionDecisions
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import (
    CorruptFileError,
    FutureVersionError,
    InvalidOptionError,
    InvalidTxnStatusError,
)
from pulsar_spark.log.transaction_attempt import Transaction, TxnStatus
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock
from tests.connector.s3_server import S3Root
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import Clock, rewrite_text, values_of
from tests.connector.topics import files_below, ledger_of, options_of, send, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[3]
TOPICS = ("a", "b")


class Died(BaseException):
    """Stands for a process that is gone."""


def fresh(root: Path | str, topic: str, clock: Clock | None = None) -> ManagedLedger:
    """The topic, as a process sees it that has not seen it before."""
    name = TopicName.parse(topic)
    store = open_store(str(root))
    if clock is not None:
        store.clock = clock
    return ManagedLedger.open_anew(store, name.storage_path, str(name))


def seen(root: Path | str) -> dict[str, list[str]]:
    return {topic: values_of(fresh(root, topic)) for topic in TOPICS}


def send_both(root: Path | str, batch: int, transaction: Transaction, *topics: str) -> None:
    """One micro-batch with a row for each topic."""
    named = topics or TOPICS
    options = options_of(root, Scope.STREAM_WRITE)
    values = [f"{topic}{batch}" for topic in named]
    tasks = written(options, values, {"topic": list(named)})
    publish(Root.of(options), tasks, ("query", batch), transaction=transaction)


def begin(batch: int, timeout_ms: int = 60_000) -> Transaction:
    return Transaction.of(("query", batch), uuid4().hex, timeout_ms)


def die_in(monkeypatch: pytest.MonkeyPatch, method: str, calls: int = 0) -> None:
    """Have the call of a ledger's, or the decision's, method be the end of the process."""
    owner: Any = TransactionDecisions if method == "commit" else ManagedLedger
    real, left = getattr(owner, method), [calls]

    def dying(*args: Any, **named: Any) -> Any:
        if not left[0]:
            raise Died
        left[0] -= 1
        return real(*args, **named)

    monkeypatch.setattr(owner, method, dying)
    monkeypatch.setattr(TransactionDecisions, "abort", lambda *_: TxnStatus.OPEN)


def left_open(
    root: Path | str, transaction: Transaction, batch: int = 0, prepared: int = 1
) -> None:
    """A sink died when so many topics were prepared; nothing is decided."""
    with pytest.MonkeyPatch.context() as patch:
        if prepared == len(TOPICS):
            die_in(patch, "commit")
        else:
            die_in(patch, "append", prepared)
        with pytest.raises(Died):
            send_both(root, batch, transaction)


def test_a_transaction_of_no_topic_decides_nothing(tmp_path: Path) -> None:
    commit_together(open_store(str(tmp_path)), begin(0), [])
    assert not files_below(tmp_path)
    send_both(tmp_path, 0, begin(0))
    assert seen(tmp_path) == {"a": ["a0"], "b": ["b0"]}, "so the batch may be committed yet"


def test_a_micro_batch_is_visible_in_all_topics_at_once(tmp_path: Path) -> None:
    send_both(tmp_path, 0, begin(0))
    send_both(tmp_path, 1, begin(1))
    assert seen(tmp_path) == {"a": ["a0", "a1"], "b": ["b0", "b1"]}


@pytest.mark.parametrize("prepared", [1, 2])
def test_nothing_is_visible_before_the_decision(tmp_path: Path, prepared: int) -> None:
    send_both(tmp_path, 0, begin(0))
    left_open(tmp_path, begin(1), 1, prepared)
    assert seen(tmp_path) == {"a": ["a0"], "b": ["b0"]}


@pytest.mark.parametrize("prepared", [1, 2])
def test_a_repeated_micro_batch_is_published_once(tmp_path: Path, prepared: int) -> None:
    left_open(tmp_path, begin(0), prepared=prepared)
    for _ in range(2):
        send_both(tmp_path, 0, begin(0))
        assert seen(tmp_path) == {"a": ["a0"], "b": ["b0"]}


def test_a_repetition_with_other_topics_adds_nothing(tmp_path: Path) -> None:
    send_both(tmp_path, 0, begin(0))
    send_both(tmp_path, 0, begin(0), "c")
    assert values_of(fresh(tmp_path, "c")) == []


def test_of_two_tries_with_other_topics_one_is_published(tmp_path: Path) -> None:
    left_open(tmp_path, begin(0), prepared=2)
    send_both(tmp_path, 0, begin(0), "c")
    assert values_of(fresh(tmp_path, "c")) == ["c0"]
    assert seen(tmp_path) == {"a": [], "b": []}
    send_both(tmp_path, 1, begin(1))
    assert seen(tmp_path) == {"a": ["a1"], "b": ["b1"]}


def test_a_run_that_was_replaced_can_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, first = TransactionDecisions.commit, begin(0)

    def replaced(self: TransactionDecisions, attempt: str) -> TxnStatus:
        monkeypatch.setattr(TransactionDecisions, "commit", real)
        TransactionDecisions(open_store(str(tmp_path)), first.id).abort(first.attempt)
        return self.commit(attempt)

    monkeypatch.setattr(TransactionDecisions, "commit", replaced)
    with pytest.raises(InvalidTxnStatusError, match="Nothing of it was published"):
        send_both(tmp_path, 0, first)
    assert seen(tmp_path) == {"a": [], "b": []}
    send_both(tmp_path, 0, begin(0))
    assert seen(tmp_path) == {"a": ["a0"], "b": ["b0"]}


def test_an_exception_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ManagedLedger.append, []

    def failing(self: ManagedLedger, *args: Any, **named: Any) -> Any:
        calls.append(self.topic)
        if len(calls) > 1:
            raise OSError("the disk is full")
        return real(self, *args, **named)

    monkeypatch.setattr(ManagedLedger, "append", failing)
    transaction = begin(0)
    with pytest.raises(OSError, match="full"):
        send_both(tmp_path, 0, transaction)
    decisions = TransactionDecisions(open_store(str(tmp_path)), transaction.id)
    assert decisions.status(transaction.attempt) is TxnStatus.ABORTED
    monkeypatch.undo()
    send(tmp_path, "a", ["other"])
    assert seen(tmp_path) == {"a": ["other"], "b": []}


def test_who_writes_behind_an_open_transaction_aborts_it_after_its_time(tmp_path: Path) -> None:
    left_open(tmp_path, begin(0, timeout_ms=0))
    send(tmp_path, "a", ["other"])
    assert seen(tmp_path) == {"a": ["other"], "b": []}


def test_who_writes_behind_an_open_transaction_waits_for_it(
    place: Root, clock: ManualClock
) -> None:
    root, transaction, begun_s = place.service_url, begin(0), clock.monotonic_s()
    left_open(root, transaction)

    def abort() -> None:
        TransactionDecisions(place.store, transaction.id).abort(transaction.attempt)

    clock.repeat(3.0, abort, "another")
    send(root, "a", ["other"])
    assert clock.monotonic_s() - begun_s >= 3.0
    assert seen(root)["a"] == ["other"]


def test_a_transaction_that_only_lacks_the_decision_is_finished_by_who_meets_it(
    tmp_path: Path,
) -> None:
    left_open(tmp_path, begin(0), prepared=2)
    send(tmp_path, "b", ["other"])
    assert seen(tmp_path) == {"a": ["a0"], "b": ["b0", "other"]}


def test_settling_leaves_an_open_transaction_alone_until_its_time_is_over(tmp_path: Path) -> None:
    left_open(tmp_path, begin(0, timeout_ms=1000))
    clock = Clock()
    ledger = fresh(tmp_path, "a", clock)
    number = ledger.state.number
    ledger.settle()
    clock.now_ms += 999
    ledger.settle()
    assert ledger.state.number == number
    clock.now_ms += 1
    ledger.settle()
    assert ledger.state.number == number + 1


def test_nobody_waits_longer_than_an_hour_whatever_a_transaction_says(tmp_path: Path) -> None:
    left_open(tmp_path, begin(0, timeout_ms=10**15))
    clock = Clock()
    ledger = fresh(tmp_path, "a", clock)
    number = ledger.state.number
    clock.now_ms += 60 * 60_000
    ledger.settle()
    assert ledger.state.number == number + 1
    with pytest.raises(InvalidOptionError, match=r"transactionTimeout.*at most 1h"):
        options_of(tmp_path, Scope.WRITE, {"transactional": True, "transactionTimeout": "61m"})


def test_ids_have_no_gap_where_a_transaction_was_aborted(tmp_path: Path) -> None:
    left_open(tmp_path, begin(0, timeout_ms=0))
    send(tmp_path, "a", ["x"])
    send(tmp_path, "a", ["y"])
    state = fresh(tmp_path, "a").state
    assert [each.ledger_id for each in state.ledgers(0)] == [0, 1]
    check_state(state)


def test_sequence_ids_of_an_aborted_transaction_do_not_count(tmp_path: Path) -> None:
    options = options_of(tmp_path, Scope.STREAM_WRITE, {"enableDeduplication": True})
    columns = {"producer_name": ["p", "p"], "sequence_id": [0, 0], "topic": list(TOPICS)}
    transaction = begin(0, timeout_ms=0)
    tasks = written(options, ["a0", "b0"], columns)
    with pytest.MonkeyPatch.context() as patch:
        die_in(patch, "append", 1)
        with pytest.raises(Died):
            publish(Root.of(options), tasks, ("query", 0), transaction=transaction)
    publish(Root.of(options), written(options, ["a", "b"], columns), ("other", 0))
    assert seen(tmp_path) == {"a": ["a"], "b": ["b"]}


def test_readers_and_the_broker_get_no_messages_of_an_aborted_commit(tmp_path: Path) -> None:
    left_open(tmp_path, begin(0, timeout_ms=0))
    send(tmp_path, "a", ["other"])
    ledger = ledger_of(tmp_path, "a")
    commits = ledger.commits(0, ledger.state.number)
    assert commits is not None
    assert [len(each.ledgers) for each in commits] == [0, 0, 1]


def test_a_snapshot_holds_only_what_is_decided(tmp_path: Path) -> None:
    send(tmp_path, "a", ["first"])
    transaction = begin(0)
    left_open(tmp_path, transaction, prepared=2)
    ledger = fresh(tmp_path, "a")
    ledger.write_snapshot()
    assert values_of(fresh(tmp_path, "a")) == ["first"]
    TransactionDecisions(open_store(str(tmp_path)), transaction.id).commit(transaction.attempt)
    assert values_of(fresh(tmp_path, "a")) == ["first", "a0"]
    ledger.refresh()
    ledger.write_snapshot()
    assert values_of(fresh(tmp_path, "a")) == ["first", "a0"]


def test_a_topic_that_only_transactions_feed_gets_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_spark.connector.runtime.topics.managed_ledger.SNAPSHOT_EVERY", 2)
    for batch in range(4):
        send_both(tmp_path, batch, begin(batch))
    assert list(tmp_path.glob("persistent/public/default/b/_log/*.snapshot.parquet"))
    assert seen(tmp_path)["b"] == ["b0", "b1", "b2", "b3"]


def test_files_of_an_open_transaction_are_no_orphans(tmp_path: Path) -> None:
    transaction = begin(0)
    left_open(tmp_path, transaction, prepared=2)
    LedgerStore(fresh(tmp_path, "b")).reclaim_orphans(older_than_ms=-(10**9))
    assert seen(tmp_path) == {"a": ["a0"], "b": ["b0"]}


def test_a_damaged_decision_is_an_error_that_names_it(tmp_path: Path) -> None:
    transaction = begin(0)
    send_both(tmp_path, 0, transaction)
    path = tmp_path / "_transactions" / f"{transaction.id}.{0:020d}.json"
    for data in (b"", b"{}", b'{"version":1,"status":"open","attempt":"x"}'):
        path.write_bytes(data)
        with pytest.raises(CorruptFileError, match=transaction.id):
            fresh(tmp_path, "a")
    path.write_bytes(b'{"version":3}')
    with pytest.raises(FutureVersionError, match=transaction.id):
        fresh(tmp_path, "a")


@pytest.mark.parametrize("bad", ["../../../etc", "a/b", "f" * 32, f"{'f' * 32}/1"])
def test_an_id_that_leads_elsewhere_is_refused(tmp_path: Path, bad: str) -> None:
    transaction = begin(0)
    send_both(tmp_path, 0, transaction)
    (path,) = tmp_path.glob("persistent/public/default/a/_log/*1.json")
    rewrite_text(path, transaction.id, bad)
    with pytest.raises(CorruptFileError, match="no transaction id"):
        fresh(tmp_path, "a")


def test_a_bad_row_leaves_no_trace_in_any_topic(tmp_path: Path) -> None:
    for topic in TOPICS:
        send(tmp_path, topic, ["first"])
    before = files_below(tmp_path)
    options = options_of(tmp_path, Scope.STREAM_WRITE, {"transactional": True})
    with pytest.raises(ValueError, match="partition"):
        written(options, ["x", "y"], {"topic": ["a", "b-partition-7"]})
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_producer_of_an_access_mode_has_its_topics_until_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    options = options_of(tmp_path, Scope.STREAM_WRITE, {"accessMode": "Exclusive"})
    claim = claim_of(options, "query", "run")

    def publish_all(batch: int, timeout_ms: int = 60_000) -> None:
        tasks = written(options, [f"a{batch}", f"b{batch}"], {"topic": list(TOPICS)})
        publish(
            Root.of(options), tasks, ("query", batch), claim,
            leaves=True, transaction=begin(batch, timeout_ms),
        )  # fmt: skip

    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(TransactionDecisions, "commit", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                publish_all(0)
        assert seen(tmp_path) == {"a": [], "b": []}
    publish_all(1)
    assert seen(tmp_path) == {"a": ["a1"], "b": ["b1"]}
    other = claim_of(options, "other", "run")
    for topic in TOPICS:
        connect(fresh(tmp_path, topic), other)  # the first has left


def test_options_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="transactionTimeout needs transactional"):
        options_of(tmp_path, Scope.WRITE, {"transactionTimeout": "5s"})
    with pytest.raises(InvalidOptionError, match="transactional has no meaning here"):
        options_of(tmp_path, Scope.READ, {"transactional": True})


def test_on_an_object_store_a_transaction_is_the_same(s3_root: S3Root) -> None:
    url, storage = s3_root.root, s3_root.options
    given = {f"storage.{name}": value for name, value in storage.items()}
    options = options_of(url, Scope.STREAM_WRITE, given)
    root = Root.of(options)
    for batch in (0, 0, 1):
        tasks = written(options, [f"a{batch}", f"b{batch}"], {"topic": list(TOPICS)})
        publish(root, tasks, ("query", batch), transaction=begin(batch))
    for topic in TOPICS:
        folder = TopicName.parse(topic).storage_path
        ledger = ManagedLedger.open_anew(root.store, folder)
        assert values_of(ledger) == [f"{topic}0", f"{topic}1"]
    assert forget_decisions(root) == 0


def test_a_sink_on_spark_is_transactional(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("select 'x' as value, explode(array('a', 'b')) as topic")
    options = {"transactional": "true", "transactionTimeout": "10s", "txnAppId": "app"}
    for version in (0, 0, 1):
        writer = frame.write.format("pulsarlite").mode("append").options(**options)
        writer.option("txnVersion", str(version)).save(str(tmp_path))
    assert seen(tmp_path) == {"a": ["x", "x"], "b": ["x", "x"]}
    assert len(list(tmp_path.glob("_transactions/*/*.*.json"))) == 2


# -- cleaning up -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kill_at_a_change_of_the_disk_leaves_all_or_nothing(tmp_path: Path) -> None:
    every = 16
    first = random.randrange(every)
    command = [sys.executable, "-m", "tests.connector.killed_transactions"]
    done = subprocess.run(
        [*command, str(tmp_path), str(every), str(first)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    print(f"again: python -m tests.connector.killed_transactions FOLDER {every} {first}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
