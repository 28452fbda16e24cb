"""Roots in which faults are injected: real files, made by real sinks, clients and a broker.

All is drawn from a number: topics with several partitions, keys, nulls, batches and chunks; merges,
trims, compactions and snapshots; subscriptions of each type, with holes. A root is sound.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.testing import Place
from tests.connector.client.clients import EARLIEST
from tests.connector.topics import send
from tests.simulation.lots import Lots

ROOTS = 12
"""How many there are."""
EVENTS = 40
TOPICS = ("many", "one")
KINDS = {
    "shared": pulsar.ConsumerType.Shared, "keys": pulsar.ConsumerType.KeyShared,
    "alone": pulsar.ConsumerType.Exclusive, "next": pulsar.ConsumerType.Failover,
}  # fmt: skip


def write_root(number: int, folder: Path) -> None:
    """The root of that number, as files."""
    for path, data in _files_of(number).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


@lru_cache(maxsize=ROOTS)
def _files_of(number: int) -> dict[str, bytes]:
    with ids_drawn_from(number), Place() as place:
        store = place.root.store
        assert isinstance(store, MemoryStore)
        made = _Making(place, Lots(number))
        made.run()
        return {path: data for path, (data, _) in store._files.items()}


@contextmanager
def ids_drawn_from(seed: int) -> Iterator[None]:
    """Names of files and all else that comes by chance are the same for the same seed."""
    ids, before = random.Random(seed), random.getstate()
    random.seed(seed)
    me, others = threading.get_ident(), uuid.uuid4

    def next_id() -> uuid.UUID:
        if threading.get_ident() != me:  # a client of another test that is about to end
            return others()
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    try:
        with mock.patch.object(uuid, "uuid4", next_id):
            yield
    finally:
        random.setstate(before)


class _Making:
    """A root being made."""

    def __init__(self, place: Place, lots: Lots) -> None:
        self.place, self.lots = place, lots
        self._sent = 0
        for topic, partitions in zip(TOPICS, (lots.draw(2, 3), 1), strict=True):
            place.root.create(TopicName.parse(topic), partitions)
        self.consumers = [
            place.client.subscribe(
                topic, name, consumer_type=kind, initial_position=EARLIEST,
                receiver_queue_size=lots.draw(2, 20), negative_ack_redelivery_delay_ms=60_000,
            )
            for topic in TOPICS for name, kind in KINDS.items()
        ]  # fmt: skip

    def run(self) -> None:
        events: list[Callable[[], object]] = [
            self.publish, self.publish, self.publish, self.consume, self.consume, self.consume,
            self.tidy, self.snapshot, self.wait,
        ]  # fmt: skip
        for _ in range(4):
            self.publish()
        for _ in range(EVENTS):
            self.lots.draw_from(events)()
        for topic in TOPICS:
            self.publish(topic)
        self.consume()
        self.place.clock.advance(seconds=2)

    def topic(self) -> ManagedLedger:
        return self.place.root.open(TopicName.parse(self.lots.draw_from(TOPICS)))

    def publish(self, topic: str | None = None) -> None:
        lots, many = self.lots, self.lots.draw(1, 9)
        self._sent += many
        given: dict[str, Any] = {"batchingMaxMessages": lots.draw(1, 4)}
        if lots.one_in(6):
            given = {"batchingEnabled": False, "chunkingEnabled": True, "maxMessageSize": 20}
        values = [
            None if lots.one_in(12) else f"{self._sent - each}".zfill(lots.draw(3, 40))
            for each in range(many)
        ]
        keys = [None if lots.one_in(6) else f"k{lots.draw(0, 5)}" for _ in values]
        name = topic or lots.draw_from(TOPICS)
        send(self.place.service_url, name, values, columns={"key": keys}, **given)

    def consume(self) -> None:
        consumer = self.lots.draw_from(self.consumers)
        try:
            for _ in range(self.lots.draw(1, 12)):
                message = consumer.receive(0 if self.lots.one_in(2) else 1000)
                if self.lots.one_in(5):
                    consumer.negative_acknowledge(message)
                elif not self.lots.one_in(4):
                    consumer.acknowledge(message)
        except pulsar.Timeout:
            pass
        except pulsar.PulsarException:  # a trim was quicker
            self.consumers.remove(consumer)

    def tidy(self) -> None:
        ledger = self.topic()
        what = self.lots.draw(0, 2)
        if what == 0:
            LedgerStore(ledger).merge_small_files()
        elif what == 1:
            compact(ledger)
        else:
            newest = ledger.state.next_ledger_id
            before = max(newest - self.lots.draw(4, 9), 0)
            LedgerStore(ledger).trim(dict.fromkeys(range(ledger.state.partitions), before))

    def snapshot(self) -> None:
        ledger = self.topic()
        ledger.refresh()
        ledger.write_snapshot()

    def wait(self) -> None:
        """Long enough for the next snapshot to clean the log up."""
        self.place.clock.advance(minutes=self.lots.draw(1, 12))
