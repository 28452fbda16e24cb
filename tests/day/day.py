"""A day of a topic: publications, five subscriptions, policies, a broker that keeps house.

Invariants: the product's own producers, consumers, broker and housekeeper, on real files, in one
thread; only the clock is another, which stands until the day moves it, and files tell its
time. So what is called and stored does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from pulsar_spark import Admin
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import service_url
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.object_store import ObjectInfo, Output
from pulsar_spark.testing import ManualClock

TOPIC: Final = "orders"
PARTITIONS: Final = 2
USERS: Final = 200
MESSAGES: Final = 5
"""Of a publication."""
STARTED_MS: Final = 1_767_225_600_000
POLICIES: Final[dict[str, Any]] = {
    "retention_time": "1h",
    "retention_size": -1,
    "message_ttl": "2h",
    "compaction_threshold": "100K",
}
CONSUMERS: Final = (
    ("ledger", "Exclusive", 1),
    ("audit", "Failover", 2),
    ("work", "Shared", 3),
    ("carts", "Key_Shared", 2),
    ("reports", "Shared", 1),
)
"""(subscription, its type, how many consumers). `reports` is there every third hour only."""
SELDOM: Final = "reports"
LATER_S: Final = 30
"""How long a negatively acknowledged message waits."""


class DayStore(LocalStore):
    """Real files, whose times are the clock's; counts calls by name."""

    def __init__(self, root: str, clock: ManualClock) -> None:
        super().__init__(root)
        self.clock = clock
        self.calls: Counter[str] = Counter()
        self._written_ms: dict[str, int] = {}

    def get(self, path: str) -> bytes | None:
        self.calls["get"] += 1
        return super().get(path)

    def create(self, path: str, data: bytes) -> bool:
        self._note("create", path)
        return super().create(path, data)

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        self._note("swap", path)
        return super().compare_and_swap(path, token, data)

    def touch(self, path: str, data: bytes) -> None:
        self._note("touch", path)
        super().touch(path, data)

    def size(self, path: str) -> int | None:
        self.calls["size"] += 1
        return super().size(path)

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        self.calls["list"] += 1
        for item in super().files(folder):
            written_ms = self._written_ms.setdefault(item.path, self.clock.wall_ms())
            yield ObjectInfo(item.path, item.size_bytes, written_ms)

    def delete(self, path: str) -> None:
        self.calls["delete"] += 1
        self._written_ms.pop(path, None)
        super().delete(path)

    def open_input(self, path: str) -> Any:
        self.calls["open"] += 1
        return super().open_input(path)

    def open_output(self, path: str) -> Output:
        self._note("write", path)
        return super().open_output(path)

    def _note(self, call: str, path: str) -> None:
        self.calls[call] += 1
        self._written_ms[path] = self.clock.wall_ms()


@dataclass
class Hour:
    """What an hour came to."""

    publications: int = 0
    batches: int = 0
    """The broker's micro-batches, ..."""
    batch_s: list[float] = field(default_factory=list)
    batch_calls: list[int] = field(default_factory=list)
    """... the processor time of each, and how often it called the store."""
    house_s: list[float] = field(default_factory=list)
    """The same of the housekeeper's turns."""
    files: Counter[str] = field(default_factory=Counter)
    """At its end, by folder."""
    bytes: int = 0

    @property
    def calls(self) -> float:
        """Of the store, in the median of its batches."""
        return median(self.batch_calls)


class Day(AbstractContextManager["Day"]):
    """One root. `run` yields at the end of each hour."""

    def __init__(
        self,
        folder: Path,
        publications: int = 10_000,
        hours: int = 24,
        seed: int = 1,
        **policies: Any,
    ) -> None:
        self.clock = ManualClock(STARTED_MS)
        self.store = DayStore(str(folder), self.clock)
        self._key = os.getpid(), str(folder), ()
        service_url._opened[self._key] = self.store
        self.root = Root(str(folder), {})
        self.folder, self.publications, self.hours = folder, publications, hours
        self.received: dict[str, Counter[bytes]] = defaultdict(Counter)
        self.hour = Hour()
        self._draw = random.Random(seed)
        self.number = 0
        given = {"serviceUrl": str(folder), "topic": TOPIC}
        self._producer = MessageProducer(
            {**given, "numPartitions": str(PARTITIONS)}, publish_delay_ms=60_000
        )
        Admin(str(folder)).policies("public/default").set(**{**POLICIES, **policies})
        self.broker = EmbeddedBroker(self.root, "_broker/embedded.json")
        self._given = {**given, "negativeAckRedeliveryDelay": f"{LATER_S}s"}
        self.consumers: dict[tuple[str, int], MessageConsumer] = {}
        for name, kind, count in CONSUMERS:
            for number in range(count):
                self._join(name, kind, number)
        self._housekeeper = _TimedHousekeeper(self)
        self._housekeeper.begin()

    def run(self) -> Iterator[Hour]:
        every_s, hours = self.hours * 3600 / self.publications, 1
        for number in range(1, self.publications + 1):
            self._publish()
            self.settle()
            self.clock.advance(seconds=every_s)
            self.settle()
            self.hour.publications += 1
            if number * self.hours >= hours * self.publications:
                self._count()
                yield self.hour
                self.hour, hours = Hour(), hours + 1
                self._come_or_go(hours)

    def settle(self) -> None:
        """Until nobody has anything to say."""
        while self._turn():
            for (name, _), consumer in self.consumers.items():
                self._consume(name, consumer)

    def lost(self) -> dict[str, set[int]]:
        """By subscription, the messages that it never received, but for what may expire."""
        there = set(range(self.number))
        names = {name for name, _, _ in CONSUMERS} - {SELDOM}
        return {name: there - {*map(int, self.received[name])} for name in names}

    def close(self) -> None:
        self._housekeeper.end()
        self.broker.close()
        self._producer.close()
        for consumer in self.consumers.values():
            consumer.close()
        del service_url._opened[self._key]

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _join(self, name: str, kind: str, number: int) -> None:
        said = {
            "subscriptionName": name, "subscriptionType": kind, "consumerName": f"{name}-{number}",
            "subscriptionInitialPosition": "Earliest",
        }  # fmt: skip
        self.consumers[name, number] = MessageConsumer(
            {**self._given, **said}, prefetch=1000, acknowledgment_group_time_ms=100
        )
        self.settle()

    def _come_or_go(self, hour: int) -> None:
        consumer = self.consumers.pop((SELDOM, 0), None)
        if consumer is not None:
            consumer.close()
        elif hour % 3 == 0:
            self._join(SELDOM, "Shared", 0)

    def _publish(self) -> None:
        for _ in range(MESSAGES):
            key = f"user-{self._draw.randrange(USERS)}"
            value = b"%08d %s" % (self.number, b"x" * self._draw.randrange(50, 200))
            self._producer.send(value, key=key, at_once=True)
            self.number += 1
        self._producer.flush()

    def _turn(self) -> bool:
        turned = False
        while True:
            calls, begun_s = self.store.calls.total(), time.thread_time()
            if not self.broker.run_once():
                return turned
            self.hour.batch_s.append(time.thread_time() - begun_s)
            self.hour.batch_calls.append(self.store.calls.total() - calls)
            self.hour.batches += 1
            turned = True

    def _consume(self, name: str, consumer: MessageConsumer) -> None:
        while (message := consumer.receive()) is not None:
            value = message.value or b""
            self.received[name][value[:8]] += 1
            first = self.received[name][value[:8]] == 1
            if name == "work" and first and self._draw.random() < 0.01:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
        consumer.poll()

    def _count(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file():
                parts = path.relative_to(self.folder).parts
                self.hour.files["/".join(parts[3:5]) if len(parts) > 4 else parts[0]] += 1
                self.hour.bytes += path.stat().st_size


class _TimedHousekeeper(Housekeeper):
    def __init__(self, day: Day) -> None:
        super().__init__(day.root)
        self._day = day

    def run_once(self) -> None:
        begun_s = time.thread_time()
        super().run_once()
        self._day.hour.house_s.append(time.thread_time() - begun_s)
