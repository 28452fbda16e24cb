"""A batch of the broker costs what happened, and a start what there is to do: counted, not timed.

The embedded broker on a store in memory, with ten busy topics, and with ten busy ones among a
thousand that are idle.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.protocol.commands import CreateSubscription, InitialPosition
from pulsar_spark.connector.runtime.broker import broker_sink, broker_source
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping.housekeeper import EVERY_S, ROUND_S, Housekeeper
from pulsar_spark.connector.runtime.system_topics.hosted_topics import FollowedTopics, last_shards
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.activity import BUSY_S
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.testing import ManualClock
from tests.connector.topics import send

BUSY = [f"busy{number}" for number in range(10)]
IDLE = [f"idle{number}" for number in range(1_000)]
CALLS = (
    "get", "get_versioned", "create", "compare_and_swap", "touch", "size", "files", "folders",
    "delete", "open_input", "open_output",
)  # fmt: skip
CHECKPOINT = "_broker/c"


def topic_partition(name: str) -> TopicPartition:
    return TopicPartition(str(TopicName.parse(name)), 0)


def reported(root: Root, *names: str) -> None:
    SystemTopic(root, COMMANDS).append(
        Record.of(topic_partition(each), "s", CreateSubscription("s", InitialPosition.EARLIEST))
        for each in names
    )


def passed(root: Root, broker: EmbeddedBroker, clock: ManualClock) -> None:
    """Nothing happens for so long that nobody counts as busy."""
    for _ in range(3):
        clock.advance(int(BUSY_S * 1000))
        broker.until_quiet()
    assert not list(root.store.files("_activity"))


@contextmanager
def counted() -> Iterator[Counter[tuple[str, str]]]:
    """How often a store in memory is asked for what."""
    calls: Counter[tuple[str, str]] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(MemoryStore, name, counting(name, getattr(MemoryStore, name), calls))
        yield calls


def counting(name: str, call: Any, calls: Counter[tuple[str, str]]) -> Any:
    def called(store: MemoryStore, path: str, *given: object) -> Any:
        calls[name, path] += 1
        return call(store, path, *given)

    return called


def hosting(root: Root, clock: ManualClock, *names: str) -> EmbeddedBroker:
    for name in names:
        root.open_or_create(TopicName.parse(name), 1)
    reported(root, *names)
    broker = EmbeddedBroker(root, CHECKPOINT)
    broker.until_quiet()
    passed(root, broker, clock)
    return broker


def cost(root: Root, broker: EmbeddedBroker) -> dict[str, int]:
    """Of one batch in which each busy topic has a message, and of the look behind it."""
    for name in BUSY:
        send(root.service_url, name, ["x"])
    with counted() as calls:
        assert broker.run_once()
        assert not broker.run_once()
    rows = list(broker._source.input_of(broker.offset).rows())
    return {
        "calls": sum(calls.values()),
        "rows in": len(rows),
        "rows out": len(broker.done),
        "offset": len(broker.offset.to_json()),
    }


def test_ten_busy_topics_of_a_thousand_cost_as_much_as_ten(clock: ManualClock) -> None:
    costs = []
    for names in (BUSY, [*IDLE, *BUSY]):
        root = Root(MemoryStore.named(f"costs-{len(names)}", clock).root, {})
        try:
            broker = hosting(root, clock, *names)
            cost(root, broker)  # opens what it needs
            costs.append(cost(root, broker))
            with counted() as calls:
                assert not broker.run_once()
            costs[-1]["idle calls"] = sum(calls.values())
            broker.close()
        finally:
            MemoryStore.forget(f"costs-{len(names)}")
    few, many = costs
    assert many == few


def touched(calls: Counter[tuple[str, str]], names: list[str]) -> list[str]:
    folders = [TopicName.parse(each).storage_path + "/" for each in names]
    return [path for _, path in calls if any(path.startswith(each) for each in folders)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_broker_that_begins_touches_nobody_who_has_nothing_to_do(
    place: Root, clock: ManualClock, *, lost: bool
) -> None:
    idle = IDLE[:50]
    before = hosting(place, clock, *idle, *BUSY)
    for value in "ab":
        send(place.service_url, BUSY[0], [value])
        if value == "a":
            before.until_quiet()
    before.close()
    if lost:
        place.store.delete(CHECKPOINT)
    with counted() as calls:
        broker = EmbeddedBroker(place, CHECKPOINT)
        assert broker.until_quiet() == (2 if lost else 1)
    if not lost:
        assert touched(calls, [*idle, *BUSY[1:]]) == []
    state = from_shards(broker.brokers[topic_partition(BUSY[0])].shards)
    assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 2
    assert broker.hosted.commits.keys() == {topic_partition(each) for each in [*idle, *BUSY]}


def test_of_many_topics_the_housekeeper_looks_at_those_with_news_and_those_whose_time_has_come(
    place: Root, clock: ManualClock
) -> None:
    idle = IDLE[:150]
    for name in idle:
        place.open_or_create(TopicName.parse(name), 1)
    keeper = Housekeeper(place)
    clock.advance(int(2 * BUSY_S * 1000))
    keeper.run_once()
    clock.advance(int(EVERY_S * 1000))
    send(place.service_url, idle[7], ["x"])
    with counted() as calls:
        keeper.run_once()
    looked_at = {name for name in idle if touched(calls, [name])}
    assert idle[7] in looked_at
    assert len(looked_at) <= 1 + len(idle) * EVERY_S / ROUND_S + 1
    policies = Admin(place.service_url).policies("public/default")
    policies.set(delete_inactive_topics=True, max_inactive_duration="10m")
    for _ in range(int((ROUND_S + 900) / EVERY_S)):
        clock.advance(int(EVERY_S * 1000))
        keeper.run_once()
    assert not [name for name in idle if place.open_found(TopicName.parse(name))]


def same(root: Root, broker: EmbeddedBroker) -> None:
    """What `__dispatch` says, however far it is trimmed, is what the broker hosts."""
    dispatch = SystemTopic(root, DISPATCH)
    found, shards = last_shards(dispatch, dispatch.refresh())
    known = broker.hosted
    for name in ("commits", "partitions", "quarantined", "policies", "topics"):
        assert getattr(found, name) == getattr(known, name), name
    held = {key: each.shards for key, each in broker.brokers.items() if each.shards}
    assert {(*each,): said for each, said in shards.items()} == held


@pytest.mark.parametrize("seed", range(3))
def test_dispatch_is_trimmed_by_and_by_and_still_says_all_that_there_is(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    lots = random.Random(seed)
    every, kept = 12, 4
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", every)
    monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", kept)
    monkeypatch.setattr(broker_sink, "COMMANDS_KEPT", 0)
    names = [f"t{number}" for number in range(24)]
    broker = hosting(place, clock, *names)
    for round_ in range(80):
        name = lots.choice(names)
        match lots.randrange(8):
            case 0:
                reported(place, name)
            case 1:
                ledger = place.open(TopicName.parse(name))
                ledger.grow(ledger.state.partitions + 1)
            case 2:
                Admin(place.service_url).policies("public/default").set(
                    message_ttl=f"{1 + round_}s"
                )
                clock.advance(10_000)
            case 3 if round_ % 5 == 0:
                Admin(place.service_url).topics.delete(name, force=True)
                place.open_or_create(TopicName.parse(name), 1)
                reported(place, name)
            case 4:
                broker.close()
                if lots.random() < 0.5:
                    place.store.delete(CHECKPOINT)
                broker = EmbeddedBroker(place, CHECKPOINT)
            case _:
                send(place.service_url, name, ["x"])
        while broker.run_once():
            renewed = sum(part.is_renewed for part in broker.offset.parts.values())
            assert renewed <= 2 * len(broker.hosted.commits) // every
        same(place, broker)
    dispatch = SystemTopic(place, DISPATCH)
    length = dispatch.refresh() - dispatch.first_ledger()
    assert dispatch.first_ledger() > 0
    assert length <= 2 * every + 2 * kept + 4, "what is old was said again"
    followed = FollowedTopics(place)
    followed.follow()
    assert followed.commits == broker.hosted.commits
