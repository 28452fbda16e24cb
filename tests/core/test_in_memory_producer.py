"""A producer in memory: batches, chunks, routing, delays, duplicates, access modes."""

from __future__ import annotations

import pytest

from pulsar_spark.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.errors import (
    BrokerRefusedError,
    InvalidMessageError,
    InvalidOptionError,
    ProducerBusyError,
    ProducerFencedError,
)
from pulsar_spark.hashing import java_string_hash, murmur3_32_hash
from pulsar_spark.in_memory_consumer import InMemoryConsumer, Message
from pulsar_spark.in_memory_host import InMemoryHost
from pulsar_spark.in_memory_producer import InMemoryProducer
from pulsar_spark.policies import TopicPolicies

UNBATCHED = {"batchingEnabled": "false"}


@pytest.fixture
def host() -> InMemoryHost:
    made = InMemoryHost(now_ms=1_000_000)
    made.topic("t", TopicPolicies(keep_without_subscription=True))
    return made


def producer(host: InMemoryHost, name: str = "p", **options: str) -> InMemoryProducer:
    made = host.producer("t", options, name=name)
    host.run()
    return made


def consumer(host: InMemoryHost, topic: str = "t", kind: str = "Exclusive") -> InMemoryConsumer:
    command = Subscribe(
        "s", "c", subscription_type=SubscriptionType(kind),
        initial_position=InitialPosition.EARLIEST,
    )  # fmt: skip
    made = host.subscribe(topic, command)
    host.run()
    return made


def received(consumer: InMemoryConsumer) -> list[Message]:
    messages = []
    while (message := consumer.receive()) is not None:
        messages.append(message)
    return messages


def entries(host: InMemoryHost, topic: str = "t") -> list[list[bytes]]:
    """The values of each entry."""
    found: dict[tuple[int, int], list[bytes]] = {}
    for place, message in sorted(host.topic(topic).messages.items()):
        found.setdefault(place[:2], []).append(message.value)
    return list(found.values())


# -- batching ------------------------------------------------------------------------------------


def test_a_batch_is_published_when_its_delay_has_passed(host: InMemoryHost) -> None:
    mine = host.producer("t", batching_max_publish_delay_ms=10)
    host.run()
    mine.send(b"a")
    host.advance(5)
    mine.send(b"b")
    host.advance(4)
    assert entries(host) == []
    host.advance(1)
    assert entries(host) == [[b"a", b"b"]]
    assert [each.batch_index for each in mine.published] == [0, 1]


def test_a_batch_is_published_when_it_is_full_by_count_or_bytes(host: InMemoryHost) -> None:
    few = producer(host, "few", batchingMaxMessages="2")
    for value in (b"a", b"b", b"c"):
        few.send(value)
    assert entries(host) == [[b"a", b"b"]]
    few.close()
    small = producer(host, "small", batchingMaxBytes="4")
    for value in (b"dd", b"ee", b"fff", b"gg", b"hhhhhh"):
        small.send(value)
    small.flush()
    assert entries(host)[2:] == [[b"dd", b"ee"], [b"fff"], [b"gg"], [b"hhhhhh"]]


def test_a_message_with_a_delivery_time_is_an_entry_of_its_own_in_its_turn(
    host: InMemoryHost,
) -> None:
    mine = producer(host)
    mine.send(b"a")
    mine.send(b"later", deliver_after_ms=5_000)
    mine.send(b"b")
    mine.flush()
    assert entries(host) == [[b"a"], [b"later"], [b"b"]]
    shared = consumer(host, kind="Shared")
    assert [each.value for each in received(shared)] == [b"a", b"b"]
    host.advance(4_999)
    assert received(shared) == []
    host.advance(1_001)
    assert [each.value for each in received(shared)] == [b"later"]


def test_key_based_batches_hold_one_key_each(host: InMemoryHost) -> None:
    mine = producer(host, batcherBuilder="KEY_BASED")
    for value, key in ((b"1", "x"), (b"2", "y"), (b"3", "x")):
        mine.send(value, key=key)
    mine.flush()
    assert entries(host) == [[b"2"], [b"1", b"3"]]


# -- routing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
def test_a_key_goes_to_the_partition_of_its_hash(host: InMemoryHost, scheme: str) -> None:
    mine = producer(host, numPartitions="4", hashingScheme=scheme, **UNBATCHED)
    hashed = java_string_hash if scheme == "JavaStringHash" else murmur3_32_hash
    for key in ("a", "b", "c", "N12345"):
        mine.send(key.encode(), key=key)
        assert mine.published[-1].partition == hashed(key) % 4


def test_without_a_key_round_robin_single_or_a_router_of_ones_own(host: InMemoryHost) -> None:
    turns = producer(host, "turns", numPartitions="3", **UNBATCHED)
    for _ in range(4):
        turns.send(b"x")
    assert [each.partition for each in turns.published] == [0, 1, 2, 0]
    one = producer(
        host, "one", numPartitions="3", messageRoutingMode="SinglePartition", **UNBATCHED
    )
    for _ in range(4):
        one.send(b"x")
    assert len({each.partition for each in one.published}) == 1
    own = host.producer(
        "t", {"numPartitions": "3", **UNBATCHED}, name="own", router=lambda m, n: len(m.value) % n
    )
    host.run()
    own.send(b"xx")
    own.send(b"xxxx")
    assert [each.partition for each in own.published] == [2, 1]


# -- chunks --------------------------------------------------------------------------------------


def test_a_large_message_is_cut_and_put_together_and_acknowledged_as_a_whole(
    host: InMemoryHost,
) -> None:
    chunks = {"chunkingEnabled": "true", "maxMessageSize": "4", **UNBATCHED}
    one, two = producer(host, "one", **chunks), producer(host, "two", **chunks)
    one.send(b"0123456789")
    two.send(b"abcdefgh")
    one.send(b"xyz")
    assert [len(each) for each in entries(host)] == [1] * 6
    mine = consumer(host)
    whole = received(mine)
    assert [each.value for each in whole] == [b"0123456789", b"abcdefgh", b"xyz"]
    mine.acknowledge(whole, host.now_ms)
    host.run()
    state = host.topic("t").state
    assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 0


def test_a_rejected_chunked_message_comes_again_as_a_whole(host: InMemoryHost) -> None:
    mine = producer(host, chunkingEnabled="true", maxMessageSize="4", **UNBATCHED)
    mine.send(b"0123456789")
    shared = consumer(host, kind="Shared")
    (first,) = received(shared)
    shared.negative_acknowledge([first], delay_ms=1_000)
    host.run()
    host.advance(1_000)
    (again,) = received(shared)
    assert (again.value, again.redelivery_count) == (b"0123456789", 1)


def test_a_message_that_is_too_large_is_refused_and_nothing_is_published(
    host: InMemoryHost,
) -> None:
    mine = producer(host, maxMessageSize="4", **UNBATCHED)
    with pytest.raises(InvalidMessageError, match="has 5 bytes, and maxMessageSize is 4"):
        mine.send(b"01234")
    with pytest.raises(InvalidMessageError, match="both deliver_at and deliver_after"):
        mine.send(b"0", deliver_at_ms=1, deliver_after_ms=1)
    assert entries(host) == []
    assert mine.send(b"0123") == 0  # no sequence id was used up


# -- duplicates, access modes --------------------------------------------------------------------


def test_a_sequence_id_that_was_published_is_dropped(host: InMemoryHost) -> None:
    mine = producer(host, enableDeduplication="true")
    for number, value in ((0, b"a"), (1, b"b"), (1, b"b"), (0, b"a"), (2, b"c")):
        mine.send(value, sequence_id=number)
    mine.flush()
    mine.send(b"c", sequence_id=2)
    mine.flush()
    assert [value for entry in entries(host) for value in entry] == [b"a", b"b", b"c"]


def test_an_exclusive_producer_keeps_others_out_until_it_closes(host: InMemoryHost) -> None:
    mine = producer(host, "mine", accessMode="Exclusive")
    other = producer(host, "other")
    assert (mine.is_connected, other.is_connected) == (True, False)
    with pytest.raises(BrokerRefusedError):
        other.send(b"x")
    waits = producer(host, "waits", accessMode="WaitForExclusive")
    with pytest.raises(ProducerBusyError, match="was not let in yet"):
        waits.send(b"x")
    mine.send(b"a")
    mine.close()
    host.run()
    assert entries(host) == [[b"a"]]
    assert waits.is_connected
    with pytest.raises(ProducerBusyError, match="is closed"):
        mine.send(b"b")


def test_who_is_fenced_out_publishes_nothing_any_more(host: InMemoryHost) -> None:
    old = producer(host, "old", accessMode="Exclusive")
    old.send(b"waits")
    new = producer(host, "new", accessMode="ExclusiveWithFencing")
    assert new.is_connected
    with pytest.raises(ProducerFencedError, match="old must stop"):
        old.send(b"x")
    host.advance(100)
    assert entries(host) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batchingMaxMesages": "1"}, "Did you mean batchingMaxMessages?"),
        ({"transactional": "true"}, "Option transactional has no meaning in memory"),
        ({"chunkingEnabled": "true"}, "can't be enabled together"),
    ],
)
def test_an_option_that_can_not_be_is_refused(
    host: InMemoryHost, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        host.producer("t", options)
