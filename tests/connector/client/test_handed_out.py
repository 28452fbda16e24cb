"""A message in a queue is prefetched; one that the program was handed is delivered."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.broker.protocol.commands import Report
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, SystemTopic
from pulsar_spark.testing import Place
from tests.connector.client.clients import REPOSITORY, all_of, python, received, shared, subscribe

FAILOVER = pulsar.ConsumerType.Failover
SHARED = pulsar.ConsumerType.Shared
KINDS = [SHARED, pulsar.ConsumerType.KeyShared, FAILOVER, pulsar.ConsumerType.Exclusive]
LEASE = {"leaseTimeout": "1s"}


def publish(client: pulsar.Client, messages: int, topic: str = "t") -> list[bytes]:
    values = [b"%d" % number for number in range(messages)]
    producer = client.create_producer(topic)
    for value in values:
        producer.send_async(value, None)
    producer.flush()
    return values


def failover(client: pulsar.Client, priority: int, **said: object) -> pulsar.Consumer:
    given = {"priorityLevel": str(priority)}
    return subscribe(client, consumer_type=FAILOVER, options=given, **said)


def test_cumulative_acknowledgements_of_two_failover_consumers_lose_nothing(
    client: pulsar.Client,
) -> None:
    """Each is active for a while, and acknowledges what it was handed; then the first closes."""
    values = publish(client, 25)
    first = failover(client, 1)
    handed = []
    for _ in range(7):
        handed.append(first.receive(1000))
        first.acknowledge_cumulative(handed[-1])
    second = failover(client, 0)
    handed += all_of(second)
    second.acknowledge_cumulative(handed[-1])
    assert [each.data() for each in handed] == values  # in order, and nothing is left in a queue
    assert received(first) == []
    first.close()
    assert received(second) == []


def test_a_cumulative_acknowledgement_leaves_what_another_was_handed_and_holds(
    client: pulsar.Client,
) -> None:
    values = publish(client, 9)
    first = failover(client, 1)
    held = [first.receive(1000) for _ in range(4)]
    second = failover(client, 0)
    others = all_of(second)
    second.acknowledge_cumulative(others[-1])
    second.close()
    first.close()
    third = failover(client, 0)
    assert received(third) == [each.data() for each in held] == values[:4]


def test_a_busy_program_hands_over_what_it_has_not_been_handed(client: pulsar.Client) -> None:
    """Neither receives: a paused listener, and a program that makes no call."""
    values = publish(client, 10)
    busy = failover(client, 1)
    assert busy.receive(1000).data() == values[0]
    second = failover(client, 0)
    assert received(second) == values[1:]
    observed: list[bytes] = []
    second.close()
    listening = subscribe(
        client, "u", consumer_type=FAILOVER, options={"priorityLevel": "1"},
        message_listener=lambda _consumer, message: observed.append(message.data()),
    )  # fmt: skip
    listening.pause_message_listener()
    values = publish(client, 10, "u")
    client.root.clock.sleep(1)
    other = subscribe(client, "u", consumer_type=FAILOVER, options={"priorityLevel": "0"})
    assert received(other) == values
    assert observed == []


def test_what_is_in_the_queue_of_a_key_goes_to_its_new_owner_while_the_program_is_busy(
    client: pulsar.Client,
) -> None:
    producer = client.create_producer("t")
    keys = [f"k{number}" for number in range(20)]
    for key in keys * 2:
        producer.send(key.encode(), partition_key=key)
    given = {"consumer_type": pulsar.ConsumerType.KeyShared}
    busy = subscribe(client, consumer_name="a", **given)
    first = busy.receive(1000)
    second = subscribe(client, consumer_name="b", **given)
    others = received(second, 5000)
    assert others  # though the first one's queue had all of them
    assert first.data() not in others
    mine = received(busy)
    assert sorted([first.data(), *mine, *others]) == sorted(key.encode() for key in keys * 2)
    assert not {*mine, first.data()} & {*others}


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_kills_its_process_is_counted_and_none_that_lay_beside_it(
    pulsarlite: Place, client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    values = publish(client, 50)
    policy = pulsar.ConsumerDeadLetterPolicy(3, "dead", "keeps")
    delivered, kills = set[bytes](), 0
    while True:
        consumer = subscribe(client, consumer_type=kind, dead_letter_policy=policy, options=LEASE)
        try:
            while (message := consumer.receive(2000)).data() != values[7]:
                delivered.add(message.data())
                consumer.acknowledge(message)
        except pulsar.Timeout:
            break
        kills += 1
        consumer.abandon()
        for _ in range(8):  # a broker does not trust a single leap
            pulsarlite.clock.advance(milliseconds=500)
    assert received(subscribe(client, "dead", name="keeps")) == [values[7]]
    assert delivered == {*values} - {values[7]}
    assert kills <= 5  # nobody knows which message was the first one's last


KILLED = """
import os, sys
from pulsar_spark import pulsar
with pulsar.Client({url!r}) as client:
    consumer = client.subscribe(
        "t", "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, "dead", "keeps"),
        options={{"leaseTimeout": "2s"}},
    )
    try:
        while True:
            message = consumer.receive(8000)
            if message.data() == b"7":
                os._exit(9)
            print(message.data().decode(), flush=True)
            consumer.acknowledge(message)
    except pulsar.Timeout:
        pass
"""


@pytest.mark.slow
def test_a_process_that_a_message_ends_four_times_loses_that_message_alone(tmp_path: Path) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        values = publish(client, 50)
        handled, codes = set[bytes](), []
        while 0 not in codes:
            done = python(KILLED.format(url=str(tmp_path)))
            assert done.returncode in (0, 9), done.stderr
            codes.append(done.returncode)
            handled |= {each.encode() for each in done.stdout.split()}
        assert codes == [9, 9, 9, 9, 0]
        dead = subscribe(client, "dead", name="keeps")
        assert received(dead, 3000) == [b"7"]
        assert handled == {*values} - {b"7"}


STOPPED = """
import sys
from pulsar_spark import pulsar
with pulsar.Client({url!r}) as client:
    consumer = client.subscribe(
        "t", "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        options={{"leaseTimeout": "2s"}},
    )
    print(consumer.receive(30_000).data().decode(), flush=True)
    sys.stdin.readline()
    try:
        while True:
            print(consumer.receive(3000).data().decode(), flush=True)
    except pulsar.Timeout:
        print("end", flush=True)
"""


def test_a_process_that_stood_still_hands_out_nothing_that_others_were_given(
    tmp_path: Path,
) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        values = publish(client, 20)
        process = subprocess.Popen(
            [sys.executable, "-c", STOPPED.format(url=str(tmp_path))],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == "0"
            process.send_signal(signal.SIGSTOP)
            mine = shared(client, ack_receipt_enabled=True)
            for value in values:
                message = mine.receive(60_000)
                assert message.data() == value
                mine.acknowledge(message)
            process.stdin.write("\n")
            process.stdin.flush()
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline().strip() == "end"
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def test_a_consumer_that_stood_still_waits_for_the_broker_before_it_hands_out(
    pulsarlite: Place, client: pulsar.Client
) -> None:
    """It was not given up: what it had queued is still its own, and is handed out then."""
    values = publish(client, 5)
    consumer = shared(client, options=LEASE)
    assert consumer.receive(1000).data() == values[0]
    pulsarlite.clock.advance(seconds=30)
    assert received(consumer, 3000) == values[1:]


def test_the_ack_timeout_begins_when_a_message_is_handed_out(
    pulsarlite: Place, client: pulsar.Client
) -> None:
    values = publish(client, 400)
    consumer = shared(client, unacked_messages_timeout_ms=10_000)
    handed = []
    for _ in values:  # the last one leaves the queue after twenty seconds
        message = consumer.receive(1000)
        pulsarlite.clock.advance(50)
        handed.append(message.data())
        consumer.acknowledge(message)
    assert received(consumer, 30_000) == []
    assert handed == values


def test_the_ack_timeout_begins_when_a_batch_is_handed_out(
    pulsarlite: Place, client: pulsar.Client
) -> None:
    values = publish(client, 2)
    policy = pulsar.ConsumerBatchReceivePolicy(3, 0, 15_000)
    consumer = shared(client, unacked_messages_timeout_ms=10_000, batch_receive_policy=policy)
    batch = consumer.batch_receive()  # which waits for a third message for fifteen seconds
    assert [each.data() for each in batch] == values
    pulsarlite.clock.advance(seconds=5)
    consumer.acknowledge(batch)
    assert received(consumer, 30_000) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_counts_no_delivery_of_what_was_only_prefetched(
    client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    values = publish(client, 5)
    for _ in range(3):
        consumer = subscribe(client, consumer_type=kind)
        assert consumer.receive(1000).data() == values[0]
        consumer.close()
    counts = [each.redelivery_count() for each in all_of(subscribe(client, consumer_type=kind))]
    is_shared = kind in (SHARED, pulsar.ConsumerType.KeyShared)
    assert counts == [3 if is_shared else 0, 0, 0, 0, 0]


def test_what_a_closed_consumer_had_rejected_comes_at_once(client: pulsar.Client) -> None:
    publish(client, 2)
    first = shared(client, negative_ack_redelivery_delay_ms=60_000)
    for message in all_of(first):
        first.negative_acknowledge(message)
    second = shared(client)
    assert received(second) == []
    first.close()
    assert sorted(received(second)) == [b"0", b"1"]


def test_an_acknowledgement_goes_out_though_its_consumer_makes_no_further_call(
    client: pulsar.Client, pulsarlite: Place
) -> None:
    publish(client, 2)
    consumer = shared(client, acknowledgments_group_time_millis=1000)
    consumer.acknowledge(consumer.receive(1000))
    pulsarlite.clock.advance(seconds=2)
    assert client.topic_stats("t").subscription("s").backlog == 1


def test_a_queue_is_bounded_by_bytes_but_for_one_larger_message(
    client: pulsar.Client,
) -> None:
    producer = client.create_producer("t")
    sent = [bytes([number]) * (1 << 20) for number in range(100)]
    for value in sent:
        producer.send(value)
    consumer = shared(client)
    assert consumer.receive(1000).data() == sent[0]
    queued = len(consumer._engine.queue)
    assert 60 <= queued <= 64
    assert received(consumer) == sent[1:]


def test_a_report_has_what_is_new_in_it(client: pulsar.Client, pulsarlite: Place) -> None:
    """However many holes the subscription has."""
    producer = client.create_producer("t", block_if_queue_full=True)
    for number in range(2000):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    consumer = shared(client, receiver_queue_size=2000)
    messages = [consumer.receive(1000) for _ in range(2000)]
    commands = SystemTopic(pulsarlite.root, COMMANDS)
    sizes = []
    for done in (messages[3::2], messages[:1], messages[2:3]):
        consumer.acknowledge(done)
        begin = commands.refresh()
        pulsarlite.clock.advance(200)
        (report,) = (
            each
            for stored in commands.read(begin, commands.refresh())
            if isinstance(each := stored.record.item(), Report)
        )
        ledgers = consumer._engine.view(done[0].received.partition).ledgers
        sizes.append(report.acknowledged.individually_deleted.count(ledgers))
        assert len(sizes) == 1 or not report.delivered
    assert sizes == [999, 1, 1]


def test_over_a_network_a_consumer_that_waits_for_messages_hands_over(
    pulsarlite: Place, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsarlite.root.store, "remote", True)
    first = failover(client, 9)
    assert received(first) == []
    second = failover(client, 0)
    assert received(first) == []
    values = publish(client, 5)
    found = []
    for _ in range(10):  # a consumer in a call is not attended to
        assert received(first, 2_000) == []
        found += received(second, 500)
    assert found == values


def test_a_cumulative_acknowledgement_counts_where_redelivery_is_requested_behind_it(
    client: pulsar.Client,
) -> None:
    values = publish(client, 4)
    consumer = subscribe(client, acknowledgments_group_time_millis=1000)
    messages = [consumer.receive(1000) for _ in range(3)]
    consumer.acknowledge_cumulative(messages[1])
    consumer.redeliver_unacknowledged_messages()
    assert received(consumer) == values[2:]


def test_a_batch_ends_with_the_suspects_whose_delivery_was_reported(
    pulsarlite: Place, client: pulsar.Client
) -> None:
    """Else a process that ends while it fills a batch counts what it was never handed."""
    values = publish(client, 40)
    policy = {"dead_letter_policy": pulsar.ConsumerDeadLetterPolicy(3), "options": LEASE}
    first = shared(client, **policy)
    assert first.receive(1000).data() == values[0]
    first.abandon()
    pulsarlite.clock.advance(seconds=10)
    batches = pulsar.ConsumerBatchReceivePolicy(100, -1, 1000)
    second = shared(client, batch_receive_policy=batches, **policy)
    found = [batch for _ in range(6) if (batch := second.batch_receive())]
    assert [len(each) for each in found] == [16, 16, 8]
    assert sorted(each.data() for batch in found for each in batch) == sorted(values)
