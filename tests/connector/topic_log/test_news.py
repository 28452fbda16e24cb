"""Of many topics only those are asked for news in which something happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.activity import (
    ACTIVITY,
    ANNOUNCED_S,
    BUSY_S,
    KEPT_S,
    NEWEST,
    ROUND_S,
    ActivityWatch,
    Announcer,
    activity_file,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock
from tests.connector.topics import options_of, send

NAMES = [f"persistent://public/default/t{number}" for number in range(20)]
LONG = f"persistent://public/default/{'ä' * 200}"


def news_of(root: Root, name: str) -> Announcer:
    return Announcer(root.store, name)


def made(root: Root, count: int) -> None:
    for number in range(count):
        root.open_or_create(TopicName.parse(f"t{number}"), 1)


def has_activity(source: SubscribedTopics | EmbeddedBroker) -> bool:
    return any(each.has_activity() for each in source.watched)


@contextmanager
def nobody_announces() -> Iterator[None]:
    """As writers of older versions."""
    with patch.object(Announcer, "announce", lambda _: None):
        yield


@contextmanager
def asked() -> Iterator[list[str]]:
    """The paths that a store in memory is asked for."""
    paths: list[str] = []
    original = MemoryStore.get

    def get(self: MemoryStore, path: str) -> bytes | None:
        paths.append(path)
        return original(self, path)

    with patch.object(MemoryStore, "get", get):
        yield paths


@pytest.mark.parametrize("name", [NAMES[7], LONG, "persistent://a/b/c+d~e%2F"])
def test_a_topic_is_busy_for_a_minute_after_the_last_commit(
    place: Root, clock: ManualClock, name: str
) -> None:
    watch, topics = ActivityWatch(place.store), {*NAMES, name}
    assert watch.busy(topics) == set()
    news_of(place, name).announce()
    for _ in range(int(BUSY_S) - 1):
        assert name in watch.busy(topics)
        clock.advance(1_000)
    clock.advance(1_000)
    rounds = [watch.busy(topics) for _ in range(3)]
    assert name not in rounds[1]


@pytest.mark.parametrize("path", [NEWEST, activity_file(LONG)])
@pytest.mark.parametrize("said", [b"\xff\xfe", b"", b"../x y", b"a\0b"])
def test_a_damaged_announcement_stops_nobody(
    place: Root, clock: ManualClock, path: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "remote", path == NEWEST)
    watch = ActivityWatch(place.store, deletes=True)
    watch.busy(NAMES)
    place.store.touch(path, said)
    news_of(place, NAMES[7]).announce()
    place.store.touch(path, said)
    busy = set()
    for _ in range(30):
        busy |= watch.busy(NAMES)
        clock.advance(20_000)
    assert NAMES[7] in busy


def test_an_announcement_holds_for_what_follows_within_its_time(
    place: Root, clock: ManualClock
) -> None:
    ledger = ManagedLedger.create(place.store, "f", 1, topic=NAMES[0])
    written = []
    with patch.object(type(place.store), "touch", lambda _self, path, _: written.append(path)):
        for _ in range(int(2 * ANNOUNCED_S)):
            clock.advance(1_000)
            ledger.change_settings(lambda held: {"n": held.get("n", 0) + 1})
    assert written == [activity_file(NAMES[0])] * 2


def test_a_commit_that_took_long_is_announced_again_behind_it(
    place: Root, clock: ManualClock
) -> None:
    ledger = ManagedLedger.create(place.store, "f", 1, topic=NAMES[0])
    done: list[str] = []
    create = type(place.store).put_if_absent

    def slow(self: MemoryStore, path: str, data: bytes) -> bool:
        clock.advance(int(ANNOUNCED_S * 1000))
        done.append("committed")
        return create(self, path, data)

    with (
        patch.object(type(place.store), "put_if_absent", slow),
        patch.object(type(place.store), "touch", lambda *_: done.append("announced")),
    ):
        clock.advance(int(ANNOUNCED_S * 1000))
        ledger.change_settings(lambda _: {"a": 1})
    assert done == ["announced", "committed", "announced"]


def test_an_announcement_that_is_deleted_as_it_is_made_counts(
    place: Root, clock: ManualClock
) -> None:
    watch, topics = ActivityWatch(place.store, deletes=True), set(NAMES)
    news_of(place, NAMES[3]).announce()
    watch.busy(topics)
    clock.advance(int(KEPT_S * 1000))
    delete = type(place.store).delete

    def late(self: MemoryStore, path: str) -> None:
        news_of(place, NAMES[3]).announce()
        delete(self, path)

    with patch.object(type(place.store), "delete", late):
        assert NAMES[3] in watch.busy(topics)
    assert not list(place.store.files(ACTIVITY))
    for _ in range(int(ANNOUNCED_S)):
        clock.advance(1_000)
        assert NAMES[3] in watch.busy(topics)


def test_who_does_not_announce_is_found_in_the_round(place: Root, clock: ManualClock) -> None:
    watch, topics = ActivityWatch(place.store), set(NAMES)
    found: set[str] = set()
    for _ in range(int(ROUND_S) + 1):
        clock.advance(1_000)
        run_once = watch.busy(topics)
        assert len(run_once) <= 1
        found |= run_once
    assert found == topics


def test_a_look_asks_as_few_logs_however_many_topics_there_are(
    place: Root, clock: ManualClock
) -> None:
    looks = []
    for count in (10, 100):
        made(place, count)
        options = options_of(place.service_url, Scope.STREAM_READ, {"topicsPattern": "t.*"})
        topics = SubscribedTopics(options, place)
        topics.refresh()
        topics.refresh()
        clock.advance(int(BUSY_S * 1000))
        topics.refresh()
        with asked() as paths:
            assert not topics.refresh()
        looks.append(len(paths))
        send(place.service_url, "t5", "a")
        assert has_activity(topics)
        with asked() as paths:
            assert topics.refresh()
        assert len(paths) < 20
        assert not topics.refresh()
        assert not has_activity(topics)
    assert looks[0] == looks[1] <= 2


def test_a_broker_of_many_topics_hears_of_each_message_at_once_and_of_others_in_the_round(
    place: Root, clock: ManualClock
) -> None:
    made(place, len(NAMES))
    with EmbeddedBroker(place) as broker:
        for name in NAMES:
            record = Record.of(TopicPartition(name, 0), "s", CreateSubscription("s"))
            SystemTopic(place, COMMANDS).append([record])
        broker.until_quiet()
        for step, name in enumerate([*NAMES, *NAMES[::-1]]):
            clock.advance(int(BUSY_S * 1000) if step % 7 == 0 else 500)
            broker.until_quiet()
            send(place.service_url, name, "a")
            assert has_activity(broker)
            assert broker.until_quiet()
            assert backlog(broker, name) == 1 + step // len(NAMES)
        with nobody_announces():
            send(place.service_url, NAMES[4], "a")
        for _ in range(int(ROUND_S) + 1):
            clock.advance(1_000)
            broker.until_quiet()
        assert backlog(broker, NAMES[4]) == 3


def backlog(broker: EmbeddedBroker, name: str) -> int:
    state = broker.brokers[name, 0].state
    assert state is not None
    return len(state.ledgers)
