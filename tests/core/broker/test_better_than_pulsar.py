"""The eleven points in which Pulsarlite is better than Pulsar on purpose; see DESIGN, section 9.

Each test fails on Pulsar's behaviour, which its first lines name.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import LeaseLapsed, LedgerAdded, Rejection
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy, TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.connector.reading import messages
from tests.core.broker_samples import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    by_sink,
    entries,
    ledger,
    report,
    run,
    subscribe,
)
from tests.scenarios.host import Host


def restarted(state: BrokerState) -> BrokerState:
    return from_shards(to_shards(state))


def test_1_any_number_of_holes_survives_a_restart() -> None:
    # Pulsar persists 10,000 ranges (managedLedgerMaxUnackedRangesToPersist) and forgets the rest.
    added = LedgerAdded(LedgerInfo(0, 0, "", 0, BatchSizes(((1, 100_001),)), 0, 0, 0))
    odd = PositionSet({0: BitMap(np.arange(1, 100_001, 2, dtype=np.uint32))})
    state, _ = run([[added, subscribe("a")], [report("a", odd)]])
    cursor = restarted(state).subscriptions["s"].cursor
    assert cursor.individually_deleted == odd


def test_2_part_of_a_batch_is_acknowledged_for_good_at_once() -> None:
    # Pulsar answers success, writes nothing, and forgets it in a crash, and at a graceful close.
    part = PositionSet.of_batch((0, 0), 4, 0b0110)
    state, _ = run([[ledger(0, [4]), subscribe("a")], [report("a", part, request_id=1)]])
    assert restarted(state).subscriptions["s"].cursor.contains(Position(0, 0), 1)


def test_3_what_was_confirmed_is_never_forgotten() -> None:
    # Pulsar confirms at once and persists about once a second: a crash in between forgets it.
    state, ready = run(
        [[ledger(0, [1] * 3), subscribe("a")], [report("a", entries(0, 1), request_id=7)]]
    )
    assert [reply.request_id for reply in ready.replies if reply.error is None] == [7]
    state = restarted(state)
    _, ready = step(state, [subscribe("a", incarnation=2)], 9)
    assert not any(grant.messages.contains((0, 1)) for grant in ready.grants)


def test_4_a_cumulative_acknowledgement_in_a_batch_keeps_individual_ones_behind_it() -> None:
    # Pulsar replaces the batch's ack set: individual 4 and 5, then cumulative 1, leaves [60].
    individual = report("a", PositionSet.of_batch((0, 0), 6, 0b110000))
    cumulative = by_sink(Cursor().acknowledge_cumulative(Position(0, 0), 1, 6))
    state, _ = run([[ledger(0, [6]), subscribe("a", EXCLUSIVE)], [individual, cumulative]])
    cursor = state.subscriptions["s"].cursor
    assert [i for i in range(6) if cursor.contains(Position(0, 0), i)] == [0, 1, 4, 5]


def test_5_redelivery_counts_are_durable_and_count_a_consumer_that_died() -> None:
    # Pulsar keeps counts in memory, and does not count a consumer that dies.
    state, _ = run(
        [
            [ledger(0, [1]), subscribe("a")],
            [report("a", delivered={0: entries(0, 0)}), LeaseLapsed("s", "a", 1)],
        ]
    )
    state, ready = step(restarted(state), [subscribe("b")], 5)
    assert [(g.consumer, g.redelivery_count) for g in ready.grants] == [("b", 1)]


def test_5_a_negative_acknowledgement_and_its_delay_survive_a_restart() -> None:
    # Pulsar's trackers live in the client: a restart redelivers at once.
    options = ConsumerOptions(negative_ack_redelivery_delay_ms=10_000)
    rejected = report("a", rejected=(Rejection(0, entries(0, 0)),))
    state, _ = run([[ledger(0, [1]), subscribe("a", options=options)], [rejected]])
    state, ready = step(restarted(state), [], 10_000)
    assert not ready.grants
    assert ready.next_due_ms == 10_001
    _, ready = step(state, [], 10_001)
    assert [grant.messages for grant in ready.grants] == [entries(0, 0)]


def test_6_key_shared_is_right_whatever_the_batching() -> None:
    # Pulsar looks at the key of a batch's first message, and sends the whole batch to its owner.
    keys = [0, 1, 2, 3] * 50
    _, ready = run(
        [
            [subscribe("a", KEY_SHARED), subscribe("b", KEY_SHARED), subscribe("c", KEY_SHARED)],
            [ledger(0, [200], sticky_key_hashes=[key * 77_777 for key in keys])],
        ]
    )
    owner: dict[int, set[str]] = {}
    for grant in ready.grants:
        for index in range(200):
            if grant.messages.contains((0, 0), index):
                owner.setdefault(keys[index], set()).add(grant.consumer)
    assert all(len(consumers) == 1 for consumers in owner.values())
    assert len(set.union(*owner.values())) > 1


def test_7_a_handover_between_living_consumers_delivers_nothing_twice() -> None:
    # Pulsar's Failover rewinds to the mark-delete: unacknowledged messages are delivered again.
    state, ready = run(
        [
            [ledger(0, [1] * 4), subscribe("b", FAILOVER, priority_level=1)],
            [subscribe("a", FAILOVER)],
        ]
    )
    assert [(revoke.consumer, revoke.revision) for revoke in ready.revokes] == [("b", 1)]
    assert not ready.open_grants
    final = report("b", entries(0, 0), delivered={0: entries(0, 0, 1)}, revision=1)
    _, ready = step(state, [final], 5)
    (opened,) = ready.open_grants
    assert opened.consumer == "a"
    assert opened.after.contains(Position(0, 0))
    assert opened.after.contains(Position(0, 1)), "delivered to b, and b may still acknowledge it"
    assert not opened.after.contains(Position(0, 2))


def test_8_dead_lettering_and_acknowledging_happen_together() -> None:
    # Pulsar's client sends, then acknowledges: a crash in between leaves two dead letters.
    options = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1))
    state, ready = run([[ledger(0, [1]), subscribe("a", options=options)]])
    before, rejected = state, report("a")
    for attempt in (0, 1):
        before = state
        rejected = report("a", rejected=(Rejection(attempt, entries(0, 0), 0),), sequence=attempt)
        state, ready = step(before, [rejected], 5 + attempt)
    assert [letter.messages for letter in ready.republications] == [entries(0, 0)]
    assert state.subscriptions["s"].cursor.contains(Position(0, 0))
    assert step(before, [rejected], 6)[1] == ready, "a replay asks for the same letter, not another"
    assert not step(state, [rejected], 7)[1].republications


def test_9_nothing_is_delivered_early() -> None:
    # Pulsar: delays up to a tick (1 s), negative acknowledgements up to 256 ms, too early.
    late = ledger(0, [1], deliver_at_ms=[1_999])
    state, ready = run([[late, subscribe("a")]])
    for now_ms in (999, 1_500, 1_998):
        state, ready = step(state, [], now_ms)
        assert not ready.grants
    assert ready.next_due_ms is not None
    assert ready.next_due_ms >= 1_999
    state, ready = step(state, [], ready.next_due_ms)
    assert ready.grants
    rejected = report("a", rejected=(Rejection(0, entries(0, 0), 300),))
    state, ready = step(state, [rejected], 5_001)
    assert ready.next_due_ms == 5_301


def test_10_a_dead_letter_topic_keeps_its_messages_though_nobody_subscribed() -> None:
    # Pulsar deletes closed ledgers at once if no durable subscription is there (retention 0).
    ledgers = [[ledger(0, [1])], [ledger(1, [1])], [ledger(2, [1])], []]
    state, _ = run(ledgers, TopicPolicies(keep_without_subscription=True))
    assert not state.trimming
    state, _ = run(ledgers, TopicPolicies())
    assert state.trimming == {0, 1}, "an ordinary topic does as Pulsar's"
    with Host() as host:
        orders = host.producer({"topic": "orders"})
        consumer = host.subscribe({
            "topic": "orders", "subscriptionName": "s", "subscriptionType": "Shared",
            "maxRedeliverCount": "1", "negativeAckRedeliveryDelay": "100ms",
        })  # fmt: skip
        for number in range(3):
            orders.send(b"%d" % number)
            host.run()
            for _ in range(2):
                message = consumer.receive()
                assert message is not None
                consumer.negative_acknowledge(message)
                host.advance(100)
        host.advance(60_000)
        dead = messages(host.root.service_url, "orders-s-DLQ")
    assert [each["value"] for each in dead] == [b"0", b"1", b"2"]


def test_11_deduplication_is_per_message() -> None:
    # Pulsar compares a batch's lowest id and drops it whole, the new ones in it too (#6273).
    with Host() as host:
        given = {"topic": "orders", "producerName": "p", "enableDeduplication": "true"}
        producer = host.producer(given, publish_delay_ms=1)
        for batch in ((0, 1, 2), (2, 3, 3, 4)):
            for number in batch:
                producer.send(b"%d" % number, sequence_id=number)
            producer.flush()
        found = messages(host.root.service_url, "orders")
    assert [each["value"] for each in found] == [b"0", b"1", b"2", b"3", b"4"]
    _state, ready = run(
        [[ledger(0, [4], hidden=PositionSet.of_batch((0, 0), 4, 0b0101)), subscribe("a")]]
    )
    (grant,) = ready.grants
    assert grant.messages == PositionSet.of_batch((0, 0), 4, 0b1010)
