"""What was seen of a queue at a batch is what `asOf` that batch shows afterwards, whatever happens.

Random schedules of producers and consumers; after each step every view is read, and at the end
once more as of that step's batch. Counts of the views agree with each other at every step.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import pulsar_spark
from pulsar_spark import pulsar
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.model.topic_name import TopicName
from tests.connector.client.clients import all_of, subscribe

STEPS = 14
SEEN = {
    "backlog": ("subscription", "state", "consumer_name", "attempt", "redelivery_count"),
    "unacknowledged": ("subscription", "consumer_name", "attempt", "redelivery_count",
                       "is_delivered", "ack_timeout_ends"),
    "acknowledgements": ("subscription", "acknowledged_by", "consumer_name", "batch"),
    "subscriptions": ("subscription", "msg_backlog", "unacked_messages", "msg_delayed",
                      "msg_waiting", "msg_in_replay", "consumers", "epoch"),
    "cursors": ("subscription", "mark_delete_position", "individually_deleted_messages", "holes"),
}  # fmt: skip
IDS = ("ledger_id", "entry_id", "batch_index")
STATES = ("held", "delayed", "waiting", "ready")
TYPES = {"shared": "Shared", "keys": "KeyShared", "one": "Failover"}


class Schedule:
    """A client's random deeds on a topic of two partitions with three subscriptions."""

    def __init__(self, client: pulsar.Client, seed: int) -> None:
        self.draw, self.client = random.Random(seed), client
        client.root.create(TopicName.parse("t"), 2)
        self.producer = client.create_producer("t", batching_enabled=True)
        self.consumers = {name: self.subscribed(name) for name in TYPES}
        self.held: dict[str, list[pulsar.Message]] = {name: [] for name in TYPES}
        self.producer.send(b"late", deliver_after=timedelta(hours=1))
        self.publish("")

    def subscribed(self, name: str) -> pulsar.Consumer:
        return subscribe(
            self.client, name=name, consumer_type=getattr(pulsar.ConsumerType, TYPES[name]),
            negative_ack_redelivery_delay_ms=2000, receiver_queue_size=20,
            unacked_messages_timeout_ms=30_000 if name == "shared" else None,
        )  # fmt: skip

    def step(self) -> None:
        name = self.draw.choice(list(TYPES))
        deeds = (self.publish, self.receive, self.acknowledge, self.reject, self.come_back)
        self.draw.choices(deeds, (4, 4, 6, 2, 1))[0](name)
        clock = self.client.root.clock
        assert isinstance(clock, ManualClock)
        clock.advance(self.draw.choice((10, 500, 5000)))
        for consumer in self.consumers.values():
            consumer.fetch()

    def publish(self, _name: str) -> None:
        for number in range(self.draw.randint(1, 6)):
            said: dict[str, Any] = {"partition_key": f"k{number % 3}"}
            if self.draw.random() < 0.3:
                said = {"deliver_after": timedelta(minutes=self.draw.randint(1, 10))}
            self.producer.send_async(b"x" * number, lambda *_: None, **said)
        self.producer.flush()

    def receive(self, name: str) -> None:
        self.held[name] += all_of(self.consumers[name], 50)

    def acknowledge(self, name: str) -> None:
        held = self.held[name]
        self.draw.shuffle(held)
        for _ in range(min(len(held), self.draw.randint(1, 5))):
            self.consumers[name].acknowledge(held.pop())

    def reject(self, name: str) -> None:
        if self.held[name]:
            self.consumers[name].negative_acknowledge(self.held[name].pop())

    def come_back(self, name: str) -> None:
        self.consumers[name].close()
        self.held[name] = []
        self.consumers[name] = self.subscribed(name)


def seen(url: str, view: str, as_of: int) -> Counter[tuple[Any, ...]]:
    made = pulsar_spark.dataset(url, view=view, as_of=as_of)
    ids = IDS if view in ("backlog", "unacknowledged", "acknowledgements") else ()
    columns = ["partition", *ids, *SEEN[view]]
    table = made.to_table(columns)
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_as_of_a_batch_everything_is_as_it_was_seen_then(
    url: str, client: pulsar.Client, seed: int
) -> None:
    schedule = Schedule(client, seed)
    known: dict[tuple[int, str], Counter[tuple[Any, ...]]] = {}
    for _ in range(STEPS):
        schedule.step()
        batches = pulsar_spark.dataset(url, view="batches").to_table(["batch"])
        batch = max(batches["batch"].to_pylist())
        known |= {(batch, view): seen(url, view, batch) for view in SEEN}
        check(known, batch)
    for (batch, view), then in known.items():
        assert seen(url, view, batch) == then, (seed, batch, view)
    there = {row[5] for (_, view), rows in known.items() if view == "backlog" for row in rows}
    assert there >= {"held", "delayed"}, seed


def check(known: dict[tuple[int, str], Counter[tuple[Any, ...]]], batch: int) -> None:
    """The views agree: a message that waits is in one state, and is counted."""
    states: Counter[tuple[Any, ...]] = Counter()
    for row, count in known[batch, "backlog"].items():
        assert count == 1, row
        states[row[0], row[4], row[5]] += 1
    for partition, name, backlog, _, late, waiting, *_ in known[batch, "subscriptions"]:
        mine = {state: states[partition, name, state] for state in STATES}
        assert sum(mine.values()) == backlog
        assert (mine["delayed"], mine["waiting"]) == (late, waiting)
    held = {row[:4] + row[4:5] for row in known[batch, "unacknowledged"]}
    assert held == {row[:5] for row in known[batch, "backlog"] if row[5] == "held"}
    done = {(*row[:4], row[4]) for row in known[batch, "acknowledgements"]}
    left = {row[:5] for row in known[batch, "backlog"]}
    assert not done & left
