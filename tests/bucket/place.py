"""Processes around one bucket: publishers, a broker, consumers, each with its own client of it."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_spark.connector.client import message_consumer, message_producer
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import service_url
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import ConsumerNotConnectedError
from tests.bucket.metered_store import Meter, MeteredStore
from tests.bucket.simulated_clock import SimulatedClock, SimulatedLock


class Bucket:
    """A bucket, and who works on it in simulated time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = SimulatedClock()
        self._patch, self._url = patch, f"s3://bucket/{uuid.uuid4().hex}"
        self._disk = MemoryStore(self._url, self.clock)
        self.stores: dict[str, MeteredStore] = {}
        locks = {"RLock": partial(SimulatedLock, self.clock)}
        for module in (managed_ledger, message_consumer, message_producer):
            patch.setattr(module, "threading", SimpleNamespace(**vars(threading) | locks))

    def root(self, process: str, delay_s: float | None = None) -> Root:
        """The bucket as that process sees it: it has a client of its own."""
        if process not in self.stores:
            store = self.stores[process] = MeteredStore(self._disk, self.clock)
            key = (os.getpid(), self._url, (("user_agent", process),))
            self._patch.setitem(service_url._opened, key, store)
        if delay_s is not None:
            self.stores[process].delay_s = delay_s
        return Root(self._url, {"user_agent": process})

    def options(self, process: str, **given: str) -> dict[str, str]:
        return {**self.root(process).options, **given}

    def meter(self) -> Meter:
        """What all asked for since this was called last."""
        asked = Meter([each for store in self.stores.values() for each in store.meter.requests])
        for store in self.stores.values():
            store.meter.requests.clear()
        return asked

    def producer(self, name: str, topic: str, **given: Any) -> MessageProducer:
        return MessageProducer(self.options(name, topic=topic), **given)

    def serve(self) -> EmbeddedBroker:
        """A broker, with its housekeeper, as a process of its own."""
        broker = EmbeddedBroker(self.root("broker"))

        def look() -> float:
            found = False
            while broker.run_once():
                found = True
            due_s = broker.next_due_s()
            return 0.0 if found else max(due_s, 0.01)

        self.clock.follow(look, "broker", remote=True)
        Housekeeper(self.root("housekeeper")).begin()
        return broker

    def consume(
        self, name: str, observed: Callable[[bytes | None], None], **given: str
    ) -> MessageConsumer:
        """A consumer that acknowledges what it gets."""
        options = {"subscriptionName": "s", "subscriptionType": "Shared"}
        options["subscriptionInitialPosition"] = "Earliest"
        consumer = MessageConsumer(
            self.options(name, consumerName=name, **options | given),
            prefetch=1000, acknowledgment_group_time_ms=100,
        )  # fmt: skip

        def run() -> None:
            with suppress(ConsumerNotConnectedError):  # it was abandoned
                while True:
                    while consumer.fetch():
                        taken = []
                        while (message := consumer.take()) is not None:
                            taken.append(message)
                            observed(message.value)
                        consumer.acknowledge(*taken)
                    quiet_s = self.clock.monotonic_s() - consumer.active_s
                    self.clock.sleep(pause_s(quiet_s, remote=True))

        self.clock.spawn(run)
        return consumer
