"""A seek of the client: what it moves, and what was received before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark import pulsar
from pulsar_spark.testing import Place
from tests.connector.client.clients import all_of, received, shared, subscribe


def test_a_seek_to_a_message_moves_no_other_topic(pulsarlite: Place) -> None:
    client = pulsarlite.client
    for topic in ("a", "b"):
        subscribe(client, topic, name="keeps").close()
        producer = client.create_producer(topic)
        for number in range(3):
            producer.send(f"{topic}{number}".encode())
    consumer = shared(client, topic=["a", "b"])
    held = {each.data(): each for each in all_of(consumer)}
    assert len(held) == 6
    consumer.seek(held[b"a1"].message_id())
    assert received(consumer) == [b"a2"]
    assert [pulsarlite.backlog(topic, "s") for topic in ("a", "b")] == [1, 3]
    consumer.seek(held[b"b0"].message_id())
    assert sorted(received(consumer)) == [b"b1", b"b2"]
    bare = pulsar.MessageId.deserialize(held[b"b0"].message_id().serialize())
    with pytest.raises(pulsar.OperationNotSupported, match="Of which topic is"):
        consumer.seek(bare)


def test_a_seek_to_a_message_leaves_the_retry_letter_topic_alone(pulsarlite: Place) -> None:
    client = pulsarlite.client
    subscribe(client, name="keeps").close()
    producer = client.create_producer("t")
    ids = [producer.send(value) for value in (b"a", b"b", b"c", b"d")]
    policy = pulsar.ConsumerDeadLetterPolicy(3)
    consumer = shared(client, retry_enable=True, dead_letter_policy=policy)
    for message in all_of(consumer):
        consumer.reconsume_later(message, 60_000)
    assert received(consumer) == []
    assert pulsarlite.backlog("t", "s") == 0
    consumer.seek(ids[1])
    assert received(consumer) == [b"c", b"d"]
    assert sorted(received(consumer, 60_000)) == [b"a", b"b", b"c", b"d"]


def _one_by_one(_: pulsar.Client, consumer: pulsar.Consumer, old: list[pulsar.Message]) -> None:
    for message in old:
        consumer.acknowledge(message)


def _by_their_ids(_: pulsar.Client, consumer: pulsar.Consumer, old: list[pulsar.Message]) -> None:
    consumer.acknowledge([message.message_id() for message in old])


def _cumulatively(_: pulsar.Client, consumer: pulsar.Consumer, old: list[pulsar.Message]) -> None:
    consumer.acknowledge_cumulative(old[-1])


def _in_a_transaction(
    client: pulsar.Client, consumer: pulsar.Consumer, old: list[pulsar.Message]
) -> None:
    with client.new_transaction() as transaction:
        consumer.acknowledge_in(transaction, *old)


@pytest.mark.parametrize(
    "acknowledge", [_one_by_one, _by_their_ids, _cumulatively, _in_a_transaction]
)
@pytest.mark.parametrize("group_time_ms", [0, 100])
def test_an_acknowledgement_of_what_was_received_before_a_seek_leaves_the_seek_as_it_is(
    pulsarlite: Place,
    acknowledge: Callable[[pulsar.Client, pulsar.Consumer, list[pulsar.Message]], None],
    group_time_ms: int,
) -> None:
    client = pulsarlite.client
    subscribe(client, name="keeps").close()
    producer = client.create_producer("t")
    for value in (b"a", b"b", b"c"):
        producer.send(value)
    consumer = subscribe(client, acknowledgments_group_time_millis=group_time_ms)
    old = all_of(consumer)
    consumer.seek(pulsar.MessageId.earliest)
    acknowledge(client, consumer, old)
    assert received(consumer) == [b"a", b"b", b"c"]
    consumer.close()
    assert pulsarlite.backlog("t", "s") == 3
    again = subscribe(client)
    new = all_of(again)
    assert [each.data() for each in new] == [b"a", b"b", b"c"]
    acknowledge(client, again, new)
    again.close()
    assert pulsarlite.backlog("t", "s") == 0


def test_another_consumer_s_acknowledgement_of_what_was_received_before_a_seek_counts_for_nothing(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    subscribe(client, name="keeps").close()
    producer = client.create_producer("t")
    for value in (b"a", b"b"):
        producer.send(value)
    first, other = shared(client), shared(client)
    old = [*all_of(first), *all_of(other)]
    first.seek(pulsar.MessageId.earliest)
    other.acknowledge(old)
    assert sorted(received(first) + received(other)) == [b"a", b"b"]
    for each in (first, other):
        each.close()
    assert pulsarlite.backlog("t", "s") == 2
