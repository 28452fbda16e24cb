"""The cost of publications in a bucket: `python -m tests.bucket`.

The processes of `place.py` in simulated time, 200 ms a request: topics with a producer and a Shared
subscription each, for ten minutes. docs/sizing.md has the table.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

import pytest

from tests.bucket.metered_store import GET, LIST, PUT, Meter
from tests.bucket.place import Bucket
from tests.bucket.simulated_clock import ticks

MINUTES = 10


class Load(NamedTuple):
    topics: int
    consumers: int
    """Those of each topic's subscription."""
    every_s: float
    """Seconds between two publications of a topic."""


LOADS = (
    Load(1, 1, 60), Load(1, 1, 30), Load(1, 1, 10), Load(1, 1, 3), Load(1, 1, 1),
    Load(1, 3, 3), Load(1, 10, 3), Load(10, 1, 30),
)  # fmt: skip


def measured(load: Load) -> tuple[Meter, int]:
    """(requests, publications), each of which has come to its consumer."""
    with pytest.MonkeyPatch.context() as patch:
        bucket = Bucket(patch)
        clock = bucket.clock
        sent: list[bytes | None] = []
        taken: list[bytes | None] = []
        producers = [bucket.producer(f"p{n}", f"t{n}") for n in range(load.topics)]
        bucket.serve()
        for topic in range(load.topics):
            for number in range(load.consumers):
                bucket.consume(f"c{topic}-{number}", taken.append, topic=f"t{topic}")
        clock.sleep(120)
        bucket.meter()

        def publish(topic: int) -> None:
            begun_s = clock.monotonic_s()
            shift_s = load.every_s * topic / load.topics
            count = round(60 * MINUTES / load.every_s)
            instants = [begun_s + shift_s + load.every_s * each for each in range(count)]
            for number, _ in enumerate(ticks(clock, instants)):
                value = b"%d %d" % (topic, number)
                sent.append(value)
                producers[topic].send(value)

        for topic in range(load.topics):
            clock.spawn(partial(publish, topic))
        clock.sleep(60 * MINUTES)
        meter = bucket.meter()
        clock.sleep(120)
        bucket.clock.end()
    assert Counter(taken) == Counter(sent), f"{len(taken)} of {len(sent)}"
    return meter, len(sent)


def main() -> None:
    print("| topics | consumers of each | a publication of each, every | PUT and LIST a minute | "
          "GET a minute | dollars a day | dollars a million publications |")  # fmt: skip
    print("| --- " * 7 + "|")
    for load in LOADS:
        meter, count = measured(load)
        per_day = meter.dollars * 24 * 60 / MINUTES
        writes = meter.counts[PUT] + meter.counts[LIST]
        print(
            f"| {load.topics} | {load.consumers} | {load.every_s:g} s | {writes / MINUTES:.0f} | "
            f"{meter.counts[GET] / MINUTES:.0f} | {per_day:.2f} | "
            f"{meter.dollars / count * 1e6:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
