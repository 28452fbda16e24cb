"""A consumer, a reader and a table view of the client."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.tools.admin.topics import Topics
from pulsar_spark.errors import StorageUnavailableError
from pulsar_spark.pulsar.schema import (
    StringSchema,
)
from pulsar_spark.testing import ManualClock, Place
from tests.connector.client.clients import (
    all_of,
    python,
    received,
    shared,
    subscribe,
)


def test_who_waits_sees_at_a_glance_that_another_process_has_sent_something(
    tmp_path: Path,
) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        client.create_producer("t").close()
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        while reader.has_activity():
            assert not reader.fetch()
        assert (
            python(
                f"""
from pulsar_spark import Admin, pulsar
with pulsar.Client({str(tmp_path)!r}) as client:
    client.create_producer("t").send(b"a")
"""
            ).stderr
            == ""
        )
        assert reader.has_activity()
        assert reader.read_next(30_000).data() == b"a"


def test_receive_gives_up_in_time(client: pulsar.Client) -> None:
    consumer = subscribe(client)
    before_ms = client.root.clock.wall_ms()
    with pytest.raises(pulsar.Timeout, match="TimeOut"):
        consumer.receive(timeout_millis=700)
    assert client.root.clock.wall_ms() - before_ms == 700


def test_what_is_acknowledged_is_not_delivered_again(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    for value in (b"a", b"b", b"c", b"d"):
        producer.send(value)
    with subscribe_twice(client) as (first, reopen):
        messages = all_of(first)
        first.acknowledge(messages[0])
        first.acknowledge(messages[2].message_id())
        second = reopen()
        assert received(second) == [b"b", b"d"]
        second.acknowledge_cumulative(messages[1])
        third = reopen()
        assert received(third) == [b"d"]


def test_many_are_acknowledged_or_rejected_at_once(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    for value in (b"a", b"b", b"c", b"d"):
        producer.send(value)
    consumer = shared(client, ack_receipt_enabled=True)
    messages = all_of(consumer)
    consumer.acknowledge([messages[0], messages[3].message_id()])
    consumer.negative_acknowledge(messages[1:3], delay_millis=100)
    assert received(consumer) == [b"b", b"c"]


def test_messages_rejected_one_by_one_share_a_report(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    for _ in range(50):
        producer.send(b"a")
    consumer = shared(client, negative_ack_redelivery_delay_ms=100)
    messages = all_of(consumer)
    said = client.root.open(COMMANDS)
    before = said.state.number
    for message in messages:
        consumer.negative_acknowledge(message)
    said.refresh()
    assert said.state.number - before <= 2
    assert len(received(consumer)) == 50


class subscribe_twice:  # noqa: N801 - reads as a call
    """A consumer, and how to close it and have the next."""

    def __init__(self, client: pulsar.Client) -> None:
        self.client, self.consumer = client, subscribe(client)

    def __enter__(self) -> tuple[pulsar.Consumer, Callable[[], pulsar.Consumer]]:
        return self.consumer, self.reopen

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def reopen(self) -> pulsar.Consumer:
        self.consumer.close()
        self.consumer = subscribe(self.client)
        return self.consumer


def test_shared_consumers_can_not_acknowledge_cumulatively(client: pulsar.Client) -> None:
    consumer = shared(client)
    client.create_producer("t").send(b"a")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError, match="Cannot use"):
        consumer.acknowledge_cumulative(consumer.receive(1000))


def test_of_several_acknowledgements_one_that_can_not_be_harms_no_other(
    client: pulsar.Client,
    pulsarlite_clock: ManualClock,
) -> None:
    client.create_producer("t").send(b"a")
    consumer = shared(client)
    consumer.acknowledge(consumer.receive(1000))
    consumer.acknowledge(pulsar.MessageId(-1, 77, 3, -1))
    pulsarlite_clock.advance(100)
    consumer.close()
    assert received(shared(client)) == []


@pytest.mark.parametrize("delay_ms", [-1, 10**20, float("nan"), "soon"])
@pytest.mark.parametrize("properties", [None, {"tries": 1}, {"a": "\ud800"}])
def test_what_can_not_be_said_of_a_message_is_refused_at_once_and_harms_no_other(
    pulsarlite: Place, delay_ms: Any, properties: Any
) -> None:
    client = pulsarlite.client
    consumer = shared(client)
    producer = client.create_producer("t")
    for text in (b"a", b"b"):
        producer.send(text, properties={"RECONSUMETIMES": "9" * 20})
    first, other = consumer.receive(1000), consumer.receive(1000)
    with pytest.raises(pulsar.PulsarException):
        consumer.negative_acknowledge(first, delay_millis=delay_ms)
    with pytest.raises(pulsar.PulsarException):
        consumer.reconsume_later(first, 1 if properties else delay_ms, properties)
    consumer.acknowledge(other)
    consumer.reconsume_later(first, 1)
    pulsarlite.clock.advance(seconds=1)
    assert pulsarlite.backlog("t", "s") == 1
    assert consumer.receive(1000).data() == b"a"
    consumer.close()


@pytest.mark.parametrize("kind", pulsar.ConsumerType)
def test_who_waits_goes_on_behind_what_an_administrator_has_truncated(
    pulsarlite: Place, kind: pulsar.ConsumerType
) -> None:
    client = pulsarlite.client
    producer = client.create_producer("t")
    waiting = subscribe(client, consumer_type=kind, receiver_queue_size=1)
    for value in (b"a", b"b", b"c"):
        producer.send(value)
    assert waiting.receive(1000).data() == b"a"
    Topics(pulsarlite.root).truncate("t", force=True)
    producer.send(b"new")
    assert waiting.receive(1000).data() == b"new"


def test_a_topic_that_was_deleted_keeps_no_acknowledgement_of_another_back(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    for topic in ("t", "u"):
        client.create_producer(topic).send(topic.encode())
    consumer = shared(client, topic=["t", "u"])
    held = {each.data(): each for each in (consumer.receive(1000), consumer.receive(1000))}
    Topics(pulsarlite.root).delete("u", force=True)
    consumer.acknowledge(held[b"u"])
    consumer.acknowledge(held[b"t"])
    consumer.close()
    assert pulsarlite.backlog("t", "s") == 0
    assert not subscriptions(pulsarlite.root, "persistent://public/default/t")[0].consumers
    client.close()


def test_a_consumer_goes_on_without_a_topic_that_was_deleted(
    pulsarlite: Place, caplog: pytest.LogCaptureFixture
) -> None:
    client = pulsarlite.client
    producers = {topic: client.create_producer(topic) for topic in ("t", "u")}
    for topic, producer in producers.items():
        producer.send(topic.encode())
    receipts = {"ack_receipt_enabled": True}
    consumer = shared(client, topic=["t", "u"], negative_ack_redelivery_delay_ms=0, **receipts)
    held = {each.data(): each for each in (consumer.receive(1000), consumer.receive(1000))}
    consumer.negative_acknowledge(held[b"u"])
    Topics(pulsarlite.root).delete("u", force=True)
    for value in (b"1", b"2"):
        producers["t"].send(value)
        message = consumer.receive(1000)
        assert message.data() == value
        consumer.acknowledge(message)
    consumer.acknowledge(held[b"t"])
    consumer.redeliver_unacknowledged_messages()
    assert not received(consumer)
    assert not consumer.has_reached_end_of_topic()
    assert caplog.text.count("Read no more") == 1
    consumer.close()
    assert pulsarlite.backlog("t", "s") == 0
    assert not subscriptions(pulsarlite.root, "persistent://public/default/t")[0].consumers


def test_what_it_holds_of_a_deleted_topic_stays_what_it_was(pulsarlite: Place) -> None:
    client = pulsarlite.client
    for topic in ("t", "u", "u"):
        client.create_producer(topic, schema=StringSchema()).send(topic)
    consumer = shared(client, topic=["t", "u"], schema=StringSchema())
    held = [consumer.receive(1000)]
    Topics(pulsarlite.root).delete("u", force=True)
    pulsarlite.clock.advance(1000)
    held += all_of(consumer)
    assert [each.value() for each in held] == ["t", "u", "u"]
    assert len({str(each.message_id()) for each in held[1:]}) == 2


def test_who_has_just_lost_one_of_its_topics_can_seek_and_leave(pulsarlite: Place) -> None:
    client, topics = pulsarlite.client, Topics(pulsarlite.root)
    producers = {topic: client.create_producer(topic) for topic in ("t", "u")}
    names = ("s", "sought", "deleted")
    leaving, seeking, deleting = (shared(client, topic=["t", "u"], name=name) for name in names)
    for topic, producer in producers.items():
        producer.send(topic.encode())
    for consumer in (seeking, deleting):
        assert sorted(received(consumer)) == [b"t", b"u"]
    held = {each.data(): each for each in all_of(leaving)}
    assert sorted(held) == [b"t", b"u"]
    topics.delete("u", force=True)
    leaving.acknowledge(held[b"t"].message_id())
    leaving.close()
    assert pulsarlite.backlog("t", "s") == 0
    seeking.get_last_message_id()  # looks at both
    seeking.seek(pulsar.MessageId.earliest)
    assert received(seeking) == [b"t"]
    deleting.unsubscribe()
    there = subscriptions(pulsarlite.root, "persistent://public/default/t")
    assert {each.name: len(each.consumers) for each in there} == {"s": 0, "sought": 1}


@pytest.mark.parametrize("observed", [False, True])
def test_what_was_said_of_a_topic_that_was_made_again_is_left_out(
    pulsarlite: Place, observed: bool
) -> None:
    client = pulsarlite.client
    for topic in ("t", "u"):
        client.create_producer(topic).send(topic.encode())
    consumer = shared(client, topic=["t", "u"], acknowledgments_group_time_millis=60_000)
    held = {each.data(): each for each in all_of(consumer)}
    Topics(pulsarlite.root).delete("u", force=True)
    client.create_producer("u").send(b"another")
    if observed:
        assert received(consumer) == [b"another"]
    for value in (b"u", b"t"):
        consumer.acknowledge(held[value])
    consumer.close()
    assert pulsarlite.backlog("t", "s") == 0
    assert not subscriptions(pulsarlite.root, "persistent://public/default/t")[0].consumers


def test_with_receipts_an_acknowledgement_is_with_the_broker_when_it_returns(
    client: pulsar.Client,
) -> None:
    client.create_producer("t").send(b"a")
    consumer = shared(client, ack_receipt_enabled=True, acknowledgments_group_time_millis=60_000)
    consumer.acknowledge(consumer.receive(1000))
    other = shared(client)
    consumer.redeliver_unacknowledged_messages()
    assert received(other) == []


def test_with_receipts_a_transaction_is_with_the_broker_when_it_is_committed(
    client: pulsar.Client,
) -> None:
    client.create_producer("t").send(b"a")
    for receipts, left in ((False, 1), (True, 0)):
        consumer = shared(client, name=f"s{receipts}", ack_receipt_enabled=receipts)
        with client.new_transaction() as transaction:
            consumer.acknowledge_in(transaction, consumer.receive(1000))
        known = subscriptions(client.root)
        assert [each.backlog for each in known if each.name == f"s{receipts}"] == [left]
        consumer.close()


def test_a_batch_ends_with_the_first_bound(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    for number in range(7):
        producer.send(b"%04d" % number)
    policy = pulsar.ConsumerBatchReceivePolicy(3, -1, 500)
    consumer = shared(client, batch_receive_policy=policy)
    assert [len(consumer.batch_receive()) for _ in range(3)] == [3, 3, 1]
    large = pulsar.ConsumerBatchReceivePolicy(-1, 8, 500)
    other = shared(client, name="other", batch_receive_policy=large)
    assert len(other.batch_receive()) == 2
    with pytest.raises(ValueError, match="At least one"):
        pulsar.ConsumerBatchReceivePolicy(0, 0, 0)


def test_a_rejected_message_comes_again_after_its_delay(client: pulsar.Client) -> None:
    consumer = shared(client, negative_ack_redelivery_delay_ms=5_000)
    client.create_producer("t").send(b"a")
    consumer.negative_acknowledge(consumer.receive(1000))
    assert received(consumer, 4_000) == []
    (again,) = all_of(consumer, 2_000)
    assert again.redelivery_count() == 1
    consumer.negative_acknowledge(again, delay_millis=100)
    third = consumer.receive(200)
    assert third.redelivery_count() == 2
    consumer.negative_acknowledge(third.message_id(), delay_millis=100)
    consumer.acknowledge(consumer.receive(200).message_id())
    consumer.redeliver_unacknowledged_messages()
    assert received(consumer) == []


def test_a_backoff_lengthens_the_delay(client: pulsar.Client) -> None:
    backoff = {"negativeAckRedeliveryBackoff": "1s,60s,10"}
    consumer = shared(client, options=backoff)
    client.create_producer("t").send(b"a")
    consumer.negative_acknowledge(consumer.receive(1000))
    consumer.negative_acknowledge(consumer.receive(2_000))
    assert received(consumer, 9_000) == []
    assert received(consumer, 2_000) == [b"a"]


def test_what_is_not_acknowledged_in_time_comes_again(client: pulsar.Client) -> None:
    consumer = shared(client, unacked_messages_timeout_ms=10_000)
    client.create_producer("t").send(b"a")
    consumer.receive(1000)
    assert received(consumer, 8_000) == []
    assert received(consumer, 5_000) == [b"a"]


def test_unacknowledged_messages_are_redelivered_on_demand(client: pulsar.Client) -> None:
    consumer = shared(client)
    producer = client.create_producer("t")
    for value in (b"a", b"b"):
        producer.send(value)
    messages = all_of(consumer)
    consumer.acknowledge(messages[0])
    consumer.redeliver_unacknowledged_messages()
    assert received(consumer) == [b"b"]


def test_a_message_is_given_up_to_the_dead_letter_topic(client: pulsar.Client) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, "dead", "undertaker")
    consumer = shared(client, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=100)
    client.create_producer("t").send(b"a")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(1000))
    assert received(consumer) == []
    assert received(subscribe(client, "dead", name="undertaker")) == [b"a"]
    with pytest.raises(ValueError, match="greater than 0"):
        pulsar.ConsumerDeadLetterPolicy(0)


def test_a_dead_letter_topic_gets_no_subscription_where_none_may_be_made_by_itself(
    client: pulsar.Client, url: str
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, "dead", "undertaker")
    consumer = shared(client, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=100)
    Admin(url).policies("public/default").set(auto_subscription_creation=False)
    client.create_producer("t").send(b"a")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(1000))
    assert received(consumer) == []
    assert client.topic_stats("dead").subscriptions == ()
    assert received(client.create_reader("dead", pulsar.MessageId.earliest)) == [b"a"]


def test_acknowledgements_go_out_when_a_thousand_wait(
    client: pulsar.Client, pulsarlite_clock: ManualClock
) -> None:
    consumer = shared(client, acknowledgments_group_time_millis=3_600_000)
    producer = client.create_producer("t", batching_enabled=True)
    for _ in range(1000):
        producer.send_async(b"a", None)
    producer.flush()
    messages = [consumer.receive(1000) for _ in range(1000)]

    def backlog() -> int:
        return client.topic_stats("t").subscriptions[0].backlog

    for message in messages[:-1]:
        consumer.acknowledge(message)
    pulsarlite_clock.advance(100)
    assert backlog() == 1000
    consumer.acknowledge(messages[-1])
    pulsarlite_clock.advance(100)
    assert backlog() == 0


def test_a_message_is_consumed_later_by_way_of_the_retry_letter_topic(
    client: pulsar.Client,
) -> None:
    consumer = shared(client, retry_enable=True)
    client.create_producer("t").send(b"a")
    consumer.reconsume_later(consumer.receive(1000), 3_000, {"why": "busy"})
    assert received(consumer, 2_500) == []
    (again,) = all_of(consumer, 2_000)
    assert again.properties()["why"] == "busy"
    assert again.topic_name().endswith("t-s-RETRY")
    consumer.acknowledge(again)
    assert received(consumer) == []


def test_a_delayed_message_waits_for_its_time(client: pulsar.Client) -> None:
    consumer = shared(client)
    producer = client.create_producer("t")
    producer.send(b"after", deliver_after=timedelta(seconds=5))
    producer.send(b"at", deliver_at=client.root.clock.wall_ms() + 10_000)
    assert received(consumer, 4_000) == []
    assert consumer.receive(2_000).data() == b"after"
    assert consumer.receive(6_000).data() == b"at"


def test_keys_stay_with_their_consumer(client: pulsar.Client) -> None:
    kind = pulsar.ConsumerType.KeyShared
    low, high = (
        subscribe(
            client,
            consumer_type=kind,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(
                pulsar.KeySharedMode.Sticky, sticky_ranges=[ranges]
            ),
        )
        for ranges in ((0, 32767), (32768, 65535))
    )
    producer = client.create_producer("t")
    for number in range(20):
        producer.send(b"x", partition_key=f"key-{number % 5}")
    keys = [{each.partition_key() for each in all_of(each)} for each in (low, high)]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 5


def test_a_second_exclusive_consumer_is_refused(client: pulsar.Client) -> None:
    subscribe(client)
    with pytest.raises(pulsar.ConsumerBusy, match="ConsumerBusy"):
        subscribe(client)


def test_several_topics_and_all_of_a_pattern_are_read(client: pulsar.Client) -> None:
    for topic in ("a-1", "a-2", "b-1"):
        client.create_producer(topic).send(topic.encode())
    some = subscribe(client, ["a-1", "b-1"])
    assert sorted(received(some)) == [b"a-1", b"b-1"]
    matching = subscribe(
        client, re.compile("a-.*"), name="pattern", pattern_auto_discovery_period=1
    )
    assert sorted(received(matching)) == [b"a-1", b"a-2"]
    client.create_producer("a-3").send(b"new")
    assert received(matching, 3_000) == [b"new"]
    with pytest.raises(ValueError, match="Argument 'topic'"):
        subscribe(client, [])


def test_a_seek_goes_behind_a_message_or_to_it_or_to_a_time(
    client: pulsar.Client, pulsarlite_clock: ManualClock
) -> None:
    subscribe(client, name="keeps").close()  # what all subscriptions are done with is trimmed
    producer = client.create_producer("t", batching_enabled=True)
    times: list[int] = []
    ids: list[Any] = []
    for value in (b"a", b"b", b"c"):
        pulsarlite_clock.advance(1_000)
        times.append(client.root.clock.wall_ms())
        ids.append(producer.send(value))
    for value in (b"d", b"e"):
        producer.send_async(value, lambda _, message_id: ids.append(message_id))
    producer.flush()
    consumer = subscribe(client)
    assert len(received(consumer)) == 5
    for to, expected in (
        (pulsar.MessageId.earliest, [b"a", b"b", b"c", b"d", b"e"]),
        (ids[1], [b"c", b"d", b"e"]),
        (ids[3], [b"e"]),
        (times[2], [b"c", b"d", b"e"]),
        (-(10**20), [b"a", b"b", b"c", b"d", b"e"]),
        (10**20, []),
        (pulsar.MessageId.latest, []),
    ):
        consumer.seek(to)
        assert received(consumer) == expected
    assert consumer.get_last_message_id() == ids[4]
    consumer.close()
    inclusive = subscribe(client, start_message_id_inclusive=True)
    inclusive.seek(ids[1])
    assert received(inclusive) == [b"b", b"c", b"d", b"e"]
    with pytest.raises(ValueError, match="invalid seek_arg type"):
        inclusive.seek("1:2")  # type: ignore[arg-type]


def test_a_batch_that_fails_hands_out_next_what_it_had_taken(
    pulsarlite: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pulsarlite.client
    producer = client.create_producer("t")
    for value in (b"a", b"b"):
        producer.send(value)
    policy = pulsar.ConsumerBatchReceivePolicy(3, 0, 60_000)
    consumer = subscribe(client, batch_receive_policy=policy)
    taken: list[pulsar.Message | None] = []
    take = consumer.reserve

    def away(*_: object) -> None:
        raise StorageUnavailableError("The store is away for a moment.")

    with monkeypatch.context() as patch:

        def taking() -> pulsar.Message | None:
            taken.append(take())
            if len(taken) == 2:
                patch.setattr(MemoryStore, "get", away)
            return taken[-1]

        patch.setattr(consumer, "reserve", taking)
        with pytest.raises(pulsar.ConnectError):
            consumer.batch_receive()
    producer.send(b"c")
    found = consumer.batch_receive()
    assert [each.data() for each in found] == [b"a", b"b", b"c"]
    consumer.acknowledge_cumulative(found[-1])
    consumer.close()
    assert pulsarlite.backlog("t", "s") == 0


def test_what_was_acknowledged_before_a_seek_comes_again(client: pulsar.Client) -> None:
    subscribe(client, name="keeps").close()
    producer = client.create_producer("t")
    for value in (b"a", b"b"):
        producer.send(value)
    mine, other = shared(client), shared(client, name="other")
    for each in (*all_of(mine), *all_of(other)):
        mine.acknowledge(each)  # they wait for others
    mine.seek(pulsar.MessageId.earliest)
    again = all_of(mine)
    assert [each.data() for each in again] == [b"a", b"b"]
    in_background = shared(client)
    for each in again:
        mine.acknowledge(each)
    in_background.seek(pulsar.MessageId.earliest)
    assert sorted(received(mine) + received(in_background)) == [b"a", b"b"]


def test_who_unsubscribes_leaves_no_subscription(client: pulsar.Client) -> None:
    consumer = subscribe(client)
    client.create_producer("t").send(b"a")
    consumer.unsubscribe()
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(10)
    assert received(client.subscribe("t", "s")) == []  # a new one, at the end


def test_who_is_not_alone_can_not_unsubscribe(client: pulsar.Client) -> None:
    first, second = shared(client), shared(client)
    with pytest.raises(pulsar.BrokerMetadataError, match="has other consumers"):
        first.unsubscribe()
    client.create_producer("t").send(b"a")
    assert received(first) + received(second) == [b"a"]


def test_an_id_says_of_which_topic_it_is_where_there_are_several(client: pulsar.Client) -> None:
    for topic in ("a", "b"):
        client.create_producer(topic).send(topic.encode())
    consumer = shared(client, topic=["a", "b"])
    stored = {each.topic_name(): each.message_id().serialize() for each in all_of(consumer)}
    for data in stored.values():
        with pytest.raises(pulsar.OperationNotSupported, match="Of which topic is"):
            consumer.acknowledge(pulsar.MessageId.deserialize(data))
    for topic, data in stored.items():
        consumer.acknowledge(pulsar.MessageId.deserialize(data, topic=topic))
    consumer.redeliver_unacknowledged_messages()
    assert received(consumer) == []


def test_names_are_as_they_were_given(client: pulsar.Client) -> None:
    consumer = subscribe(client, consumer_name="c")
    assert (consumer.topic(), consumer.subscription_name(), consumer.consumer_name()) == (
        "persistent://public/default/t", "s", "c",
    )  # fmt: skip
    assert consumer.is_connected()
    producer = client.create_producer("t", "p")
    assert (producer.topic(), producer.producer_name()) == ("persistent://public/default/t", "p")
    assert producer.is_connected()


def test_a_reader_begins_where_it_is_told_and_knows_its_end(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    ids = [producer.send(value) for value in (b"a", b"b", b"c")]
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next().data())
    assert found == [b"a", b"b", b"c"]
    assert received(client.create_reader("t", ids[0])) == [b"b", b"c"]
    assert received(client.create_reader("t", ids[0], start_message_id_inclusive=True)) == [
        b"a", b"b", b"c",
    ]  # fmt: skip
    latest = client.create_reader("t", pulsar.MessageId.latest)
    assert not latest.has_message_available()
    producer.send(b"d")
    assert reader.has_message_available()
    assert received(latest) == [b"d"]
    reader.seek(ids[1])
    assert received(reader) == [b"c", b"d"]
    reader.close()
    assert not reader.is_connected()


def test_readers_alone_let_no_message_go(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    ids = [producer.send(value) for value in (b"a", b"b", b"c")]
    assert received(client.create_reader("t", ids[1])) == [b"c"]
    for _ in range(2):
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        assert received(reader) == [b"a", b"b", b"c"]
        reader.close()


def test_a_reader_does_not_wait_for_what_nobody_sees(client: pulsar.Client) -> None:
    producer = client.create_producer("t", "p", options={"enableDeduplication": "true"})
    producer.send(b"a", sequence_id=5)
    for value in (b"c", b"a again"):  # published together, and the second is a duplicate
        producer.send_async(value, None, sequence_id=6 if value == b"c" else 5)
    producer.flush()
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    assert found == [b"a", b"c"]
