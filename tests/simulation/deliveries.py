"""Which delivery of a message is which: attempts, what may have been seen, what is planned anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pulsar_spark.broker.protocol.commands import Command, Report
from pulsar_spark.consumer.stream_offset import PartitionOffset
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet

if TYPE_CHECKING:
    from tests.simulation.source import Message, Source
    from tests.simulation.world import World

NO_EPOCH = -1


class Deliveries:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epoch = NO_EPOCH
        self.attempts: dict[Message, set[int]] = {}
        """At which attempts somebody may have been given a message, in this epoch."""
        self.epoch_of: dict[tuple[Message, int], int] = {}
        """In which epoch a message was delivered at an attempt."""
        self.ever_done: set[Message] = set()
        """Delivered or acknowledged at any time."""

    def begin(self, epoch: int, acked: Iterable[Message]) -> None:
        """A new epoch, after one in which these were acknowledged."""
        self.epoch, self.attempts = epoch, {}
        self.ever_done.update(acked)

    def note(self, epoch: int, attempt: int, messages: Sequence[Message]) -> None:
        """An attempt names one delivery of a message, whatever the epoch."""
        for message in messages:
            self.ever_done.add(message)
            before = self.epoch_of.setdefault((message, attempt), epoch)
            if before != epoch:
                self.world.oracle.fail(
                    f"attempt {attempt} of {message} is of epochs {before} and {epoch}"
                )
            if epoch == self.epoch:
                self.attempts.setdefault(message, set()).add(attempt)

    def of_epoch(self, attempt: int, messages: PositionSet) -> PositionSet:
        """Those of the messages that were delivered at that attempt in this epoch."""
        plain = self.world.plain(messages)
        return self.world.made(m for m in plain if self.epoch_of[m, attempt] == self.epoch)

    def follow(self, commands: Sequence[Command]) -> None:
        """What is reported as delivered may have been, though the process died before it was."""
        for command in commands:
            if isinstance(command, Report) and command.epoch == self.epoch:
                for attempt, messages in (command.delivered or {}).items():
                    for message in self.world.plain(messages):
                        self.attempts.setdefault(message, set()).add(attempt)

    def check_burial(self, message: Message) -> None:
        """A dead letter was given to somebody as often as it may be, and once more."""
        policy = self.world.setting.consumer_options.dead_letter_policy
        assert policy is not None
        times = len(self.attempts.get(message, ()))
        if times <= policy.max_redeliver_count:
            self.world.oracle.fail(
                f"{message} was buried, and may have been delivered {times} times"
            )

    def check_repeated(self, source: Source, again: Mapping[int, PositionSet]) -> None:
        """A micro-batch is repeated after a crash: all of it, but what others have acknowledged."""
        world, nothing = self.world, PositionSet()
        for attempt in again.keys() | source.batch.keys():
            was, now = source.batch.get(attempt, nothing), again.get(attempt, nothing)
            if now.difference(was):
                world.oracle.fail(f"a batch is planned anew as {now}, and was {was}")
            for message in world.plain(was.difference(now)):
                if world.log_ledgers.get(message[0]) is not None:
                    world.oracle.fail(f"{message} is not in a batch that is repeated")
                done = self.ever_done | world.oracle.acked
                if world.setting.durable and message not in done:
                    world.oracle.fail(f"{message} was trimmed, and acknowledged by nobody")

    def check_offset(self, offset: PartitionOffset, ledgers: LedgerList) -> None:
        """It does not grow with redeliveries: each attempt has what no higher one has."""
        higher, floor = PositionSet(), Cursor(offset.floor or EARLIEST)
        for attempt in sorted(offset.attempts, reverse=True):
            planned = offset.attempts[attempt].difference(floor, ledgers)
            if not planned.difference(higher):
                self.world.oracle.fail(f"attempt {attempt} of an offset says nothing: {offset}")
            higher = higher.union(planned)
