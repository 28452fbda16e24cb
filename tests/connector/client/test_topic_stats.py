"""What a client says of a topic, and how what it makes shows itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pulsar_spark import pictures, pulsar
from pulsar_spark.testing import ManualClock
from tests.connector.client.clients import shared, subscribe


def published(client: pulsar.Client, count: int) -> pulsar.Producer:
    """So many messages in one entry each, of one ledger."""
    producer = client.create_producer("t")
    for number in range(count):
        producer.send_async(b"%d" % number, None, partition_key=f"key {number}")
    producer.flush()
    return producer


def test_a_subscriptions_holes_are_seen_message_by_message(client: pulsar.Client) -> None:
    consumer = shared(client, ack_receipt_enabled=True, receiver_queue_size=4)
    published(client, 8)
    messages = [consumer.receive(1000) for _ in range(4)]
    consumer.negative_acknowledge(messages[2], delay_millis=60_000)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[3])
    stats = client.topic_stats("t").subscription("s")
    (states,) = stats.states.values()
    assert states.tolist()[:4] == [3, 1, 2, 3]
    assert (stats.backlog, stats.waiting) == (6, 1)
    assert stats.mark_delete_position == "0:0"
    assert stats.individually_deleted_messages == "0:3"
    assert "█▒○█" in stats._repr_html_()
    assert pictures.strip(stats)._repr_png_()[0]


def test_of_a_key_shared_subscription_each_consumers_slots_are_told(client: pulsar.Client) -> None:
    kind = pulsar.ConsumerType.KeyShared
    made = [subscribe(client, consumer_type=kind, consumer_name=name) for name in ("ann", "bob")]
    found = client.topic_stats("t").subscription("s").consumers
    assert [each.name for each in found] == [each.consumer_name() for each in made]
    slots = [range(a, b + 1) for each in found for a, b in each.key_hash_ranges]
    assert (sum(map(len, slots)), len(set().union(*slots))) == (65_536, 65_536)


def test_a_topics_partitions_and_subscriptions_are_listed(client: pulsar.Client) -> None:
    options = {"numPartitions": "2"}
    with pytest.raises(pulsar.TopicNotFound):
        client.topic_stats("t")
    producer = client.create_producer("t", options=options)
    consumer = subscribe(client)
    for _ in range(4):
        producer.send(b"four")
    assert len(consumer.receive(1000).data()) == 4
    stats = client.topic_stats("t-partition-1")
    assert stats.topic == "persistent://public/default/t"
    assert (stats.messages, stats.size_bytes, len(stats.partitions)) == (4, 16, 2)
    assert stats.subscription("s", 1).topic_partition.partition == 1
    with pytest.raises(KeyError, match="it has: s"):
        stats.subscription("z")
    assert stats._repr_html_().count("Exclusive") == 2


def test_an_embedded_broker_knows_of_all_that_was_sent_before(client: pulsar.Client) -> None:
    shared(client)
    published(client, 3)
    assert client.topic_stats("t").subscription("s").backlog == 3


def test_stats_wait_for_an_embedded_broker_that_another_thread_has_at_work(
    client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(contextlib.nullcontext[None]):
        """A lock that is another thread's just now."""

        def acquire(self, *, blocking: bool = True) -> bool:
            return blocking

        def release(self) -> None:
            pass

    shared(client)
    published(client, 3)
    monkeypatch.setattr(client._broker, "_turning", Busy())
    assert client.topic_stats("t").subscription("s").backlog == 3


def test_what_was_acknowledged_and_trimmed_is_no_hole(
    client: pulsar.Client, pulsarlite_clock: ManualClock
) -> None:
    consumer = shared(client, ack_receipt_enabled=True)
    producer = client.create_producer("t")
    for number in range(3):
        producer.send(b"%d" % number)
    before = client.topic_stats("t").subscription("s")
    consumer.acknowledge(consumer.receive(1000))
    pulsarlite_clock.advance(1000)
    after = client.topic_stats("t").subscription("s")
    assert pictures.strip([("before", before), ("after", after)])._repr_png_()[0]
    assert sum(len(each) for each in after.states.values()) <= 3


def test_what_a_client_makes_shows_itself(tmp_path: Path) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        producer = published(client, 1)
        consumer = subscribe(client, consumer_name="ann")
        message = consumer.receive(30_000)
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        view = client.create_table_view("t")
        transaction = client.new_transaction()
        shown = {each: each._repr_html_() for each in (client, producer, consumer, message, view)}
        assert "embedded" in shown[client]
        assert producer.producer_name() in shown[producer]
        assert "Exclusive" in shown[consumer]
        assert "key 0" in shown[message]
        assert "key 0: b&#x27;0&#x27;" in shown[view]
        for each in (*shown, reader, transaction, message.message_id()):
            assert each._repr_html_().startswith(f"<b>{type(each).__name__}</b><table>")
            assert repr(each).startswith(type(each).__name__)
            assert " object at 0x" not in repr(each)
        transaction.abort()
        view.close()


def test_a_closed_client_and_a_producer_of_a_closed_one_still_show_themselves(
    tmp_path: Path,
) -> None:
    client = pulsar.Client(str(tmp_path))
    producer = client.create_producer("t")
    client.close()
    assert "is_closed=True" in repr(client)
    assert "persistent://public/default/t" in producer._repr_html_()
