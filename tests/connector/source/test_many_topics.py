"""Readers and consumers of many topics: what they do follows what happened, not what there is."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.reading import offset_store
from pulsar_spark.connector.runtime.reading.offset_store import OffsetStore
from pulsar_spark.connector.runtime.topics.activity import BUSY_S
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.consumer.partition_consumer import PartitionConsumer
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.testing import ManualClock
from tests.connector.reading import Batch, Run
from tests.connector.topics import send

pytestmark = pytest.mark.usefixtures("impatient")

BUSY = 10
SIZES = (BUSY, 200)
PATTERN: dict[str, Any] = {"topicsPattern": "t.*", "topicDiscoveryInterval": 10**9}
EVERY: dict[str, Any] = {**PATTERN, "startingOffsets": "earliest"}
COUNTED = (
    (MemoryStore, "get"),
    (MemoryStore, "create"),
    (MemoryStore, "compare_and_swap"),
    (MemoryStore, "touch"),
    (MemoryStore, "size"),
    (MemoryStore, "files"),
    (MemoryStore, "delete"),
    (MemoryStore, "open_input"),
    (MemoryStore, "open_output"),
    (PartitionOffset, "to_json_value"),
    (PartitionConsumer, "offered"),
    (PartitionConsumer, "report"),
    (wire_format, "encode"),
)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each of COUNTED is called."""
    calls: Counter[str] = Counter()

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return original(*given, **named)

        return call

    with ExitStack() as patches:
        for owner, name in COUNTED:
            count = counting(name, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, count))
        yield calls


def made(root: Root, count: int, prefix: str = "t") -> list[str]:
    """So many topics; the names of the busy ones."""
    names = [f"{prefix}{number:04d}" for number in range(count)]
    for name in names:
        root.open_or_create(TopicName.parse(name), 1)
    return names[:: count // BUSY]


def published(root: Root, names: list[str], value: str) -> None:
    for name in names:
        send(root.service_url, name, [value])


def size(value: Any) -> int:
    return len(json.dumps(value))


def test_a_reader_of_many_topics_does_what_one_of_its_busy_topics_does(
    place: Root, clock: ManualClock
) -> None:
    found = []
    for count in SIZES:
        busy = made(place, count)
        run = Run(place.service_url, **EVERY)
        assert run.next() is not None
        clock.advance(int(BUSY_S * 1000))
        assert run.next() is None
        calls, sizes = [], []
        for number in range(5):
            published(place, busy, str(number))
            with counted() as each:
                batch = run.next()
            assert batch is not None
            assert len(batch.messages) == BUSY
            calls.append(each)
            sizes.append(size(batch.end) + size(run.reader.reportLatestOffset()))
        with counted() as idle:
            assert run.next() is None
        found.append((calls[-1], idle, max(sizes)))
    (few, few_idle, few_bytes), (many, many_idle, many_bytes) = found
    assert many == few
    assert many_idle == few_idle
    assert many_bytes < few_bytes + 500


@pytest.mark.parametrize("ack_mode", ["auto", "manual"])
def test_a_consumer_of_many_topics_does_what_one_of_its_busy_topics_does(
    place: Root, clock: ManualClock, ack_mode: str
) -> None:
    found = []
    for count in SIZES:
        busy = made(place, count, f"of-{count}-")
        run = Run(
            place.service_url, subscriptionName="s", subscriptionType="Shared",
            ackMode=ack_mode, **(PATTERN | {"topicsPattern": f"of-{count}-.*"}),
        )  # fmt: skip
        with EmbeddedBroker(place) as broker:
            while run.next() is not None or broker.run_once():
                pass
            clock.advance(int(BUSY_S * 1000))
            while run.next() is not None or broker.run_once():
                pass
            calls, sizes = [], []
            for number in range(5):
                published(place, busy, str(number))
                broker.until_quiet()
                with counted() as each:
                    batch = run.next()
                assert batch is not None
                assert len(batch.messages) == BUSY
                broker.until_quiet()
                with counted() as acknowledging:
                    assert run.next() is None
                broker.until_quiet()
                with counted() as idle:
                    assert run.next() is None
                calls.append((each, acknowledging, idle))
                sizes.append(size(batch.end) + size(run.reader.reportLatestOffset()))
        found.append((calls[-1], max(sizes)))
    (few, few_bytes), (many, many_bytes) = found
    assert many == few
    assert many_bytes < few_bytes + 500


def test_a_clients_consumer_of_many_topics_does_what_one_of_its_busy_topics_does(
    place: Root, clock: ManualClock
) -> None:
    found = []
    for count in SIZES:
        busy = made(place, count)
        options = {
            "serviceUrl": place.service_url, "subscriptionName": f"s{count}",
            "subscriptionType": "Shared", **{name: str(each) for name, each in PATTERN.items()},
        }  # fmt: skip
        with (
            EmbeddedBroker(place) as broker,
            MessageConsumer(options, prefetch=1000) as consumer,
        ):
            broker.until_quiet()
            consumer.poll()
            clock.advance(int(BUSY_S * 1000))
            broker.until_quiet()
            assert not consumer.fetch()  # its lease was overdue: it has the broker confirm it
            broker.until_quiet()
            consumer.poll()
            seen: list[tuple[Counter[str], Counter[str]]] = []
            for number in range(3):
                published(place, busy, str(number))
                broker.until_quiet()
                with counted() as calls:
                    taken = [consumer.take() for _ in range(BUSY) if consumer.fetch()]
                    consumer.acknowledge(*filter(None, taken))
                    consumer.request_receipt()
                assert len(taken) == BUSY
                assert not consumer.is_answered()
                broker.until_quiet()
                with counted() as idle:
                    assert not consumer.fetch()
                assert consumer.is_answered()
                seen.append((calls, idle))
        found.append(seen[-1])
    assert found[0] == found[1]


def test_messages_that_wait_in_topics_without_news_are_read_all_the_same(place: Root) -> None:
    names = made(place, 120)
    for name in names:
        send(place.service_url, name, ["a", "b", "c"])
    run = Run(place.service_url, maxMessagesPerTrigger=7, **EVERY)
    assert sorted(run.values()) == sorted(["a", "b", "c"] * BUSY)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets as of many topics, with few."""
    monkeypatch.setattr(offset_store, "WHOLE_PARTITIONS", 5)
    monkeypatch.setattr(offset_store, "LARGEST_INLINE_BYTES", 1500)


def batches(root: Root, run: Run, count: int, seed: int) -> list[Batch]:
    """Micro-batches of messages to a few topics, now these and now those."""
    chance = random.Random(seed)
    names = [f"t{number:04d}" for number in range(30)]
    found = []
    for number in range(count):
        published(root, chance.sample(names, chance.randrange(1, 5)), str(number))
        batch = run.next()
        assert batch is not None, f"seed {seed}"
        found.append(batch)
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(3))
def test_a_restart_goes_on_from_any_offset_and_repeats_any_batch(place: Root, seed: int) -> None:
    made(place, 30)
    run = Run(place.service_url, **EVERY)
    found = [run.next(), *batches(place, run, 25, seed)]
    spilled = {each.end["spilled"] for each in found if each}
    assert 1 < len(spilled) < 20, "some share a file, and not all of them"
    for number, batch in enumerate(found):
        assert batch is not None
        again = Run(place.service_url, start=batch.start, **EVERY)
        assert again.read(Batch(batch.start, batch.end)) == batch.messages
        again.commit(batch)
        rest = [each for later in found[number + 1 :] if later for each in later.values]
        assert sorted(again.values()) == sorted(rest)


@pytest.mark.usefixtures("small")
def test_a_query_killed_behind_the_file_that_it_wrote_plans_the_same_again(place: Root) -> None:
    made(place, 30)
    run = Run(place.service_url, **EVERY)
    run.next()
    published(place, [f"t{number:04d}" for number in range(30)], "a")
    planned = run.planned()
    assert planned is not None
    assert "changes" not in planned.end, "a new file"
    again = Run(place.service_url, start=run.offset, **EVERY)
    replanned = again.planned()
    assert replanned is not None
    assert sorted(each["value"] for each in again.read(replanned)) == [b"a"] * 30


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_the_file_behind_a_change_is_named_where_it_is_gone(place: Root, state: str) -> None:
    made(place, 30)
    run = Run(place.service_url, **EVERY)
    run.next()
    published(place, ["t0003"], "a")
    run.next()
    assert "changes" in run.offset
    path = run.offset["spilled"]
    data = place.store.get(path)
    assert data is not None
    place.store.delete(path)
    if state == "damaged":
        place.store.create(path, data[:-1])
    with pytest.raises(CorruptFileError, match=rf"{path}.* is {state}.*new checkpoint"):
        Run(place.service_url, start=run.offset, **EVERY).next()


@pytest.mark.usefixtures("small")
def test_the_last_hundred_offsets_can_be_read_however_many_were_deleted(
    place: Root, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(offset_store, "SPILLED_KEPT", 100)
    store, begun = OffsetStore(place), offset_of(30, 0)
    values: list[tuple[dict[str, Any], StreamOffset]] = []
    for number in range(2_000):
        topic_partition = TopicPartition(f"persistent://public/default/t{number * 7 % 30:04d}", 0)
        begun = begun.with_changes({topic_partition: place_of(number + 1)})
        values.append((store.save(begun), begun))
        clock.advance(1)
        store.release(values[-2][0] if number else {})
        if number % 400 == 399:  # another run of the query
            store = OffsetStore(place)
            begun = store.load(values[-1][0])
    files = list(place.store.files(values[0][0]["spilled"].rpartition("/")[0]))
    assert len(files) <= 101
    for value, offset in values[-100:]:
        assert OffsetStore(place).load(json.loads(json.dumps(value))) == offset
    assert all(size(value) < 1500 + 300 for value, _ in values)


def place_of(entry: int) -> PartitionOffset:
    return PartitionOffset.beginning(Cursor()).planned(Cursor(Position(3, entry)))


def offset_of(count: int, entry: int) -> StreamOffset:
    topics = (f"persistent://public/default/t{number:04d}" for number in range(count))
    return StreamOffset({TopicPartition(each, 0): place_of(entry) for each in topics})


@pytest.mark.parametrize("is_spilled", [False, True])
def test_a_checkpoint_of_an_older_version_is_taken_up(place: Root, *, is_spilled: bool) -> None:
    busy = made(place, 300)
    published(place, busy, "a")
    whole = Run(place.service_url, **EVERY).next()
    assert whole is not None
    start = whole.end
    assert start.keys() == {"spilled", "version"}
    if not is_spilled:
        start = OffsetStore(place).load(start).to_json_value()
    run = Run(place.service_url, start=start, **EVERY)
    assert run.planned() is None
    published(place, busy[:2], "b")
    batch = run.next()
    assert batch is not None
    assert batch.values == ["b", "b"]
    again = Run(place.service_url, start=start, **EVERY)
    assert again.read(Batch(start, batch.end)) == batch.messages
    again.commit(batch)
    assert again.planned() is None


def test_equal_offsets_have_equal_text_whatever_they_were_made_of(place: Root) -> None:
    store, whole = OffsetStore(place), offset_of(200, 1)
    changed = whole.with_changes({next(iter(whole.items()))[0]: place_of(2)})
    assert store.save(whole) == store.save(StreamOffset(dict(whole.items())))
    value = store.save(changed)
    assert "changes" in value
    assert store.save(StreamOffset(dict(changed.items()))) is value
    restarted = OffsetStore(place)
    assert restarted.load(json.loads(json.dumps(value))) == changed
    assert json.dumps(restarted.save(changed.settled())) == json.dumps(value)


def test_the_progress_of_many_topics_tells_of_those_that_are_behind(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "MOST_NAMED", 5)
    made(place, 20)
    published(place, ["t0003", "t0007"], "a")
    send(place.service_url, "t0007", ["b", "c"])
    run = Run(place.service_url, maxMessagesPerTrigger=2, **EVERY)
    reported: list[dict[str, int]] = []
    while run.next() is not None:
        report = run.reader.reportLatestOffset()
        assert report is not None
        topics = report["topics"].items()
        reported.append({name[-5:]: each["0"]["backlog"] for name, each in topics})
    assert reported[0].items() >= {"t0003": 0, "t0007": 2}.items()
    assert reported[-1] == {"t0007": 0}
    run.next()
    assert run.reader.reportLatestOffset() == {"topics": {}, "version": 1}
