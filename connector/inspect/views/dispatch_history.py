"""The broker's states after each of its batches, as far as `__dispatch` has them.

Invariants: a state is the fold of all shards up to the end of one batch, so it is the one that
every topic partition had when that batch was done; a batch can be had only if all that the fold
needs is still there: from the topic's first ledger on, or from the one that its offset names.
A batch's number is the ledger of `__dispatch` that has its offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.system_topics.broker_offset import SHARD_PREFIX, BrokerOffset
from pulsar_spark.connector.runtime.system_topics.hosted_topics import (
    HostedTopics,
    last_shards,
    put_shard,
    read_offsets,
)
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    DISPATCH,
    StoredRecord,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.option_values import AsOf, time_text

States = dict[TopicPartition, BrokerState]
"""Without the columns of their ledgers."""
RecordFilter = Callable[[TopicPartition], bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of the broker; `stop` is the ledger of `__dispatch` behind it."""

    number: int
    stop: int
    written_ms: int
    offset: BrokerOffset
    topic_partitions: int = 0
    quarantine: int = 0


@dataclass(slots=True)
class Step:
    """A topic partition's shards after one ledger of `__dispatch`."""

    topic_partition: TopicPartition
    ledger_id: int
    written_ms: int
    shards: Mapping[str, bytes]
    new_bytes: int
    """Bytes of the shards that it wrote."""
    backlogs: Mapping[str, int] | None = None
    """The backlogs by subscription, if they were counted."""


def steps_of(
    records: Iterable[StoredRecord], brokers: dict[TopicPartition, dict[str, bytes]]
) -> Iterator[Step]:
    """The steps of the brokers' shards in these records; `brokers` has the last of each then."""
    for (ledger_id, topic_partition), written in groupby(
        records, lambda each: (each.ledger_id, each.record.topic_partition)
    ):
        shards, new_bytes, written_ms = brokers.setdefault(topic_partition, {}), 0, 0
        for stored in written:
            written_ms, new_bytes = stored.publish_time_ms, new_bytes + len(stored.record.data)
            put_shard(shards, stored.record)
        yield Step(topic_partition, ledger_id, written_ms, dict(shards), new_bytes)


def is_whole_from(offset: BrokerOffset, first_ledger: int) -> bool:
    """True if `__dispatch` has all states after that batch, if it begins with that ledger."""
    return offset.since is not None and offset.since[0] >= first_ledger


def whole_steps(steps: list[Step], whole_from: int) -> list[Step]:
    """The steps of one topic partition of which all shards are known, if all states are then."""
    before = bisect_right([each.ledger_id for each in steps], whole_from)
    return steps[max(before - 1, 0) :]


class DispatchHistory:
    """The contents of `__dispatch` when it was made: later batches change nothing here."""

    def __init__(self, root: Root) -> None:
        self._dispatch = SystemTopic(root, DISPATCH)
        self._stop = self._dispatch.refresh()
        self._root = root
        self._is_whole = bool(self._stop) and self._dispatch.first_ledger() == 0
        """True if the first batch that ever was is there."""

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches whose states are available, in order."""
        if not self._stop:
            return []
        found = [*self._read_batches()]
        if self._is_whole:
            return found
        first = self._dispatch.first_ledger()
        whole = (place for place, each in enumerate(found) if is_whole_from(each.offset, first))
        return found[next(whole, len(found)) :]

    def batch(self, as_of: AsOf | None) -> Batch | None:
        """The batch that is asked for; the newest, or None if there never was one.

        InvalidOptionError names those that there are.
        """
        if as_of is None:
            return self._newest()
        if not self.batches:
            raise InvalidOptionError(
                f"Option asOf: no broker has served {self._root.service_url} yet, so there is "
                "nothing to go back to. Start one: pulsarlite standalone --service-url "
                f"{self._root.service_url}"
            )
        found = [each for each in self.batches if each.number == as_of.batch]
        if as_of.time_ms is not None:
            time_ms = as_of.time_ms
            later = (at for at, each in enumerate(self.batches) if each.written_ms > time_ms)
            stop = next(later, len(self.batches))
            found = self.batches[max(stop - 1, 0) : stop]
        if found:
            return found[0]
        first, last = self.batches[0], self.batches[-1]
        asked = as_of.batch if as_of.time_ms is None else time_text(as_of.time_ms)
        raise InvalidOptionError(
            f"Option asOf can't be {asked}: __dispatch has the batches from {first.number} (of "
            f"{time_text(first.written_ms)}) to {last.number} (of {time_text(last.written_ms)}). "
            "The view batches lists them; docs/views.md says how to keep more."
        )

    def states(self, batch: Batch | None, requested: RecordFilter) -> States:
        """Each topic partition's state after that batch; none without a batch."""
        if batch is None:
            return {}
        brokers = last_shards(self._dispatch, batch.stop)[1]
        chosen = (
            (topic_partition, held)
            for topic_partition, held in sorted(brokers.items())
            if requested(topic_partition)
        )
        return {
            topic_partition: from_shards(held, columns=False)
            for topic_partition, held in chosen
            if held
        }

    def steps_up_to(
        self, batch: Batch | None, requested: RecordFilter
    ) -> dict[TopicPartition, list[Step]]:
        """Each topic partition's steps up to that batch, as far back as they are known."""
        found: dict[TopicPartition, list[Step]] = {}
        if batch is None:
            return found
        for step in steps_of(self._shards(0, batch.stop, requested), {}):
            found.setdefault(step.topic_partition, []).append(step)
        whole_from = 0 if self._is_whole or not self.batches else self.batches[0].number
        return {
            topic_partition: whole_steps(steps, whole_from)
            for topic_partition, steps in found.items()
            if steps[-1].shards
        }

    def base(self, requested: RecordFilter) -> States:
        """The states with which `steps` begins."""
        return {} if self._is_whole else self.states(self.batches[0], requested)

    def steps(self, up_to: Batch, requested: RecordFilter) -> Iterator[tuple[Batch, States]]:
        """(a batch, the states that it changed) as far back as they are known."""
        batches = [each for each in self.batches if each.number <= up_to.number]
        if self._is_whole:
            batches.insert(0, Batch(-1, 0, 0, BrokerOffset()))
        brokers = last_shards(self._dispatch, batches[0].stop)[1]
        for before, batch in pairwise(batches):
            written = self._shards(before.stop, batch.stop, requested)
            changed = {step.topic_partition for step in steps_of(written, brokers)}
            states = {
                topic_partition: from_shards(brokers[topic_partition], columns=False)
                for topic_partition in sorted(changed)
                if brokers[topic_partition]
            }
            yield batch, states

    def _shards(self, first: int, stop: int, requested: RecordFilter) -> Iterator[StoredRecord]:
        return self._dispatch.read(
            first,
            stop,
            keep=lambda topic_partition, name: (
                name.startswith(SHARD_PREFIX) and requested(topic_partition)
            ),
        )

    def _newest(self) -> Batch | None:
        first = self._dispatch.first_ledger() if self._stop else 0
        for ledger_id in range(self._stop - 1, first - 1, -1):
            for each in read_offsets(self._dispatch, ledger_id, ledger_id + 1):
                offset = BrokerOffset.from_json(each.record.data)
                return Batch(ledger_id, self._stop, each.publish_time_ms, offset)
        return None

    def _read_batches(self) -> Iterator[Batch]:
        topics, last = HostedTopics(), None
        for each in read_offsets(self._dispatch, 0, self._stop):
            topics.observe(each)
            if last is not None:  # it ends where the next one was planned
                planned = topics.batch.dispatched
                yield last if planned is None else replace(last, stop=planned)
            counts = len(topics.commits), len(topics.quarantined)
            number = each.ledger_id
            last = Batch(number, number + 1, each.publish_time_ms, topics.batch, *counts)
        if last is not None:
            yield replace(last, stop=self._stop)
