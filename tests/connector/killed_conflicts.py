"""Two transactions acknowledge one message; the first is killed, or stands still, at each step.

    python -m tests.connector.killed_conflicts FOLDER [EVERY [FIRST]]

With EVERY it stops at every so-manieth change of the disk only, from the FIRST on. Where the first
was killed the second is run, and then the first again, as Spark repeats a micro-batch. Where it
stood still the second is run to its end, and then the first goes on. In the end one of the two has
published its result and acknowledged the message, and the other was refused and has published
nothing, also when both are repeated. Prints one line, `ok` and what was done, or fails with an
assertion.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulsar_spark.broker.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.functions.batch_transaction import BatchTransaction
from pulsar_spark.connector.storage import local_store
from pulsar_spark.errors import (
    InvalidTxnStatusError,
    TopicNotFoundError,
    TransactionConflictError,
)
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Scope
from tests.connector.killed_queries import KilledAtChange, Log
from tests.connector.topic_log.killed_writers import fork
from tests.connector.topic_log.stores import values_of
from tests.connector.topics import ledger_of, options_of, send, written

ABOUT = TopicPartition("persistent://public/default/t", 0)
TIMEOUT_MS = 300
FIRST, SECOND = "first", "second"


class StopsAtChange(KilledAtChange):
    """Stands still at the n-th change until it is continued."""

    def __getattr__(self, name: str) -> Any:
        if name in self.changes and self.left == 0:
            self.left -= 1
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getattr__(name)


def made(folder: Path) -> None:
    """A message that a consumer holds."""
    root = Root(str(folder), {})
    send(folder, "t", ["message"])
    command = Subscribe(
        "s", "c", 1, SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST, permits=10
    )
    SystemTopic(root, COMMANDS).append([Record.of(ABOUT, "s", command)])
    broker_runs(folder)


def broker_runs(folder: Path) -> None:
    with EmbeddedBroker(Root(str(folder), {}), "_broker/broker") as broker:
        broker.until_quiet()


def transaction(folder: Path, name: str) -> None:
    """The micro-batch, whose error is shown: a process that was forked ends without a word."""
    try:
        batch(folder, name)
    except Exception:
        traceback.print_exc()
        raise


def batch(folder: Path, name: str) -> None:
    """Publish a result and acknowledge the message, as a micro-batch does."""
    options = options_of(folder / "root", Scope.WRITE, {"topic": "results"})
    root = Root.of(options)
    row = {"topic": ["t"], "ledger_id": [0], "entry_id": [0], "partition": [0], "attempt": [0]}
    with suppress(TransactionConflictError, InvalidTxnStatusError):
        with BatchTransaction({}, root, 0, name, TIMEOUT_MS, None) as txn:
            txn._written += written(options, [name])
            txn._acknowledged_rows["s"] = [fold([pa.RecordBatch.from_pydict(row)], root, None)]
        Log(folder / "done").put(name, True)


def run(folder: Path, name: str) -> None:
    _, status = os.waitpid(fork(partial(transaction, folder, name)), 0)
    assert status == 0, f"the {name} failed"


def results(folder: Path) -> list[str]:
    with suppress(TopicNotFoundError):
        return values_of(ledger_of(folder / "root", "results"))
    return []


def check(folder: Path) -> None:
    """One has published, and ended without an error; a broker has its acknowledgement."""
    (result,) = results(folder)
    done = {name for name in (FIRST, SECOND) if Log(folder / "done").get(name)}
    assert result in done, (result, done)
    broker_runs(folder / "root")
    assert results(folder) == [result]
    (held,) = subscriptions(Root(str(folder / "root"), {}), ABOUT.topic)
    assert held.backlog == 0, held


def stop_at(folder: Path, step: int, how: str) -> bool:
    """Stop the first at that step, and look; whether it came to its end before."""
    kind = KilledAtChange if how == "killed" else StopsAtChange

    def first() -> None:
        setattr(local_store, "os", kind(step))  # noqa: B010 - mypy minds it otherwise
        transaction(folder, FIRST)

    process = fork(first)
    _, status = os.waitpid(process, os.WUNTRACED)
    finished = os.WIFEXITED(status)
    assert not finished or os.WEXITSTATUS(status) == 0, f"the first failed at step {step}"
    run(folder, SECOND)
    if os.WIFSTOPPED(status):
        os.kill(process, signal.SIGCONT)
        _, status = os.waitpid(process, 0)
        assert status == 0, f"the first failed when it went on at step {step}"
    elif not finished:
        run(folder, FIRST)
    check(folder)
    for name in (FIRST, SECOND):
        run(folder, name)
    assert len(results(folder)) == 1, results(folder)
    return finished


def main() -> None:
    folder, *rest = sys.argv[1:]
    every, step = int(rest[0]) if rest else 1, int(rest[1]) if len(rest) > 1 else 0
    template, stops = Path(folder) / "made", 0
    _, status = os.waitpid(fork(partial(made, template)), 0)
    assert status == 0, "the message could not be sent"
    finished = False
    while not finished:
        for how in ("killed", "stopped"):
            mine = Path(folder) / f"{how}-{step}"
            shutil.copytree(template, mine / "root")
            print(f"{how} at step {step}", file=sys.stderr)
            finished = stop_at(mine, step, how)
            shutil.rmtree(mine)
            stops += not finished
        step += every
    print(f"ok: stopped the first transaction {stops} times")


if __name__ == "__main__":
    main()
