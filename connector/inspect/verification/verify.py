"""`pulsar_spark.verify`: topics held against what was published, and what became of it.

Invariants: nothing is changed; what the broker knows is read first, as of one batch, and each
topic's log after it and at one commit, so publishers, brokers and trims at work are no difference;
a topic that is damaged is a difference, one that the disk does not let be read is not verified, and
neither ends the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pulsar_spark.broker.hosting.hosted_broker import described
from pulsar_spark.connector.inspect.verification.file_check import check_contents, check_files
from pulsar_spark.connector.inspect.verification.log_check import check_log
from pulsar_spark.connector.inspect.verification.subscription_check import (
    BrokersView,
    brokers_view,
    check_accounts,
    check_broker,
    check_steps,
)
from pulsar_spark.connector.inspect.verification.verified import (
    Check,
    Difference,
    PartitionAccount,
    SubscriptionAccount,
    VerifiedTopic,
)
from pulsar_spark.connector.inspect.views.queue_view import view_options
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, DISPATCH
from pulsar_spark.connector.runtime.topics.ledger_store import Progress, no_progress
from pulsar_spark.connector.runtime.topics.log_pointer import log_numbers
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.non_persistent import check_kept
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.errors import (
    DAMAGE,
    ObjectNotFoundError,
    StorageError,
    TopicDeletedError,
    TopicNotFoundError,
    UnreadableFileError,
)
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.log.partition_state import PartitionState
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Scope

DIFFERING = (*DAMAGE, ObjectNotFoundError)
"""The errors that are differences."""
FIRST: Final = log_file(0)


def verify(
    service_url: str | None = None,
    topic: str | None = None,
    *,
    topics: Iterable[str] | None = None,
    topics_pattern: str | None = None,
    deep: bool = False,
    storage: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> list[VerifiedTopic]:
    """Hold topics against what was published; without a topic all of the root, system topics too.

    Of each subscription it proves published = acknowledged + backlog + removed, without reading
    messages. `deep` reads all files and what the broker knew before, and names the first ledger of
    each file that differs. Nothing is raised for what differs: it is in each topic's `differences`,
    nor for what the disk does not let be read: that is in `unverified`.
    InvalidOptionError or TopicNotFoundError if there is no such topic.
    """
    texts = view_options("ledgers", service_url, topic, topics, topics_pattern, None, storage)
    options = options_of(texts, Scope.BATCH_READ)
    root, named = Root.of(options), options["topics"]
    names = chosen_topics(
        root, [options["topic"]] if options["topic"] else named, options["topicsPattern"]
    )
    return [*verify_topics(root, names, deep=deep, progress=progress)]


def chosen_topics(root: Root, texts: Iterable[str], pattern: str | None = None) -> list[TopicName]:
    """The topics of these names, or that match; without either all, system topics too.

    TopicNotFoundError if one that is named is not there.
    """
    names = [*map(TopicName.parse, texts)]
    for each in names:
        check_kept(each.partitioned_topic_name)
        with suppress(*DIFFERING):
            if root.open_log(each) is not None or not any(
                log_numbers(root.store, each.storage_path)
            ):
                root.open(each)  # which says what there is
    if pattern:
        names += root.matching(pattern)
    return names or ([] if pattern else [*root.find()])


def verify_topics(
    root: Root, names: Iterable[TopicName], *, deep: bool = False, progress: Progress = no_progress
) -> Iterator[VerifiedTopic]:
    """These topics, or partitions, one after the other; first the metadata of all."""
    chosen: dict[str, set[int] | None] = {}
    for name in names:
        topic = name.partitioned_topic_name
        known = chosen.get(topic, set())
        if known is None or not name.is_partition:
            chosen[topic] = None
        else:
            chosen[topic] = {*known, name.partition_index}
    view, trouble = _brokers_view(root)
    advance = progress("verifying topics", len(chosen))
    looked = []
    for topic, partitions in chosen.items():
        with suppress(TopicDeletedError):  # just now
            looked.append(_poll(root, topic, partitions, view, trouble))
        advance(1)
    steps: dict[str, list[Difference]] = {}
    if deep and trouble is None:
        steps = _steps(root, chosen)
    for each in looked:
        if each is not None:
            with suppress(TopicDeletedError):
                yield each.finished(steps.get(each.result.topic, ()), deep=deep, progress=progress)


@dataclass
class _Metadata:
    """The metadata of a topic."""

    result: VerifiedTopic
    ledger: ManagedLedger | None = None
    partitions: tuple[int, ...] = ()

    def finished(
        self, steps: Iterable[Difference], *, deep: bool, progress: Progress
    ) -> VerifiedTopic:
        """With the files, if it is deep."""
        found = [*self.result.differences, *steps]
        if deep and self.ledger is not None:
            reported = {each.file for each in found if each.check is Check.FILE}
            contents = check_contents(self.ledger, self.partitions, progress)
            found += [each for each in contents if each.file not in reported]
        found.sort(key=lambda each: each.place)
        return replace(
            self.result, deep=deep,
            differences=tuple(each for each in found if each.check is not Check.UNREAD),
            unverified=tuple(each for each in found if each.check is Check.UNREAD),
        )  # fmt: skip


def _brokers_view(root: Root) -> tuple[BrokersView, Difference | None]:
    try:
        return brokers_view(root), None
    except Exception as error:  # noqa: BLE001 - whatever it is, it was asked for
        return BrokersView(), _unreadable(error, "knows")


def _steps(root: Root, chosen: Mapping[str, set[int] | None]) -> dict[str, list[Difference]]:
    """The messages that the broker lost from one batch to another, by topic."""

    def requested(topic_partition: TopicPartition) -> bool:
        partitions = chosen.get(topic_partition.topic, set())
        return partitions is None or topic_partition.partition in partitions

    found: dict[str, list[Difference]] = {}
    try:
        for topic_partition, difference in check_steps(root, requested):
            found.setdefault(topic_partition.topic, []).append(difference)
    except Exception as error:  # noqa: BLE001 - whatever it is, it was asked for
        found.setdefault(str(DISPATCH), []).append(_unreadable(error, "knew before"))
    return found


def _unreadable(error: Exception, when: str) -> Difference:
    """A difference of `__dispatch`, whose records may be anything if its files were rewritten."""
    if isinstance(error, StorageError) and not isinstance(error, DIFFERING):
        raise error
    check = Check.UNREAD if isinstance(error, UnreadableFileError) else Check.BROKER
    return Difference(check, f"what the broker {when} can't be read: {described(error)}")


def _poll(
    root: Root, topic: str, chosen: set[int] | None, view: BrokersView, trouble: Difference | None
) -> _Metadata | None:
    """The topic as of now; None if there is none, as it is being made, or was deleted."""
    name = TopicName.parse(topic)
    try:
        ledger = ManagedLedger.open_log(root.store, name.storage_path, topic=topic)
    except TopicNotFoundError:
        if not any(log_numbers(root.store, name.storage_path)):
            return None
        missing = Difference(Check.LOG, "commit 0 is missing: nobody sees the topic", file=FIRST)
        return _Metadata(VerifiedTopic(topic, False, differences=(missing,)))
    except DIFFERING as error:
        return _Metadata(
            VerifiedTopic(topic, False, differences=(Difference.met(error, Check.LOG),))
        )
    if ledger.state.is_deleted:
        return None
    partitions = tuple(range(ledger.state.partitions) if chosen is None else sorted(chosen))
    if partitions and partitions[-1] >= ledger.state.partitions:
        raise TopicNotFoundError(
            f"Topic {topic} has {ledger.state.partitions} partitions, numbered from 0: there is no "
            f"partition {partitions[-1]}. Name another, or the whole topic."
        )
    found = [trouble] if trouble is not None and not name.is_system else []
    if name == COMMANDS and view.hosted.batch.commands[1] > ledger.state.next_ledger_id:
        text = f"the broker knows ledgers up to {view.hosted.batch.commands[1] - 1}"
        found.append(Difference(Check.BROKER, text, 0, ledger_id=ledger.state.next_ledger_id))
    unnamed, accounts = 0, []
    try:
        found += check_log(ledger)
        missing_files, unnamed = check_files(ledger)
        found += missing_files
    except UnreadableFileError as error:
        found.append(Difference.met(error, Check.LOG))
    for number in partitions:
        topic_partition, part = TopicPartition(topic, number), ledger.state.partition(number)
        found += check_broker(view, topic_partition, ledger)
        subscriptions, wrong = check_accounts(view, topic_partition, ledger)
        found += wrong
        accounts.append(_account(number, part, subscriptions))
    mine = [each for each in found if each.partition in (None, *partitions)]
    result = VerifiedTopic(topic, False, ledger.state.number, tuple(accounts), mine, unnamed)
    return _Metadata(result, ledger, partitions)


def _account(
    number: int, part: PartitionState, subscriptions: Iterable[SubscriptionAccount]
) -> PartitionAccount:
    there = sum(each.messages for each in part.ledgers)
    removed = part.removed.messages
    return PartitionAccount(
        number,
        part.published.messages,
        there,
        removed,
        len(part.ledgers),
        tuple(subscriptions),
    )
