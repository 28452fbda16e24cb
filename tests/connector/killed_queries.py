"""A publisher and a reader that are killed at every change of the disk, without Spark.

    python -m tests.connector.killed_queries FOLDER [EVERY [FIRST]]

With EVERY it kills at every so-manieth change only, from the FIRST on.
Both do what Spark has them do, in Spark's order: offsets are logged before a batch runs, commits
after it, and a restart replays the batch that was logged but not committed. A restart is a fork
of this process. Prints one line, `ok` and what was done, or fails with an assertion.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.reading import offset_store
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.storage import local_store
from pulsar_spark.options.options import Scope
from tests.connector.reading import Batch, Run
from tests.connector.topic_log.killed_writers import KilledAt, fork
from tests.connector.topics import options_of, written

BATCHES = 2
TOPICS = ("a", "b")
EXPECTED = {
    topic: [f"{topic}{batch}{row}" for batch in range(BATCHES) for row in range(5)]
    for topic in TOPICS
}


class KilledAtChange(KilledAt):
    """Counts what others can see, or find half done: not fsync, nor opening to read."""

    changes: tuple[str, ...] = ("mkdir", "write", "link", "unlink", "replace")


class Log:
    """Spark's checkpoint in little: each file is there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, value: object) -> None:
        # Not through the local store, whose changes are counted: Spark's own steps are Spark's.
        temporary = self.folder / f".{name}"
        temporary.write_text(json.dumps(value))
        temporary.rename(self.folder / name)

    def get(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


def publisher(folder: Path) -> None:
    """Publish micro-batches over two topics from where the log says; as `writeStream` would."""
    log = Log(folder / "publisher")
    options = options_of(folder / "root", Scope.STREAM_WRITE, {"batchingMaxMessages": 2})
    for batch in range(BATCHES):
        if log.get(f"commit-{batch}") is not None:
            continue
        rows = [(topic, f"{topic}{batch}{row}") for row in range(5) for topic in TOPICS]
        columns = {"topic": [topic for topic, _ in rows]}
        tasks = written(options, [value for _, value in rows], columns)
        publish(Root.of(options), tasks, ("query", batch))
        log.put(f"commit-{batch}", True)


def reader(folder: Path) -> None:
    """Read all there is in batches that end inside entries; as `readStream` would."""
    log = Log(folder / "reader")
    number = 0
    while log.get(f"commit-{number}") is not None:
        number += 1
    start = None if number == 0 else log.get(f"offset-{number - 1}")
    run = Run(
        folder / "root", start=start, topics=",".join(TOPICS), startingOffsets="earliest",
        maxMessagesPerTrigger=3, schema=read_schema(include_properties=False),
    )  # fmt: skip
    while True:
        end = log.get(f"offset-{number}")
        batch = run.planned() if end is None else Batch(run.offset, end)
        if batch is None:
            return
        log.put(f"offset-{number}", batch.end)
        values = [(m["topic"].rpartition("/")[2], m["value"].decode()) for m in run.read(batch)]
        before = log.get(f"batch-{number}")
        assert before is None or before == [list(each) for each in values], "a replay differs"
        log.put(f"batch-{number}", values)
        log.put(f"commit-{number}", True)
        run.commit(batch)
        number += 1


def seen(folder: Path) -> dict[str, list[str]]:
    """By topic, what the reader's idempotent sink has."""
    found: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    number = 0
    while (batch := Log(folder / "reader").get(f"batch-{number}")) is not None:
        for topic, value in batch:
            found[topic].append(value)
        number += 1
    return found


def kill_at_steps(folder: Path, role: Callable[[Path], None], every: int, first: int) -> int:
    """Kill the role at its n-th change of the disk, restart it, and count; how many kills."""
    step, kills = first, 0
    while True:
        mine = folder / str(step)

        def killed(step: int = step, mine: Path = mine) -> None:
            if role is reader:
                publisher(mine)
            setattr(local_store, "os", KilledAtChange(step))  # noqa: B010 - mypy minds it otherwise
            role(mine)

        _, status = os.waitpid(fork(killed), 0)
        finished = os.WIFEXITED(status)
        assert not finished or os.WEXITSTATUS(status) == 0, f"the run failed at step {step}"
        for again in (publisher, reader):
            _, status = os.waitpid(fork(lambda again=again, mine=mine: again(mine)), 0)  # type: ignore[misc]
            assert status == 0, f"the restart after step {step} failed"
        assert seen(mine) == EXPECTED, f"{seen(mine)} after step {step}"
        shutil.rmtree(mine)
        if finished:
            return kills
        kills += 1
        step += every


def main() -> None:
    folder, *rest = sys.argv[1:]
    every = int(rest[0]) if rest else 1
    first = int(rest[1]) if len(rest) > 1 else 0
    stream_reader.LONGEST_WAIT_S = 0.0
    managed_ledger.SNAPSHOT_EVERY = 2
    offset_store.LARGEST_INLINE_BYTES = 10  # so that the reader writes too
    offset_store.SPILLED_KEPT = 2
    kills = [
        kill_at_steps(Path(folder) / role.__name__, role, every, first)
        for role in (publisher, reader)
    ]
    print(f"ok: killed the publisher at {kills[0]} steps, the reader at {kills[1]}")


if __name__ == "__main__":
    main()
