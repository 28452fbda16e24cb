"""A redrive that is killed at every change of the disk.

    python -m tests.connector.killed_redrive FOLDER [EVERY [FIRST]]

With EVERY it kills at every so-manieth change only, from the FIRST on. After each kill the redrive
is begun again, and then each letter went back once. Prints one line, `ok` and what was done, or
fails with an assertion.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa

from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping import redrive
from pulsar_spark.connector.runtime.housekeeping.redrive import DeadLetterFilter, Redrive
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import local_store
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.model.topic_name import TopicName
from tests.connector.killed_queries import KilledAtChange
from tests.connector.topic_log.killed_writers import fork
from tests.connector.topic_log.stores import values_of
from tests.connector.topics import send

TOPICS = ("a", "b")
LETTERS = [(f"{topic}{number}", topic) for number in range(3) for topic in TOPICS]


def prepare(folder: Path) -> None:
    """Topics, and letters that came from them."""
    properties = [
        [("REAL_TOPIC", f"persistent://public/default/{topic}"), ("ORIGIN_MESSAGE_ID", "0:0:0")]
        for _, topic in LETTERS
    ]
    root = Root(str(folder / "root"), {})
    for topic in TOPICS:
        root.create(TopicName.parse(topic), 1)
    values = [value for value, _ in LETTERS]
    send(
        folder / "root",
        "dead",
        values,
        columns={"properties": pa.array(properties, pa.map_(pa.string(), pa.string()))},
    )


def sent(folder: Path) -> None:
    """Redrive all, two at once, beside a broker that lives on when this is killed."""
    setattr(redrive, "DEAD_LETTERS_A_TRANSACTION", 2)  # noqa: B010 - mypy minds it otherwise
    setattr(redrive, "TRANSACTION_TIMEOUT_MS", 300)  # noqa: B010
    Redrive(Root(str(folder / "root"), {}), TopicName.parse("dead"), DeadLetterFilter()).run()


def check(folder: Path, *, all_of_them: bool) -> None:
    """No letter has gone back twice; nor is one missing, if all of them have to be there."""
    store = open_store(str(folder / "root"))
    for topic in TOPICS:
        values = values_of(ManagedLedger.open_anew(store, TopicName.parse(topic).storage_path))
        expected = sorted(value for value, name in LETTERS if name == topic)
        assert values == expected or (not all_of_them and set(values) <= set(expected)), values
        assert len(set(values)) == len(values), values


def kill_at_steps(folder: Path, every: int, first: int) -> int:
    """Kill it at its n-th change of the disk, look, begin it again, look; how many kills."""
    step, kills = first, 0
    while True:
        mine = folder / str(step)
        prepare(mine)
        pid = fork(lambda mine=mine: serve(mine))  # type: ignore[misc]

        def killed(step: int = step, mine: Path = mine) -> None:
            setattr(local_store, "os", KilledAtChange(step))  # noqa: B010
            sent(mine)

        try:
            _, status = os.waitpid(fork(killed), 0)
            finished = os.WIFEXITED(status)
            assert not finished or os.WEXITSTATUS(status) == 0, f"the run failed at step {step}"
            print(f"killed at step {step}", file=sys.stderr)
            check(mine, all_of_them=finished)
            for _ in range(2):
                _, status = os.waitpid(fork(lambda mine=mine: sent(mine)), 0)  # type: ignore[misc]
                assert status == 0, f"the redrive after step {step} failed"
            check(mine, all_of_them=True)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        shutil.rmtree(mine)
        if finished:
            return kills
        kills += 1
        step += every


def serve(folder: Path) -> None:
    """Be the broker until killed."""
    broker = EmbeddedBroker(Root(str(folder / "root"), {}))
    while True:
        if not broker.run_once():
            broker.root.clock.sleep(0.002)


def main() -> None:
    folder, *rest = sys.argv[1:]
    every = int(rest[0]) if rest else 1
    managed_ledger.IDLE_POINTER_POLL_S = 0.0
    kills = kill_at_steps(Path(folder), every, int(rest[1]) if len(rest) > 1 else 0)
    print(f"ok: killed the redrive at {kills} steps")


if __name__ == "__main__":
    main()
