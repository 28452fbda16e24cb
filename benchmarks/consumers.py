"""The broker's work for so many consumers, and for so many publications: its processor time.

    python -m benchmarks.consumers [--consumers 1 10 100] [--messages 1000]

Roots in memory and a clock that is moved, so no disk and no wait is measured. In each round a
publication of so many messages of 100 bytes is granted to the consumers of one Shared
subscription, and their acknowledgements are taken in; *broker* is the embedded broker's time for
it, *consumer* the time of one of the consumers, which in reality has a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.memory_store import MEMORY, MemoryStore

WARM_UP = 3
ROUNDS = 15


def measured(count: int, size: int) -> tuple[float, float]:
    """(the broker's ms for a publication, a consumer's), medians."""
    clock = ManualClock(1_800_000_000_000)
    MemoryStore.named(f"consumers-{count}-{size}", clock)
    root = Root(f"{MEMORY}consumers-{count}-{size}", {})
    options = {**root.options, "topic": "t"}
    producer = MessageProducer(options)
    broker = EmbeddedBroker(root)
    subscribed = {
        "subscriptionName": "s", "subscriptionType": "Shared",
        "subscriptionInitialPosition": "Earliest",
    }  # fmt: skip
    consumers = [
        MessageConsumer(
            {**options, **subscribed, "consumerName": f"c{number}"},
            prefetch=size, acknowledgment_group_time_ms=100,
        )
        for number in range(count)
    ]  # fmt: skip
    found: list[tuple[float, float]] = []
    for _ in range(WARM_UP + ROUNDS):
        for _ in range(size):
            producer.enqueue(producer.row(b"x" * 100), None, at_once=True)
        producer.flush()
        broker_s = consumers_s = 0.0
        taken = 0
        while taken < size:
            broker_s += timed(broker.until_quiet)
            for consumer in consumers:
                begun_s = time.process_time()
                consumer.fetch()
                messages = []
                while (message := consumer.take()) is not None:
                    messages.append(message)
                consumer.acknowledge(*messages)
                consumer.flush()
                consumers_s += time.process_time() - begun_s
                taken += len(messages)
            clock.advance(200)
        broker_s += timed(broker.until_quiet)
        found.append((1000 * broker_s, 1000 * consumers_s / count))
    kept = found[WARM_UP:]
    return statistics.median(each[0] for each in kept), statistics.median(each[1] for each in kept)


def timed(act: Callable[[], object]) -> float:
    begun_s = time.process_time()
    act()
    return time.process_time() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--messages", type=int, nargs="+", default=[10, 1000])
    given = parser.parse_args()
    print("| messages of a publication | consumers | broker, ms | a consumer, ms |")
    print("| --- | --- | --- | --- |")
    for size in given.messages:
        for count in given.consumers:
            broker_ms, consumer_ms = measured(count, size)
            print(f"| {size:,} | {count:,} | {broker_ms:.0f} | {consumer_ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()
