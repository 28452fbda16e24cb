"""Written files become messages that all can see: one commit a topic, or all at once.

Invariants: a task's files are visible only through their topic's commit, and the commit of one
(query, micro-batch), or of one (txnAppId, txnVersion), takes effect once, however often it is
tried; with a transaction all topics take effect together, by one decision on all of them.
Follows Delta's `DeltaSink` (application id and version).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf

from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.backlog_quota import await_room
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.non_persistent import delete_old
from pulsar_spark.connector.runtime.topics.producer_connection import (
    connect,
    disconnect,
    is_registered,
    release_ended,
    reported,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import Prepare, begin, commit_together
from pulsar_spark.connector.runtime.topics.transaction_decisions import TransactionDecisions
from pulsar_spark.errors import InvalidTxnStatusError, ProducerBusyError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.producer_registry import ProducerClaim
from pulsar_spark.log.publication import AlreadyCommitted, Check, NewLedger
from pulsar_spark.log.transaction_attempt import Transaction
from pulsar_spark.model.topic_name import TopicName

_log = logging.getLogger(__name__)


def publish(
    root: Root,
    written: Iterable[WrittenTopic],
    application: tuple[str, int] | None,
    producer: ProducerClaim | None = None,
    *,
    leaves: bool = False,
    transaction: Transaction | None = None,
    patience_ms: float = inf,
) -> list[Commit | AlreadyCommitted]:
    """Make the files' messages visible, topic by topic, or all of them in one `transaction`.

    Returns the answer of each topic's log; nothing with a transaction.

    A `producer` gets each topic first, in its access mode, and `leaves` it again if it is done.
    ProducerFencedError or ProducerBusyError if it may not have one; its topics are always in one
    transaction, so that nothing at all is published then. Where a backlog quota is exceeded, this
    waits for room, up to `patience_ms`: errors as of `await_room`.
    """
    parts = list(_parts(root, written, application, producer, leaves=leaves))
    for part in parts:
        part.await_room(patience_ms)
    claims = any(part.producer is not None and part.producer.is_requested for part in parts)
    if transaction is None and (not claims or len(parts) == 1):
        return root.store.all_of(_TopicPart.publish_alone, parts)
    with ExitStack() as connected:
        for part in parts:
            connected.enter_context(part.connected())
        together = transaction or begin(root.store, application)
        commit_together(root.store, together, [part.publish for part in parts])
    return []


def commit_as_one(
    root: Root,
    written: Iterable[WrittenTopic],
    records: Iterable[Record],
    application: tuple[str, int] | None,
    timeout_ms: int,
    *,
    fence: tuple[str, int] | None = None,
    check: Check | None = None,
) -> None:
    """Publish what tasks wrote, and tell the brokers, as one unit; once for each application.

    It waits for room where a backlog quota is exceeded, as long as a transaction may take. With a
    `fence`, a name and a number, InvalidTxnStatusError and nothing done where `__commands` has
    that number of it or a higher one; `check` raises, and nothing is done, where the records may
    not follow what `__commands` has.
    """
    parts = list(_parts(root, written, application, None, leaves=False))
    for part in parts:
        part.await_room(timeout_ms)
    prepares: list[Prepare] = [part.publish for part in parts]
    commands = SystemTopic(root, COMMANDS)
    new = commands.write(records)
    named = _in_commands(application)
    if new or check is not None:
        log = commands.open()

        def tell(transaction: Transaction) -> Commit | AlreadyCommitted:
            reported = log.append(
                new, application=fence or named, transaction=transaction, check=check
            )
            if fence is not None and isinstance(reported, AlreadyCommitted):
                raise InvalidTxnStatusError(
                    f"Another process has taken over from {fence[0]}: this one stops. What it "
                    "committed before stays."
                )
            if isinstance(reported, AlreadyCommitted) and named is not None:
                decisions = TransactionDecisions(root.store, transaction.id)
                if not decisions.committed():
                    raise _GivenUpError
            return reported

        prepares.append(tell)
    if not prepares:
        return
    try:
        commit_together(root.store, begin(root.store, application, timeout_ms), prepares)
    except _GivenUpError:
        _log.warning(
            "Number %s of %s was given up before, for a conflict: nothing of it is published, and "
            "its messages that are not acknowledged come again.",
            *reversed(application or ("", 0)),
        )


def give_up(root: Root, records: Iterable[Record], application: tuple[str, int]) -> None:
    """Tell the brokers this in the place of a transaction: it has no effect when it is repeated."""
    SystemTopic(root, COMMANDS).append(records, application=_in_commands(application))


class _GivenUpError(Exception):
    """A transaction was given up before."""


def _in_commands(application: tuple[str, int] | None) -> tuple[str, int] | None:
    """The application in the log of `__commands`, which all share."""
    return application and (f"{application[0]}/transaction", application[1])


@dataclass(frozen=True, slots=True)
class _TopicPart:
    """One topic's ledgers, and how they are published."""

    ledger: ManagedLedger
    new: Sequence[NewLedger]
    deduplicate: bool
    application: tuple[str, int] | None
    producer: ProducerClaim | None
    leaves: bool

    @property
    def _is_published(self) -> bool:
        return bool(self.application and self.ledger.state.was_published(*self.application))

    def await_room(self, patience_ms: float) -> None:
        """Return when no backlog quota is in the way; errors as of `await_room`."""
        if not self._is_published:
            await_room(self.ledger, (each.partition for each in self.new), patience_ms)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """A context in which the producer has the topic, if there is anything to publish."""
        producer = None if self._is_published else self.producer
        if producer is not None:
            connect(self.ledger, producer)
        try:
            yield
        finally:
            if producer is not None and self.leaves:  # also if nothing was published
                disconnect(self.ledger, producer)

    def publish_alone(self) -> Commit | AlreadyCommitted:
        with self.connected():
            return self.publish(None)

    def publish(self, transaction: Transaction | None) -> Commit | AlreadyCommitted:
        with reported(self.ledger, self.producer):
            try:
                published = self._append(transaction)
            except ProducerBusyError:  # of an owner that may have been killed
                if not release_ended(self.ledger):
                    raise
                published = self._append(transaction)
        delete_old(self.ledger)
        return published

    def _append(self, transaction: Transaction | None) -> Commit | AlreadyCommitted:
        return self.ledger.append(
            self.new,
            application=self.application,
            deduplicate=self.deduplicate,
            producer=self.producer,
            leaves=self.leaves,
            transaction=transaction,
        )


def _parts(
    root: Root,
    written: Iterable[WrittenTopic],
    application: tuple[str, int] | None,
    producer: ProducerClaim | None,
    *,
    leaves: bool,
) -> Iterator[_TopicPart]:
    topics: dict[str, list[WrittenTopic]] = {}
    for topic in written:
        if topic.ledgers:
            topics.setdefault(topic.topic, []).append(topic)
    for name, tasks in sorted(topics.items()):
        topic_name = TopicName.parse(name)
        ledger = root.known(topic_name) or root.open(topic_name)
        for task in tasks:
            ledger.check_incarnation(task.incarnation)
        new = [each for task in tasks for each in task.ledgers]
        deduplicate = any(task.deduplicate for task in tasks)
        claim = producer if producer and is_registered(ledger, producer) else None
        yield _TopicPart(ledger, new, deduplicate, application, claim, leaves)
