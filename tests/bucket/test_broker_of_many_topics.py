"""A broker over a bucket serves many topics: the trouble of one is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.errors import UnreadableFileError
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.bucket.metered_store import GET, MeteredStore
from tests.bucket.place import Bucket

BAD, GOOD = "bad", "good"
BAD_LOG = join(TopicName.parse(BAD).storage_path, "_log")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    made = Bucket(monkeypatch)
    yield made
    made.clock.end()


def receive(consumer: MessageConsumer, broker: EmbeddedBroker) -> list[bytes | None]:
    """All that there is for it, acknowledged."""
    values = []
    broker.until_quiet()
    while consumer.fetch():
        while (message := consumer.take()) is not None:
            values.append(message.value)
            consumer.acknowledge(message)
        consumer.flush()
        broker.until_quiet()
    return values


def refuse(store: MeteredStore, folder: str, patch: pytest.MonkeyPatch) -> None:
    """What lies in that folder can't be read by that process."""
    ask = store.ask

    def asked(kind: str, path: str, effect: Callable[[], Any]) -> Any:
        if kind == GET and path.startswith(folder):
            raise UnreadableFileError(f"{path} can't be read: 403.")
        return ask(kind, path, effect)

    patch.setattr(store, "ask", asked)


def subscribe(bucket: Bucket, topic: str) -> MessageConsumer:
    options = bucket.options(
        f"consumer of {topic}", topic=topic, subscriptionName="s", subscriptionType="Shared",
        subscriptionInitialPosition="Earliest",
    )  # fmt: skip
    return MessageConsumer(options, prefetch=1000, acknowledgment_group_time_ms=1000)


@pytest.mark.parametrize("what", ["a pointer of a newer version", "a prefix without rights"])
def test_a_busy_topic_that_can_not_be_read_any_more_stops_no_other(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    producers = {topic: bucket.producer("publisher", topic) for topic in (BAD, GOOD)}
    broker = EmbeddedBroker(bucket.root("broker"))
    consumers = {topic: subscribe(bucket, topic) for topic in producers}
    for topic, producer in producers.items():
        producer.send(b"before")
        assert receive(consumers[topic], broker) == [b"before"]
    for producer in producers.values():
        producer.send(b"behind")
    store = bucket.stores["broker"]
    if what == "a pointer of a newer version":
        store.touch(join(BAD_LOG, "pointer.json"), b'{"version": 99, "snapshot": -1}')
    else:
        refuse(store, BAD_LOG, monkeypatch)
    assert receive(consumers[GOOD], broker) == [b"behind"]
    topic_partition = TopicPartition(str(TopicName.parse(BAD)), 0)
    assert broker.hosted.quarantined.keys() == {topic_partition}
    producers[GOOD].send(b"later")
    assert receive(consumers[GOOD], broker) == [b"later"]
