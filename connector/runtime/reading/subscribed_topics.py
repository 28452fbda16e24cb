"""The topics that one source reads: opened, kept up with the log, and found by pattern.

Invariants: nothing is opened before it is asked for, so a reader that is only built costs
nothing; a topic that was found stays; a name with a partition suffix means that partition alone; a
topic is made only for a stream, never one that its checkpoint has read, and is read from its first
message by whoever made it; a look costs the topics that have news, however many there are.
Follows Pulsar's `MultiTopicsConsumerImpl` and `PatternMultiTopicsConsumerImpl`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property, partial

from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.topics.activity import REMOTE_BUSY_S, ActivityWatch
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.non_persistent import check_reading
from pulsar_spark.connector.runtime.topics.policies import (
    KEPT,
    check_creation,
    check_domain,
    is_allowed,
    receive_from,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.errors import (
    DataLossError,
    InvalidOptionError,
    TopicDeletedError,
    TopicNotFoundError,
)
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.topic_name import TopicName, TopicPartition, is_persistent
from pulsar_spark.options.consumer_options import dead_letter_policy
from pulsar_spark.options.options import Options

_log = logging.getLogger(__name__)


class Absent(Enum):
    """The treatment of a topic that is named and missing."""

    REFUSED = "refused"
    PASSED_OVER = "passed over"
    """If it may be made: a look ahead has no effects."""
    MADE = "made"
    """As on sending, if it may be."""


class SubscribedTopics:
    """The topics named by `topic`, `topics` or `topicsPattern`."""

    def __init__(self, options: Options, root: Root, absent: Absent = Absent.REFUSED) -> None:
        self.root, self.options = root, options
        self.made: set[str] = set()
        """Topics that were made here: nothing was published to them before."""
        self.made_again: set[str] = set()
        """Topics that were deleted and made again since they were read: all of them is new."""
        self.reads_again = False
        """True if topics that are named, were deleted and made again are read on."""
        self._absent = absent
        self._read_before: set[str] = set()
        self._unopened: list[TopicName] | None = None
        """The named topics that are still to be opened."""
        self.left_out: set[str] = set()
        """The topics that were deleted, and are read no more."""
        self._pattern: str | None = options["topicsPattern"]
        self._interval_s = options["topicDiscoveryInterval"] / 1000
        self._polled_s = -math.inf
        self._ledgers: dict[str, ManagedLedger] = {}
        self._seen: dict[str, int] = {}
        """The last commit of each topic at the last poll."""
        self._grown: dict[str, int] = {}
        """The number of partitions of each topic at the last poll."""
        self._changed: set[str] = set()
        """The topics that are open and changed since `changed` was asked."""
        self._later: set[str] = set()
        """The open topics that are not the first of their name."""
        self.activity = ActivityWatch(root.store)
        """The announcements of activity."""
        self._busy: set[str] = set()
        """The topics whose logs the last look asked."""
        self._looked_at: set[TopicPartition] = set()
        """The partitions whose place in a checkpoint is one of the topic's."""
        self._views: dict[TopicPartition, PartitionView] = {}
        self._partitions: dict[TopicPartition, PartitionView] | None = None
        """As of the last look; None where a topic came, went or grew since it was asked for."""
        self._ends_at: dict[TopicPartition, Position] | None = None

    @cached_property
    def _names(self) -> list[TopicName]:
        """The topics that are named; InvalidOptionError if there are none, and no pattern."""
        texts = [self.options["topic"]] if self.options["topic"] else self.options["topics"]
        if not texts and not self._pattern:
            raise InvalidOptionError(
                'Which topic? Give one of topic, topics and topicsPattern, as in .option("topic", '
                '"flights").'
            )
        return [TopicName.parse(text) for text in texts]

    def ask(self) -> bool:
        """Look for announcements, and for commits where some were lately, for `refresh`."""
        asked = [self.activity.ask, *(each.ask for each in self._open_busy())]
        return any(list(self.root.store.answers(lambda ask: ask(), asked)))

    def prefetch_more(self) -> None:
        """The same for what comes behind these commits."""
        self.root.store.at_once([each.prefetch_more for each in self._open_busy()])

    def _open_busy(self) -> list[ManagedLedger]:
        return [self._ledgers[each] for each in self._busy if each in self._ledgers]

    def forget(self) -> None:
        """No `refresh` has followed."""
        self.activity.forget()
        for each in self._ledgers.values():
            each.forget()

    def refresh(self) -> bool:
        """Take in new commits, new partitions and new topics; False if there were none.

        TopicNotFoundError if a topic that the options name does not exist, and is not made;
        TopicDeletedError if it was deleted since it was opened, unless it is left out.
        """
        undecided = {
            topic
            for topic in self._busy & self._ledgers.keys()
            if self._ledgers[topic].is_undecided
        }
        self._busy = self.activity.busy(self._ledgers) | undecided
        found = False
        for has_activity in self.root.store.answers(self._refresh, sorted(self._busy)):
            found |= has_activity
        opened = len(self._ledgers)
        if self._unopened is None:
            self._unopened = self._names
        for name in self._unopened:
            self._open_named(name)
        self._unopened = [
            each
            for each in self._unopened
            if each.partitioned_topic_name not in self._ledgers.keys() | self.left_out
        ]
        self._discover()
        return found or len(self._ledgers) != opened

    def _refresh(self, topic: str) -> bool:
        """Take in the topic's news; whether there were any."""
        ledger = self._ledgers[topic]
        try:
            ledger.refresh()
        except TopicDeletedError as error:
            if not self.goes_on_without(topic):
                raise
            _log.warning("Read no more: %s", error.message)
            self._leave_out(topic)
            return True
        return self._take_in(topic, ledger)

    def goes_on_without(self, topic: str) -> bool:
        """True if a topic that was deleted is left out.

        One that a pattern has found is, and without `failOnDataLoss` one that is named, but the
        last of them, unless it was made again and is read again.
        """
        if topic not in self._named:
            return True
        if self.options["failOnDataLoss"] or topic == self.retry_topic:
            return False
        gone = self.left_out if self.reads_again else {topic, *self.left_out}
        others = (each for each in self._names if each.partitioned_topic_name not in gone)
        return any(self.root.open_found(each) is not None for each in others)

    def is_left_out(self, topic: str) -> bool:
        """True if it was deleted, or made again, and is left out, or will be at the next look."""
        if (ledger := self._ledgers.get(topic)) is None:
            return topic in self.left_out
        return not ledger.catch_up() and self.goes_on_without(topic)

    def _take_in(self, topic: str, ledger: ManagedLedger) -> bool:
        """Note the state of an open topic; whether it is another one than was seen last."""
        state = ledger.state
        if self._seen.get(topic) == state.number:
            return False
        self._seen[topic] = state.number
        self._changed.add(topic)
        if state.incarnation:
            self._later.add(topic)
        if self._grown.get(topic) != state.partitions:
            self._grown[topic] = state.partitions
            self._partitions = None
        return True

    def _open(self, topic: str, ledger: ManagedLedger) -> None:
        self._ledgers[topic] = ledger
        self.left_out.discard(topic)
        self._busy.add(topic)  # it may end in an open transaction
        self._take_in(topic, ledger)

    def _leave_out(self, topic: str) -> None:
        """Read it no more, unless it is made again; what was received of it has its views still."""
        self.left_out.add(topic)
        self._polled_s = -math.inf
        del self._ledgers[topic]
        for kept in (self._seen, self._grown):
            kept.pop(topic, None)
        self._later.discard(topic)
        self._partitions = None

    def changed(self) -> set[TopicPartition]:
        """The partitions of the topics that were opened or have changed since the last call."""
        every = self.partitions()
        topics, self._changed = self._changed, set()
        return {
            topic_partition
            for topic in topics
            for number in range(self._grown.get(topic, 0))
            if (topic_partition := TopicPartition(topic, number)) in every
        }

    @cached_property
    def _named(self) -> set[str]:
        """The topics that the options name, with the retry letter topic."""
        named = {name.partitioned_topic_name for name in self._names}
        return named if self.retry_topic is None else {*named, self.retry_topic}

    def check_incarnations(self, offset: StreamOffset, abouts: Iterable[TopicPartition]) -> None:
        """TopicDeletedError if a topic that the options name is not the one that the offset has.

        Of these partitions, as far as the offset has them; it may be left out. One that a pattern
        has found again is read from its beginning: no id of the old is in it. DataLossError if the
        offset is ahead.
        """
        abouts = list(abouts)
        self._check_not_ahead(offset, abouts)
        named = self._named
        for topic in {each.topic for each in abouts if each.topic in named and offset.get(each)}:
            if (ledger := self._ledgers.get(topic)) is None:
                continue
            try:
                ledger.check_incarnation(offset.incarnations.get(topic, 0))
            except TopicDeletedError as error:
                if not self.goes_on_without(topic):
                    raise
                _log.warning("Read no more: %s", error.message)
                self._leave_out(topic)

    def _check_not_ahead(self, offset: StreamOffset, abouts: Iterable[TopicPartition]) -> None:
        """DataLossError if the offset names ledgers that a topic is still to have.

        They would be taken for read. What a run has planned itself is not looked at again.
        """
        for topic_partition in set(abouts) - self._looked_at:
            held, ledger = offset.get(topic_partition), self._ledgers.get(topic_partition.topic)
            if held is None or ledger is None:
                continue
            self._looked_at.add(topic_partition)
            is_same = offset.incarnations.get(topic_partition.topic, 0) == ledger.state.incarnation
            if not (is_same and is_persistent(topic_partition.topic)):
                continue
            if held.last_ledger_id >= ledger.state.next_ledger_id:
                raise DataLossError(
                    f"The checkpoint, or a grant, names ledger {held.last_ledger_id} of "
                    f"{topic_partition}, "
                    f"and the topic's next one is {ledger.state.next_ledger_id}: an older copy of "
                    "the root was restored, or its last log files are missing. Bring root and "
                    "checkpoint back from one copy, or start with a new checkpoint: what is "
                    "published next would be taken for read."
                )

    def incarnations(self, offset: StreamOffset) -> dict[str, int]:
        """The incarnations of the offset's topics that are not the first of their name."""
        return {
            topic: self._ledgers[topic].state.incarnation
            for topic in sorted(self._later)
            if any(offset.get(TopicPartition(topic, n)) for n in range(self._grown[topic]))
        }

    @property
    def watched(self) -> list[Watched]:
        """The folders in which commits and announcements of its topics appear."""
        seen = [(self._ledgers.get(each), self._seen.get(each)) for each in list(self._busy)]
        return self.activity.watched + [
            Watched(log.log_folder, partial(log.is_behind, at))
            for log, at in seen
            if log is not None and at is not None
        ]

    def open_all(self, topics: Iterable[str]) -> None:
        """Open these topics, whether or not the options (still) name them.

        One that was deleted may be left out: `is_open` tells.
        """
        for topic in topics:
            if topic not in self._ledgers and topic not in self.left_out:
                check_reading(topic, self.options)
                try:
                    self._open(topic, self.root.open(TopicName.parse(topic)))
                except TopicDeletedError:
                    if not self.goes_on_without(topic):
                        raise

    def is_open(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic in self._ledgers

    def were_read(self, topics: Iterable[str]) -> None:
        """A checkpoint has these: one that is not there now was deleted, and is not made again."""
        self._read_before.update(topics)

    @property
    def first_topic(self) -> str:
        """The full name of the first topic that is named; empty with a pattern."""
        return self._names[0].partitioned_topic_name if self._names else ""

    @cached_property
    def retry_topic(self) -> str | None:
        """The full name of the retry letter topic that is read as well, with enableRetry."""
        policy = dead_letter_policy(self.options, self.first_topic)
        if policy is None or not self.options["enableRetry"]:
            return None
        return TopicName.parse(policy.retry_letter_topic).partitioned_topic_name

    def open_retry_topic(self) -> None:
        """With enableRetry: read the retry letter topic too, and make it if it does not exist.

        Whatever is published there finds the subscription in place.
        """
        if (name := self.retry_topic) is not None and name not in self._ledgers:
            self.root.open_or_create(TopicName.parse(name), 1, KEPT)
            self.open_all([name])

    def view(self, topic_partition: TopicPartition) -> PartitionView:
        """A partition of a topic that is open, or was. Retry letters are never read compacted."""
        view, ledger = self._views.get(topic_partition), self._ledgers.get(topic_partition.topic)
        if view is None or (ledger is not None and view.ledger is not ledger):
            compacted = self.options["readCompacted"] and topic_partition.topic != self.retry_topic
            ledger, number = self._ledgers[topic_partition.topic], topic_partition.partition
            view = PartitionView(ledger, number, self.options, compacted=compacted)
            self._views[topic_partition] = view
        return view

    def typed_ledgers(self) -> list[ManagedLedger]:
        """The topics whose schemas `valueSchema` takes: all but a retry letter topic.

        None are opened without that option, so that a user's schema alone costs nothing.
        """
        if not self.options["valueSchema"]:
            return []
        self.refresh()
        return [each for name, each in self._ledgers.items() if name != self.retry_topic]

    def partitions(self) -> Mapping[TopicPartition, PartitionView]:
        """All partitions as of now, by topic and number; the same object while they are."""
        if self._partitions is None:
            self._partitions = self._all_partitions()
        return self._partitions

    def _all_partitions(self) -> dict[TopicPartition, PartitionView]:
        chosen: dict[str, set[int]] = {}
        whole = {str(name) for name in self._names if not name.is_partition}
        for name in self._names:
            if name.is_partition and name.partitioned_topic_name not in whole:
                chosen.setdefault(name.partitioned_topic_name, set()).add(name.partition_index)
        found = []
        for topic, ledger in sorted(self._ledgers.items()):
            there = range(ledger.state.partitions)
            requested = chosen.get(topic, there)
            found += [TopicPartition(topic, number) for number in there if number in requested]
            missing = set(requested) - set(there)
            if missing:
                raise TopicNotFoundError(
                    f"Topic {topic} has {ledger.state.partitions} partitions, numbered from 0: "
                    f"there is no partition {min(missing)}. Name another, or the whole topic."
                )
        return {topic_partition: self.view(topic_partition) for topic_partition in found}

    def end_here(self) -> None:
        """Let reading end behind what is there now."""
        self.refresh()
        self._ends_at = {
            topic_partition: view.last_position if len(view.ledgers) else EARLIEST
            for topic_partition, view in self.partitions().items()
        }

    @property
    def ends(self) -> bool:
        return self._ends_at is not None

    def end_of(self, topic_partition: TopicPartition) -> Position | None:
        """The last position of the partition to read; None if reading goes on for ever."""
        return None if self._ends_at is None else self._ends_at.get(topic_partition, EARLIEST)

    def _open_named(self, name: TopicName) -> None:
        topic = name.partitioned_topic_name
        if topic in self._ledgers:
            return
        check_reading(topic, self.options)
        check_domain(self.root, name)
        found = self.root.open_found(name)
        if found is None:
            if topic in self._read_before:
                if self.goes_on_without(topic):
                    _log.warning("Read no more: topic %s was deleted.", topic)
                    self.left_out.add(topic)
                    return
                why = "the checkpoint has read it: it was deleted, and another is not the same"
                try:
                    self.root.open(name)
                except TopicDeletedError:  # by our own means
                    raise
                except TopicNotFoundError:
                    raise self.root.absent(name, why) from None
            if self._absent is Absent.REFUSED or name.is_partition:
                raise self.root.absent(name)
            if self._absent is Absent.PASSED_OVER:
                check_creation(self.root, name, self.options)
                return
            found = receive_from(self.root, name, self.options)
            self.made.add(topic)
        self._open(topic, found)

    def _discover(self) -> None:
        """Open topics that the pattern finds, and those that were left out and made again."""
        now_s = self.root.clock.monotonic_s()
        if self._pattern is None and not (self.reads_again and self.left_out):
            return
        if now_s - self._polled_s < self._interval_s:
            return
        if self.root.store.remote and self._polled_s > self.activity.newest_s + REMOTE_BUSY_S:
            return  # who makes a topic announces that too
        self._polled_s = now_s
        again = (each for each in self._names if each.partitioned_topic_name in self.left_out)
        for topic in again if self._pattern is None else self.root.matching(self._pattern):
            name = topic.partitioned_topic_name
            if name in self._ledgers or not is_allowed(self.root, topic):
                continue
            if (found := self.root.open_found(topic)) is not None:
                check_reading(name, self.options)
                if name in self.left_out:
                    self.made_again.add(name)
                self._open(name, found)
