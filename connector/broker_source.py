"""The broker query's source: it looks at the commands, the logs, the leases and the clock.

Invariants: a batch is made only when there is something to take in or something has come due, so
an idle broker makes none; all that a batch takes in is named by its offset; `now` never goes back,
and never overtakes the first command that is not read yet. What is due it learns from
`__dispatch`, where each step has said when it wants to step again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pulsar_spark.connector.broker_input import (
    batches_of,
    last_offset,
    last_shards,
    stale_checkpoint,
)
from pulsar_spark.connector.broker_offset import NO_COMMIT, BrokerOffset
from pulsar_spark.connector.lease import Lease, leases, read_lease
from pulsar_spark.connector.managed_ledger import ManagedLedger
from pulsar_spark.connector.polling import pause_s
from pulsar_spark.connector.system_topics import COMMANDS, DISPATCH, SystemTopic
from pulsar_spark.connector.topics import Root
from pulsar_spark.connector.worker_process import leave_if_hung_up
from pulsar_spark.dispatch import Stepped
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.stream_offset import TopicPartition
from pulsar_spark.topic_name import TopicName

LONGEST_WAIT_S = 5.0
"""How long it looks for news before it says that there is none; a query that stops cuts it off."""
LEASES_EVERY_S = 1.0
"""How often the leases are looked at."""
LONGEST_GAP_S = 5.0
"""After a longer gap between two looks, consumers get half a lease to show that they live."""
MISSING_EVERY_S = 5.0
"""How often a topic that was not there is looked for again."""
COMMANDS_AT_ONCE = 2_000
"""Most ledgers (writers' commits) of `__commands` in a batch."""
SNAPSHOT_EVERY = 1_000
"""Ledgers of `__dispatch` after which all shards are written anew, and older ones dropped."""


class BrokerInputPartition(InputPartition):
    """A batch's input, read by one task: it is small."""

    def __init__(self, root: Root, start: BrokerOffset, end: BrokerOffset) -> None:
        self.root, self.start, self.end = root, start, end


class BrokerStreamReader(DataSourceStreamReader):
    """What the broker query reads."""

    def __init__(self, root: Root) -> None:
        self._root, self._clock = root, root.clock
        self._commands = SystemTopic(root, COMMANDS)
        self._dispatch = SystemTopic(root, DISPATCH)
        self._dispatch_read = 0
        self._due: dict[TopicPartition, int] = {}
        self._logs: dict[str, ManagedLedger] = {}
        self._missing: dict[str, float] = {}
        self._leases: dict[str, Lease | None] = {}
        self._leases_looked_s = self._rests_until_s = -LONGEST_GAP_S
        self._awake_since_ms = 0
        self._news_s = self._clock.monotonic_s()
        self._begun = False
        self._committed: BrokerOffset | None = None
        self._snapshot_at: int | None = None

    # -- what Spark calls ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return BrokerOffset().to_json_value()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next batch; `start` itself while there is nothing to do."""
        begun = BrokerOffset.from_json_value(start)
        deadline = self._clock.monotonic_s() + LONGEST_WAIT_S
        while (end := self.look(begun)) is None:
            left = deadline - self._clock.monotonic_s()
            if left <= 0:
                return start
            self._clock.sleep(min(self._pause_s(), left))
        return end.to_json_value()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ended = BrokerOffset.from_json_value(start), BrokerOffset.from_json_value(end)
        return [BrokerInputPartition(self._root, self.begins_at(begun, ended), ended)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BrokerInputPartition)
        yield from batches_of(partition.root, partition.start, partition.end)

    def stop(self) -> None:
        """Nothing is held."""
        leave_if_hung_up()

    # -- what an embedded broker calls too -------------------------------------------------------

    def look(self, begun: BrokerOffset) -> BrokerOffset | None:
        """The end of the next batch; None while there is nothing to do. It does not wait."""
        end = None if self._begun else self._begin(begun)
        if begun is not self._committed:  # that batch is committed: those consumers are gone
            self._committed = begun
            for path in begun.lapsed:
                self._root.store.delete(path)
                self._leases.pop(path, None)
        if end is None:
            end = self._look(begun)
        if end is not None:
            self._news_s = self._clock.monotonic_s()
        return end

    def begins_at(self, begun: BrokerOffset, ended: BrokerOffset) -> BrokerOffset:
        """Where the batch begins: if the store had nothing, where `__dispatch` says."""
        if ended.restored is None:
            return begun
        self._dispatch.refresh()
        return last_shards(self._dispatch, ended.restored)[0] or begun

    def rests_until_ms(self) -> int | None:
        """The instant of the next look, if nothing is said or published before: None is never.

        Until then it does not sleep through anything.
        """
        instants = [*self._due.values()]
        looked_ms = int((self._leases_looked_s + LEASES_EVERY_S) * 1000)
        offset_ms = self._clock.wall_ms() - int(self._clock.monotonic_s() * 1000)
        for path, written_ms in leases(self._root.store):
            lease = self._leases.get(path) or read_lease(self._root.store, path)
            if lease is not None:
                lapses_ms = written_ms + lease.lease_ms + 1
                patient_ms = self._awake_since_ms + lease.lease_ms // 2
                instants.append(max(lapses_ms, patient_ms, looked_ms + offset_ms))
        at_ms = min(instants, default=None)
        self._rests_until_s = float("inf") if at_ms is None else (at_ms - offset_ms) / 1000
        return at_ms

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, start: BrokerOffset) -> BrokerOffset:
        """The first batch of a run: every broker says when it is due next.

        On a new checkpoint they are restored from `__dispatch`, if it has any.
        StaleCheckpointError if another broker has served since, from another checkpoint.
        """
        self._begun = True
        stop = self._dispatch.refresh()
        self._dispatch_read = stop
        now_ms = max(self._clock.wall_ms(), start.now_ms)
        restored = None
        if start.now_ms and last_offset(self._dispatch, stop) != start:
            raise stale_checkpoint(self._root)
        if not start.now_ms and stop:
            offset, brokers = last_shards(self._dispatch, stop)
            if offset is not None:
                start = BrokerOffset(
                    offset.commands, {each: offset.hosted[each] for each in brokers}, offset.now_ms
                )
                restored = stop
        return BrokerOffset(
            start.commands, start.hosted, max(now_ms, start.now_ms), tuple(sorted(start.hosted)),
            restored=restored, dispatched=stop,
        )  # fmt: skip

    def _look(self, start: BrokerOffset) -> BrokerOffset | None:
        """One look at everything; None if there is nothing to do."""
        self._hear()
        now_ms = max(self._clock.wall_ms(), start.now_ms)
        commands, hosted, unread_ms = self._new_commands(start)
        moved = self._moved(hosted)
        if unread_ms is not None:
            now_ms = max(min(now_ms, unread_ms), start.now_ms)
        due = tuple(
            sorted(each for each, at in self._due.items() if at <= now_ms and each in hosted)
        )
        lapsed = self._lapsed(now_ms) if unread_ms is None else ()
        snapshot = self._snapshot_is_due()
        if commands == start.commands and moved == start.hosted and not (due or lapsed or snapshot):
            return None
        for each in moved if snapshot else due:
            self._due.pop(each, None)
        return BrokerOffset(
            commands, moved, now_ms, due, lapsed, snapshot, dispatched=self._dispatch_read
        )

    def _hear(self) -> None:
        """What the last steps said of when to step again."""
        stop = self._dispatch.refresh()
        if stop <= self._dispatch_read:
            return
        for stored in self._dispatch.read(self._dispatch_read, stop, keep=lambda _, to: not to):
            item = stored.record.item()
            if isinstance(item, Stepped):
                if item.next_due_ms is None:
                    self._due.pop(stored.record.about, None)
                else:
                    self._due[stored.record.about] = item.next_due_ms
        self._dispatch_read = stop

    def _new_commands(
        self, start: BrokerOffset
    ) -> tuple[int, dict[TopicPartition, int], int | None]:
        """(the next ledger, who has a broker by then, when the first unread command was sent)."""
        hosted = dict(start.hosted)
        there = self._commands.refresh()
        stop = min(there, start.commands + COMMANDS_AT_ONCE)
        if stop > start.commands:
            for stored in self._commands.read(start.commands, stop):
                hosted.setdefault(stored.record.about, NO_COMMIT)
        unread_ms = None
        if stop < there:
            unread_ms = next(self._commands.read(stop, stop + 1)).publish_time_ms
        return stop, hosted, unread_ms

    def _moved(self, hosted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How far the logs are of those that have a broker."""
        numbers = {topic: self._log_number(topic) for topic in {each.topic for each in hosted}}
        return {each: max(number, numbers[each.topic]) for each, number in hosted.items()}

    def _log_number(self, topic: str) -> int:
        """The last commit's; NO_COMMIT while there is no such topic."""
        ledger = self._logs.get(topic)
        if ledger is None:
            if self._clock.monotonic_s() < self._missing.get(topic, 0.0):
                return NO_COMMIT
            try:
                ledger = self._logs[topic] = self._root.open(TopicName.parse(topic))
            except TopicNotFoundError:
                self._missing[topic] = self._clock.monotonic_s() + MISSING_EVERY_S
                return NO_COMMIT
        ledger.refresh()
        return ledger.state.number

    def _lapsed(self, now_ms: int) -> tuple[str, ...]:
        """The leases that were not renewed in time.

        Whoever began to look just now, or slept with the machine, gives everybody time to write.
        """
        since_s = self._clock.monotonic_s() - self._leases_looked_s
        if since_s < LEASES_EVERY_S:
            return ()
        slept_s = min(since_s, self._clock.monotonic_s() - self._rests_until_s)
        self._leases_looked_s = self._clock.monotonic_s()
        if slept_s > LONGEST_GAP_S:
            self._awake_since_ms = now_ms
        found = []
        for path, written_ms in leases(self._root.store):
            if path not in self._leases:
                self._leases[path] = read_lease(self._root.store, path)
            lease = self._leases[path]
            if lease is None or now_ms - self._awake_since_ms < lease.lease_ms // 2:
                continue
            if written_ms + lease.lease_ms < now_ms:
                found.append(path)
        return tuple(sorted(found))

    def _snapshot_is_due(self) -> bool:
        """Whether so much was dispatched since the last one that older parts can be dropped."""
        if self._snapshot_at is None:
            self._snapshot_at = self._dispatch.first_ledger() if self._dispatch.exists() else 0
        if self._dispatch_read - self._snapshot_at < SNAPSHOT_EVERY:
            return False
        self._snapshot_at = self._dispatch_read
        return True

    def _pause_s(self) -> float:
        """Until the next look, which is not later than a broker is due."""
        remote = self._root.store.remote
        pause = pause_s(self._clock.monotonic_s() - self._news_s, remote=remote)
        if remote or not self._due:
            return pause
        return max(0.001, min(pause, (min(self._due.values()) - self._clock.wall_ms()) / 1000))
