"""The conflicts of transactions: a message that one of them acknowledges is acknowledged already.

Invariants: the check is made where the transaction's commit of `__commands` is proposed, on all
commands before it, and again after a lost race; nothing follows that commit before it is decided.
So of two transactions that acknowledge a message one is committed, whatever became of leases,
grants and brokers between. The broker need not run: its last states and the commands that wait for
it say what is acknowledged. A message that was trimmed was acknowledged. Follows Pulsar's
`PendingAckHandleImpl`, which decides when the message is acknowledged, and not at the commit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.machine.pending_acknowledgments import acknowledged, with_commands
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Acknowledgments, Folded
from pulsar_spark.connector.runtime.system_topics.broker_offset import OFFSET_RECORD, SHARD_PREFIX
from pulsar_spark.connector.runtime.system_topics.hosted_topics import HostedTopics, put_shard
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import TransactionConflictError
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.topic_name import TopicPartition, is_persistent

MOST_SHOWN = 5


class ConflictCheck:
    """Refuses a commit of `__commands` whose acknowledgements were made before."""

    def __init__(self, root: Root, acknowledgments: Mapping[str, Iterable[Folded]]) -> None:
        """`acknowledgments`: what the transaction says of messages, by subscription."""
        self._root = root
        self._claimed: dict[tuple[TopicPartition, str], Acknowledgments] = {}
        for subscription, folded in acknowledgments.items():
            for topic_partition, found in (item for each in folded for item in each.items()):
                place = topic_partition, subscription
                self._claimed.setdefault(place, Acknowledgments()).join(found)

    def __call__(self, state: TopicState) -> None:
        """TransactionConflictError if that state of `__commands` acknowledges one of them."""
        claimed = {place: each for place, each in self._claimed.items() if each.claims}
        if not claimed:
            return
        partitions = {topic_partition for topic_partition, _ in claimed}
        states = _Acknowledged.of(self._root).states(partitions, state.next_ledger_id)
        for (topic_partition, subscription), each in sorted(
            claimed.items(), key=lambda item: item[0]
        ):
            if each.trimmed and is_persistent(topic_partition.topic):
                raise _conflict(
                    topic_partition, subscription, f"{each.trimmed} of them were trimmed since"
                )
            done = acknowledged(states[topic_partition], subscription)
            there = each.claimed
            if twice := there.difference(done.not_acknowledged(there)):
                shown = [str(position) for position, _ in twice.entries()][:MOST_SHOWN]
                raise _conflict(topic_partition, subscription, f"among them {', '.join(shown)}")


class _Acknowledged:
    """The states of some brokers behind all commands: of one root, in one process.

    The states in `__dispatch` and the commands are read once: a check costs what is new in both.
    """

    _followed: ClassVar[dict[tuple[int, ObjectStore], _Acknowledged]] = {}

    def __init__(self, root: Root) -> None:
        self._lock = threading.Lock()
        self._dispatch, self._commands = SystemTopic(root, DISPATCH), SystemTopic(root, COMMANDS)
        self._topics = HostedTopics()
        self._read = 0
        """The next ledger of `__dispatch`."""
        self._shards: dict[TopicPartition, dict[str, bytes]] = {}
        self._states: dict[TopicPartition, tuple[BrokerState, int]] = {}
        """The state behind all commands before a ledger of `__commands`, and that ledger."""

    @classmethod
    def of(cls, root: Root) -> _Acknowledged:
        key = (os.getpid(), root.store)
        return cls._followed.get(key) or cls._followed.setdefault(key, cls(root))

    def states(
        self, partitions: set[TopicPartition], stop: int
    ) -> dict[TopicPartition, BrokerState]:
        """The brokers' states behind all commands before that ledger."""
        with self._lock:
            self._follow(partitions)
            self._take_in_commands(partitions, stop)
            return {
                topic_partition: self._states[topic_partition][0] for topic_partition in partitions
            }

    def _follow(self, partitions: set[TopicPartition]) -> None:
        """Take in what `__dispatch` has that is new; all of it for a partition that is new here."""
        stop = self._dispatch.refresh()
        new = partitions - self._shards.keys()
        is_late = stop > self._read > 0 and self._dispatch.first_ledger() > self._read
        if new or is_late:
            self._shards = {topic_partition: {} for topic_partition in {*self._shards, *new}}
            self._topics, self._read = HostedTopics(), 0
        if stop <= self._read and not new:
            return
        kept = (OFFSET_RECORD, SHARD_PREFIX)
        followed = self._shards.keys()
        for stored in self._dispatch.read(
            self._read, stop,
            keep=lambda topic_partition, name: name == OFFSET_RECORD
            or (topic_partition in followed and name.startswith(kept)),
        ) if stop else ():  # fmt: skip
            if stored.record.subscription == OFFSET_RECORD:
                self._topics.observe(stored)
            else:
                put_shard(self._shards[stored.record.topic_partition], stored.record)
        self._read = stop
        self._states.clear()

    def _take_in_commands(self, partitions: set[TopicPartition], stop: int) -> None:
        for topic_partition in partitions - self._states.keys():
            shards, quarantined = (
                self._shards[topic_partition],
                self._topics.quarantined.get(topic_partition),
            )
            state = from_shards(shards, columns=False) if shards else BrokerState(*topic_partition)
            first = self._topics.batch.commands[1] if quarantined is None else quarantined.commands
            self._states[topic_partition] = state, first
        first = min(self._states[topic_partition][1] for topic_partition in partitions)
        waiting: dict[TopicPartition, list[Any]] = {}
        for stored in self._commands.read(
            first, stop, keep=lambda topic_partition, _: topic_partition in partitions
        ):
            topic_partition = stored.record.topic_partition
            if stored.ledger_id >= self._states[topic_partition][1]:
                waiting.setdefault(topic_partition, []).append(stored.record.item())
        for topic_partition in partitions:
            state, taken_in = self._states[topic_partition]
            if topic_partition in waiting:
                state = with_commands(state, waiting[topic_partition])
            self._states[topic_partition] = state, max(taken_in, stop)


def _conflict(
    topic_partition: TopicPartition, subscription: str, which: str
) -> TransactionConflictError:
    return TransactionConflictError(
        f"Messages of {topic_partition} that the transaction acknowledges were acknowledged for "
        "subscription "
        f"{subscription} before, {which}: another has done its work, perhaps as this consumer's "
        "lease had lapsed. Nothing of the transaction was published or acknowledged."
    )
