"""Three consumers of one Shared subscription share it, though one of them groups nothing.

    python -m benchmarks.fairness [--seconds 10] [--commits 1000] [--queue 100] [--folder DIR]

An embedded broker; each consumer is a process that receives and acknowledges as fast as it can, of
ten messages all but one: so there are holes, in as many ledgers as there were commits. The first
has `acknowledgments_group_time_millis=0`, so each acknowledgement is a commit, which it waits for.
*Broker* is the processor time of one of its batches.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from typing import Any

from pulsar_spark import pulsar
from pulsar_spark.broker.hosting import hosted_broker
from pulsar_spark.connector.runtime.broker import embedded_broker

TOPIC, SUBSCRIPTION, MESSAGES_A_COMMIT, UNACKNOWLEDGED = "fairness", "s", 20, 10
GROUP_TIMES_MS = (0, 100, 100)
IDLE_MS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--commits", type=int, default=1_000)
    parser.add_argument("--queue", type=int, default=100)
    parser.add_argument("--folder", help="where the root is made; by default the temporary folder")
    given = parser.parse_args()
    context: Any = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as root,
        pulsar.Client(root, broker="embedded") as client,
    ):
        client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
        publish(client, given.commits)
        counts = context.Array("q", len(GROUP_TIMES_MS))
        started = context.Barrier(len(GROUP_TIMES_MS) + 1)
        working = [
            context.Process(target=consume, args=(root, given, number, counts, started))
            for number in range(len(GROUP_TIMES_MS))
        ]
        for each in working:
            each.start()
        batches_s = timed_batches()
        started.wait()
        batches_s.clear()
        for each in working:
            each.join()
        for group_time_ms, count in zip(GROUP_TIMES_MS, counts, strict=True):
            print(f"group time {group_time_ms} ms: {count:,} messages in {given.seconds:g} s")
        mean_ms = 1000 * sum(batches_s) / max(1, len(batches_s))
        print(f"broker: {len(batches_s):,} batches, {mean_ms:.1f} ms each")


def publish(client: pulsar.Client, commits: int) -> None:
    producer = client.create_producer(TOPIC, batching_enabled=True)
    for _ in range(commits):
        for _ in range(MESSAGES_A_COMMIT):
            producer.send_async(b"x", None)
        producer.flush()


def timed_batches() -> list[float]:
    """The processor seconds of each of the broker's steps from now on, with its shards."""
    found: list[float] = []

    def timed(*given: Any) -> Any:
        begun_s = time.thread_time()
        batch = hosted_broker.run(*given)
        found.append(time.thread_time() - begun_s)
        return batch

    setattr(embedded_broker, "run", timed)  # noqa: B010 - it is imported there
    return found


def consume(root: str, given: Any, number: int, counts: Any, started: Any) -> None:
    with pulsar.Client(root) as client:
        consumer = client.subscribe(
            TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared, receiver_queue_size=given.queue,
            acknowledgments_group_time_millis=GROUP_TIMES_MS[number],
        )  # fmt: skip
        started.wait()
        end_s = time.monotonic() + given.seconds
        while time.monotonic() < end_s:
            try:
                message = consumer.receive(IDLE_MS)
            except pulsar.Timeout:
                continue
            counts[number] += 1
            if counts[number] % UNACKNOWLEDGED:
                consumer.acknowledge(message)


if __name__ == "__main__":
    main()
