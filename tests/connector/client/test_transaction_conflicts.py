"""Two transactions of the client acknowledge one message: one of them is committed."""

from __future__ import annotations

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.acknowledging.outcome_rows import folded
from pulsar_spark.connector.spark.functions.batch_transaction import BatchTransaction
from pulsar_spark.errors import TransactionConflictError
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock, Place
from tests.connector.client.clients import all_of, received, shared, subscribe
from tests.connector.topics import options_of, written


def results(client: pulsar.Client) -> list[bytes]:
    return received(client.create_reader("results", pulsar.MessageId.earliest), 0)


def begun(
    client: pulsar.Client,
    consumer: pulsar.Consumer,
    result: bytes,
    *messages: pulsar.Message,
) -> pulsar.Transaction:
    transaction = client.new_transaction()
    client.create_producer("results").add(transaction, result)
    consumer.acknowledge_in(transaction, *messages)
    return transaction


def test_of_two_transactions_that_acknowledge_one_message_the_second_is_refused(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    producer = client.create_producer("t")
    for value in (b"a", b"b"):
        producer.send(value)
    consumer = shared(client)
    a, b = all_of(consumer)
    first, second = begun(client, consumer, b"1", a), begun(client, consumer, b"2", a, b)
    first.commit()
    with pytest.raises(pulsar.TransactionConflict, match="acknowledged for subscription s before"):
        second.commit()
    assert results(client) == [b"1"]
    assert pulsarlite.backlog("t", "s") == 1
    begun(client, consumer, b"3", b).commit()
    assert results(client) == [b"1", b"3"]
    assert pulsarlite.backlog("t", "s") == 0


def test_the_second_is_refused_before_the_broker_knows_that_the_message_was_published(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    producer = client.create_producer("t")
    consumer = subscribe(client)
    producer.send(b"a")
    assert all_of(consumer)
    producer.send(b"b")
    message = consumer.receive(0)  # Exclusive: it looks before the broker does
    first, second = (begun(client, consumer, each, message) for each in (b"1", b"2"))
    first.commit()
    with pytest.raises(pulsar.TransactionConflict, match="acknowledged for subscription s before"):
        second.commit()
    assert results(client) == [b"1"]


@pytest.mark.parametrize("trimmed", [False, True])
def test_what_was_acknowledged_without_a_transaction_is_refused_too(
    pulsarlite: Place, trimmed: bool
) -> None:
    client = pulsarlite.client
    if not trimmed:
        subscribe(client, name="keeps").close()
    producer = client.create_producer("t")
    for value in (b"a", b"b", b"c"):
        producer.send(value)
    consumer = subscribe(client)
    messages = all_of(consumer)
    consumer.acknowledge_cumulative(messages[-1])
    received(consumer, 60_000)
    with pytest.raises(pulsar.TransactionConflict):
        begun(client, consumer, b"1", messages[0]).commit()
    assert not results(client)


def test_who_lost_its_lease_and_went_on_publishes_nothing(
    pulsarlite: Place, pulsarlite_clock: ManualClock
) -> None:
    client = pulsarlite.client
    client.create_producer("t").send(b"a")
    stopped = shared(client)
    (message,) = all_of(stopped)
    late = begun(client, stopped, b"late", message)
    stopped.abandon()
    pulsarlite_clock.advance(minutes=5)
    other = shared(client)
    (again,) = all_of(other, 60_000)
    assert again.data() == b"a"
    begun(client, other, b"other", again).commit()
    with pytest.raises(pulsar.TransactionConflict):
        late.commit()
    assert results(client) == [b"other"]


def test_what_comes_again_on_account_of_a_seek_may_be_acknowledged_again(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    subscribe(client, name="keeps").close()
    client.create_producer("t").send(b"a")
    consumer = shared(client)
    for result in (b"1", b"2"):
        (message,) = all_of(consumer)
        begun(client, consumer, result, message).commit()
        consumer.seek(pulsar.MessageId.earliest)
    assert results(client) == [b"1", b"2"]
    assert pulsarlite.backlog("t", "s") == 1


def test_a_micro_batch_that_conflicts_is_given_up_and_what_is_left_of_it_comes_again(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    producer = client.create_producer("t")
    for value in (b"a", b"b"):
        producer.send(value)
    consumer = shared(client)
    a, b = all_of(consumer)

    def micro_batch(number: int, *messages: pulsar.Message) -> None:
        """As `foreachBatch` has it, whose tasks have written and folded."""
        options = options_of(client.root.service_url, Scope.WRITE, {"topic": "results"})
        with BatchTransaction({}, client.root, number, "query", 60_000, None) as transaction:
            transaction._written += written(options, [str(number)])
            taken = [each.received for each in messages]
            transaction._acknowledged_rows["s"] = [folded(taken, client.root)]

    begun(client, consumer, b"other", a).commit()
    with pytest.raises(TransactionConflictError):
        micro_batch(0, a, b)
    (again,) = all_of(consumer)
    assert (again.data(), again.redelivery_count()) == (b"b", 1)
    micro_batch(0, a, b)  # as Spark repeats it
    assert results(client) == [b"other"]
    micro_batch(1, again)
    assert results(client) == [b"other", b"1"]
    assert pulsarlite.backlog("t", "s") == 0
