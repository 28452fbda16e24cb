"""A consumer that is killed at every change of the disk, without Spark; its broker lives.

    python -m tests.connector.killed_consumer FOLDER [EVERY [FIRST]]

With EVERY it kills at every so-manieth change only, from the FIRST on.
It does what Spark has it do, in Spark's order, once with each `ackMode`; by hand it rejects one
message the first time. A restart is a fork of this process, from the consumer's checkpoint and
within its lease. Prints one line, `ok` and what was done, or fails with an assertion.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from pulsar_spark.broker.protocol.commands import Rejection, Report
from pulsar_spark.connector.runtime.reading import offset_store
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage import local_store
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.killed_queries import KilledAtChange, Log
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Batch, Message, Run
from tests.connector.topic_log.killed_writers import fork
from tests.connector.topics import send

ABOUT = TopicPartition("persistent://public/default/t", 0)
VALUES = list("abcdefgh")
REJECTED = "c"
MODES = ("auto", "manual")


def prepare(folder: Path) -> None:
    for part in (VALUES[:5], VALUES[5:]):
        send(folder / "root", "t", part, batchingMaxMessages=2)


def consumer(folder: Path, mode: str) -> None:
    """Go on where the log says, until nothing is left to do."""
    log = Log(folder / "consumer")
    number = 0
    while log.get(f"commit-{number}") is not None:
        number += 1
    start = None if number == 0 else log.get(f"offset-{number - 1}")
    run = Run(
        folder / "root", start=start, topic="t", subscriptionName="s", subscriptionType="Shared",
        subscriptionInitialPosition="Earliest", leaseTimeout="600s", maxMessagesPerTrigger=3,
        ackMode=mode,
    )  # fmt: skip
    broker = PlainBroker(folder / "root", "_broker/broker")
    while True:
        end = log.get(f"offset-{number}")
        batch = run.planned() if end is None else Batch(run.offset, end)
        if batch is None:
            if not served(broker):
                return
            continue
        log.put(f"offset-{number}", batch.end)
        delivered = [[m["value"].decode(), m["redelivery_count"]] for m in run.read(batch)]
        before = log.get(f"batch-{number}")
        assert before in (None, delivered), "a replay differs"
        log.put(f"batch-{number}", delivered)
        if mode == "manual" and delivered:
            settle(folder, number, batch.messages, REJECTED in seen(log, number))
        log.put(f"commit-{number}", True)
        run.commit(batch)
        number += 1


def seen(log: Log, stop: int | None = None) -> list[str]:
    """What the micro-batches before that number had."""
    found: list[str] = []
    number = 0
    while number != stop and (batch := log.get(f"batch-{number}")) is not None:
        found += [value for value, _ in batch]
        number += 1
    return found


def settle(folder: Path, number: int, messages: list[Message], was_rejected: bool) -> None:
    """Reject one message the first time, acknowledge all others; once for each micro-batch."""
    done = rejected = PositionSet()
    for each in messages:
        row = PositionSet.of_batch(
            (each["ledger_id"], each["entry_id"]), size_of(each), 1 << each["batch_index"]
        )
        if each["value"].decode() == REJECTED and not was_rejected:
            rejected = rejected.union(row)
        else:
            done = done.union(row)
    report = Report(
        "s", epoch=None, acknowledged=Cursor().acknowledge(done),
        rejected=(Rejection(None, rejected, 0),) if rejected else (),
    )  # fmt: skip
    commands = SystemTopic(Root(str(folder / "root"), {}), COMMANDS)
    commands.append([Record.of(ABOUT, "s", report)], application=("by hand", number))


def size_of(message: Message) -> int:
    """Of the batch that it is in: all have two but the last of the first five."""
    return 1 if message["value"] in (b"e", b"h") else 2


def served(broker: PlainBroker) -> bool:
    """Whether the broker had anything to do. Its changes of the disk are not counted."""
    counted = getattr(local_store, "os")  # noqa: B009
    setattr(local_store, "os", os)  # noqa: B010 - mypy minds it otherwise
    before = broker.batches
    broker.until_quiet()
    setattr(local_store, "os", counted)  # noqa: B010
    return broker.batches > before


def check(folder: Path, mode: str) -> None:
    """Each message came once, or once more after its rejection, and all are acknowledged."""
    found = seen(Log(folder / "consumer"))
    expected = VALUES + [REJECTED] * (mode == "manual")
    assert sorted(found) == sorted(expected), found
    (state,) = subscriptions(Root(str(folder / "root"), {}), ABOUT.topic)
    assert state.backlog == 0, f"{state.backlog} are not acknowledged"


def kill_at_steps(folder: Path, mode: str, every: int, first: int) -> int:
    """Kill it at its n-th change of the disk, restart it, and count; how many kills."""
    step, kills = first, 0
    while True:
        mine = folder / str(step)

        def killed(step: int = step, mine: Path = mine) -> None:
            prepare(mine)
            setattr(local_store, "os", KilledAtChange(step))  # noqa: B010
            consumer(mine, mode)

        _, status = os.waitpid(fork(killed), 0)
        finished = os.WIFEXITED(status)
        assert not finished or os.WEXITSTATUS(status) == 0, f"the run failed at step {step}"
        _, status = os.waitpid(fork(lambda mine=mine: consumer(mine, mode)), 0)  # type: ignore[misc]
        assert status == 0, f"the restart after step {step} failed"
        check(mine, mode)
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
    managed_ledger.SNAPSHOT_EVERY = 4
    offset_store.LARGEST_INLINE_BYTES = 220  # so that offsets are written too
    offset_store.SPILLED_KEPT = 2
    kills = [kill_at_steps(Path(folder) / mode, mode, every, first) for mode in MODES]
    print(f"ok: killed the consumer at {sum(kills)} steps")


if __name__ == "__main__":
    main()
