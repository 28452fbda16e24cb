"""How long messages stand still when the broker is killed and another stands by.

    python -m benchmarks.takeover [--runs 5] [--without-spark]

Two processes `pulsarlite standalone --standby` and a client's consumer, which is never restarted.
The one that serves gets `kill -9`, with all its processes; a message is sent at once, and the time
is from the kill until the consumer has it. Another is begun, to stand by at the next kill. Brokers
are Spark's queries, and then embedded (with `--without-spark` only that).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.broker_heartbeat import DEAD_AFTER_MS

POLL_S = 0.1
DEADLINE_S = 300.0
GOAL_S = DEAD_AFTER_MS / 1000 + 5
SERVES, STANDS_BY = "runs (process", "stands by"


class Broker:
    """A process `pulsarlite standalone --standby`, and what it says."""

    def __init__(self, place: Path, number: int, host: list[str]) -> None:
        self._output = place / f"broker-{number}.txt"
        command = [sys.executable, "-m", "pulsar_spark", "standalone", "--standby", *host]
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--service-url", str(place / "root")],
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, said: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while said not in self._output.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"a broker did not say {said!r}: {self._output.read_text()}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def takeovers(place: Path, runs: int, host: list[str]) -> list[float]:
    """Seconds from each kill until a message that was sent then is received."""
    found = []
    brokers = [Broker(place, 0, host)]
    try:
        brokers[0].wait_until(SERVES)
        with pulsar.Client(str(place / "root")) as client:
            consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
            producer = client.create_producer("t")
            for number in range(1, runs + 1):
                producer.send(b"served")
                consumer.acknowledge(consumer.receive(round(DEADLINE_S * 1000)))
                brokers.append(Broker(place, number, host))
                brokers[-1].wait_until(STANDS_BY)
                killed_s = time.monotonic()
                brokers[-2].kill()
                producer.send(b"sent when nobody serves")
                message = consumer.receive(round(DEADLINE_S * 1000))
                found.append(time.monotonic() - killed_s)
                consumer.acknowledge(message)
                brokers[-1].wait_until(SERVES)
    finally:
        for broker in brokers:
            broker.kill()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--without-spark", action="store_true")
    asked = parser.parse_args()
    hosts = {"Spark's query": [], "embedded": ["--embedded"]}
    if asked.without_spark:
        del hosts["Spark's query"]
    print(f"Seconds from kill -9 to the next message, of {asked.runs}; the goal is {GOAL_S:g}:")
    print("| broker | median (lowest to highest) | highest to the goal |")
    print("| --- | --- | --- |")
    for name, host in hosts.items():
        with tempfile.TemporaryDirectory(prefix="pulsarlite-benchmark-") as place:
            took = takeovers(Path(place), asked.runs, host)
        print(
            f"| {name} | {statistics.median(took):.1f} ({min(took):.1f} to {max(took):.1f}) "
            f"| {max(took) / GOAL_S:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
