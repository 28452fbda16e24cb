"""The broker query's source: it looks at the commands, the logs, the leases and the clock.

Invariants: a batch is made only when there is news or something has come due, so an idle broker
makes none; the offset names all that its batch takes in; `now` never goes back, and never overtakes
the first unread command. `__dispatch`, where each step reports, says what is due and who is
subscribed, also to a broker that has just begun: it touches nobody who has nothing to do. A look
costs what happened since the last, however many topics are hosted. Every subscribed consumer has a
lease that can lapse, whether or not it has a file. A topic partition is set aside when its broker
can't step or its log can't be read: the others go on, its commands are kept, and it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import ceil, inf

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.hosting.hosted_broker import described
from pulsar_spark.broker.protocol.commands import Subscribe
from pulsar_spark.broker.protocol.ready import Stepped
from pulsar_spark.connector.runtime.broker.broker_input import QUARANTINED_RECORD, BatchInput
from pulsar_spark.connector.runtime.broker.planned_batch import PlannedBatch
from pulsar_spark.connector.runtime.broker.stepped_brokers import SteppedBrokers
from pulsar_spark.connector.runtime.broker.watched_leases import WatchedLeases
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    NO_COMMIT,
    OFFSET_RECORD,
    BrokerOffset,
    PartitionBatch,
    Quarantined,
    stale_checkpoint,
)
from pulsar_spark.connector.runtime.system_topics.hosted_topics import (
    HostedTopics,
    hosted_topics,
    last_shards,
)
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    StoredRecord,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.activity import ActivityWatch
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import NamespaceWatch
from pulsar_spark.connector.runtime.topics.prefetch import Prefetcher, answer_of, prefetched
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import PulsarliteError, TopicDeletedError, replaced
from pulsar_spark.model.topic_name import NamespaceName, TopicName, TopicPartition, is_persistent

FIRST_RETRY_S = 1.0
"""Seconds before a quarantined partition is tried again; each pause is twice as long as the last.
"""
LONGEST_RETRY_S = 300.0
"""The longest pause in seconds before a quarantined partition is tried again."""
MISSING_EVERY_S = 5.0
"""Seconds between two polls for a topic that was missing."""
COMMANDS_AT_ONCE = 2_000
"""The most ledgers (writers' commits) of `__commands` in one batch."""
SNAPSHOT_EVERY = 1_000
"""Ledgers of `__dispatch` after which a state is written whole again, by a batch that comes along;
a batch takes as many of them as makes all within half of that."""
POLICIES_EVERY_S = 1.0
"""Seconds between two checks whether a poll of a namespace's policies is due."""

_log = logging.getLogger(__name__)


class BrokerSource:
    """Plans the batches of one broker."""

    def __init__(self, root: Root, *, steps: bool = False) -> None:
        """`steps`: they are done in this process, which reads what the logs name then."""
        self._root, self._clock, self._steps = root, root.clock, steps
        self._commands = SystemTopic(root, COMMANDS)
        self._dispatch = SystemTopic(root, DISPATCH)
        self._dispatch_read = 0
        self._awaits_steps = True
        """True if a batch was planned whose steps were not heard of."""
        self._topics = HostedTopics()
        """The hosted topics after the last finished batch."""
        self._stepped = SteppedBrokers()
        self._logs: dict[str, ManagedLedger] = {}
        self._commands_read = 0
        self._seen: dict[str, int] = {}
        """The last commit of each topic at the last look."""
        self._missing: dict[str, float] = {}
        """Hosted topics that were not there -> when to look for them again."""
        self._activity = ActivityWatch(root.store, deletes=True)
        self._busy: set[str] = set()
        """The topics whose logs the last look asked."""
        self._growing: set[str] = set()
        """Topics with more partitions than were known at the last look."""
        self._undecided: set[str] = set()
        """Topics whose logs end in an open transaction: its decision is no news."""
        self._unpolled: set[str] = set()
        """Topics to look at once, whether or not they have news."""
        self._leases = WatchedLeases(root.store)
        self._namespaces = NamespaceWatch(root.store)
        self._poll_policies_s = self._clock.monotonic_s()
        self._failed: dict[TopicPartition, str] = {}
        """Topic partition -> why it could not step in the last batch; emptied by each look."""
        self._tries: dict[TopicPartition, tuple[int, float]] = {}
        """Topic partition set aside -> (how often it was, when it is tried again)."""
        self._active_s = self._clock.monotonic_s()
        self._begun = False
        self._planned: BrokerOffset | None = None
        """The last batch's end, until its input is asked for."""
        self._committed: BrokerOffset | None = None

    def look(self, begun: BrokerOffset) -> BrokerOffset | None:
        """The end of the next batch; None while there is nothing to do. It does not wait."""
        end = None if self._begun else self._begin(begun)  # it may refuse the checkpoint
        if begun is not self._committed:  # committed: its lapsed consumers are gone
            for each in begun.lapsed:
                self._root.store.delete(each.path)
            self._committed = begun
        self._begun = True
        with prefetched(self._root.store, self._first_requests()):
            end = end or self._poll(self.hosted(begun).batch)
        self._planned = end
        if end is not None:
            self._active_s = self._clock.monotonic_s()
            self._awaits_steps = True
            self._leases.wake_up(
                topic_partition for topic_partition, part in end.parts.items() if part.has_activity
            )
        return end

    def _first_requests(self) -> list[Prefetcher]:
        """The requests that every poll needs; over a network they run concurrently."""
        if self._activity.is_quiet:
            return [self._activity, self._leases]
        logs = [self._logs[each] for each in self._busy if each in self._logs]
        busy: list[Prefetcher] = [_WithFiles(each) for each in logs] if self._steps else [*logs]
        own = [self._dispatch] if self._awaits_steps else []
        return [self._activity, self._commands, self._leases, *own, *busy]

    @property
    def watched(self) -> list[Watched]:
        """The folders in which commands and commits appear."""
        logs = ((self._logs.get(each), self._seen.get(each, NO_COMMIT)) for each in [*self._busy])
        busy = [Watched(log.log_folder, partial(log.is_behind, at)) for log, at in logs if log]
        return [*self._commands.watched(self._commands_read), *self._activity.watched, *busy]

    def hosted(self, begun: BrokerOffset) -> HostedTopics:
        """The hosted topics behind the last finished batch, `begun`."""
        if not self._begun:
            return hosted_topics(self._dispatch, self._dispatch.refresh())
        if begun is not self._topics.last_offset and begun != self._topics.last_offset:
            self._topics.apply(begun)
        return self._topics

    def input_of(self, ended: BrokerOffset) -> BatchInput:
        """The batch's input, which its end names alone.

        A second request for it, or one for a batch that was planned before this began, repeats the
        batch: it may have taken effect.
        """
        is_repeated, self._planned = ended != self._planned, None
        return BatchInput(self._root, ended, is_repeated=is_repeated)

    def next_due_s(self) -> float:
        """Seconds until something falls due, whoever lives or dies; inf if nothing does."""
        now_ms = self._clock.wall_ms()
        offset_ms = now_ms - self._clock.monotonic_s() * 1000
        instants = [ceil(at_s * 1000 + offset_ms) for _, at_s in self._tries.values()]
        if (first_ms := self._stepped.first_due_ms()) is not None:
            instants.append(first_ms)
        return (min(instants, default=inf) - now_ms) / 1000

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, start: BrokerOffset) -> BrokerOffset | None:
        """Take up what `__dispatch` says; with a new checkpoint a batch takes states from there.

        A broker that has not reported when it is due steps. StaleCheckpointError if another
        broker has served since, from another checkpoint.
        """
        self._observe()
        topics, last_offset = self._topics, self._topics.last_offset
        if start.now_ms and last_offset != start:
            raise stale_checkpoint(self._root)
        if last_offset is None:
            return None
        self._growing = {*topics.batch.growing}
        self._missing = {each.topic: 0.0 for each, last in topics.commits.items() if last < 0}
        for topic_partition in topics.commits.keys() - topics.quarantined.keys():
            if topic_partition not in self._stepped.durable:
                self._stepped.due_at(topic_partition, 0)
        if not start.now_ms:
            self._unpolled = {*topics.topics}
        if start.now_ms:
            topics.last_offset = start
            return None
        batch = PlannedBatch(topics, self._dispatch_read)
        for topic_partition in last_shards(self._dispatch, self._dispatch_read)[1]:
            batch.host(topic_partition)
        self._quarantine_failures(batch)
        self._failed = {}
        commands = topics.batch.commands[1]
        now_ms = max(self._clock.wall_ms(), last_offset.now_ms)
        offset = batch.offset((commands, commands), now_ms, tuple(sorted(self._growing)))
        return replace(offset, restored=self._dispatch_read)

    def _observe(self) -> None:
        """Take in what `__dispatch` says since the last look: the first time, all of it.

        That is what is hosted, what each said last, and who could not step in the last batch.
        """
        looks = not self._root.store.remote or self._awaits_steps
        stop = self._dispatch.refresh(looks=looks)
        if stop <= self._dispatch_read:
            return
        self._awaits_steps = not self._begun
        names = ("", QUARANTINED_RECORD) if self._begun else ("", QUARANTINED_RECORD, OFFSET_RECORD)
        steps: dict[TopicPartition, Record] = {}
        failed: list[StoredRecord] = []
        for stored in self._dispatch.read(
            self._dispatch_read, stop, keep=lambda _, to: to in names
        ):
            record = stored.record
            if record.subscription == OFFSET_RECORD:
                self._topics.observe(stored)
            elif record.subscription == QUARANTINED_RECORD:
                failed.append(stored)
            elif record.data.startswith(b'{"$":"Stepped",'):
                steps[record.topic_partition] = record
        for topic_partition, record in steps.items():
            if isinstance(item := record.item(), Stepped):
                self._stepped.observe(topic_partition, item)
                self._tries.pop(topic_partition, None)
        first = self._topics.batch.dispatched
        last = (each for each in failed if first is not None and each.ledger_id >= first)
        self._failed |= {each.record.topic_partition: each.record.data.decode() for each in last}
        self._dispatch_read = stop

    def _poll(self, start: BrokerOffset) -> BrokerOffset | None:
        self._observe()
        batch = PlannedBatch(self._topics, self._dispatch_read)
        self._quarantine_failures(batch)
        first = start.commands[1]
        commands, seen, unread_ms = self._new_commands(first, batch)
        now_ms = max(self._clock.wall_ms(), start.now_ms)
        if unread_ms is not None:
            now_ms = max(min(now_ms, unread_ms), start.now_ms)
        now_s = self._clock.monotonic_s()
        again = [a for a in self._topics.quarantined if self._tries.get(a, (0, now_s))[1] <= now_s]
        for topic_partition in again:
            batch.try_again(topic_partition)
        logs, unreadable = self._logs_of(self._to_poll(batch, seen, again))
        for topic in [each for each in logs if self._logs[each].state.is_deleted]:
            batch.leave(topic)
            del logs[topic], self._logs[topic], self._seen[topic]
            self._undecided.discard(topic)
        batch.partitions = self._grown(batch, logs, seen)
        self._quarantine_unreadable(batch, unreadable, first)
        batch.move(logs)
        self._policies(batch)
        known = self._stepped.leases
        over = self._leases.over(known) if unread_ms is None else []
        batch.lapsed = self._lapsed(batch, {*over, *self._ended(batch)})
        batch.step(self._stepped.take_due(now_ms))
        self._failed = {}
        if commands == first and batch.is_empty:
            return None
        batch.renew(SNAPSHOT_EVERY)
        return batch.offset((first, commands), now_ms, tuple(sorted(self._growing)))

    def _quarantine_failures(self, batch: PlannedBatch) -> None:
        """The brokers that could not step in the last batch: its input is kept for them."""
        last, known = self._topics.batch, self._topics
        for topic_partition, error in sorted(self._failed.items()):
            if topic_partition in known.quarantined:  # it was not in it, but its shards
                continue
            part = last.parts.get(topic_partition, PartitionBatch())
            number = (
                part.observed[0] if part.observed else known.commits.get(topic_partition, NO_COMMIT)
            )
            self._quarantine(
                batch, topic_partition, number, part.held_back(last.commands[0], error)
            )

    def _quarantine_unreadable(
        self, batch: PlannedBatch, unreadable: Mapping[str, str], first_command: int
    ) -> None:
        for topic, error in unreadable.items():
            for topic_partition in batch.awake(topic):
                held = batch.part(topic_partition).held_back(first_command, error)
                self._quarantine(batch, topic_partition, batch.number(topic_partition), held)

    def _quarantine(
        self, batch: PlannedBatch, topic_partition: TopicPartition, number: int, held: Quarantined
    ) -> None:
        """Each try comes later than the last."""
        tries = self._tries.get(topic_partition, (0, 0.0))[0]
        wait_s = min(FIRST_RETRY_S * 2 ** min(tries, 10), LONGEST_RETRY_S)
        self._tries[topic_partition] = (tries + 1, self._clock.monotonic_s() + wait_s)
        why = held.error
        _log.error(
            "Set aside for %g s: %s, of which the broker says: %s", wait_s, topic_partition, why
        )
        self._stepped.due_at(topic_partition, None)
        batch.quarantine(topic_partition, number, held)

    def _new_commands(
        self, first: int, batch: PlannedBatch
    ) -> tuple[int, dict[str, int], int | None]:
        """(next ledger, seen, time of the first unread command); who is spoken of is hosted.

        Seen are the fewest partitions of each topic that a new subscriber saw.
        """
        seen = dict[str, int]()
        is_quiet = self._activity.is_quiet
        there = self._commands.refresh(looks=not is_quiet)
        if not is_quiet:
            self._activity.system_polled()
        stop = min(there, first + COMMANDS_AT_ONCE)
        if stop > first and self._commands.is_late:
            # Whoever subscribes has seen what is there by now: logs are asked behind the commands.
            busy = [self._logs[each] for each in self._busy if each in self._logs]
            self._root.store.at_once([
                partial(self._commands.fetch, first, stop),
                *(partial(answer_of, each, each.ask) for each in busy),
            ])  # fmt: skip
        if stop > first:
            read = self._commands.read(first, stop)
            newcomers = 0
            for ledger_id, together in groupby(read, key=lambda stored: stored.ledger_id):
                records = [each.record for each in together]
                has_newcomer = any(map(_is_subscribe, records))
                newcomers += has_newcomer
                is_new = (
                    each.topic_partition.partition >= seen.get(each.topic_partition.topic, inf)
                    for each in records
                )
                has_to_wait = has_newcomer and self._must_make_room(batch, newcomers)
                if has_to_wait or (ledger_id > first and any(is_new)):
                    stop = ledger_id  # what is new on partition 0 is made there first
                    break
                for record in records:
                    topic_partition = record.topic_partition
                    batch.host(topic_partition)
                    batch.referenced.add(topic_partition)
                    self._missing.pop(topic_partition.topic, None)  # who speaks of it has seen it
                    count = _partitions_seen(record) if topic_partition.partition == 0 else None
                    if count is not None:
                        seen[topic_partition.topic] = min(
                            count, seen.get(topic_partition.topic, count)
                        )
        self._commands_read = stop
        unread_ms = None
        if stop < there:
            unread_ms = next(self._commands.read(stop, stop + 1)).publish_time_ms
        return stop, seen, unread_ms

    def _to_poll(
        self, batch: PlannedBatch, seen: Mapping[str, int], again: Iterable[TopicPartition]
    ) -> set[str]:
        """The topics whose logs may have news: a few, however many are hosted."""
        now_s = self._clock.monotonic_s()
        busy = self._activity.busy(self._topics.topics, self._undecided)
        busy |= batch.new.keys() | seen.keys() | {each.topic for each in again}
        busy |= self._growing | self._undecided | self._unpolled
        busy |= {topic for topic, at_s in self._missing.items() if at_s <= now_s}
        self._busy = {topic for topic in busy if batch.awake(topic)}
        self._unpolled -= self._busy
        return self._busy

    def _logs_of(self, topics: set[str]) -> tuple[dict[str, int], dict[str, str]]:
        """(the last commit of each topic that exists, the errors of those that can't be read)."""
        numbers: dict[str, int] = {}
        errors: dict[str, str] = {}

        def look(topic: str) -> None:
            try:
                ledger = self._log_of(topic)
                if ledger is not None:
                    self._check_not_replaced(topic, ledger)
                    numbers[topic] = self._seen[topic] = ledger.state.number
                    (self._undecided.add if ledger.is_undecided else self._undecided.discard)(topic)
            except Exception as error:  # noqa: BLE001 - the other topics go on
                errors[topic] = described(error)

        for _ in self._root.store.answers(look, sorted(topics)):
            pass
        return numbers, errors

    def _policies(self, batch: PlannedBatch) -> None:
        """The policies of active namespaces; now and then those that changed."""
        known, now_s = self._topics, self._clock.monotonic_s()
        names = batch.namespaces()
        if now_s >= self._poll_policies_s:
            self._poll_policies_s = now_s + POLICIES_EVERY_S
            names |= known.namespaces.keys()
        for name in names:
            before = known.policies.get(name)
            last_offset = self._namespaces.policies(NamespaceName.parse(name), before)
            if last_offset != (before or {}):
                batch.tell(name, last_offset)

    def _log_of(self, topic: str) -> ManagedLedger | None:
        """Its log, also if it is deleted; None if there never was such a topic."""
        ledger = self._logs.get(topic)
        with suppress(TopicDeletedError):
            if ledger is not None and self._root.store.remote:
                ledger.refresh()
                return ledger
            if ledger is not None and ledger.catch_up():
                return ledger
        now_s = self._clock.monotonic_s()
        if now_s < self._missing.get(topic, 0.0):
            return None
        ledger = self._root.open_log(TopicName.parse(topic))
        if ledger is None:
            self._missing[topic] = now_s + MISSING_EVERY_S
            return None
        self._logs[topic] = ledger
        self._missing.pop(topic, None)
        return ledger

    def _check_not_replaced(self, topic: str, ledger: ManagedLedger) -> None:
        """TopicReplacedError if the log is shorter than what was heard of it.

        A longer one in its place is noticed by the topic's broker, which knows the log's identity.
        """
        hosted = self._topics.topics.get(topic, ())
        observed = max((self._topics.commits[each] for each in hosted), default=NO_COMMIT)
        if ledger.state.number >= observed or not is_persistent(topic):
            return
        folder = TopicName.parse(topic).storage_path
        anew = ManagedLedger.open_log(self._root.store, folder, topic)  # what was asked may be old
        if anew.state.number < observed:
            raise replaced(topic)

    def _grown(
        self, batch: PlannedBatch, logs: Mapping[str, int], seen: Mapping[str, int]
    ) -> dict[str, int]:
        """The number of partitions by topic; new ones are hosted, and get subscriptions.

        As in Pulsar these are the durable subscriptions of the first partition. A topic that grew
        behind a subscriber's back counts as `seen` until that one's subscription is known too: at
        the next look.
        """
        hosted, partitions = self._topics.commits, dict[str, int]()
        self._growing = set()
        for topic in logs:
            first = TopicPartition(topic, 0)
            state = self._logs[topic].state
            there = state.partitions
            known = self._topics.partitions.get(topic, there)
            if state.incarnation > max(batch.number(first), 0):
                known = there  # another topic than the one that had so many
            if known < there and first in hosted:
                new = [TopicPartition(topic, number) for number in range(known, there)]
                durable = self._stepped.durable.get(first)
                if durable is None:  # it has yet to say what there is
                    there = known
                    if batch.is_quarantined(first) and any(each not in hosted for each in new):
                        durable = self._durable_as_stored(first)
                if durable:
                    for each in new:
                        batch.create(each, durable)
            partitions[topic] = min(there, seen.get(topic, there))
            if partitions[topic] < state.partitions:
                self._growing.add(topic)
        for topic in seen.keys() - logs.keys():  # it can't be read just now
            partitions[topic] = min(seen[topic], self._topics.partitions.get(topic, seen[topic]))
        return partitions

    def _durable_as_stored(self, topic_partition: TopicPartition) -> tuple[str, ...]:
        """The durable subscriptions of a broker that is set aside, and so says nothing."""
        with suppress(PulsarliteError):  # it may be why it is aside
            shards = last_shards(self._dispatch, self._dispatch_read)[1].get(topic_partition, {})
            held = from_shards(shards).subscriptions.values() if shards else ()
            return tuple(each.name for each in held if each.durable)
        return ()

    def _must_make_room(self, batch: PlannedBatch, newcomers: int) -> bool:
        """True if consumers whose processes have ended go before this newcomer is let in.

        One of those may have subscribed just before it: then the next batch can take that one out.
        """
        if newcomers == 1:
            self._leases.refresh()
        return bool(self._ended(batch) or (newcomers > 1 and self._leases.gone()))

    def _ended(self, batch: PlannedBatch) -> list[str]:
        """The leases of consumers whose processes have ended, and which the batch can take out."""
        known = self._stepped.leases
        return [path for path in self._leases.gone() if [*batch.hosted_of(known.get(path, ()))]]

    def _lapsed(self, batch: PlannedBatch, over: Iterable[str]) -> tuple[Lease, ...]:
        """The consumers whose leases are over, and where: but not where a broker is set aside.

        A lease of which no broker knows the consumer is forgotten: if it comes, it writes again.
        """
        known, lapsed = self._stepped.leases, list[Lease]()
        for path in sorted(over):
            abouts = sorted(batch.hosted_of(known.get(path, ())))
            if abouts:
                lapsed.append(replace(known[path][abouts[0]], partitions=tuple(abouts)))
            elif path not in known:
                self._leases.delete(path)
        return tuple(lapsed)

    @property
    def quiet_s(self) -> float:
        """For how long it has heard of nothing."""
        return self._clock.monotonic_s() - max(self._active_s, self._activity.newest_s)

    def pause_s(self) -> float:
        """The pause before the next look: it ends when a broker is due, at the latest."""
        pause = pause_s(self.quiet_s, remote=self._root.store.remote)
        due_ms = self._stepped.first_due_ms()
        if due_ms is None:
            return pause
        return max(0.001, min(pause, (due_ms - self._clock.wall_ms()) / 1000))


@dataclass(frozen=True, slots=True)
class _WithFiles(Prefetcher):
    """A topic's log, of whose new ledgers the next step reads the columns."""

    log: ManagedLedger

    def ask(self) -> bool:
        return self.log.ask()

    def prefetch_more(self) -> None:
        self.log.prefetch_more(lambda new: new)

    def forget(self) -> None:
        self.log.forget()


def _is_subscribe(record: Record) -> bool:
    return record.data.startswith(b'{"$":"Subscribe",')


def _partitions_seen(record: Record) -> int | None:
    """The number of the topic's partitions that a Subscribe names; None in any other command."""
    if not _is_subscribe(record):  # others are long: not decoded
        return None
    try:
        command = record.item()
    except PulsarliteError:  # its broker leaves it out, and says so
        return None
    return command.partitions if isinstance(command, Subscribe) else None
