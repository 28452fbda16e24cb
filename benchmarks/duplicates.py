"""What a duplicate costs as a topic grows: each commit has a new message and one published before.

    python -m benchmarks.duplicates [--commits 100000]

No disk: the proposal of a commit, its JSON, its fold, and a look of one who reads what it added.
The last column is the cost as a multiple of that of the first line.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.log.publication import NewLedger, Publication
from pulsar_spark.log.sequence_ranges import SequenceRange
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet

STOPS = (100, 1_000, 10_000, 100_000)
TRIALS = 100
Rows = NDArray[np.int64]


class Topic:
    """A topic's log in memory, and a reader that keeps up with it."""

    def __init__(self) -> None:
        self.state = TopicState("benchmark")
        self.state.apply(Commit(0, "first", 0, partitions=1, settings={"deduplication": True}))
        self.draw = random.Random(1)

    def publish(self) -> float:
        """One commit and one look; what they took, in milliseconds."""
        new = self.state.number
        ids = np.array([new, self.draw.randrange(new) if new else new], np.int64)

        def read(_: LedgerInfo) -> Mapping[str, tuple[Rows, Rows]]:
            return {"p": (np.arange(2), ids)}

        sequences = {"p": SequenceRange.of(ids)}
        ledger = NewLedger(0, f"data/{new}", 0, BatchSizes.of([2]), 2, 1, 1, None, sequences)
        started = time.perf_counter()
        publication = Publication([ledger], deduplicate=True, read_sequences=read)
        proposal = publication.commit_on(self.state, Commit(new + 1, str(new), 1))
        assert isinstance(proposal, Commit)
        self.state.apply(Commit.from_json(proposal.to_json(), "benchmark", new + 1))
        ledgers = self.state.ledgers(0)
        last = ledgers[-1].ledger_id
        batch = PositionSet.between(ledgers, Position(last, -1), Position(last, 0))
        hidden = self.state.partition(0).hidden
        read_on = batch.difference(hidden.of(batch.ledger_ids)).count(ledgers)
        waits = batch.difference(hidden.since(last)).count(ledgers)
        took_ms = (time.perf_counter() - started) * 1000
        assert read_on == waits == 1
        return took_ms


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=STOPS[-1])
    most = parser.parse_args().commits
    topic, first = Topic(), 0.0
    print("| commits, each with a duplicate | median ms | 95 % ms | ratio |")
    print("| --- | --- | --- | --- |")
    for stop in (stop for stop in STOPS if stop <= most):
        while topic.state.number < stop:
            topic.publish()
        times = sorted(topic.publish() for _ in range(TRIALS))
        median = statistics.median(times)
        first = first or median
        late = times[int(len(times) * 0.95)]
        print(f"| {stop:,} | {median:.3f} | {late:.3f} | {median / first:.2f} |")


if __name__ == "__main__":
    main()
