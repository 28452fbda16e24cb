"""A consumer without Spark, beside what the dialogues tell: chunks, several topics, its life."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.consuming import subscription_client
from pulsar_spark.connector.runtime.consuming.consumer_run import ConsumerRun
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.system_topics.lease import LEASES
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, SystemTopic
from pulsar_spark.connector.tools.admin.topics import Topics
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.errors import (
    ConsumerBusyError,
    ConsumerNotConnectedError,
    InvalidCursorPositionError,
    StorageError,
    TopicDeletedError,
    TopicNotFoundError,
)
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.reading import Run
from tests.connector.topics import send
from tests.scenarios.host import Host

CHUNKS = {"chunkingEnabled": "true", "maxMessageSize": "4", "batchingEnabled": "false"}


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


def consumer(host: Host, name: str = "c", **options: str) -> MessageConsumer:
    given = {
        "topic": "t", "subscriptionName": "s", "subscriptionType": "Shared",
        "subscriptionInitialPosition": "Earliest", "consumerName": name,
    }  # fmt: skip
    return host.subscribe({**given, **options})


def received(host: Host, mine: MessageConsumer) -> list[ReceivedMessage]:
    found = []
    while (message := mine.receive()) is not None:
        found.append(message)
        host.run()
    return found


def away(*_: object) -> bool:
    raise StorageError("The store is away for a moment.")


def backlog(host: Host, topic: str = "t") -> int:
    state = host.state(TopicPartition(f"persistent://public/default/{topic}", 0))
    return state.subscriptions["s"].cursor.backlog(state.ledgers)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_large_message_is_put_together_and_acknowledged_as_a_whole(host: Host, kind: str) -> None:
    one, two = (host.producer({"topic": "t", "producerName": name, **CHUNKS}) for name in "ab")
    one.send(b"0123456789")
    two.send(b"abcdefgh")
    one.send(b"xyz")
    mine = consumer(host, subscriptionType=kind)
    whole = received(host, mine)
    assert [each.value for each in whole] == [b"0123456789", b"abcdefgh", b"xyz"]
    mine.acknowledge(*whole)
    host.run()
    assert backlog(host) == 0


def test_handing_out_costs_no_commit_and_acknowledgements_wait_for_their_time(host: Host) -> None:
    with host.producer({"topic": "t"}) as sends:
        for value in (b"a", b"b", b"c"):
            sends.send(value)
    options = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
    mine = host.subscribe(options, acknowledgment_group_time_ms=100)
    commands = SystemTopic(host.root, COMMANDS)
    before = commands.refresh()
    for _ in range(3):
        message = mine.receive()
        assert message is not None
        mine.acknowledge(message)
    assert commands.refresh() == before
    host.clock.advance(100)
    assert commands.refresh() == before + 1
    host.broker.until_quiet()
    assert backlog(host) == 0


def test_an_acknowledgement_that_is_refused_loses_nothing_of_what_is_taken_with_it(
    host: Host,
) -> None:
    send(host.root.service_url, "t", [b"a"])
    options = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
    mine = host.subscribe(options, acknowledgment_group_time_ms=100)
    mine.acknowledge(ReceivedMessage(None, (77, 0, 0, 0), "persistent://public/default/t"))
    with pytest.raises(InvalidCursorPositionError, match="was never published"):
        mine.receive()
    assert [each.value for each in received(host, mine)] == [b"a"]


def test_a_refusal_holds_though_the_store_takes_no_last_report(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer(host, "a", subscriptionType="Exclusive")
    given = {"topics": "t,u", "subscriptionName": "s", "subscriptionType": "Exclusive"}
    second = MessageConsumer({"serviceUrl": host.root.service_url, **given})
    host.broker.until_quiet()
    monkeypatch.setattr(SystemTopic, "append", away)
    with pytest.raises(ConsumerBusyError):
        second.receive()
    with pytest.raises(ConsumerNotConnectedError):
        second.receive()


def test_who_was_given_up_subscribes_again_though_the_store_fails_as_he_hears_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = consumer(host)
    host.consumers.remove(mine)
    mine._client._keeper.stop()
    host.advance(60_000)
    send(host.root.service_url, "t", [b"a"])
    host.broker.until_quiet()
    with monkeypatch.context() as patch:
        patch.setattr(subscription_client, "leases", away)
        with pytest.raises(StorageError):
            mine.receive()
    host.consumers.append(mine)
    assert mine.receive() is None, "it subscribes again"
    host.run()
    assert [each.value for each in received(host, mine)] == [b"a"]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_what_is_asked_for_again_comes_once_though_the_broker_hears_of_it_late(
    host: Host, kind: str
) -> None:
    send(host.root.service_url, "t", [b"a", b"b", b"c"])
    mine = consumer(host, subscriptionType=kind)
    first = mine.receive()
    assert first is not None
    mine.redeliver_unacknowledged_messages()
    early = mine.receive()
    found = [*([] if early is None else [early]), *received(host, mine)]
    host.run()
    found += received(host, mine)
    assert sorted((each.value, each.redelivery_count) for each in found) == [
        (b"a", 1), (b"b", 0), (b"c", 0)
    ]  # fmt: skip
    mine.acknowledge(*found)
    host.run()
    assert backlog(host) == 0


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_what_is_asked_for_again_comes_once_though_nobody_hears_that_it_was_said(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: str, lands: bool
) -> None:
    send(host.root.service_url, "t", [b"a", b"b", b"c"])
    mine = consumer(host, subscriptionType=kind)
    done, held = mine.receive(), mine.receive()
    assert done is not None
    assert held is not None
    store, commands = host.root.store, SystemTopic(host.root, COMMANDS)
    create, before = store.create, commands.refresh()

    def lost(path: str, data: bytes) -> bool:
        is_reported = "__commands/_log" in path
        answer = create(path, data) if lands or not is_reported else False
        return away() if is_reported else answer

    with monkeypatch.context() as patch:
        patch.setattr(store, "create", lost)
        with pytest.raises(StorageError):
            mine.redeliver_unacknowledged_messages()
    assert commands.refresh() == before + lands
    mine.acknowledge(done)
    early = mine.receive()
    assert early is None
    host.run()
    found = received(host, mine)
    assert [(each.value, each.redelivery_count) for each in found] == [(b"b", 1), (b"c", 0)]


def test_over_a_network_what_can_not_be_planned_is_not_reported(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(host.root.service_url, "t", [b"a"])
    mine = consumer(host)
    commands, plan = SystemTopic(host.root, COMMANDS), ConsumerRun.plan
    said: list[int] = []

    def in_background(request: Any, asked: Iterable[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(2) as threads:
            return threads.map(request, list(asked))

    def planned(run: ConsumerRun, begun: StreamOffset) -> StreamOffset | None:
        """What it plans is deleted at once, and it knows."""
        found = plan(run, begun)
        Topics(host.root).delete("t", force=True)
        said.append(commands.refresh())
        return found

    monkeypatch.setattr(host.root.store, "answers", in_background)
    monkeypatch.setattr(ConsumerRun, "plan", planned)
    with pytest.raises(TopicDeletedError):
        mine.receive()
    assert said == [commands.refresh()]
    host.consumers.remove(mine)


def test_of_two_that_share_each_gets_whole_messages_and_none_is_lost(host: Host) -> None:
    names = [b"%04d" % number * 3 for number in range(20)]
    with host.producer({"topic": "t", **CHUNKS}) as large:
        for name in names:
            large.send(name)
    both = [consumer(host, name, receiverQueueSize="2") for name in "ab"]
    found: list[bytes | None] = []
    for _ in names:
        for mine in both:
            for message in received(host, mine):
                found.append(message.value)
                mine.acknowledge(message)
            host.run()
    assert sorted(map(bytes, filter(None, found))) == names
    assert backlog(host) == 0


def test_a_rejected_chunked_message_comes_again_as_a_whole(host: Host) -> None:
    host.producer({"topic": "t", **CHUNKS}).send(b"0123456789")
    mine = consumer(host)
    (first,) = received(host, mine)
    mine.negative_acknowledge(first, delay_ms=1_000)
    host.advance(1_000)
    (again,) = received(host, mine)
    assert (again.value, again.redelivery_count) == (b"0123456789", 1)


def test_it_reads_several_topics_and_says_of_which_each_message_is(host: Host) -> None:
    for topic in ("t", "u"):
        send(host.root.service_url, topic, [f"{topic}1", f"{topic}2"])
    options = {
        "topics": "t,u", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
    }  # fmt: skip
    mine = host.subscribe(options, prefetch=10)
    found = received(host, mine)
    assert {(each.topic[-1], each.value) for each in found} == {
        ("t", b"t1"), ("t", b"t2"), ("u", b"u1"), ("u", b"u2")
    }  # fmt: skip
    mine.acknowledge(*found)
    host.run()
    assert (backlog(host), backlog(host, "u")) == (0, 0)


def test_it_takes_part_beside_a_streaming_source(host: Host) -> None:
    send(host.root.service_url, "t", [str(number) for number in range(40)], batchingEnabled=False)
    mine = consumer(host, receiverQueueSize="5")
    query = Run(
        host.root.service_url, topic="t", subscriptionName="s", subscriptionType="Shared",
        receiverQueueSize=5,
    )  # fmt: skip
    found: list[str] = []
    for _ in range(20):
        batch = query.next()
        found += batch.values if batch is not None else []
        for message in received(host, mine):
            found.append((message.value or b"").decode())
            mine.acknowledge(message)
        host.run()
    assert sorted(found, key=int) == [str(number) for number in range(40)]


def test_a_seek_empties_its_queue(host: Host) -> None:
    send(host.root.service_url, "t", "abc", batchingEnabled=False)
    options = {
        "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
    }  # fmt: skip
    mine = host.subscribe(options, prefetch=3)
    first = mine.receive()
    assert first is not None
    mine.seek(first.message_id)
    host.run()
    assert [each.value for each in received(host, mine)] == [b"a", b"b", b"c"]
    mine.seek(EARLIEST)
    host.run()
    assert len(received(host, mine)) == 3
    mine.seek(host.now_ms + 1000)
    host.run()
    assert received(host, mine) == []


def test_who_is_closed_says_so_and_another_gets_what_was_not_acknowledged(host: Host) -> None:
    send(host.root.service_url, "t", ["a"])
    with consumer(host, "first") as first:
        assert received(host, first)
    host.run()
    with pytest.raises(ConsumerNotConnectedError, match="first is closed"):
        first.receive()
    first.poll()
    (again,) = received(host, consumer(host, "second"))
    assert again.redelivery_count == 1


def test_who_leaves_before_the_broker_has_answered_is_in_nobodys_way(host: Host) -> None:
    with host.producer({"topic": "t"}) as producer:
        producer.send(b"m")
    options = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
    MessageConsumer({**options, "serviceUrl": host.root.service_url}).close()
    mine = consumer(host, "b", subscriptionType="Exclusive")
    host.run()
    assert [each.value for each in received(host, mine)] == [b"m"]


def test_a_topic_that_is_not_there_is_an_error(host: Host) -> None:
    with pytest.raises(TopicNotFoundError, match="does not exist"):
        consumer(host, allowAutoTopicCreation="false")


def test_what_was_said_while_the_store_was_away_is_said_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = host.producer({"topic": "t"})
    for value in (b"good", b"bad"):
        producer.send(value)
    mine = consumer(host, negativeAckRedeliveryDelay="100ms")
    good, bad = received(host, mine)

    with monkeypatch.context() as patch:
        patch.setattr(host.root.store, "create", away)
        with pytest.raises(StorageError):
            mine.acknowledge(good)
        with pytest.raises(StorageError):
            mine.negative_acknowledge(bad)
    mine.poll()
    host.advance(1000)
    assert backlog(host) == 1
    assert [each.value for each in received(host, mine)] == [b"bad"]


def test_a_partition_that_came_while_the_store_was_away_is_read_from_its_beginning(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.producer({"topic": "t"})
    mine = consumer(host, subscriptionInitialPosition="Latest")
    received(host, mine)
    host.root.open(TopicName.parse("t")).grow(2)
    host.producer({"topic": "t-partition-1"}).send(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(host.root.store, "create", away)
        with pytest.raises(StorageError):
            mine.poll()
    mine.poll()
    host.run()
    assert [each.value for each in received(host, mine)] == [b"first"]


@pytest.mark.parametrize("called", ["create", "touch"])
def test_a_consumer_that_could_not_be_made_keeps_nothing_from_others(
    host: Host, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    producer = host.producer({"topic": "t"})
    producer.send(b"m")
    store = host.root.store
    done = getattr(store, called)

    def lost(path: str, *rest: object) -> object:
        answer = done(path, *rest)
        if "__commands/_log" in path or "_activity" in path:
            away()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(store, called, lost)
        with pytest.raises(StorageError):
            consumer(host, "first")
    lease, *others = store.files(LEASES)
    host.advance(40_000)
    assert not others
    assert [each for each in store.files(LEASES) if each.modified_ms > lease.modified_ms] == []
    assert [each.value for each in received(host, consumer(host, "second"))] == [b"m"]
