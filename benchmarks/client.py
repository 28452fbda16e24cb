"""The client without Spark: messages a second, a durable send, and from send to receive.

    python -m benchmarks.client [--messages 100000] [--bytes 100] [--folder DIR]

One process with an embedded broker on a folder. *Produce* is `send_async` in batches up to the
`flush` at its end; *consume* is `receive` and `acknowledge`, one message after the other; *send* is
one synchronous, durable message; *disk* is what its commit asks of the disk, by itself: two files
and their folders made durable. *Receive* is from before a message's `send` until another thread's
`receive` has it. *Elsewhere* is the same from another process, which has no broker, and *after
quiet* with half a second between two messages. *Idle* is the processor time of a client whose
consumer waits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pulsar_spark import pulsar

SENDS = 300
PAUSE_S = 0.02
QUIET_S, QUIET_SENDS = 0.5, 30
IDLE_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--folder", help="where the root is made; by default the temporary folder")
    given = parser.parse_args()
    payload = b"x" * given.bytes
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as root,
        pulsar.Client(root, broker="embedded") as client,
    ):
        for _ in range(3):
            throughput(client, payload, given.messages)
        show("send", sends(client, payload))
        show("disk", durable_files(Path(root)))
        process = multiprocessing.get_context("spawn").Process
        show("receive", received(client, root, "receive", threading.Thread))
        show("elsewhere", received(client, root, "elsewhere", process))
        show("after quiet", received(client, root, "quiet", process, QUIET_SENDS, QUIET_S))
        consumer = client.subscribe("idle", "s")
        begun_s = time.process_time()
        try:
            consumer.receive(round(IDLE_S * 1000))
        except pulsar.Timeout:
            share = (time.process_time() - begun_s) / IDLE_S
            print(f"idle: {share:.1%} of a core")


def throughput(client: pulsar.Client, payload: bytes, messages: int) -> None:
    consumer = client.subscribe("throughput", "s", receiver_queue_size=10_000)
    producer = client.create_producer(
        "throughput", batching_enabled=True, block_if_queue_full=True, max_pending_messages=100_000
    )
    begun_s = time.perf_counter()
    for _ in range(messages):
        producer.send_async(payload, None)
    producer.flush()
    produced_s = time.perf_counter()
    for _ in range(messages):
        consumer.acknowledge(consumer.receive(60_000))
    consumed_s = time.perf_counter()
    producer.close()
    consumer.close()
    print(
        f"produce: {messages / (produced_s - begun_s):,.0f}/s  "
        f"consume: {messages / (consumed_s - produced_s):,.0f}/s"
    )


def sends(client: pulsar.Client, payload: bytes) -> list[float]:
    producer = client.create_producer("sends")
    found = []
    for _ in range(SENDS):
        begun_s = time.perf_counter()
        producer.send(payload)
        found.append(time.perf_counter() - begun_s)
    return found


def durable_files(root: Path) -> list[float]:
    """Seconds that two small files take, written aside, linked to their names and made durable."""
    found = []
    for number in range(SENDS):
        begun_s = time.perf_counter()
        for name in ("data", "log"):
            folder = root / name
            folder.mkdir(exist_ok=True)
            written = folder / f".{number}"
            with written.open("wb") as file:
                file.write(b"x" * 1500)
                file.flush()
                os.fsync(file.fileno())
            os.link(written, folder / str(number))
            written.unlink()
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        found.append(time.perf_counter() - begun_s)
    return found


def received(
    client: pulsar.Client,
    root: str,
    topic: str,
    kind: Any,
    messages: int = SENDS,
    pause_s: float = PAUSE_S,
) -> list[float]:
    """Seconds from send to receive, of messages that another thread or process sends."""
    consumer = client.subscribe(topic, "s")
    sender = kind(target=send_times, args=(root, topic, messages, pause_s))
    sender.start()
    found = []
    for _ in range(messages):
        message = consumer.receive(120_000)
        found.append(time.time() - float(message.data()))
        consumer.acknowledge(message)
    sender.join()
    return found


def send_times(root: str, topic: str, messages: int, pause_s: float) -> None:
    with pulsar.Client(root) as client:
        producer = client.create_producer(topic)
        for _ in range(messages):
            producer.send(repr(time.time()).encode())
            time.sleep(pause_s)


def show(name: str, found: list[float]) -> None:
    cuts = statistics.quantiles(found, n=100)
    print(f"{name}: p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms")


if __name__ == "__main__":
    main()
