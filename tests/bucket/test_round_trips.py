"""The way of one message through a bucket, leg by leg: how many requests wait for each other.

Nobody waits here for anything but requests, and nobody looks in vain: producer, broker and consumer
have their turns one after the other, in one thread of simulated time. So the time that a turn takes
is the number of its sequential round trips, and what was asked for is its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.log_pointer import LogPointer
from pulsar_spark.connector.runtime.topics.managed_ledger import SNAPSHOT_EVERY
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.model.topic_name import TopicName
from tests.bucket.metered_store import DELAY_S
from tests.bucket.place import Bucket

PUBLISH = 3
"""The data file; the commit, at which others see it; the pointer that confirms the commit."""
BROKER = 5
"""The look; what it finds, with the pointer and the message's columns; the grants' file; their
commit, at which others see them; the pointer."""
CONSUMER = 3
"""The poll; what it finds, with the pointer and the grants; the message, which is handed out."""
REPORT = 3
"""Of what is acknowledged: its file, its commit, the pointer."""


@dataclass
class Way:
    """A producer, a broker and a Shared consumer that have been at work for a while."""

    bucket: Bucket
    producer: MessageProducer
    broker: EmbeddedBroker
    consumer: MessageConsumer

    def trips(self, run_once: Callable[[], object]) -> int:
        """The sequential round trips of that turn."""
        self.bucket.meter()
        begun_s = self.bucket.clock.monotonic_s()
        run_once()
        trips = (self.bucket.clock.monotonic_s() - begun_s) / DELAY_S
        assert trips == pytest.approx(round(trips), abs=0.01)
        return round(trips)

    def pass_one(self, value: bytes) -> None:
        """One message on its whole way, with its acknowledgement."""
        self.producer.send(value)
        self.broker.until_quiet()
        while not self.consumer.fetch():
            self.broker.until_quiet()
        taken = self.consumer.take()
        assert taken is not None
        assert taken.value == value
        self.consumer.acknowledge(taken)
        self.consumer.flush()
        self.broker.until_quiet()
        self.consumer.fetch()


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    bucket = Bucket(monkeypatch)
    producer = bucket.producer("publisher", "t0")
    broker = EmbeddedBroker(bucket.root("broker"))
    options = bucket.options(
        "consumer", topic="t0", subscriptionName="s", subscriptionType="Shared",
        subscriptionInitialPosition="Earliest",
    )  # fmt: skip
    consumer = MessageConsumer(options, prefetch=1000, acknowledgment_group_time_ms=1000)
    made = Way(bucket, producer, broker, consumer)
    for number in range(3):
        made.pass_one(b"%d" % number)
    yield made
    bucket.clock.end()


def test_a_message_takes_eleven_round_trips_in_all(way: Way) -> None:
    assert way.trips(lambda: way.producer.send(b"a")) == PUBLISH
    assert way.trips(way.broker.run_once) == BROKER
    assert way.trips(way.consumer.fetch) == CONSUMER
    taken = way.consumer.take()
    assert taken is not None
    assert taken.value == b"a"
    way.consumer.acknowledge(taken)
    assert way.trips(way.consumer.flush) == REPORT


def test_a_report_takes_the_broker_as_long_as_a_message(way: Way) -> None:
    way.producer.send(b"a")
    way.broker.run_once()
    way.consumer.fetch()
    assert way.trips(way.broker.run_once) <= BROKER


def test_a_look_in_vain_is_one_round_trip(way: Way) -> None:
    assert way.trips(way.broker.run_once) == 1
    assert way.trips(way.consumer.fetch) == 1


def test_nobody_waits_for_the_clean_up_of_a_log(way: Way) -> None:
    """Snapshots are written, and commits deleted, beside the publications that make them due."""
    trips = []
    for _ in range(4 * SNAPSHOT_EVERY):
        way.bucket.clock.sleep(7)
        trips.append(way.trips(lambda: way.producer.send(b"a")))
    assert max(trips) <= PUBLISH + 2, trips  # it announces itself, and asks for policies
    way.bucket.clock.sleep(60)
    log = way.bucket.root("look").open(TopicName.parse("t0"))
    there = [each.name for each in log.store.files(log.log_folder)]
    assert sum(name.endswith(".json") for name in there) < 3 * SNAPSHOT_EVERY, there


def test_what_a_second_round_finds_came_late(way: Way) -> None:
    """Who looks at several logs has to look again at those that the late may refer to."""
    name = TopicName.parse("t0")
    log = way.bucket.root("look").open(name)

    def looked(*, first: int, then: int) -> tuple[int, bool]:
        before = log.state.number
        for _ in range(first):
            way.producer.send(b"first")
        assert log.ask() == bool(first)
        for _ in range(then):
            way.producer.send(b"then")
        log.prefetch_more()
        log.refresh()
        log.forget()
        return log.state.number - before, log.is_late

    assert looked(first=1, then=0) == (1, False)
    assert looked(first=0, then=0) == (0, False)
    assert looked(first=0, then=1) == (1, True)
    assert looked(first=1, then=1) == (2, True)
    assert looked(first=3, then=2) == (5, True)


def test_a_log_that_was_cleaned_up_in_between_is_loaded_anew(way: Way) -> None:
    """The pointer that vouches for what the first round found is read behind it."""
    log = way.bucket.root("look").open(TopicName.parse("t0"))
    writer = way.bucket.root("publisher").open(TopicName.parse("t0"))
    way.producer.send(b"a")
    number, path = writer.state.number, join(writer.folder, log_file(writer.state.number))
    reported = writer.commits(number, number)
    assert reported is not None
    writer.store.touch(
        path, replace(reported[0], commit_id="left by a writer that slept").to_json()
    )
    assert log.ask()
    writer.write_snapshot()
    pointer = f"{writer.log_folder}/pointer.json"
    writer.store.touch(pointer, LogPointer(number, removed=number).to_json())
    log.prefetch_more()
    log.refresh()
    assert (log.state.number, log.state.commit_id) == (number, writer.state.commit_id)
