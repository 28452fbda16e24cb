"""Decisions on transactions are deleted when no log refers to them, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics import transaction_commit
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_decisions import (
    Decision,
    TransactionDecisions,
)
from pulsar_spark.connector.storage.clock import SYSTEM_CLOCK, ManualClock
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import CorruptFileError, InvalidTxnStatusError
from pulsar_spark.log.transaction_attempt import ANONYMOUS, Transaction, TxnStatus
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope
from tests.connector.topic_log.stores import values_of
from tests.connector.topic_log.test_transactions import (
    TOPICS,
    Died,
    begin,
    die_in,
    fresh,
    left_open,
    seen,
    send_both,
)
from tests.connector.topics import options_of, send, written

DAY_MS = 24 * 60 * 60_000


def decisions_left(root: Path) -> int:
    return len(list(root.glob("_transactions/*/*.*.json")))


def give_up_the_log(root: Path, *topics: str) -> None:
    """Have the log files of the topics removed, as snapshots do after the grace period."""
    for topic in topics or TOPICS:
        name = TopicName.parse(topic)
        ledger = ManagedLedger.open_anew(open_store(str(root)), name.storage_path, grace_ms=0)
        for _ in range(2):
            ledger.write_snapshot()
            send(root, topic, ["more"])
            ledger.refresh()
        ledger.write_snapshot()


def forget(root: Path, days: float = 0) -> int:
    """As if so many days had passed."""
    later = Root(str(root), {})
    clock = ManualClock(SYSTEM_CLOCK.wall_ms() + int(days * DAY_MS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(later.store, "clock", clock)
        return forget_decisions(later)


def test_a_decision_is_forgotten_when_no_log_refers_to_it(tmp_path: Path) -> None:
    assert forget(tmp_path) == 0
    send_both(tmp_path, 0, begin(0))
    send_both(tmp_path, 1, begin(1))
    assert forget(tmp_path) == 0
    give_up_the_log(tmp_path, "a")
    assert forget(tmp_path) == 0
    assert decisions_left(tmp_path) == 2
    give_up_the_log(tmp_path, "b")
    assert (forget(tmp_path), decisions_left(tmp_path), forget(tmp_path)) == (2, 0, 0)
    expected = {topic: [f"{topic}0", f"{topic}1", "more", "more"] for topic in TOPICS}
    assert seen(tmp_path) == expected


def begin_anonymously(root: Path | str) -> Transaction:
    return transaction_commit.begin(open_store(str(root)), None)


def send_anonymously(root: Path | str, values: str, transaction: Transaction) -> None:
    """One write without an application, with a row for each topic."""
    options = options_of(root, Scope.WRITE)
    tasks = written(options, [f"{topic}{values}" for topic in TOPICS], {"topic": list(TOPICS)})
    publish(Root.of(options), tasks, None, transaction=transaction)


def test_transactions_without_an_application_leave_no_file_each(tmp_path: Path) -> None:
    left = []
    for number in range(3):
        send_anonymously(tmp_path, str(number), begin_anonymously(tmp_path))
        send_both(tmp_path, number, begin(number))
    for _ in range(3):
        transaction = begin_anonymously(tmp_path)
        TransactionDecisions(open_store(str(tmp_path)), transaction.id).abort(transaction.attempt)
    give_up_the_log(tmp_path, "a")
    send_anonymously(tmp_path, "named", begin_anonymously(tmp_path))
    assert forget(tmp_path, days=0.5) == 0, "b's log has them all"
    give_up_the_log(tmp_path, "b")
    assert forget(tmp_path, days=0.5) == 3, "those of the query"
    for _ in range(2):
        forget(tmp_path, days=2)
        left.append(len(list((tmp_path / "_transactions" / ANONYMOUS).iterdir())))
    shown = [value for value in seen(tmp_path)["a"] if value != "more"]
    assert sorted(shown) == ["a0", "a0", "a1", "a1", "a2", "a2", "anamed"]
    give_up_the_log(tmp_path)
    forget(tmp_path, days=2)
    assert decisions_left(tmp_path) == 0
    assert left[0] == left[1] <= 3
    shown = [value for value in seen(tmp_path)["b"] if value != "more"]
    assert sorted(shown) == ["b0", "b0", "b1", "b1", "b2", "b2", "bnamed"]


def test_a_sink_without_an_application_that_slept_for_days_publishes_nothing(
    tmp_path: Path,
) -> None:
    sleeper = begin_anonymously(tmp_path)
    send_anonymously(tmp_path, "0", begin_anonymously(tmp_path))
    give_up_the_log(tmp_path)
    before = seen(tmp_path)
    assert forget(tmp_path, days=2) == 1
    with pytest.raises(InvalidTxnStatusError):
        send_anonymously(tmp_path, "late", sleeper)
    assert seen(tmp_path) == before


def test_one_without_an_application_does_not_abort_another(place: Root, clock: ManualClock) -> None:
    root = place.service_url
    with pytest.MonkeyPatch.context() as patch:
        die_in(patch, "append", 1)
        with pytest.raises(Died):
            send_anonymously(root, "0", begin_anonymously(root))

    def dies() -> None:
        raise Died

    clock.repeat(3.0, dies, "who waits")
    with pytest.raises(Died):
        send_anonymously(root, "1", begin_anonymously(root))


def test_a_repetition_after_its_decision_was_forgotten_adds_nothing(tmp_path: Path) -> None:
    send_both(tmp_path, 0, begin(0))
    give_up_the_log(tmp_path)
    assert forget(tmp_path) == 1
    send_both(tmp_path, 0, begin(0), "c")
    assert values_of(fresh(tmp_path, "c")) == []


@pytest.mark.parametrize(("forgets_before", "forgotten"), [("prepare", 1), ("decide", 0)])
def test_a_sink_that_slept_through_the_clean_up_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets_before: str, forgotten: int
) -> None:
    sleeper = begin(0)

    def others() -> None:
        monkeypatch.undo()
        send_both(tmp_path, 0, begin(0))
        give_up_the_log(tmp_path)
        assert forget(tmp_path) == forgotten  # not what the log of c names already

    owner: Any = ManagedLedger if forgets_before == "prepare" else TransactionDecisions
    method = "append" if forgets_before == "prepare" else "commit"
    real = getattr(owner, method)

    def slept(self: Any, *args: Any, **named: Any) -> Any:
        others()
        return real(self, *args, **named)

    monkeypatch.setattr(owner, method, slept)
    send_both(tmp_path, 0, sleeper, "c")
    assert values_of(fresh(tmp_path, "c")) == []
    assert seen(tmp_path)["a"][0] == "a0"
    send(tmp_path, "c", ["goes on"])
    assert values_of(fresh(tmp_path, "c")) == ["goes on"]


def test_a_decision_in_an_emptied_place_does_not_count(tmp_path: Path) -> None:
    send_both(tmp_path, 0, begin(0))
    give_up_the_log(tmp_path)
    assert forget(tmp_path) == 1
    sleeper = begin(0)
    left_open_in_c = options_of(tmp_path, Scope.STREAM_WRITE)
    tasks = written(left_open_in_c, ["c0"], {"topic": ["c"]})
    ledger = fresh(tmp_path, "c")
    ledger.append(tasks[0].ledgers, application=("query", 0), transaction=sleeper)
    path = tmp_path / "_transactions" / f"{sleeper.id}.{0:020d}.json"
    path.write_bytes(Decision(TxnStatus.COMMITTED, sleeper.attempt).to_json())
    assert values_of(fresh(tmp_path, "c")) == []
    assert seen(tmp_path)["a"][0] == "a0"


def test_what_is_only_aborted_is_kept(tmp_path: Path) -> None:
    transaction = begin(0, timeout_ms=0)
    left_open(tmp_path, transaction)
    send(tmp_path, "a", ["other"])
    give_up_the_log(tmp_path)
    assert (forget(tmp_path), decisions_left(tmp_path)) == (0, 1)


def test_a_damaged_list_of_closed_versions_is_an_error(tmp_path: Path) -> None:
    send_both(tmp_path, 0, begin(0))
    application = begin(0).application
    path = tmp_path / "_transactions" / application / "closed.json"
    for data in (b"", b'{"version":1}', b'{"version":1,"closed":[3]}'):
        path.write_bytes(data)
        with pytest.raises(CorruptFileError, match="closed"):
            fresh(tmp_path, "a")
