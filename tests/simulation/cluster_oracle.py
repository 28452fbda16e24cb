"""What was promised to the consumers of a cluster, held against what they got."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pulsar_spark.broker.hosting import broker_rows
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.lease import RENEWALS, Lease
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.topic_name import TopicPartition
from tests.simulation.lots import ViolationError
from tests.simulation.place import Message

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.query import Batch, Query


class ClusterOracle:
    """Watches one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.states: dict[TopicPartition, BrokerState] = {}
        """Of the brokers, after their last steps."""
        self.requested: set[Message] = set()
        """Those of which each has to be acknowledged in the end."""
        self.done: set[Message] = set()
        """In a micro-batch that was committed."""
        self.owner: dict[Message, Batch] = {}
        """Who was given a message, in which micro-batch."""
        self.seen: dict[str, int] = {}
        """Topic -> of how many partitions its first subscriber knew."""
        self.suspects: set[Message] = set()
        """Those of batches that were withheld."""
        self.withheld: set[tuple[str, int, Message]] = set()
        """The same: whose they are, of which of its checkpoints."""
        self.died_unlogged: set[Message] = set()
        """Those that a run reported, which died before Spark had written the offset down."""
        self.late_suspects: set[tuple[str, int, Message]] = set()
        """Those withheld of late micro-batches, or by a consumer that was given up since."""
        self.late: set[Batch] = set()
        """Micro-batches that their consumer planned before it was given up."""
        self.refused_runs: set[tuple[str, int]] = set()
        self.offset: object = None

    def fail(self, text: str) -> None:
        raise ViolationError(text)

    # -- what happens ----------------------------------------------------------------------------

    def published(self, topic_partition: TopicPartition, messages: Iterable[Message]) -> None:
        is_new = topic_partition.partition >= self.seen.get(
            topic_partition.topic, topic_partition.partition + 1
        )
        if not self.cluster.setting.latest or is_new or self._is_subscribed(topic_partition):
            self.requested.update(messages)

    def created(self, topic: str) -> None:
        """A topic that a pattern finds: of a subscription that there is it is read whole."""
        if any(map(self._is_subscribed, self.states)):
            self.seen[topic] = 0

    def stepped(self, query: Query) -> None:
        """It may have subscribed: as the same run, if no clock went on."""
        self.refused_runs.discard((query.name, query.incarnation))
        counts: dict[str, int] = {}
        for topic_partition in query.partitions:
            counts[topic_partition.topic] = counts.get(topic_partition.topic, 0) + 1
        for topic, count in counts.items():
            self.seen.setdefault(topic, count)

    def delivered(self, query: Query, number: int, rows: list[Message]) -> None:
        """A micro-batch reaches its user, perhaps again."""
        before = query.checkpoint.batches.setdefault(number, rows)
        batch = query.batch(number)
        tried = {(query.name, query.lives, each) for each in rows}
        is_late = batch in self.late or query.was_given_up or bool(tried & self.late_suspects)
        if rows != before:
            withheld = {(query.name, query.lives, each) for each in before}
            if is_late:
                self.late_suspects |= withheld
            else:
                self._check_withheld(query, number, rows, before)
            self.suspects.update(before)
            self.withheld |= withheld
        if is_late:
            return  # it did not know yet that others have what it holds
        for message in rows:
            owner = self.owner.setdefault(message, batch)
            if owner != batch:
                self.fail(f"{message} came in {batch}, and had come in {owner}")

    def committed(self, rows: Iterable[Message]) -> None:
        self.done.update(rows)

    def _check_withheld(
        self, query: Query, number: int, rows: list[Message], before: list[Message]
    ) -> None:
        """A batch is repeated as it was, unless it was begun too often: then it is empty.

        A part of one that was withheld is withheld when it is begun for the second time.
        """
        began = query.checkpoint.begun[number]
        allowed = int(query.given.get("maxBatchAttempts", "3"))
        withheld = not rows and self.cluster.setting.poison
        if not withheld or (began <= allowed and not self.suspects.issuperset(before)):
            self.fail(f"batch {number} of {query.name}, begun {began} times, has {rows}, and had "
                      f"{before}")  # fmt: skip
        for message in before:
            self.owner.pop(message, None)

    def turned(self, broker: EmbeddedBroker) -> None:
        """The broker had a look, and did a batch if that is another one than before."""
        if broker.offset is self.offset:
            self._check_nobody_refused_is_left()
            return
        self.offset = broker.offset
        for row in broker.done:
            if row.kind == broker_rows.QUARANTINED:
                self.fail(f"{row.topic} {row.partition} is set aside: {row.data.decode()}")
        for (topic, partition), each in broker.brokers.items():
            if each.state is not None:  # else it was stored, and has not stepped since
                self.states[TopicPartition(topic, partition)] = each.state
        for lease in broker.offset.lapsed:
            assert isinstance(lease, Lease)
            self._check_lapsed(lease)
        self._check_letters()

    def refused(self, query: Query) -> None:
        """It ends; nowhere is anything kept for it once the broker has heard."""
        self.refused_runs.add((query.name, query.incarnation))
        if not self.cluster.setting.refuses:
            self.fail(f"{query.name} was refused")

    def lost_its_checkpoint(self, query: Query) -> None:
        self._gone(query)

    # -- what there is ---------------------------------------------------------------------------

    def missing(self) -> list[Message]:
        return sorted(each for each in self.requested if not self._is_acknowledged(each))

    def finished(self) -> None:
        """All that was wanted is acknowledged: somebody had it, or it is a dead letter."""
        lost = self.requested - self.done - set(self.cluster.place.republications)
        if lost:
            self.fail(f"acknowledged, and read by nobody: {sorted(lost)}")

    def check_is_gone(self, query: Query) -> None:
        for topic_partition, state in self.states.items():
            subscription = state.subscriptions.get("s")
            if subscription and query.name in subscription.consumers:
                self.fail(f"{query.name} is dead, and still with {topic_partition}")

    # -- inside ----------------------------------------------------------------------------------

    def _check_nobody_refused_is_left(self) -> None:
        """The broker has nothing more to do: it has heard that they left."""
        for topic_partition, state in self.states.items():
            subscription = state.subscriptions.get("s")
            for name, each in subscription.consumers.items() if subscription else ():
                if (name, each.incarnation) in self.refused_runs:
                    self.fail(f"{name} was refused, and is still with {topic_partition}")

    def _check_lapsed(self, lease: Lease) -> None:
        cluster = self.cluster
        query = next(each for each in cluster.queries if each.name == lease.consumer)
        if query.incarnation != lease.incarnation:
            return  # a run before
        if query.is_connected:
            self.fail(f"{query.name} lives, and was given up")
        dead_ms = cluster.clock.elapsed_ms - query.dead_since_ms
        if dead_ms < lease_ms_left(cluster.setting.lease_ms):
            self.fail(f"{query.name} was given up after {dead_ms} ms")
        self._gone(query)

    def _gone(self, query: Query) -> None:
        """Others may get what it had, if the broker does not know of its acknowledgement."""
        query.given_up.add(query.incarnation)
        if query.is_in_batch:
            self.late.add(query.batch(query.checkpoint.last))
        mine = query.name, query.lives
        self.late_suspects |= {each for each in self.withheld if each[:2] == mine}
        for message in [each for each, owner in self.owner.items() if owner[0] == query.name]:
            if not self._is_acknowledged(message):
                del self.owner[message]

    def _check_letters(self) -> None:
        republications = self.cluster.place.republications
        for message in republications:
            if message not in self.cluster.poison | self.died_unlogged:
                self.fail(f"{message} is a dead letter, and ended no query")
        if len(set(republications)) < len(republications):
            self.fail(f"a dead letter was copied twice: {republications}")

    def _is_subscribed(self, topic_partition: TopicPartition) -> bool:
        state = self.states.get(topic_partition)
        return state is not None and "s" in state.subscriptions

    def _is_acknowledged(self, message: Message) -> bool:
        topic_partition, ledger_id, entry_id, index = message
        state = self.states.get(topic_partition)
        subscription = state and state.subscriptions.get("s")
        if not subscription:
            return False
        return subscription.cursor.contains(Position(ledger_id, entry_id), index)


def lease_ms_left(lease_ms: int) -> int:
    """How long a consumer has at least from its death on, which may come before a renewal."""
    return lease_ms - lease_ms // RENEWALS
