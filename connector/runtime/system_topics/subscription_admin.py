"""Looking at subscriptions, and moving, making and deleting them, without being a consumer.

Invariants: statistics are those of the broker's last micro-batch, read from `__dispatch`; a change
is a command, and done when the broker has answered. Follows Pulsar's `Topics` admin
(`getSubscriptions`, `createSubscription`, `resetCursor`, `deleteSubscription`).
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.broker.protocol.commands import RedeliverUnacknowledgedMessages, Report
from pulsar_spark.broker.protocol.ready import Reply
from pulsar_spark.broker.selectors.sticky_key_selector import HashRange
from pulsar_spark.broker.subscriptions.breaker import BreakerPhase
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.runtime.system_topics.hosted_topics import hosted_states
from pulsar_spark.connector.runtime.system_topics.message_strip import (
    ACKNOWLEDGED,
    HELD,
    UNREAD,
    WAITING,
    strip_text,
)
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import BrokerAbsentError, BrokerRefusedError, ServerError
from pulsar_spark.model.described import Cells, Described, Grid
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition

_log: Final = logging.getLogger(__name__)
ANSWER_WITHIN_S: Final = 60.0
WARN_AFTER_S: Final = 5.0
"""A broker that runs answers sooner, mostly."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """One consumer of one partition."""

    name: str
    unacked_messages: int
    permits: int
    has_open_grant: bool
    key_hash_ranges: tuple[HashRange, ...] = ()
    """Its slots, in Key_Shared."""
    incarnation: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionStats(Described):
    """One subscription of one partition, as of the broker's last step on it."""

    topic_partition: TopicPartition
    name: str
    type: str
    durable: bool
    mark_delete_position: str
    backlog: int
    waiting: int
    """Messages that were rejected or timed out, and are to be delivered later."""
    delayed: int
    consumers: tuple[ConsumerStats, ...]
    individually_deleted_messages: str
    _state: BrokerState = field(compare=False)

    @property
    def held(self) -> Subscription:
        """The broker's own of it."""
        return self._state.subscriptions[self.name]

    @property
    def states(self) -> dict[int, NDArray[np.int8]]:
        """Ledger -> the state of each of its messages, as `pulsar_spark.pictures` draws it."""
        return message_states(self._state, self.name, self._state.ledgers)

    @property
    def breaker(self) -> str:
        """`closed`, or since when delivery pauses and when it is tried next."""
        breaker, now_ms = self._state.subscriptions[self.name].breaker, self._state.now_ms
        phase = breaker.phase(now_ms)
        if breaker.is_closed:
            return phase.value
        since, next_trial = (_instant(ms) for ms in (breaker.opened_ms, breaker.next_trial_ms))
        trial = "a trial is out" if breaker.trial else f"next trial {next_trial}"
        return f"{phase.value} since {since}, {breaker.failed_trials} trials failed, {trial}"

    def to_json_value(self) -> dict[str, Any]:
        """The values for a program, as JSON."""
        return {
            "subscription": self.name,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "type": self.type,
            "durable": self.durable,
            "mark_delete_position": self.mark_delete_position,
            "individually_deleted_messages": self.individually_deleted_messages,
            "backlog": self.backlog,
            "waiting": self.waiting,
            "delayed": self.delayed,
            "breaker": self.breaker,
            "consumers": [
                {
                    "name": each.name,
                    "unacked_messages": each.unacked_messages,
                    "permits": each.permits,
                    "has_open_grant": each.has_open_grant,
                }
                for each in self.consumers
            ],
        }

    def unacknowledged(self, ledgers: LedgerList) -> PositionSet:
        """The messages of these ledgers that are not acknowledged."""
        return self._state.subscriptions[self.name].cursor.unread(ledgers)

    def _facts(self) -> dict[str, object]:
        return {
            "subscription": self.name,
            "topic": str(self.topic_partition),
            "type": self.type if self.durable else f"{self.type}, non-durable",
            "mark_delete_position": self.mark_delete_position,
            "individually_deleted_messages": self.individually_deleted_messages,
            "backlog": self.backlog,
            **({} if self.breaker == BreakerPhase.CLOSED.value else {"breaker": self.breaker}),
            "messages": Cells(strip_text(self.states)),
            "consumers": Grid(
                ("name", "unacked", "permits", "key hash ranges"),
                [_consumer_row(each) for each in self.consumers],
            ),
        }


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """The statistics of one partition of a topic."""

    partition: int
    messages: int
    size_bytes: int
    """Bytes of keys and values, before compression."""
    ledgers: int


@dataclass(frozen=True, slots=True, repr=False)
class TopicStats(Described):
    """A topic as of now, with its subscriptions as of their brokers' last steps."""

    topic: str
    partitions: tuple[PartitionStats, ...]
    subscriptions: tuple[SubscriptionStats, ...]

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    def subscription(self, name: str, partition: int = 0) -> SubscriptionStats:
        """That subscription of that partition. KeyError if the broker knows of none."""
        for each in self.subscriptions:
            if (each.name, each.topic_partition.partition) == (name, partition):
                return each
        known = ", ".join(sorted({each.name for each in self.subscriptions})) or "none"
        raise KeyError(f"{self.topic} has no subscription {name!r}; it has: {known}")

    def _facts(self) -> dict[str, object]:
        rows = [
            (
                each.name, each.topic_partition.partition, each.type, each.backlog, each.waiting,
                each.delayed, Cells(strip_text(each.states)),
            )
            for each in self.subscriptions
        ]  # fmt: skip
        heads = ("name", "partition", "type", "backlog", "waiting", "delayed", "messages")
        return {
            "topic": self.topic,
            "partitions": len(self.partitions),
            "messages": self.messages,
            "size_bytes": self.size_bytes,
            "subscriptions": Grid(heads, rows),
        }


def topic_stats(root: Root, topic: TopicName) -> TopicStats:
    """The statistics of a topic and its subscriptions. TopicNotFoundError if there is none."""
    ledger = root.open(topic)
    partitions = []
    for number in range(ledger.state.partitions):
        part = ledger.state.partition(number)
        sizes = (number, part.messages, part.size_bytes, len(part.ledgers))
        partitions.append(PartitionStats(*sizes))
    return TopicStats(
        str(ledger.topic), tuple(partitions), tuple(subscriptions(root, str(ledger.topic)))
    )


def subscriptions(root: Root, topic: str | None = None) -> list[SubscriptionStats]:
    """All subscriptions that the broker knows of, or those of one topic, by partition and name."""
    states = hosted_states(root, lambda topic_partition: topic in (None, topic_partition.topic))
    return [
        _stats(topic_partition, state, name)
        for topic_partition, state in states.items()
        if not _is_gone(root, topic_partition, state)
        for name in sorted(state.subscriptions)
    ]


def _is_gone(root: Root, topic_partition: TopicPartition, state: BrokerState) -> bool:
    """True if the topic was deleted since the broker's last step on it."""
    ledger = root.open_log(TopicName.parse(topic_partition.topic))
    if ledger is None:  # whoever subscribed came first
        return False
    return ledger.state.is_deleted or ledger.state.incarnation != state.incarnation


def acknowledged_up_to(root: Root, topic_partition: TopicPartition, name: str) -> Position:
    """The mark-delete position of a durable subscription, as the broker last said; or EARLIEST.

    No message of a topic partition is trimmed before `__dispatch` says that all of its durable
    subscriptions are behind it.
    """
    for each in subscriptions(root, topic_partition.topic):
        if (each.topic_partition, each.name, each.durable) == (topic_partition, name, True):
            return Position.parse(each.mark_delete_position)
    return EARLIEST


class Receipts:
    """The broker's answers to commands that are sent after this was made."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._dispatch = SystemTopic(root, DISPATCH)
        self._observed = self._dispatch.refresh()
        self._missing: dict[int, Record] = {}

    def asked(self, topic_partition: TopicPartition, command: Any) -> Record:
        """The command with a `request_id`, to be sent."""
        number = secrets.randbits(62)
        asked = Record.of(
            topic_partition, command.subscription, replace(command, request_id=number)
        )
        self._missing[number] = asked
        return asked

    def wait(self, timeout_s: float) -> None:
        """Return when all are answered. BrokerRefusedError and BrokerAbsentError as from `ask`."""
        asked_s = self._root.clock.monotonic_s()
        warn_at_s = WARN_AFTER_S
        while True:
            self._observe()
            if not self._missing:
                return
            waited_s = self._root.clock.monotonic_s() - asked_s
            if waited_s >= warn_at_s:
                warn_at_s = math.inf
                _log.warning(
                    "Waiting %g s at most for the broker of %s, which is silent. If none runs: "
                    "pulsarlite standalone --service-url %s",
                    timeout_s, self._root.service_url, self._root.service_url,
                )  # fmt: skip
            if waited_s >= timeout_s:
                url = self._root.service_url
                raise BrokerAbsentError(
                    f"The broker of {url} did not answer within {timeout_s:g} s. Start one: "
                    f"pulsarlite standalone --service-url {url}. What was asked is kept, and done "
                    "when it comes."
                )
            self._root.clock.sleep(pause_s(waited_s, remote=self._root.store.remote))

    def _observe(self) -> None:
        places = {each.topic_partition for each in self._missing.values()}
        stop = self._dispatch.refresh()
        for stored in self._dispatch.read(
            self._observed,
            stop,
            keep=lambda topic_partition, name: topic_partition in places and name[:1] != "\x00",
        ):
            item = stored.record.item()
            if isinstance(item, Reply) and item.request_id in self._missing:
                asked = self._missing.pop(item.request_id)
                if item.error is not None:
                    raise BrokerRefusedError(
                        item.error,
                        f"{asked.topic_partition}, subscription {asked.subscription}: "
                        f"{item.error.value}: "
                        f"{item.message}.",
                    )
        self._observed = max(self._observed, stop)


def ask(root: Root, commands: Mapping[TopicPartition, Any], timeout_s: float | None = None) -> None:
    """Send a command to each partition's broker, and wait until all have answered.

    Each gets a `request_id`. BrokerRefusedError if one is refused, with Pulsar's word for why;
    BrokerAbsentError if no broker answers in time: a broker may still do them when it comes.
    """
    receipts = Receipts(root)
    SystemTopic(root, COMMANDS).append(receipts.asked(*each) for each in commands.items())
    receipts.wait(ANSWER_WITHIN_S if timeout_s is None else timeout_s)


def redeliver_unacknowledged_messages(
    root: Root, topic: str, subscription: str, consumer: str | None, timeout_s: float
) -> None:
    """Work of `Subscriptions.redeliver_unacknowledged_messages`."""
    name = TopicName.parse(topic)
    known = subscriptions(root, root.open(name).topic)
    found = [each for each in known if each.name == subscription]
    found = [e for e in found if name.partition_index in (-1, e.topic_partition.partition)]
    if not found:
        raise BrokerRefusedError(
            ServerError.SUBSCRIPTION_NOT_FOUND,
            f"Topic {name} has no subscription {subscription}. There is "
            f"{', '.join(sorted({each.name for each in known})) or 'none'}.",
        )
    records, receipts = [], Receipts(root)
    there: set[str] = set()
    for each in found:
        topic_partition, held = each.topic_partition, each.held
        there |= held.consumers.keys()
        for one in held.consumers.values():
            if consumer in (None, one.name):
                sequence = max(root.clock.wall_ms(), one.redeliver_sequence + 1)
                command = RedeliverUnacknowledgedMessages(
                    subscription, one.name, one.incarnation, held.epoch, sequence
                )
                records.append(Record.of(topic_partition, subscription, command))
        records.append(receipts.asked(topic_partition, Report(subscription, epoch=None)))
    if consumer is not None and consumer not in there:
        raise BrokerRefusedError(
            ServerError.CONSUMER_NOT_FOUND,
            f"Subscription {subscription} of {name} has no consumer {consumer}. There is "
            f"{', '.join(sorted(there)) or 'none'}.",
        )
    SystemTopic(root, COMMANDS).append(records)
    receipts.wait(timeout_s)


def message_states(
    state: BrokerState, name: str, ledgers: Iterable[LedgerInfo]
) -> dict[int, NDArray[np.int8]]:
    """The state of each message of some ledgers, for one subscription; by ledger."""
    held = state.subscriptions[name]
    later = held.waiting.messages.union(state.delayed.messages)
    return {each.ledger_id: _states(each, held, later) for each in ledgers}


def _stats(topic_partition: TopicPartition, state: BrokerState, name: str) -> SubscriptionStats:
    held = state.subscriptions[name]
    ranges = {} if held.selector is None else held.selector.ranges_of_all()
    return SubscriptionStats(
        topic_partition,
        name,
        held.subscription_type.value,
        held.durable,
        str(held.cursor.mark_delete_position),
        held.cursor.backlog(state.ledgers),
        held.waiting.messages.count(state.ledgers),
        state.delayed.messages.count(state.ledgers),
        tuple(
            ConsumerStats(
                each.name,
                held.unacked_messages_of(each, state.ledgers),
                each.permits,
                each.has_open_grant,
                ranges.get(each.name, ()),
                each.incarnation,
            )
            for each in held.consumers.values()
        ),
        "" if not held.cursor.individually_deleted else str(held.cursor.individually_deleted),
        state,
    )


def _states(ledger: LedgerInfo, held: Subscription, later: PositionSet) -> NDArray[np.int8]:
    """The state of each message of a ledger, in their order."""
    states = np.full(ledger.messages, UNREAD, np.int8)
    states[held.held.row_mask(ledger)] = HELD
    states[later.row_mask(ledger)] = WAITING
    deleted = held.cursor.individually_deleted.row_mask(ledger)
    position = held.cursor.mark_delete_position
    if ledger.ledger_id < position.ledger_id:
        deleted[:] = True
    elif ledger.ledger_id == position.ledger_id:
        deleted[: ledger.batch_sizes.first_message(position.entry_id + 1)] = True
    states[deleted] = ACKNOWLEDGED
    return states


def _instant(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _consumer_row(consumer: ConsumerStats) -> tuple[object, ...]:
    unacked: object = "reads" if consumer.has_open_grant else consumer.unacked_messages
    ranges = len(consumer.key_hash_ranges)
    return consumer.name, unacked, consumer.permits, ranges or ""
