"""A queue that is looked at again and again: what is new is read, and nothing else.

Invariants: reading changes nothing, not even a transaction that lacks its decision; a look costs
what is new since the last one; what is kept of the past is bounded by PAST_BYTES, and what is
decoded of it for one answer by DECODED.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.inspect.views.dispatch_history import (
    Step,
    is_whole_from,
    steps_of,
    whole_steps,
)
from pulsar_spark.connector.inspect.views.message_sets import unread
from pulsar_spark.connector.runtime.system_topics.broker_offset import OFFSET_RECORD, SHARD_PREFIX
from pulsar_spark.connector.runtime.system_topics.hosted_topics import HostedTopics
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    DISPATCH,
    StoredRecord,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import NON_PERSISTENT, PERSISTENT, TopicName, TopicPartition

PAST_BYTES: Final = 64 << 20
"""About so many bytes of shards that were replaced are kept; the oldest go first."""
STEP_BYTES: Final = 1000
"""Bytes that a step takes beside its shards."""
MOST_POINTS: Final = 100
DECODED: Final = 400
"""At most about so many states are decoded for one line of a topic's past."""

Point = tuple[int, Mapping[str, int]]
"""(milliseconds since 1970, backlog by subscription)."""


class FollowedQueue:
    """The state of a root, for several threads that poll at the same time."""

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self.root = root
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self._dispatch = SystemTopic(self.root, DISPATCH)
        self._place = 0
        self._hosted = HostedTopics()
        self._shards: dict[TopicPartition, dict[str, bytes]] = {}
        self._states: dict[TopicPartition, BrokerState] = {}
        self._past: deque[Step] = deque()
        self._past_bytes = 0
        self._whole_from: int | None = None
        """The ledger from which on all states are known."""

    # -- topics ----------------------------------------------------------------------------------

    def topics(self, having: str = "") -> list[TopicName]:
        """The topics whose names have that text, by name; those of the system left out."""
        domains = (PERSISTENT, NON_PERSISTENT)
        found = (each for domain in domains for each in self.root.find(domain=domain))
        return sorted((t for t in found if not t.is_system and having in str(t)), key=str)

    def open(self, name: str) -> ManagedLedger:
        """A topic as of now, whole. InvalidTopicNameError, TopicNotFoundError."""
        return self.root.open(TopicName.parse(name).partitioned_topic)

    # -- the broker's states ---------------------------------------------------------------------

    def follow(self) -> None:
        """Take in what the broker has said since the last look."""
        with self._lock:
            if not self._dispatch.exists():
                self._begin()
                return
            log = self._dispatch.open()
            is_the_same = log.catch_up()
            stop = log.state.next_ledger_id
            if not is_the_same or self._dispatch.first_ledger() > self._place > 0:
                self._begin()  # made again, or trimmed past us: its oldest ledgers have all states
                self.follow()
                return
            self._read_up_to(stop)

    def state(self, topic_partition: TopicPartition) -> BrokerState | None:
        """The broker's state at the last `follow`; None if it hosts no such partition.

        CorruptFileError or FutureVersionError if that can't be read.
        """
        with self._lock:
            if topic_partition not in self._states and (
                shards := self._shards.get(topic_partition)
            ):
                self._states[topic_partition] = from_shards(shards, columns=False)
            return self._states.get(topic_partition)

    def quarantine(self, topic: str) -> dict[TopicPartition, str]:
        """The partitions whose broker could not step, and why."""
        quarantined = self._hosted.quarantined
        return {
            topic_partition: each.error
            for topic_partition, each in quarantined.items()
            if topic_partition.topic == topic
        }

    def dead_letter_topics(self) -> set[str]:
        """The dead letter topics that consumers of the requested states name."""
        with self._lock:
            states = [*self._states.values()]
        return {
            str(TopicName.parse(policy.dead_letter_topic))
            for state in states
            for held in state.subscriptions.values()
            for consumer in held.consumers.values()
            if (policy := consumer.options.dead_letter_policy) and policy.dead_letter_topic
        }

    # -- the past --------------------------------------------------------------------------------

    def backlogs(self, topic: str) -> list[Point]:
        """The backlog of each subscription over time, at most MOST_POINTS values."""
        with self._lock:
            steps: dict[TopicPartition, list[Step]] = {}
            for each in self._past:
                if each.topic_partition.topic == topic:
                    steps.setdefault(each.topic_partition, []).append(each)
        steps = {
            topic_partition: whole_steps(held, self._whole_from or 0)
            for topic_partition, held in steps.items()
        }
        times = sorted({each.written_ms for held in steps.values() for each in held})
        most = max(10, min(MOST_POINTS, DECODED // max(len(steps), 1)))
        return [
            (time_ms, _summed(_latest(steps.values(), time_ms))) for time_ms in thin(times, most)
        ]

    def _read_up_to(self, stop: int) -> None:
        for step in steps_of(self._shards_up_to(stop), self._shards):
            self._states.pop(step.topic_partition, None)
            self._past.append(step)
            self._past_bytes += step.new_bytes + STEP_BYTES
            while self._past_bytes > PAST_BYTES and len(self._past) > 1:
                self._past_bytes -= self._past.popleft().new_bytes + STEP_BYTES
        self._place = stop

    def _shards_up_to(self, stop: int) -> Iterator[StoredRecord]:
        first = self._dispatch.first_ledger()
        for stored in self._dispatch.read(self._place, stop, keep=_is_state):
            if stored.record.subscription == OFFSET_RECORD:
                self._hosted.observe(stored)
                is_whole = not first or is_whole_from(self._hosted.batch, first)
                if self._whole_from is None and is_whole:
                    self._whole_from = stored.ledger_id
            else:
                yield stored


def thin(times: list[int], most: int) -> list[int]:
    """At most so many of them, evenly chosen; the first and the last among them.

    >>> thin([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(times) <= most:
        return times
    last = len(times) - 1
    return [times[place * last // (most - 1)] for place in range(most)]


def _is_state(_subject: TopicPartition, name: str) -> bool:
    return name.startswith((OFFSET_RECORD, SHARD_PREFIX))


def _latest(steps: Iterable[list[Step]], time_ms: int) -> Iterator[Step]:
    """The last step of each partition up to that time."""
    for held in steps:
        place = bisect_right([each.written_ms for each in held], time_ms)
        if place:
            yield held[place - 1]


def _summed(steps: Iterable[Step]) -> Mapping[str, int]:
    total: dict[str, int] = {}
    for step in steps:
        if step.backlogs is None:
            step.backlogs = _backlogs(step.shards)
        for name, backlog in step.backlogs.items():
            total[name] = total.get(name, 0) + backlog
    return total


def _backlogs(shards: Mapping[str, bytes]) -> dict[str, int]:
    if not shards:
        return {}
    state = from_shards(shards, columns=False)
    return {
        name: unread(state, held).count(state.ledgers) for name, held in state.subscriptions.items()
    }
