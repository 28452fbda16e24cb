"""The work of a subscription's three consumers, written for Pulsar's Python client.

    python benchmarks/peers/worker.py URL [--ours]

reads `KIND MESSAGES` from its input, a line each, does that with messages of 100 bytes on a topic
of its own, and answers with seconds. `Worker.java` is the same in Java.

- `Shared`, `Key_Shared`: from before the first message is sent until the last is acknowledged,
  while one thread sends, in batches, and three consumers receive and acknowledge one by one
- `delayed`: Shared; all messages are due at one time, and sent before. From then on
- `redelivered`: Shared; each message is rejected when it comes first, and acknowledged the second
  time, a second later
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
import time
import uuid
from typing import Any

CONSUMERS = 3
BYTES = 100
KEYS = 1_000
DUE_IN_S = 4
REJECTED_FOR_MS = 1_000
LONGEST_S = 120


class Round:
    """One topic with its consumers, each in a thread, and a producer."""

    def __init__(self, pulsar: Any, client: Any, kind: str, messages: int) -> None:
        self._pulsar, self._kind, self._left = pulsar, kind, messages
        self._lock, self._done = threading.Lock(), threading.Event()
        topic = f"{kind}-{uuid.uuid4().hex[:8]}"
        types = pulsar.ConsumerType
        self._consumers = [
            client.subscribe(
                topic,
                "s",
                types.KeyShared if kind == "Key_Shared" else types.Shared,
                negative_ack_redelivery_delay_ms=REJECTED_FOR_MS,
            )
            for _ in range(CONSUMERS)
        ]
        self._producer = client.create_producer(
            topic,
            batching_enabled=kind != "delayed",
            batching_type=pulsar.BatchingType.KeyBased
            if kind == "Key_Shared"
            else pulsar.BatchingType.Default,
            block_if_queue_full=True,
            max_pending_messages=10_000,
        )

    def seconds(self) -> float:
        """How long it takes; all that it made is closed."""
        threads = [threading.Thread(target=self._consume, args=(each,)) for each in self._consumers]
        for thread in threads:
            thread.start()
        begun_s = time.time()
        due_s = begun_s + DUE_IN_S if self._kind == "delayed" else None
        self._publish(due_s)
        if due_s is not None:
            if time.time() > due_s:
                sys.exit("it took too long to send what is delayed: send less")
            begun_s = due_s
        if not self._done.wait(LONGEST_S):
            sys.exit(f"{self._left} messages were not acknowledged")
        took_s = time.time() - begun_s
        for thread in threads:
            thread.join()
        for each in (self._producer, *self._consumers):
            each.close()
        return took_s

    def _publish(self, due_s: float | None) -> None:
        payload = b"x" * BYTES
        said: dict[str, Any] = {} if due_s is None else {"deliver_at": round(due_s * 1000)}
        keyed = self._kind == "Key_Shared"
        for number in range(self._left):
            if keyed:
                said["partition_key"] = str(number % KEYS)
            self._producer.send_async(payload, None, **said)
        self._producer.flush()

    def _consume(self, consumer: Any) -> None:
        rejects = self._kind == "redelivered"
        while not self._done.is_set():
            try:
                message = consumer.receive(200)
            except self._pulsar.Timeout:
                continue
            if rejects and message.redelivery_count() == 0:
                consumer.negative_acknowledge(message)
                continue
            consumer.acknowledge(message)
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--ours", action="store_true", help="with Pulsarlite's client, on a folder")
    asked = parser.parse_args()
    pulsar = importlib.import_module("pulsar_spark.pulsar" if asked.ours else "pulsar")
    client = pulsar.Client(asked.url, **({"broker": "embedded"} if asked.ours else {}))
    for line in sys.stdin:
        kind, messages = line.split()
        print(f"seconds: {Round(pulsar, client, kind, int(messages)).seconds()}", flush=True)
    client.close()


if __name__ == "__main__":
    main()
