"""The active consumer of a Failover subscription, whoever else comes."""

from __future__ import annotations

from pulsar_spark import Admin, pulsar
from tests.connector.client.clients import received, subscribe

FAILOVER = pulsar.ConsumerType.Failover


def join(client: pulsar.Client, name: str, **options: str) -> pulsar.Consumer:
    return subscribe(client, consumer_type=FAILOVER, consumer_name=name, options=options)


def test_without_partitions_a_newcomer_never_takes_over_from_a_running_consumer(
    client: pulsar.Client,
) -> None:
    first = join(client, "zoe")
    producer = client.create_producer("t")
    producer.send(b"1")
    assert received(first) == [b"1"]
    others = [join(client, name) for name in ("ann", "bob", "zoe-2")]
    producer.send(b"2")
    assert [received(each) for each in (first, *others)] == [[b"2"], [], [], []]
    first.acknowledge_cumulative(client_last(client))
    first.close()
    producer.send(b"3")
    assert [received(each) for each in others] == [[b"3"], [], []]


def client_last(client: pulsar.Client) -> pulsar.MessageId:
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    last = reader.get_last_message_id()
    reader.close()
    return last


def test_one_of_a_lower_priority_level_takes_over(client: pulsar.Client) -> None:
    first = join(client, "zoe", priorityLevel="1")
    producer = client.create_producer("t")
    second = join(client, "zz", priorityLevel="0")
    assert received(first) == received(second) == []
    producer.send(b"1")
    assert (received(first), received(second)) == ([], [b"1"])


def test_pulsar_s_ring_is_a_switch(client: pulsar.Client, url: str) -> None:
    """With it the hashes of the names decide, and so a newcomer may take over."""
    client.create_producer("t").close()
    Admin(url).policies("t").set(failover_consistent_hashing=True)
    first = join(client, "x")
    producer = client.create_producer("t")
    newcomer = join(client, "eve")
    assert received(first) == []  # it hands over
    producer.send(b"x")
    assert (received(first), received(newcomer)) == ([], [b"x"])
