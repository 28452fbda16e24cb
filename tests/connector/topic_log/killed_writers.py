"""Processes that are killed, run as a script so that no thread of the tests is forked.

    python -m tests.connector.topic_log.killed_writers steps FOLDER
    python -m tests.connector.topic_log.killed_writers random FOLDER SEED SECONDS

Prints one line, `ok` and what was done, or fails with an assertion.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd  # noqa: F401 - each fork would load it: pyarrow does, for arrays of values

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage import local_store
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import FileReclaimedError, TopicExistsError
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import FOLDER, messages, publish, values_of, write

WRITERS = 4


class KilledAt:
    """Stands for the module `os` in the local store; kills the process at its n-th change."""

    changes: tuple[str, ...] = ("mkdir", "open", "write", "fsync", "link", "unlink", "replace")

    def __init__(self, step: int) -> None:
        self.left = step

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in self.changes:
            return function

        def counted(*args: Any, **named: Any) -> Any:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return function(*args, **named)

        return counted


def fork(child: Callable[[], None]) -> int:
    """Run `child` in a process of its own; its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        child()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def confirm(notes: Path, *values: str) -> None:
    """Note what a commit has confirmed. The kernel keeps it when this process is killed."""
    with notes.open("a") as file:
        file.write("".join(f"{value}\n" for value in values))


def story(store: ObjectStore, notes: Path) -> None:
    """Everything that changes a topic, each step once however often it is begun again."""
    try:
        ledger = ManagedLedger.create(store, FOLDER, 2, {"deduplication": True})
    except TopicExistsError:
        ledger = ManagedLedger.open_anew(store, FOLDER)
    keeper = LedgerStore(ledger, grace_ms=0)
    for number in range(3):
        values = [f"{number}-{row}" for row in range(3)]
        rows = messages(values, "p", 2 * number)  # The first of each was the last before.
        ledger.append(write(ledger, {0: rows}, batch=2), application=("story", number))
        confirm(notes, *(values if number == 0 else values[1:]))
    publish(ledger, "b", partition=1, application=("story", 3))
    ledger.write_snapshot()
    compact(ledger, retain_null_key=True)
    keeper.merge_small_files()
    publish(ledger, "c", partition=1, application=("story", 4))
    compact(ledger, retain_null_key=True)
    keeper.trim({1: 99})
    keeper.reclaim_orphans(older_than_ms=0)
    keeper.sweep(temporary_age_ms=0)
    ledger.write_snapshot()


def kill_at_every_step(folder: Path) -> str:
    """Kill the story at its n-th change of the disk, count, tell it again, and count again."""
    expected = ["0-0", "0-1", "0-2", "1-1", "1-2", "2-1", "2-2"]
    step = 0
    while True:
        root, notes = folder / str(step), folder / f"{step}.txt"
        notes.touch()

        def killed(step: int = step, root: Path = root, notes: Path = notes) -> None:
            setattr(local_store, "os", KilledAt(step))  # noqa: B010 - mypy minds it otherwise
            story(local_store.LocalStore(str(root)), notes)

        _, status = os.waitpid(fork(killed), 0)
        finished = os.WIFEXITED(status)
        assert not finished or os.WEXITSTATUS(status) == 0, f"the story failed at step {step}"
        store = open_store(str(root))
        if any(store.files(f"{FOLDER}/_log")) and store.exists(f"{FOLDER}/_log/{0:020d}.json"):
            ledger = ManagedLedger.open_anew(store, FOLDER)
            check_state(ledger.state)
            seen = values_of(ledger)
            assert set(notes.read_text().split()) <= set(seen), f"lost at step {step}"
            assert seen == expected[: len(seen)], f"{seen} at step {step}"
        story(store, notes)
        ledger = ManagedLedger.open_anew(store, FOLDER)
        check_state(ledger.state)
        assert values_of(ledger) == expected, f"after step {step}"
        for partition, kept in ((0, len(expected)), (1, 2)):  # partition 1 was trimmed
            compacted = ledger.state.partition(partition).compacted
            assert compacted is not None
            assert compacted.kept.count(compacted.ledgers) == kept, f"after step {step}"
        leftovers = {item.path for item in store.files(f"{FOLDER}/data")}
        known = {f"{FOLDER}/{file}" for file in ledger.state.files}
        assert leftovers == known, f"orphans after step {step}: {leftovers - known}"
        shutil.rmtree(root)
        if finished:
            return f"killed at {step} steps"
        step += 1


def write_for_ever(folder: Path, writer: int, seed: int) -> None:
    """Publish message after message; after a kill, begin again with the last unconfirmed."""
    draw = random.Random(seed)
    notes = folder / f"writer-{writer}.txt"
    notes.touch()
    count = len(notes.read_text().split())
    ledger = topic(folder)
    while True:
        value = f"w{writer}-{count}"
        try:
            new = write(ledger, {draw.randrange(3): messages([value])})
            ledger.append(new, application=(f"writer-{writer}", count))
        except FileReclaimedError:
            continue  # The keeper took an uncommitted file for an orphan: write it again.
        confirm(notes, value)
        count += 1


def keep_for_ever(folder: Path) -> None:
    """Merge, give up orphans, sweep and snapshot all the time."""
    keeper = LedgerStore(topic(folder), grace_ms=100)
    while True:
        keeper.merge_small_files()
        keeper.reclaim_orphans(older_than_ms=30)
        keeper.sweep(temporary_age_ms=60_000)
        time.sleep(0.02)


def topic(folder: Path) -> ManagedLedger:
    managed_ledger.SNAPSHOT_EVERY = 8
    return ManagedLedger.open_anew(open_store(str(folder)), FOLDER, grace_ms=50)


def kill_at_random(folder: Path, seed: int, seconds: float) -> str:
    """Writers and a keeper on one topic, killed and replaced at random for some seconds."""
    draw = random.Random(seed)
    ManagedLedger.create(open_store(str(folder)), FOLDER, 3)

    def begin(role: int) -> int:
        started = draw.randrange(2**32)
        if role == WRITERS:
            return fork(lambda: keep_for_ever(folder))
        return fork(lambda: write_for_ever(folder, role, started))

    running = {role: begin(role) for role in range(WRITERS + 1)}
    kills = 0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            time.sleep(draw.random() * 0.1)
            role = draw.randrange(WRITERS + 1)
            died, status = os.waitpid(running[role], os.WNOHANG)
            assert not died, f"role {role} ended by itself with status {status}"
            os.kill(running[role], signal.SIGKILL)
            os.waitpid(running[role], 0)
            running[role] = begin(role)
            kills += 1
    finally:
        for process in running.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return f"{kills} kills, {count_all(folder)}"


def count_all(folder: Path) -> str:
    """Assert that what was confirmed is there once, in order, and ids have no gap."""
    ledger = topic(folder)
    state = ledger.state
    check_state(state)
    partitions = [values_of(ledger, partition) for partition in range(3)]
    seen = Counter(value for values in partitions for value in values)
    assert not [value for value, times in seen.items() if times > 1], "seen twice"
    confirmed = 0
    for writer in range(WRITERS):
        values = (folder / f"writer-{writer}.txt").read_text().split()
        lost = [value for value in values if value not in seen]
        assert not lost, f"lost {lost}"
        confirmed += len(values)
    assert len(seen) - confirmed <= WRITERS, "more than the last of each writer is unconfirmed"
    ids = [each.ledger_id for part in range(3) for each in state.ledgers(part)]
    assert sorted(ids) == list(range(len(ids))) == list(range(state.next_ledger_id))
    return f"{confirmed} confirmed, {len(seen)} seen, {state.number} commits"


def main() -> None:
    what, folder, *rest = sys.argv[1:]
    if what == "steps":
        done = kill_at_every_step(Path(folder))
    else:
        done = kill_at_random(Path(folder), int(rest[0]), float(rest[1]))
    print("ok:", done)


if __name__ == "__main__":
    main()
