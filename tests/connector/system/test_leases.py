"""Who is given up, and who is not: consumers, the broker's loop and a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.broker.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.broker.protocol.ready import Grant, Reply
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.broker.watched_leases import WatchedLeases
from pulsar_spark.connector.runtime.system_topics.lease import (
    LEASES,
    Lease,
    LeaseKeeper,
    leases,
    read_lease,
)
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import ConsumerBusyError, ServerError, StorageError
from pulsar_spark.model.records.stored_record import canonical_json
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.testing import ManualClock
from tests.connector.reading import Run
from tests.connector.topics import send

FULL = "persistent://public/default/"
ABOUT = TopicPartition(f"{FULL}t", 0)
STUCK_S = 10.0

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def loop(place: Root, tmp_path: Path) -> EmbeddedBroker:
    return EmbeddedBroker(place, "_broker/broker")


def consumer(place: Root, name: str, topics: str = "t", **given: Any) -> Run:
    names = {"topics": topics, "subscriptionName": "s", "consumerName": name}
    kind = {"subscriptionType": "Exclusive", "subscriptionInitialPosition": "Earliest"}
    return Run(place.service_url, **(names | kind | given))


def turns(loop: EmbeddedBroker, *runs: Run) -> list[str]:
    """Consumers and broker by turns until neither has anything to do; what came."""
    values: list[str] = []
    while True:
        batches = [batch for run in runs if (batch := run.next()) is not None]
        values += [value for batch in batches for value in batch.values]
        if not loop.until_quiet() and not batches:
            return values


def subscribe(place: Root, name: str = "c", topic_partition: TopicPartition = ABOUT) -> None:
    command = Subscribe(
        "s", name, 1, SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST, permits=9
    )
    SystemTopic(place, COMMANDS).append([Record.of(topic_partition, "s", command)])


def reported(place: Root, kind: type) -> list[Any]:
    dispatch = SystemTopic(place, DISPATCH)
    found = dispatch.read(0, dispatch.refresh(), keep=lambda _, name: not name.startswith("\x00"))
    return [item for each in found if isinstance(item := each.record.item(), kind)]


def given_up(place: Root) -> list[str]:
    replies = reported(place, Reply)
    return [each.consumer for each in replies if each.error is ServerError.CONSUMER_REPLACED]


def consumers(place: Root) -> list[tuple[str, str]]:
    return [
        (each.topic_partition.topic.removeprefix(FULL), one.name)
        for each in subscriptions(place)
        for one in each.consumers
    ]


def looks(loop: EmbeddedBroker, clock: ManualClock, count: int, every_s: int = 1) -> None:
    for _ in range(count):
        clock.advance(every_s * 1000)
        loop.until_quiet()


# -- a lease that lapses -------------------------------------------------------------------------


@pytest.mark.parametrize("is_written", [True, False])
def test_news_that_come_as_a_lease_is_renewed_make_it_short_and_wait_for_no_request(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    monkeypatch.setattr(place.store, "remote", True)
    keeper, lease = LeaseKeeper(place.store), Lease("s", "c", 1, 30_000)
    keeper.keep(lease)
    activity = threading.Thread(target=keeper.wake, daemon=True)
    touch, waited = MemoryStore.touch, list[bool]()

    def touched(store: MemoryStore, path: str, data: bytes) -> None:
        monkeypatch.setattr(MemoryStore, "touch", touch)
        if is_written:
            touch(store, path, data)
        activity.start()
        activity.join(STUCK_S)
        waited.append(activity.is_alive())
        if not is_written:
            touch(store, path, data)

    monkeypatch.setattr(MemoryStore, "touch", touched)
    keeper.rest(3600)
    clock.advance(10_000)
    assert waited == [False]
    shown = read_lease(place.store, lease.path)
    assert shown is not None
    assert shown.lease_ms == lease.lease_ms


@pytest.mark.parametrize("every_s", [1, 20, 100])
def test_the_dead_are_given_up_however_seldom_the_broker_looks(
    loop: EmbeddedBroker, place: Root, clock: ManualClock, every_s: int
) -> None:
    send(place.service_url, "t", "a")
    keeper = LeaseKeeper(place.store)
    keeper.keep(Lease("s", "c", 1, 30_000))
    subscribe(place)
    looks(loop, clock, 1 + 120 // every_s, every_s)
    assert not given_up(place)
    keeper.stop()
    looks(loop, clock, 3 + 30 // every_s, every_s)
    assert given_up(place) == ["c"]
    assert not list(place.store.files("_leases"))


@pytest.mark.parametrize(
    "lease_ms", ["30000", None, -5, 10**400, 1.5], ids=lambda each: str(each)[:9]
)
def test_a_file_that_is_no_lease_ends_no_broker(
    place: Root, clock: ManualClock, loop: EmbeddedBroker, lease_ms: Any
) -> None:
    who = {"version": 1, "subscription": "s", "consumer": "x", "incarnation": 1, "partitions": []}
    place.store.touch("_leases/s~x~1", canonical_json({**who, "lease_ms": lease_ms}))
    send(place.service_url, "t", ["a"])
    for _ in range(60):
        clock.advance(1_000)
        loop.until_quiet()
    assert place.store.exists("_leases/s~x~1")


def test_a_consumer_without_a_file_is_given_up_too(
    loop: EmbeddedBroker, place: Root, clock: ManualClock, tmp_path: Path
) -> None:
    send(place.service_url, "t", "a")
    subscribe(place)
    looks(loop, clock, 5)
    again = EmbeddedBroker(place, "_broker/broker")
    looks(again, clock, 20)
    assert not given_up(place)
    looks(again, clock, 15)
    assert given_up(place) == ["c"]


def test_wall_time_that_jumps_ahead_and_back_gives_up_nobody(
    loop: EmbeddedBroker, place: Root, clock: ManualClock
) -> None:
    send(place.service_url, "t", "a")
    LeaseKeeper(place.store).keep(Lease("s", "c", 1, 30_000))
    subscribe(place)
    looks(loop, clock, 5)
    clock.ahead_ms = 3_600_000
    send(place.service_url, "t", "b")
    looks(loop, clock, 60)
    clock.ahead_ms = 0
    send(place.service_url, "t", "c")
    looks(loop, clock, 60)
    assert not given_up(place)
    assert len(reported(place, Grant)) == 3


def test_a_store_whose_clock_is_wrong_gives_up_nobody(
    loop: EmbeddedBroker, place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryStore.files

    def slow(self: MemoryStore, folder: str) -> Iterator[Any]:
        for each in files(self, folder):
            object.__setattr__(each, "modified_ms", each.modified_ms - 86_400_000)
            yield each

    monkeypatch.setattr(MemoryStore, "files", slow)
    LeaseKeeper(place.store).keep(Lease("s", "c", 1, 30_000))
    subscribe(place)
    looks(loop, clock, 60)
    assert not given_up(place)


def test_a_broker_that_slept_with_its_consumers_gives_them_time(
    loop: EmbeddedBroker, place: Root, clock: ManualClock
) -> None:
    lease = Lease("s", "c", 1, 30_000)
    keeper = LeaseKeeper(place.store)
    keeper.keep(lease)
    subscribe(place)
    looks(loop, clock, 10)
    keeper.stop()  # with the machine
    looks(loop, clock, 1, every_s=3600)
    LeaseKeeper(place.store).keep(lease)
    looks(loop, clock, 60)
    assert not given_up(place)


def test_a_sign_of_life_that_comes_behind_a_slow_listing_is_not_counted_against_its_consumer(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.store, "remote", True)
    lease = Lease("s", "c", 1, 30_000)
    place.store.touch(lease.path, lease.to_json())
    watched, known = WatchedLeases(place.store), {lease.path: {ABOUT: lease}}
    assert not watched.over(known)
    for behind_s in (15, 30):  # when the other requests of each look are done, each 5 s long
        clock.advance(seconds=10)
        watched.ask()
        if behind_s == 30:
            place.store.touch(lease.path, lease.to_json())
        clock.advance(seconds=5)
        assert not watched.over(known), behind_s


def test_who_shows_life_while_a_listing_is_under_way_is_not_given_up_by_the_broker(
    loop: EmbeddedBroker, place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.store, "remote", True)
    lease, files = Lease("s", "c", 1, 30_000), MemoryStore.files
    place.store.touch(lease.path, lease.to_json())
    subscribe(place)
    loop.until_quiet()

    def slow(self: MemoryStore, folder: str) -> Iterator[Any]:
        listed = [*files(self, folder)]
        if folder == LEASES:
            clock.advance(seconds=1)
            if clock.monotonic_s() - begun_s > 25:  # within its lease
                place.store.touch(lease.path, lease.to_json())
            clock.advance(seconds=5)
        yield from listed

    begun_s = clock.monotonic_s()
    monkeypatch.setattr(MemoryStore, "files", slow)
    looks(loop, clock, 2, every_s=10)
    assert clock.monotonic_s() - begun_s > 30, "beyond the lease as it was listed"
    assert not given_up(place)


def test_a_consumer_at_work_that_has_a_long_lease_is_not_called(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.store, "remote", True)
    lease = Lease("s", "c", 1, 600_000)
    LeaseKeeper(place.store).keep(lease)
    watched, known = WatchedLeases(place.store), {lease.path: {ABOUT: Lease("s", "c", 1)}}
    over: list[str] = []
    for _ in range(60):
        watched.wake_up([ABOUT])
        clock.advance(seconds=10)
        over += watched.over(known)
    assert not over


# -- refused on one of several topics ------------------------------------------------------------


def test_a_consumer_that_is_refused_on_one_topic_leaves_the_others(
    loop: EmbeddedBroker, place: Root
) -> None:
    for topic in "tu":
        send(place.service_url, topic, ["a"])
    owner = consumer(place, "owner", "u")
    turns(loop, owner)
    refused = consumer(place, "refused", "t,u")
    with pytest.raises(ConsumerBusyError):
        turns(loop, refused)
    loop.until_quiet()
    assert consumers(place) == [("u", "owner")]
    assert not [each for each in place.store.files("_leases") if "refused" in each.path]
    assert turns(loop, consumer(place, "next", "t")) == ["a"]


def test_one_that_could_not_say_that_it_leaves_lapses(
    loop: EmbeddedBroker, place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in "tu":
        send(place.service_url, topic, ["a"])
    owner = consumer(place, "owner", "u")
    turns(loop, owner)
    refused = consumer(place, "refused", "t,u")
    for _ in range(2):
        refused.next()
    loop.until_quiet()

    def fails(*_: Any, **__: Any) -> None:
        raise StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(SystemTopic, "append", fails)
        with pytest.raises(ConsumerBusyError):
            refused.next()
    assert ("t", "refused") in consumers(place)
    looks(loop, clock, 40)
    assert consumers(place) == [("u", "owner")]


def test_a_lease_whose_consumer_never_came_is_forgotten_and_makes_no_broker(
    loop: EmbeddedBroker, place: Root, clock: ManualClock, tmp_path: Path
) -> None:
    send(place.service_url, "t", "a")
    send(place.service_url, "u", "a")
    subscribe(place)
    killed = Lease("s", "d", 7, 30_000)  # between its lease and its Subscribe
    place.store.touch(killed.path, killed.to_json())
    keeper = LeaseKeeper(place.store)
    keeper.keep(Lease("s", "c", 1, 30_000))
    looks(loop, clock, 40)
    assert [each.path for each in place.store.files("_leases")] == ["_leases/s~c~1"]
    fresh = EmbeddedBroker(place, "_broker/another")
    send(place.service_url, "t", "b")
    looks(fresh, clock, 2)
    assert len(reported(place, Grant)) == 2


def test_names_of_any_length_have_leases_of_their_own_on_a_disk(tmp_path: Path) -> None:
    store, long = open_store(str(tmp_path)), "ü" * 300
    held = [Lease(long + name, long, 2**62, 60_000) for name in ("", "a", "b")]
    for each in held:
        keeper = LeaseKeeper(store)
        keeper.keep(each)
        keeper.stop()
    assert {read_lease(store, path) for path in leases(store)} == set(held)


def test_a_name_that_a_disk_allows_is_the_files_own_and_another_is_as_long(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    longest = "a" * (255 - len("s~~7"))
    for name, path in ((longest, f"s~{longest}~7"), (longest + "a", None)):
        held = Lease("s", name, 7, 60_000)
        keeper = LeaseKeeper(store)
        keeper.keep(held)
        keeper.stop()
        assert read_lease(store, held.path) == held
        assert len(held.path.removeprefix("_leases/")) == 255
        assert path is None or held.path == f"_leases/{path}"
