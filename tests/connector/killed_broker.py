"""A broker that is killed at every change of the disk, without Spark.

    python -m tests.connector.killed_broker FOLDER [EVERY [FIRST]]

A consumer subscribes, acknowledges, rejects one message until it is a dead letter, and has the
rest trimmed; the broker is killed at its n-th change of the disk, begun again, and all that it
wrote is counted. Prints one line, `ok` and how many kills, or fails with an assertion.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pulsar_spark.broker.protocol.commands import (
    InitialPosition,
    Rejection,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy
from pulsar_spark.broker.protocol.ready import Grant
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import local_store
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.killed_queries import KilledAtChange
from tests.connector.topic_log.killed_writers import fork
from tests.connector.topic_log.stores import values_of
from tests.connector.topics import send

ABOUT = TopicPartition("persistent://public/default/t", 0)
DEAD_LETTERS = "persistent://public/default/t-s-DLQ"
VALUES = ["a", "b", "c", "d", "e"]
OPTIONS = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(max_redeliver_count=1))
AT_ONCE = 0
ROUNDS = (
    Subscribe(
        "s", "c", 1, SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST,
        options=OPTIONS, permits=100,
    ),
    Report(
        "s", "c", 1, sequence=1, permits=100,
        delivered={0: PositionSet.of_range(0, 0, 3)},
        acknowledged=Cursor().acknowledge(PositionSet.of([(0, 0)])),
        rejected=(Rejection(0, PositionSet.of([(0, 1), (0, 2)]), AT_ONCE),),
    ),
    Report(
        "s", "c", 1, sequence=2, permits=100,
        delivered={0: PositionSet.of_range(0, 0, 3), 1: PositionSet.of_range(0, 1, 2)},
        acknowledged=Cursor().acknowledge(PositionSet.of([(0, 2)])),
        rejected=(Rejection(1, PositionSet.of([(0, 1)]), AT_ONCE),),
    ),
    Report(
        "s", "c", 1, sequence=3, permits=100,
        acknowledged=Cursor().acknowledge(PositionSet.of([(0, 3)])),
    ),
)  # fmt: skip


def prepare(folder: Path) -> None:
    send(folder / "root", "t", VALUES[:4], batchingEnabled=False)
    send(folder / "root", "t", VALUES[4:], batchingEnabled=False)


def broker(folder: Path) -> None:
    """Say each round's command, and serve it; both go on where they were."""
    root = Root(str(folder / "root"), {})
    loop = EmbeddedBroker(root, "_broker/checkpoint")
    for number, command in enumerate(ROUNDS):
        commands = SystemTopic(root, COMMANDS)
        commands.append([Record.of(ABOUT, "s", command)], application=("consumer", number))
        loop.until_quiet()


def check(folder: Path) -> None:
    """All that the broker did, it did once."""
    root = Root(str(folder / "root"), {})
    dispatch = SystemTopic(root, DISPATCH)
    items = [
        each.record.item()
        for each in dispatch.read(0, dispatch.refresh(), keep=lambda _, name: name == "s")
    ]
    granted: dict[int, list[Any]] = {}
    for item in items:
        if isinstance(item, Grant):
            granted.setdefault(item.attempt, []).extend(item.messages.entries())
    expected = {0: [*((0, n) for n in range(4)), (1, 0)], 1: [(0, 1), (0, 2)]}
    assert {a: sorted(p for p, _ in held) for a, held in granted.items()} == expected, granted
    dead_letters = root.open(TopicName.parse(DEAD_LETTERS))
    assert values_of(dead_letters) == ["b"], values_of(dead_letters)
    left = [each.ledger_id for each in root.open(TopicName.parse("t")).ledgers(0)]
    assert left == [1], "what is done was not trimmed"


def main() -> None:
    folder, *rest = sys.argv[1:]
    every = int(rest[0]) if rest else 1
    step = int(rest[1]) if len(rest) > 1 else 0
    managed_ledger.SNAPSHOT_EVERY = 4
    kills = 0
    while True:
        mine = Path(folder) / str(step)

        def killed(step: int = step, mine: Path = mine) -> None:
            prepare(mine)
            setattr(local_store, "os", KilledAtChange(step))  # noqa: B010 - mypy minds it otherwise
            broker(mine)

        _, status = os.waitpid(fork(killed), 0)
        finished = os.WIFEXITED(status)
        assert not finished or os.WEXITSTATUS(status) == 0, f"the run failed at step {step}"
        _, status = os.waitpid(fork(lambda mine=mine: broker(mine)), 0)  # type: ignore[misc]
        assert status == 0, f"the restart after step {step} failed"
        check(mine)
        shutil.rmtree(mine)
        if finished:
            print(f"ok: killed the broker at {kills} steps")
            return
        kills += 1
        step += every


if __name__ == "__main__":
    main()
