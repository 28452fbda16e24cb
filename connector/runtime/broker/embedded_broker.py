"""The broker in this process, without Spark: the broker query's source, steps and sink, in turn.

Invariants: the checkpoint names a batch before it runs, so a broker that was killed repeats it; a
batch that failed is repeated as it was, before another is planned: it may have taken effect; the
sink knows a batch by (broker, batch), so its effects happen once; the brokers' states are those in
`__dispatch`, where a broker without a checkpoint begins. Time moves it only as the root's clock
does. It shows life as long as somebody calls `run_once`. Stands where `broker_query` has Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby
from operator import attrgetter
from typing import Final

from pulsar_spark.broker.hosting import broker_rows
from pulsar_spark.broker.hosting.broker_rows import OutputRow
from pulsar_spark.broker.hosting.hosted_broker import OFFSET_KEY, HostedBroker, run
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.broker.broker_heartbeat import BrokerHeartbeat
from pulsar_spark.connector.runtime.broker.broker_sink import (
    SteppedTask,
    claim_term,
    commit_batch,
    write_rows,
)
from pulsar_spark.connector.runtime.broker.broker_source import BrokerSource
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    BrokerOffset,
    stale_checkpoint,
)
from pulsar_spark.connector.runtime.system_topics.hosted_topics import HostedTopics, last_shards
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH, SystemTopic
from pulsar_spark.connector.runtime.topics.prefetch import prefetched
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.model.records.stored_record import StoredFormat

CHECKPOINT_FORMAT: Final = StoredFormat(
    "The broker's checkpoint",
    checked=True,
    fields=frozenset({"broker", "batch", "end"}),
    remedy="Delete it: the broker is rebuilt from __dispatch.",
)

CHECKPOINT: Final = "_broker/embedded.json"
"""The checkpoint of whoever serves a root without Spark."""

Brokers = dict[tuple[str, int], HostedBroker]


class EmbeddedBroker(AbstractContextManager["EmbeddedBroker"]):
    """Serves one root, as long as somebody calls `run_once`."""

    def __init__(
        self,
        root: Root,
        checkpoint: str | None = None,
        *,
        term: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`checkpoint` is a file's path below the root; a batch under way there is repeated now.

        BrokerBusyError if another broker of the root shows life: one that left a sign is watched,
        unless the wait `is_over`.
        Who has claimed a `term` for it shows its life too. StaleCheckpointError if the checkpoint
        is not the newest; BrokerFencedError, now or at `run_once`, if another broker took over
        since.
        """
        self.root = root
        self._checkpoint = checkpoint
        self._named: bytes | None = None
        """The checkpoint's content, as this broker knows it."""
        self._heartbeat = BrokerHeartbeat(root) if term is None else None
        self._source = BrokerSource(root, steps=True)
        self.brokers: Brokers = {}
        """(topic, partition) -> its broker after the last batch."""
        self.done: tuple[OutputRow, ...] = ()
        """The output rows of the last batch."""
        self._id = uuid.uuid4().hex
        self._batch_id = -1
        self.offset = BrokerOffset()
        """The offset at which the last batch ended."""
        self._under_way: BrokerOffset | None = None
        """The end of a batch that was planned and is not done."""
        if self._heartbeat is not None:
            self._heartbeat.begin(is_over=is_over)
        try:
            self._term = claim_term(root) if term is None else term
            if checkpoint is not None and (held := root.store.get(checkpoint)) is not None:
                self._resume(checkpoint, held)
        except BaseException:
            self.close()
            raise

    def run_once(self) -> bool:
        """Look once, and do a batch if there is anything to do; whether there was.

        Without a turn for ten seconds another broker may take over. After an error other than
        those of the constructor, which last, the next turn does the same batch again.
        """
        if self._heartbeat is not None:
            self._heartbeat.show(self._source.quiet_s)
        if self._under_way is None:
            self._under_way = self._source.look(self.offset)
        if (end := self._under_way) is None:
            return False
        number = self._batch_id + 1
        self._plan(number, end)
        self._run(number, end)
        self._batch_id, self.offset, self._under_way = number, end, None
        return True

    def until_quiet(self) -> int:
        """Take turns until there is nothing to do; the number of batches."""
        return sum(1 for _ in iter(self.run_once, False))

    @property
    def hosted(self) -> HostedTopics:
        """The hosted topics after the last batch."""
        return self._source.hosted(self.offset)

    @property
    def watched(self) -> list[Watched]:
        """The folders in which the input of a batch appears."""
        return self._source.watched

    def next_due_s(self) -> float:
        """Seconds until something falls due, whoever lives or dies; inf if nothing does."""
        return self._source.next_due_s()

    def pause_s(self) -> float:
        """The pause before the next turn, where nobody waits for it."""
        return self._source.pause_s()

    @property
    def batches(self) -> int:
        """The number of its batches, with those of earlier runs that the checkpoint knows."""
        return self._batch_id + 1

    def pending(self) -> Iterator[tuple[float, str]]:
        """(seconds, what falls due then), of each subscription the first of a kind."""
        now_ms = self.root.clock.wall_ms()
        for (topic, _), held in self.brokers.items():
            for at_ms, what in _pending(held.state):
                yield (at_ms - now_ms) / 1000, f"{what}, {topic}"

    def close(self) -> None:
        """Show no more life: another broker may begin at once."""
        if self._heartbeat is not None:
            self._heartbeat.remove()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _run(self, number: int, end: BrokerOffset) -> None:
        place = attrgetter("topic", "partition")
        taken_in = sorted(self._source.input_of(end).rows(), key=place)
        stepped: Brokers = {}
        out: list[OutputRow] = []
        for key, rows in groupby(taken_in, key=place):
            if key[0] == OFFSET_KEY:
                out += [OutputRow(*key, broker_rows.OFFSET, "", row.data) for row in rows]
                continue
            batch = run(self.brokers.get(key, HostedBroker()), rows)
            stepped[key] = batch.broker
            out += batch.rows
        tasks: list[SteppedTask] = []
        log = SystemTopic(self.root, DISPATCH)
        with prefetched(self.root.store, [log], lambda: tasks.append(
            write_rows(self.root, out, self._id)
        )):  # fmt: skip
            commit_batch(self.root, tasks, (self._id, number), self._term)
        self.brokers |= stepped
        self.done = tuple(out)

    def _plan(self, number: int, end: BrokerOffset) -> None:
        """Name the batch in the checkpoint; StaleCheckpointError if another broker wrote it."""
        if self._checkpoint is None:
            return
        value = {"broker": self._id, "batch": number, "end": end.to_json_value()}
        data = CHECKPOINT_FORMAT.encode(value)

        def change(there: bytes | None) -> bytes | None:
            if there == data:  # stored by a request whose answer was lost
                return None
            if there != self._named:
                raise stale_checkpoint(self.root)
            return data

        self.root.store.replace(self._checkpoint, change)
        self._named = data

    def _resume(self, name: str, held: bytes) -> None:
        """Repeat the batch that the checkpoint names, and go on behind it."""
        value = CHECKPOINT_FORMAT.decode(held, name)
        try:
            self._named, self._id, number = held, value["broker"], value["batch"]
            end = BrokerOffset.from_json_value(value["end"])
        except KeyError as error:
            raise CHECKPOINT_FORMAT.damaged(name, f"it lacks {error}") from error
        dispatch = SystemTopic(self.root, DISPATCH)
        stop = dispatch.refresh()
        self.brokers = _stored(dispatch, stop if end.dispatched is None else end.dispatched)
        self._run(number, end)
        self.brokers = _stored(dispatch, dispatch.refresh())
        self._batch_id, self.offset = number, end


def _pending(state: BrokerState | None) -> Iterator[tuple[int, str]]:
    if state is None:
        return
    at_ms = state.delayed.next_delivery_time_ms(state.policies.delayed_delivery_tick_ms)
    if at_ms is not None:
        yield at_ms - state.policies.delayed_delivery_ahead_ms, "a delayed message"
    for name, subscription in state.subscriptions.items():
        if subscription.waiting:
            yield min(subscription.waiting), f"redelivery to {name}"
        for consumer in subscription.consumers.values():
            if consumer.timeouts:
                yield min(consumer.timeouts), f"the ack timeout of {consumer.name} of {name}"


def _stored(dispatch: SystemTopic, stop_ledger: int) -> Brokers:
    shards = last_shards(dispatch, stop_ledger)[1]
    return {topic_partition: HostedBroker(held) for topic_partition, held in shards.items()}
