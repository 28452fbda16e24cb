"""What the log costs: a durable commit, a poll, a cold open. Prints a table.

    python -m benchmarks.log [--versions 50000] [--folder FOLDER]

The folder decides which disk is measured; without one it is the system's for temporary files.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader, LedgerFileWriter
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.positions.ledger_info import BatchSizes

FOLDER = "persistent/public/default/benchmark"
STOPS = (10, 1_000, 10_000, 50_000)
TRIALS = 200


@dataclass(frozen=True)
class Figures:
    name: str
    median_ms: float
    p95_ms: float
    worst_ms: float

    def line(self) -> str:
        return f"| {self.name} | {self.median_ms:.3f} | {self.p95_ms:.3f} | {self.worst_ms:.3f} |"


def measure(name: str, action: Callable[[], object], trials: int = TRIALS) -> Figures:
    times = []
    for _ in range(trials):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1000)
    return figures(name, times)


def figures(name: str, times: list[float]) -> Figures:
    times = sorted(times)
    return Figures(name, statistics.median(times), times[int(len(times) * 0.95)], times[-1])


def rows(count: int, size: int = 100) -> pa.Table:
    moments = pa.array([1_700_000_000_000_000] * count, pa.int64())
    return pa.table(
        {
            "key": pa.array([f"key-{row % 50}" for row in range(count)]),
            "value": pa.array([b"x" * size] * count, pa.binary()),
            "publish_time": moments.cast(pa.timestamp("us", tz="UTC")),
        }
    )


def new_ledger(file: str, messages: int = 10) -> NewLedger:
    return NewLedger(0, file, 0, BatchSizes.of([messages]), messages * 100, 1, 2)


class LogOnly:
    """Publishes ledgers whose files lie there already, not durable: the log's own cost."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.folder = Path(ledger.store.root) / ledger.folder / "data"
        self.folder.mkdir()

    def __call__(self) -> float:
        """One commit; what it took, in milliseconds."""
        name = f"{self.ledger.state.next_ledger_id}.parquet"
        (self.folder / name).write_bytes(b"x")
        started = time.perf_counter()
        self.ledger.append([new_ledger(f"data/{name}")])
        return (time.perf_counter() - started) * 1000


class Floor:
    """What any durable new file costs on this disk: write, fsync, link, fsync of the folder."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        started = time.perf_counter()
        self.store.put_if_absent(f"floor/{self.count}", b"x" * 400)
        return (time.perf_counter() - started) * 1000


class WithFile:
    """Publishes ten messages of 100 bytes: data file and log, both durable."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.rows = rows(10)

    def __call__(self) -> None:
        with LedgerFileWriter(self.ledger.store, self.ledger.folder) as writer:
            writer.write(self.rows)
            writer.close()
        self.ledger.append([new_ledger(writer.path)])


def commits(store: ObjectStore, versions: int) -> list[Figures]:
    """The same commit at growing lengths of the log, and what stands on it."""
    found = []
    ledger = ManagedLedger.create(store, FOLDER, 4)
    publish, floor = LogOnly(ledger), Floor(store)
    for stop in (stop for stop in STOPS if stop <= versions):
        while ledger.state.number < stop:
            publish()
        both = [(publish(), floor()) for _ in range(TRIALS)]
        found.append(figures(f"durable commit at version {stop:,}", [each[0] for each in both]))
        found.append(figures("any durable new file, interleaved", [each[1] for each in both]))
        follower = ManagedLedger.open_anew(store, FOLDER)
        found.append(measure(f"poll without news at {stop:,}", follower.refresh, 1000))
        followed = []
        for _ in range(TRIALS // 2):
            publish()
            followed.append(measure("", follower.refresh, 1).median_ms)
        found.append(figures(f"poll with one commit of news at {stop:,}", followed))
        found.append(measure(f"snapshot of {stop:,} ledgers", ledger.write_snapshot, 5))

        def cold() -> None:
            ManagedLedger.open_anew(store, FOLDER)

        found.append(measure(f"cold open with {stop:,} ledgers", cold, 9))

        def cold_and_all() -> None:
            opened = ManagedLedger.open_anew(store, FOLDER)
            assert sum(each.messages for each in opened.ledgers(0)) > 0

        found.append(measure(f"cold open with {stop:,} ledgers, each looked at", cold_and_all, 9))
    return found


def files(store: ObjectStore) -> list[Figures]:
    """Small data files, and reading a large one."""
    ledger = ManagedLedger.create(store, FOLDER + "-files", 1)
    found = [measure("10 messages: data file and commit, durable", WithFile(ledger))]
    size = store.size(f"{ledger.folder}/{ledger.ledgers(0)[0].file}")
    print(f"A file of 10 messages of 100 bytes has {size} bytes.\n")
    many = rows(327_680)
    with LedgerFileWriter(store, ledger.folder) as writer:
        started = time.perf_counter()
        writer.write(many)
        writer.close()
        elapsed = (time.perf_counter() - started) * 1000
    found.append(figures("write 327,680 messages of 100 bytes, durable", [elapsed]))
    big = new_ledger(writer.path, 327_680).numbered(0)

    def read() -> None:
        reader = LedgerFileReader(store, ledger.folder, "benchmark")
        assert sum(batch.num_rows for batch in reader.read(big, many.column_names)) == 327_680
        reader.close()

    found.append(measure("read 327,680 messages of 100 bytes", read, 5))
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--versions", type=int, default=STOPS[-1])
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        store = open_store(folder)
        lines = [*files(store), *commits(store, given.versions)]
    print("| what | median ms | 95 % ms | worst ms |")
    print("| --- | --- | --- | --- |")
    for figure in lines:
        print(figure.line())


if __name__ == "__main__":
    main()
