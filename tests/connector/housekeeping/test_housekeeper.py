"""What a broker does by itself: it compacts and tidies, is killed, stopped and got in the way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.housekeeping.housekeeper import FILES_TO_MERGE, Housekeeper
from pulsar_spark.connector.runtime.topics.ledger_store import FILE_GRACE_MS, LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.testing import ManualClock, Place
from tests.connector.reading import messages
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.test_transactions import TOPICS, begin, left_open, send_both
from tests.connector.topics import ledger_of, numbers, send

T = "persistent/public/default/t"


class KilledError(BaseException):
    """The process that called is no more."""


class MeddledStore(MemoryStore):
    """Calls `at_change` with the number of each change, before and after it, and `at_read`."""

    def __init__(self, root: str, clock: Clock) -> None:
        super().__init__(root, clock)
        self.changes = 0
        self.at_change: Callable[[int, bool], None] = lambda _number, _after: None
        self.at_read: Callable[[], None] = lambda: None

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._change(super().create, path, data))

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return bool(self._change(super().compare_and_swap, path, token, data))

    def delete(self, path: str) -> None:
        self._change(super().delete, path)

    def open_input(self, path: str) -> Any:
        self.at_read()
        return super().open_input(path)

    def _change(self, change: Callable[..., Any], *given: Any) -> Any:
        self.changes += 1
        number = self.changes
        self.at_change(number, False)
        done = change(*given)
        self.at_change(number, True)
        return done


_numbers = itertools.count()


def meddled() -> tuple[MeddledStore, Root]:
    """A store in memory, and a topic `t` of two partitions with more than its threshold in one."""
    store = MeddledStore.named(f"meddled-{next(_numbers)}", ManualClock(1_700_000_000_000))
    assert isinstance(store, MeddledStore)
    for number in range(FILES_TO_MERGE):
        put(store.root, f"a={number:03}", f"b={number:03}")
    put(store.root, "c=1", to=1)
    Admin(store.root).policies("t").set(compaction_threshold=100)
    return store, Root(store.root, {})


@pytest.fixture
def stores() -> Iterator[None]:
    """Forget what `meddled` has made."""
    first = next(_numbers)
    yield
    for number in range(first, next(_numbers)):
        MemoryStore.forget(f"meddled-{number}")


def put(url: str, *pairs: str, to: int = 0) -> None:
    keys, values = zip(*(pair.split("=") for pair in pairs), strict=True)
    columns = {"key": list(keys), "topic": [f"t-partition-{to}"] * len(pairs)}
    send(url, "t", values, columns=columns, numPartitions=2)


def compacted(url: str) -> list[str]:
    found = messages(url, readCompacted=True)
    return [f"{each['key']}={each['value'].decode()}" for each in found]


def everything(url: str) -> list[tuple[Any, ...]]:
    names = ("partition", "ledger_id", "entry_id", "batch_index", "key", "value")
    return sorted(tuple(each[name] for name in names) for each in messages(url))


# -- compaction ------------------------------------------------------------------------------------


def test_the_broker_compacts_by_itself_once_more_than_the_threshold_was_published(
    pulsarlite: Place,
) -> None:
    prices = pulsarlite.client.create_producer("prices")
    policies = Admin(pulsarlite.service_url).policies("public/default")
    policies.set(compaction_threshold="10")

    def horizon() -> Any:
        compacted = ledger_of(pulsarlite.service_url, "prices").state.partition(0).compacted
        return compacted and compacted.horizon

    prices.send(b"12345", partition_key="a")
    prices.send(b"67890", partition_key="a")
    pulsarlite.clock.advance(hours=1)
    assert horizon() is None  # ten bytes are not more than ten
    prices.send(b"1", partition_key="a")
    pulsarlite.clock.advance(minutes=1)
    assert horizon().ledger_id == 2
    client, start = pulsarlite.client, pulsar.MessageId.earliest
    reader = client.create_reader("prices", start, is_read_compacted=True)
    assert [each.data() for each in iter(lambda: read(reader), None)] == [b"1"]
    prices.send(b"23456", partition_key="a")
    pulsarlite.clock.advance(hours=1)
    assert horizon().ledger_id == 2  # what was compacted counts no more
    Admin(pulsarlite.service_url).policies("prices").set(compaction_threshold=4)
    pulsarlite.clock.advance(minutes=1)
    assert horizon().ledger_id == 3
    policies.set(compaction_threshold=1)
    Admin(pulsarlite.service_url).policies("prices").set(compaction_threshold=0)
    prices.send(b"34567", partition_key="a")
    pulsarlite.clock.advance(hours=1)
    assert horizon().ledger_id == 3


def read(reader: pulsar.Reader) -> pulsar.Message | None:
    return reader.read_next() if reader.has_message_available() else None


@pytest.mark.usefixtures("stores")
def test_only_partitions_above_the_threshold_are_compacted() -> None:
    store, root = meddled()
    Housekeeper(root).run_once()
    state = ledger_of(store.root, "t").state
    assert state.partition(0).compacted is not None
    assert state.partition(1).compacted is None
    assert compacted(store.root) == ["a=031", "b=031", "c=1"]


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_one_that_is_killed_at_any_change_leaves_what_the_next_can_finish(
    *, is_after: bool
) -> None:
    killed = 0
    for at in itertools.count(1):
        store, root = meddled()
        before, first = everything(store.root), store.changes

        def kill(number: int, after: bool, last: int = first + at) -> None:
            if number == last and after == is_after:
                raise KilledError

        store.at_change = kill
        try:
            Housekeeper(root).run_once()
        except KilledError:
            killed += 1
        store.at_change = lambda _number, _after: None
        assert everything(store.root) == before
        ledger = ledger_of(store.root, "t")
        keeper = Housekeeper(root)
        ledger.store.clock.advance(days=2)  # type: ignore[attr-defined]
        keeper.run_once()
        ledger.store.clock.advance(hours=2)  # type: ignore[attr-defined]
        keeper.run_once()
        assert everything(store.root) == before, at
        assert compacted(store.root) == ["a=031", "b=031", "c=1"], at
        ledger.refresh()
        check_state(ledger.state)
        there = {item.path for item in store.files(f"{T}/data")}
        assert there == {f"{T}/{file}" for file in ledger.state.files}, at
        if killed < at:
            break
    assert killed >= 4


@pytest.mark.usefixtures("stores")
def test_of_two_that_compact_at_once_one_is_given_up() -> None:
    store, root = meddled()
    others: list[int] = []

    def other() -> None:
        store.at_read = lambda: None
        others.append(len(compact(ledger_of(store.root, "t"))))

    store.at_read = other
    Housekeeper(root).run_once()
    assert others == [2]
    assert compacted(store.root) == ["a=031", "b=031", "c=1"]
    store.clock.advance(days=2)  # type: ignore[attr-defined]
    Housekeeper(root).run_once()
    assert compacted(store.root) == ["a=031", "b=031", "c=1"]


@pytest.mark.usefixtures("stores")
def test_one_that_is_to_end_gives_up_the_compaction_that_is_under_way() -> None:
    store, root = meddled()
    keeper, commits = Housekeeper(root), ledger_of(store.root, "t").state.number
    store.at_read = keeper.end
    keeper.run_once()
    assert ledger_of(store.root, "t").state.number == commits
    assert len(list(store.files(f"{T}/data"))) == FILES_TO_MERGE + 1


@pytest.mark.usefixtures("stores")
def test_what_is_in_trouble_or_held_up_keeps_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, root = meddled()
    send(store.root, "broken", ["a"])
    store.touch("persistent/public/default/broken/_log/00000000000000000001.json", b"{")
    now_ms = store.clock.wall_ms()
    Housekeeper(root).run_once()
    assert ledger_of(store.root, "t").state.partition(0).compacted is not None
    assert re.search(r"leaves persistent://public/default/broken for later", caplog.text)
    assert store.clock.wall_ms() == now_ms


# -- tidying ---------------------------------------------------------------------------------------


def files(place: Place, topic: str = T) -> int:
    return len(list(place.root.store.files(f"{topic}/data")))


def test_small_files_are_merged_and_those_that_nobody_needs_deleted(pulsarlite: Place) -> None:
    consumer = pulsarlite.client.subscribe("other", "s")  # so that a broker runs
    for number in numbers(0, FILES_TO_MERGE - 1):
        send(pulsarlite.service_url, "t", [number])
    pulsarlite.clock.advance(hours=1)
    assert files(pulsarlite) == FILES_TO_MERGE - 1
    send(pulsarlite.service_url, "t", ["last"])
    pulsarlite.clock.advance(minutes=10)
    assert files(pulsarlite) == FILES_TO_MERGE + 1
    pulsarlite.clock.advance(milliseconds=FILE_GRACE_MS)
    pulsarlite.clock.advance(minutes=10)
    assert files(pulsarlite) == 1
    assert [each["value"].decode() for each in messages(pulsarlite.service_url)] == [
        *numbers(0, FILES_TO_MERGE - 1), "last",
    ]  # fmt: skip
    consumer.close()


def test_what_killed_processes_left_and_who_publishes_no_more_is_forgotten(
    pulsarlite: Place,
) -> None:
    consumer = pulsarlite.client.subscribe("other", "s")
    url, store = pulsarlite.service_url, pulsarlite.root.store
    send(url, "t", ["a"], application=("query", 1))
    left = (f"{T}/data/.tmp-1", f"{T}/data/never.parquet", "_leases/.tmp-2", "_broker/.tmp-3")
    for path in left:
        store.touch(path, b"left")
    pulsarlite.clock.advance(hours=23)
    assert all(map(store.exists, left))
    pulsarlite.clock.advance(hours=2)
    pulsarlite.clock.advance(hours=2)
    assert [path for path in left if store.exists(path)] == []
    assert ledger_of(url, "t").state.applications == {"query": 1}
    send(url, "t", ["b"], application=("another", 1))
    pulsarlite.clock.advance(days=30)
    send(url, "t", ["b"], application=("another", 2))
    pulsarlite.clock.advance(hours=2)
    assert ledger_of(url, "t").state.applications == {"another": 2}
    consumer.close()


def test_files_of_ledgers_that_every_subscription_has_passed_are_deleted_after_an_hour(
    pulsarlite: Place,
) -> None:
    consumer = pulsarlite.client.subscribe("t", "s")
    for number in numbers(0, 10):
        send(pulsarlite.service_url, "t", [number])
        consumer.acknowledge(consumer.receive())
        pulsarlite.clock.advance(minutes=1)
    pulsarlite.clock.advance(minutes=30)
    assert files(pulsarlite) == 10
    pulsarlite.clock.advance(minutes=45)
    assert files(pulsarlite) == 1
    consumer.close()


@pytest.mark.usefixtures("stores")
def test_a_topic_whose_log_ends_in_an_open_transaction_is_left_as_it_is() -> None:
    store, root = meddled()
    send_both(store.root, 0, begin(0))
    left_open(store.root, begin(1), 1)
    for name in TOPICS:
        log = ledger_of(store.root, name)
        log.store.touch(f"{log.folder}/data/.tmp-1", b"")
    before, now_ms = ledger_of(store.root, TOPICS[0]).state.number, store.clock.wall_ms()
    Housekeeper(root).run_once()
    assert ledger_of(store.root, TOPICS[0]).state.number == before
    assert ledger_of(store.root, "t").state.partition(0).compacted is not None
    assert store.clock.wall_ms() == now_ms


def test_a_topic_to_which_nobody_ever_subscribed_keeps_what_its_retention_says(
    pulsarlite: Place,
) -> None:
    consumer = pulsarlite.client.subscribe("other", "s")
    url, clock = pulsarlite.service_url, pulsarlite.clock

    def kept(topic: str) -> list[str]:
        return [each["value"].decode() for each in messages(url, topic)]

    for topic in "tu":
        send(url, topic, ["a"])
    clock.advance(hours=2)
    assert kept("t") == ["a"], "nobody has said that it may go"
    Admin(url).policies("t").set(retention_time="1h", retention_size=-1)
    send(url, "t", ["b"])
    clock.advance(minutes=1)
    for number in "cde":
        clock.advance(minutes=20)
        send(url, "t", [number])
    assert kept("t") == ["c", "d", "e"]
    clock.advance(minutes=21)
    assert kept("t") == ["d", "e"]
    clock.advance(days=1)
    assert kept("t") == ["e"]
    assert kept("u") == ["a"]
    consumer.close()


def test_nothing_is_done_for_a_root_whose_broker_is_gone(pulsarlite: Place) -> None:
    pulsarlite.client.subscribe("t", "s").close()
    pulsarlite.client.close()
    for number in numbers(0, FILES_TO_MERGE):
        send(pulsarlite.service_url, "t", [number])
    pulsarlite.clock.advance(hours=3)
    assert files(pulsarlite) == FILES_TO_MERGE
    LedgerStore(ledger_of(pulsarlite.service_url, "t")).merge_small_files()
    pulsarlite.clock.advance(seconds=timedelta(hours=3).total_seconds())
    assert files(pulsarlite) == FILES_TO_MERGE + 1
