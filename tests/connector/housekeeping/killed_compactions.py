"""Compactions that are killed, run as a script so that no thread of the tests is forked.

    python -m tests.connector.housekeeping.killed_compactions FOLDER SEED SECONDS

A writer for each partition, two that compact and trim, and a keeper are killed and replaced at
random. Every two seconds all of them are killed, and what a compacted read finds is compared with a
plain fold of what was published: message N of a partition follows from its number and the seed.
Prints one line, `ok` and what was done, or fails with an assertion.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import FileReclaimedError, ObjectNotFoundError
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.options.options import Options
from tests.connector.topic_log.killed_writers import confirm, fork, topic
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import FOLDER, messages, write

PARTITIONS = 2
ROUND_S = 2.0


class Put(NamedTuple):
    """A message: no value removes the key, and one without key is dropped."""

    key: str | None
    value: str


def message(seed: int, partition: int, number: int) -> Put:
    draw = random.Random(f"{seed} {partition} {number}")
    key = None if draw.random() < 0.1 else draw.choice("abcdefgh")
    return Put(key, "" if draw.random() < 0.1 else str(number))


def put_for_ever(folder: Path, partition: int, seed: int) -> None:
    """Publish one to five messages a commit; after a kill, begin again with the unconfirmed."""
    notes = folder / f"writer-{partition}.txt"
    notes.touch()
    commits = [int(count) for count in notes.read_text().split()]
    ledger, first = topic(folder), sum(commits)
    while True:
        count = size(seed, partition, len(commits))
        puts = [message(seed, partition, number) for number in range(first, first + count)]
        rows = messages([put.value for put in puts])
        rows = rows.append_column("key", pa.array([put.key for put in puts], pa.string()))
        try:
            new = write(ledger, {partition: rows}, batch=2)
            ledger.append(new, application=(f"writer-{partition}", len(commits)))
        except FileReclaimedError:
            continue  # The keeper took an uncommitted file for an orphan: write it again.
        confirm(notes, str(count))
        commits.append(count)
        first += count


def compact_for_ever(folder: Path, seed: int) -> None:
    """Compact and trim all the time; two of these, and the keeper, get in each other's way."""
    draw, ledger = random.Random(seed), topic(folder)
    keeper = LedgerStore(ledger, grace_ms=100)
    while True:
        try:
            compact(ledger)
        except (FileReclaimedError, ObjectNotFoundError):
            continue  # Somebody else was quicker each time.
        ids = range(ledger.state.next_ledger_id)
        keeper.trim({partition: draw.choice([*ids, 0]) for partition in range(PARTITIONS)})
        time.sleep(draw.random() * 0.05)


def tidy_for_ever(folder: Path) -> None:
    """Merge, give up orphans (a compaction takes a while to be committed), sweep and snapshot."""
    keeper = LedgerStore(topic(folder), grace_ms=100)
    while True:
        keeper.merge_small_files()
        keeper.reclaim_orphans(older_than_ms=500)
        keeper.sweep(temporary_age_ms=60_000)
        time.sleep(0.02)


def kill_at_random(folder: Path, seed: int, seconds: float) -> str:
    draw = random.Random(seed)
    ManagedLedger.create(open_store(str(folder)), FOLDER, PARTITIONS)
    roles: list[Callable[[int], None]] = [
        lambda _: put_for_ever(folder, 0, seed),
        lambda _: put_for_ever(folder, 1, seed),
        lambda own: compact_for_ever(folder, own),
        lambda own: compact_for_ever(folder, own),
        lambda _: tidy_for_ever(folder),
    ]

    def begin(role: int) -> int:
        own = draw.randrange(2**32)
        return fork(lambda: roles[role](own))

    kills = 0
    checked = ""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        running = {role: begin(role) for role in range(len(roles))}
        round_ends = time.monotonic() + ROUND_S
        try:
            while time.monotonic() < round_ends:
                time.sleep(draw.random() * 0.3)
                role = draw.choice((0, 1, 2, 2, 3, 3, 4))
                died, status = os.waitpid(running[role], os.WNOHANG)
                assert not died, f"role {role} ended by itself with status {status}"
                kill(running[role])
                running[role] = begin(role)
                kills += 1
        finally:
            for process in running.values():
                kill(process)
        checked = compare(folder, seed)
    tidied(folder)
    assert compare(folder, seed) == checked, "tidying changed something"
    return f"{kills} kills, {checked}"


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def compare(folder: Path, seed: int) -> str:
    """Assert that the compacted part is the fold, and that all behind it is there, in order."""
    ledger = topic(folder)
    check_state(ledger.state)
    reported = []
    for partition in range(PARTITIONS):
        confirmed = sum(map(int, (folder / f"writer-{partition}.txt").read_text().split()))
        before, behind = found(ledger, partition)
        last = ledger.state.applications.get(f"writer-{partition}", -1)
        stop = sum(size(seed, partition, commit) for commit in range(last + 1))
        assert confirmed <= stop <= confirmed + 5, f"{stop} published, {confirmed} confirmed"
        horizon = stop - len(behind)
        everything = [message(seed, partition, number) for number in range(stop)]
        assert behind == everything[horizon:], f"behind the horizon, partition {partition}"
        latest = {put.key: number for number, put in enumerate(everything[:horizon])}
        kept = [
            put for number, put in enumerate(everything[:horizon])
            if put.key is not None and put.value and latest[put.key] == number
        ]  # fmt: skip
        assert before == kept, f"up to the horizon, partition {partition}: {before}, not {kept}"
        reported.append(f"{stop} messages, {len(kept)} of {horizon} kept")
    return "; ".join(reported)


def tidied(folder: Path) -> None:
    """Assert that nothing stays behind of what was killed."""
    ledger = topic(folder)
    keeper = LedgerStore(ledger, grace_ms=0)
    keeper.reclaim_orphans(older_than_ms=0)
    keeper.sweep(temporary_age_ms=0)
    there = {item.path for item in ledger.store.files(f"{FOLDER}/data")}
    assert there == {f"{FOLDER}/{file}" for file in ledger.state.files}


def size(seed: int, partition: int, commit: int) -> int:
    """How many messages a writer puts into one of its commits."""
    return random.Random(f"{seed} {partition} at {commit}").randint(1, 5)


def found(ledger: ManagedLedger, partition: int) -> tuple[list[Put], list[Put]]:
    """What a compacted read finds: (up to the horizon, behind it)."""
    options = Options.parse({"serviceUrl": "."})
    view = PartitionView(ledger, partition, options, compacted=True)
    compacted = ledger.state.partition(partition).compacted
    horizon = EARLIEST if compacted is None else compacted.horizon
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    parts: list[list[Put]] = [[], []]
    for each in view.ledgers:
        whole = PositionSet.of_range(each.ledger_id, 0, each.entries - 1)
        for rows in view.row_ranges(whole, {}):
            for batch in reader.read(rows.ledger, ("key", "value"), rows.first_row, rows.rows):
                columns = (batch.column(0).to_pylist(), batch.column(1).to_pylist())
                puts = [Put(key, value.decode()) for key, value in zip(*columns, strict=True)]
                parts[each.ledger_id > horizon.ledger_id] += puts
    reader.close()
    return parts[0], parts[1]


def main() -> None:
    folder, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    print("ok:", kill_at_random(folder, seed, seconds))


if __name__ == "__main__":
    main()
