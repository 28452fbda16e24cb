"""How three consumers of one Shared subscription share it, if one does not group what it reports.

    python -m benchmarks.fairness [--seconds 10] [--queue 1000] [--processes]

An embedded broker on a folder; each consumer receives and acknowledges as fast as it can, in a
thread of its own, or in a process of its own. The first has `acknowledgments_group_time_millis=0`:
each acknowledgement is a commit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from typing import Any

from pulsar_spark import pulsar

TOPIC, SUBSCRIPTION, MESSAGES = "fairness", "s", 100_000
GROUP_TIMES_MS = (0, 100, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--queue", type=int, default=1_000)
    parser.add_argument("--processes", action="store_true", help="each consumer in one of its own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, pulsar.Client(root, broker="embedded") as client:
        client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
        producer = client.create_producer(
            TOPIC, batching_enabled=True, block_if_queue_full=True, max_pending_messages=100_000
        )
        for number in range(MESSAGES):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        context: Any = multiprocessing.get_context("spawn") if given.processes else threading
        kind = context.Process if given.processes else threading.Thread
        counts = multiprocessing.get_context("spawn").Array("q", len(GROUP_TIMES_MS))
        start = (
            multiprocessing.get_context("spawn").Barrier(len(GROUP_TIMES_MS))
            if given.processes
            else threading.Barrier(len(GROUP_TIMES_MS))
        )
        working = [
            kind(target=consume, args=(root, given.queue, number, given.seconds, counts, start))
            for number in range(len(GROUP_TIMES_MS))
        ]
        for each in working:
            each.start()
        for each in working:
            each.join()
        for group_time_ms, count in zip(GROUP_TIMES_MS, counts, strict=True):
            print(f"group time {group_time_ms} ms: {count:,} messages in {given.seconds:g} s")


def consume(root: str, queue: int, number: int, seconds: float, counts: Any, start: Any) -> None:
    with pulsar.Client(root) as client:
        consumer = client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            pulsar.ConsumerType.Shared,
            receiver_queue_size=queue,
            acknowledgments_group_time_millis=GROUP_TIMES_MS[number],
        )
        start.wait()
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                consumer.acknowledge(consumer.receive(max(1, round(left_s * 1000))))
            except pulsar.Timeout:
                break
            counts[number] += 1


if __name__ == "__main__":
    main()
