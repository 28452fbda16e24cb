"""Transactions that publish and acknowledge, killed at every change of the disk, without Spark.

    python -m tests.connector.killed_transactions FOLDER [EVERY [FIRST]]

With EVERY it kills at every so-manieth change only, from the FIRST on.
After each kill, what is visible is the same micro-batches in all topics and in `__commands`, and
at least those that were confirmed, before a broker looks and after it; after a restart all of them
are there, once. Decisions are cleaned up meanwhile. Prints one line, `ok` and what was
done, or fails with an assertion.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from pulsar_spark.connector.runtime.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import local_store
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Scope
from tests.connector.killed_queries import KilledAtChange, Log
from tests.connector.topic_log.killed_writers import fork
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import values_of
from tests.connector.topics import options_of, written

BATCHES = 5
TOPICS = ("a", "b")
ABOUT = TopicPartition("persistent://public/default/a", 0)


def sink(folder: Path) -> None:
    """Publish and acknowledge from where the log says; as `transaction` in `foreachBatch` would."""
    log = Log(folder / "sink")
    options = options_of(folder / "root", Scope.STREAM_WRITE)
    for batch in range(BATCHES):
        if log.get(f"commit-{batch}") is not None:
            continue
        rows = [(topic, f"{batch}{row}") for row in range(2) for topic in TOPICS]
        columns = {"topic": [topic for topic, _ in rows]}
        tasks = written(options, [value for _, value in rows], columns)
        application = ("query", batch)
        records = [Record(ABOUT, "s", f"{batch}{row}".encode()) for row in range(2)]
        commit_as_one(Root.of(options), tasks, records, application, 60_000)
        log.put(f"commit-{batch}", True)
        for topic in (*TOPICS, str(COMMANDS)):  # logs are given up, so that decisions are forgotten
            path = TopicName.parse(topic).storage_path
            store = open_store(str(folder / "root"))
            ManagedLedger.open_anew(store, path, grace_ms=0).write_snapshot()
        forget_decisions(Root.of(options))


def seen(folder: Path) -> dict[str, list[str]]:
    """By topic, what a process sees that has not seen it before."""
    store = open_store(str(folder / "root"))
    found: dict[str, list[str]] = {}
    for topic in (*TOPICS, str(COMMANDS)):
        path = TopicName.parse(topic).storage_path
        found[topic] = []
        with suppress(TopicNotFoundError):
            ledger = ManagedLedger.open_anew(store, path)
            check_state(ledger.state)
            found[topic] = values_of(ledger)
    return found


def taken_in(folder: Path) -> list[str]:
    """What a broker reads, which finishes the transactions that it meets."""
    commands = SystemTopic(Root(str(folder / "root"), {}), COMMANDS)
    stop = commands.refresh()
    return [each.record.data.decode() for each in commands.read(0, stop)] if stop else []


def check(folder: Path, *allowed: list[str]) -> None:
    """All topics show the same, and the broker takes in the same."""
    found = seen(folder)
    assert len({tuple(values) for values in found.values()}) == 1, found
    assert found["a"] in allowed, found
    broker = taken_in(folder)
    assert all(values == broker for values in seen(folder).values()), f"{seen(folder)}, {broker}"
    assert broker in allowed, broker


def kill_at_steps(folder: Path, every: int, first: int) -> int:
    """Kill the sink at its n-th change of the disk, look, restart it, look; how many kills."""
    expected = [f"{batch}{row}" for batch in range(BATCHES) for row in range(2)]
    step, kills = first, 0
    while True:
        mine = folder / str(step)

        def killed(step: int = step, mine: Path = mine) -> None:
            setattr(local_store, "os", KilledAtChange(step))  # noqa: B010 - mypy minds it otherwise
            sink(mine)

        _, status = os.waitpid(fork(killed), 0)
        finished = os.WIFEXITED(status)
        assert not finished or os.WEXITSTATUS(status) == 0, f"the run failed at step {step}"
        done = len(list((mine / "sink").glob("commit-*")))
        print(f"killed at step {step}", file=sys.stderr)
        check(mine, expected[: 2 * done], expected[: 2 * done + 2])
        for _ in range(2):
            _, status = os.waitpid(fork(lambda mine=mine: sink(mine)), 0)  # type: ignore[misc]
            assert status == 0, f"the restart after step {step} failed"
        check(mine, expected)
        kept = len(list((mine / "root" / "_transactions").glob("*/*.*.json")))
        assert kept < BATCHES, "no decision was forgotten"
        shutil.rmtree(mine)
        if finished:
            return kills
        kills += 1
        step += every


def main() -> None:
    folder, *rest = sys.argv[1:]
    every = int(rest[0]) if rest else 1
    managed_ledger.IDLE_POINTER_POLL_S = 0.0
    kills = kill_at_steps(Path(folder), every, int(rest[1]) if len(rest) > 1 else 0)
    print(f"ok: killed the sink at {kills} steps")


if __name__ == "__main__":
    main()
