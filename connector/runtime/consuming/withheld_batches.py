"""Micro-batches that a query began again and again and never ended, and what becomes of them.

Invariants: a batch is counted when a run plans one that an earlier run has planned, once a run, by
a file that is created only if absent; a withheld batch is empty from then on, durably before Spark
hears of it; its messages are tried apart (`suspect_messages`), from files that the offsets name.
Without a dead letter policy nothing is counted. No file is written for a batch that ends well.
Pulsar has nothing of the kind: there a consumer dies of its message for ever.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from pulsar_spark.broker.protocol.commands import Rejection, Report
from pulsar_spark.broker.subscriptions.dead_letter import ERROR
from pulsar_spark.connector.runtime.reading.offset_store import read_hashed, write_hashed
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.consumer.suspect_messages import Ledgers, Messages, SuspectMessages
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.records.stored_record import canonical_json, readable
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.consumer_options import dead_letter_policy
from pulsar_spark.options.options import Options

FOLDER: Final = "_withheld"
WITHHELD: Final = "withheld.json"

LedgersOf = Callable[[Iterable[TopicPartition]], Ledgers]
"""Partitions -> the ledgers of those that are still there."""

_log = logging.getLogger(__name__)


class WithheldBatches:
    """The withheld batches of one consumer's source.

    `planned` and `leaves_out` note batches; `behind` answers.
    """

    def __init__(self, options: Options, root: Root) -> None:
        policy = dead_letter_policy(options)
        self._most = None if policy is None else policy.max_redeliver_count
        self._allowed: int = options["maxBatchAttempts"]
        self._root = root
        self._run = uuid.uuid4().hex.encode()
        self._own: str | None = None
        self._replayed: dict[str, tuple[str, int, bool]] = {}
        """Batch -> its folder, how often it failed as its files say, and whether it is withheld."""
        self._behind: tuple[str, SuspectMessages] | None = None

    def planned(self, end: Mapping[str, Any]) -> None:
        """Note that this run planned the batch that ends at `end`: it is no replay."""
        self._own = _digest(end)

    def leaves_out(
        self, begun: StreamOffset, end: Mapping[str, Any], ended: StreamOffset, ledgers: LedgersOf
    ) -> bool:
        """True if the batch is withheld: begun too often. Counts a replay, once a run."""
        digest = _digest(end)
        if digest == self._own or (self._most is None and not ended.suspects):
            return False
        if digest not in self._replayed:
            folder = join(_folder(ended), digest)
            failures = 0 if self._most is None else self._count(folder)
            withheld = self._is_withheld(join(folder, WITHHELD), failures, begun, ended, ledgers)
            self._replayed[digest] = (folder, failures, withheld)
        return self._replayed[digest][2]

    def in_batch(self, ended: StreamOffset) -> SuspectMessages:
        """The suspects as the offset names them: its batch is their released group alone."""
        if not ended.suspects:
            return SuspectMessages()
        reports = "it says which messages were withheld"
        data = read_hashed(self._root.store, ended.suspects, reports)
        return SuspectMessages.from_json(data, ended.suspects)

    def behind(self, end: Mapping[str, Any], ended: StreamOffset) -> SuspectMessages:
        """The suspects to try once the batch that ends at `end` is committed."""
        if ended.is_symbolic:
            return SuspectMessages()
        digest = _digest(end)
        if self._behind is None or self._behind[0] != digest:
            path = join(_folder(ended), digest, WITHHELD)
            data = self._root.store.get(path)
            state = self.in_batch(ended) if data is None else SuspectMessages.from_json(data, path)
            self._behind = (digest, state.committed())
        return self._behind[1]

    def named(self, state: SuspectMessages, offset: StreamOffset) -> StreamOffset:
        """The offset, naming the suspects' file; the file is durable when this returns."""
        if state.is_empty:
            return replace(offset, suspects="")
        path = write_hashed(self._root.store, f"{_folder(offset)}/", _written(state))
        return replace(offset, suspects=path)

    def forget(self, end: Mapping[str, Any]) -> None:
        """Forget the batch: the one behind it is planned, so nobody asks for its files any more."""
        folder, failures, _ = self._replayed.pop(_digest(end), ("", 0, False))
        if folder:
            for name in (*(f"failed-{number + 1}" for number in range(failures)), WITHHELD):
                self._root.store.delete(join(folder, name))

    def _is_withheld(
        self, path: str, failures: int, begun: StreamOffset, ended: StreamOffset, of: LedgersOf
    ) -> bool:
        """True if its file says so; it is written after the last failure that is allowed."""
        if self._root.store.get(path) is not None:
            return True
        if self._most is None:
            return False
        state = self.in_batch(ended)
        if failures < (self._allowed if state.released is None else 1):
            return False
        released = () if state.released is None else state.released.partitions
        ledgers = of({*ended.changed_since(begun), *released})
        batch = _batch(begun, ended, ledgers)
        if state.released is None and not batch:
            return False  # without messages the query fails for another reason
        after = state.failed(batch, failures, self._most, ledgers)
        self._root.store.put_if_absent(path, _written(after))
        _report(ended, state, after, failures)
        return True

    def _count(self, folder: str) -> int:
        """The number of runs that planned the batch and did not commit it; this run counts once."""
        store, number = self._root.store, 1
        while True:
            path = join(folder, f"failed-{number}")
            if store.put_if_absent(path, self._run) or store.get(path) == self._run:
                return number
            number += 1


def report_without_suspects(
    state: SuspectMessages, topic_partition: TopicPartition, report: Report, ledgers: LedgerList
) -> Report:
    """The consumer's report, less the suspects; those that are given up become dead letters."""
    held = state.not_done(topic_partition)
    if not held:
        return report
    floor = report.committed or EARLIEST
    done = report.acknowledged.difference(Cursor(floor), ledgers).difference(held)
    acknowledged = Cursor(min(floor, report.acknowledged.mark_delete_position)).acknowledge(done)
    rejected = report.rejected
    if dead_lettered := state.dead_lettered.get(topic_partition):
        text = (
            f"The query of consumer {report.consumer} ended {state.failures} times or more in a "
            "micro-batch that had this message, the last times by itself"
        )
        rejected += (Rejection(None, dead_lettered, 0, ((ERROR, text),), to_dead_letter=True),)
    return replace(report, acknowledged=acknowledged, rejected=rejected)


def _batch(begun: StreamOffset, ended: StreamOffset, ledgers: Ledgers) -> Messages:
    return {
        (topic_partition, attempt): part
        for topic_partition, offset in ended.changed_since(begun).items()
        if topic_partition in ledgers  # else its topic was deleted
        for attempt, part in offset.attempts_since(
            begun.get(topic_partition), ledgers[topic_partition]
        ).items()
    }


def _report(
    ended: StreamOffset, before: SuspectMessages, after: SuspectMessages, failures: int
) -> None:
    given_up = after.dead_lettered != before.dead_lettered
    what = "the message is given up" if given_up else f"{len(after.groups)} parts are tried apart"
    _log.warning(
        "A micro-batch of consumer %s of subscription %s was begun %s times and never ended: its "
        "messages are withheld, and %s", ended.consumer, ended.subscription, failures + 1, what,
    )  # fmt: skip


def _written(state: SuspectMessages) -> bytes:
    return readable(state.to_json, SuspectMessages.from_json, WITHHELD)


def _folder(offset: StreamOffset) -> str:
    who = f"{quote(offset.subscription, safe='')}~{quote(offset.consumer, safe='')}"
    return join(FOLDER, who)


def _digest(end: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(end)).hexdigest()[:32]
