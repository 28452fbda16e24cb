"""The broker query's source: it looks at the commands, the logs, the leases and the clock.

Invariants: a batch is made only when there is news or something has come due, so an idle broker
makes none; the offset names all that its batch takes in; `now` never goes back, and never overtakes
the first unread command. `__dispatch`, where each step reports, says what is due and who is
subscribed. Every subscribed consumer has a lease that can lapse, whether or not it has a file. A
topic partition is set aside when its broker can't step or its log can't be read: the others go on,
its commands are kept, and it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import ceil, inf
from typing import Any

from pulsar_spark.connector.broker.broker_input import ASIDE_RECORD, BatchInput
from pulsar_spark.connector.spark.polling import REMOTE_MOST_PAUSE_S, pause_s
from pulsar_spark.connector.system.broker_offset import (
    NO_COMMIT,
    Aside,
    BrokerOffset,
    last_offset,
    last_shards,
    stale_checkpoint,
)
from pulsar_spark.connector.system.lease import (
    DEFAULT_LEASE_MS,
    RARELY,
    Lease,
    LeaseWatch,
    leases,
    read_lease,
)
from pulsar_spark.connector.system.system_topics import COMMANDS, DISPATCH, Record, SystemTopic
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger, looked_ahead
from pulsar_spark.connector.topic_log.news import NewsWatch
from pulsar_spark.connector.topic_log.policies import NamespaceWatch
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import PulsarliteError, TopicDeletedError
from pulsar_spark.hosting.broker_format import from_shards
from pulsar_spark.hosting.hosted_broker import described
from pulsar_spark.protocol.commands import Subscribe
from pulsar_spark.protocol.ready import Stepped
from pulsar_spark.topic_name import TopicName, TopicPartition

LEASES_EVERY_S = 1.0
"""How often the leases are looked at; over a network as often as the shortest is renewed."""
CALL_MS = 2_000 * int(REMOTE_MOST_PAUSE_S)
"""How long after its lease who rested may take to hear of news, and to show life."""
LEASES_LATE_S = 5.0
"""How long that may be put off over a network, where a batch would wait for the answer."""
FIRST_RETRY_S = 1.0
"""The first pause before a partition that is set aside is tried again; doubled each time, ..."""
LONGEST_RETRY_S = 300.0
"""... up to this."""
MISSING_EVERY_S = 5.0
"""How often a topic that was not there is looked for again."""
COMMANDS_AT_ONCE = 2_000
"""The most ledgers (writers' commits) of `__commands` in one batch."""
SNAPSHOT_EVERY = 1_000
"""Ledgers of `__dispatch` between snapshots: batches that write all shards anew."""

_log = logging.getLogger(__name__)


class BrokerSource:
    """Plans the batches of one broker."""

    def __init__(self, root: Root) -> None:
        self._root, self._clock = root, root.clock
        self._commands = SystemTopic(root, COMMANDS)
        self._dispatch = SystemTopic(root, DISPATCH)
        self._dispatch_read = 0
        self._awaits_steps = True
        """Whether a batch was planned whose steps were not heard of."""
        self._due: dict[TopicPartition, int] = {}
        self._durable: dict[TopicPartition, tuple[str, ...]] = {}
        self._consumers: dict[TopicPartition, tuple[Lease, ...]] = {}
        self._logs: dict[str, ManagedLedger] = {}
        self._commands_read = 0
        self._seen: dict[str, int] = {}
        """The last commit of each topic at the last look."""
        self._missing: dict[str, float] = {}
        self._news = NewsWatch(root.store, deletes=True)
        self._busy: set[str] = set()
        """The topics whose logs the last look asked."""
        self._growing: set[str] = set()
        """Topics with more partitions than were known at the last look."""
        self._leases: dict[str, Lease | None] = {}
        self._called: dict[str, int] = {}
        """Of consumers that rest and have news now: the time in which they are to show life."""
        self._moved: set[TopicPartition] = set()
        """Topic partitions with news since the last look at the leases."""
        self._written: dict[str, int] = {}
        """When they were written, as of the last look."""
        self._watch = LeaseWatch(self._clock)
        self._namespaces = NamespaceWatch(root.store)
        self._look_at_leases_s = self._clock.monotonic_s()
        self._before = BrokerOffset()
        """The offset at which the last batch began."""
        self._failed: dict[TopicPartition, str] = {}
        """Topic partition -> why it could not step in the last batch; emptied by each look."""
        self._tries: dict[TopicPartition, tuple[int, float]] = {}
        """Topic partition set aside -> (how often it was, when it is tried again)."""
        self._news_s = self._clock.monotonic_s()
        self._begun = False
        self._committed: BrokerOffset | None = None
        self._snapshot_at: int | None = None

    def look(self, begun: BrokerOffset) -> BrokerOffset | None:
        """The end of the next batch; None while there is nothing to do. It does not wait."""
        end = None if self._begun else self._begin(begun)  # it may refuse the checkpoint
        if begun is not self._committed:  # committed: its lapsed consumers are gone
            for each in begun.lapsed:
                self._root.store.delete(each.path if isinstance(each, Lease) else each)
            self._committed = begun
        self._begun = True
        with looked_ahead(self._root.store, self._asked_first()):
            end = end or self._look(begun)
        if end is not None:
            self._news_s = self._clock.monotonic_s()
            self._awaits_steps = True
            lease_s = DEFAULT_LEASE_MS / 1000 / RARELY  # who rested wakes now
            self._look_at_leases_s = min(self._look_at_leases_s, self._news_s + lease_s)
        return end

    def _asked_first(self) -> list[Any]:
        """What a look asks for in any case: over a network at once."""
        if self._news.is_quiet:
            return [self._news]
        busy = [self._logs[each] for each in self._busy if each in self._logs]
        own = [self._dispatch] if self._awaits_steps else []
        return [self._news, self._commands, *own, *busy]

    @property
    def log_folders(self) -> list[str]:
        """Where news appears."""
        busy = [self._logs[each].log_folder for each in list(self._busy) if each in self._logs]
        return [*self._commands.log_folders, *self._news.folders, *busy]

    def has_news(self) -> bool:
        """Whether `look` may find that somebody spoke or published; cheap, and may err.

        For any thread.
        """
        logs = ((each, self._logs.get(each)) for each in list(self._busy))
        return (
            self._commands.has_news(self._commands_read)
            or self._news.has_changed()
            or any(
                log is not None and log.is_behind(self._seen.get(each, NO_COMMIT))
                for each, log in logs
            )
        )

    def input_of(self, begun: BrokerOffset, ended: BrokerOffset) -> BatchInput:
        """The batch's input. One that restores begins at the offset that `__dispatch` has."""
        if ended.restored is not None:
            self._dispatch.refresh()
            begun = last_shards(self._dispatch, ended.restored)[0] or begun
        return BatchInput(self._root, begun, ended)

    def rests_until_ms(self) -> int | None:
        """The instant of the next look, if nobody says or publishes anything before; None is never.

        Time until then counts in full for leases: it is no pause of the watcher.
        """
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_s() * 1000
        instants = list(self.due_ms())
        watched = set(leases(self._root.store))
        watched |= {each.path for known in self._consumers.values() for each in known}
        if watched:
            look_s = max(self._look_at_leases_s, self._watch.look_by_s(watched, self._lease_ms))
            instants.append(ceil(look_s * 1000 + offset_ms))
        at_ms = min(instants, default=None)
        self._watch.rests_until_s = inf if at_ms is None else (at_ms - offset_ms) / 1000
        return at_ms

    def due_ms(self) -> Iterator[int]:
        """The instants at which something falls due, whoever lives or dies."""
        yield from self._due.values()
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_s() * 1000
        yield from (ceil(at_s * 1000 + offset_ms) for _, at_s in self._tries.values())

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, start: BrokerOffset) -> BrokerOffset:
        """The first batch of a run: all brokers step, so that each says when it is due next.

        With a new checkpoint their states are restored from `__dispatch`, if it has any.
        StaleCheckpointError if another broker has served since, from another checkpoint.
        """
        stop = self._dispatch.refresh()
        restored = None
        if start.now_ms and last_offset(self._dispatch, stop) != start:
            raise stale_checkpoint(self._root)
        if not start.now_ms and stop:
            offset, brokers = last_shards(self._dispatch, stop)
            if offset is not None:
                hosted = {*brokers, *offset.aside}
                start = replace(
                    offset, hosted={each: offset.hosted.get(each, NO_COMMIT) for each in hosted}
                )
                restored = stop
        self._dispatch_read = stop if start.dispatched is None else start.dispatched
        if self._dispatch_read < stop:
            before = last_offset(self._dispatch, self._dispatch_read)
            self._before = self._before if before is None else before
        start = self._before = self._as_stepped(start)
        self._failed = {}
        due = tuple(sorted(each for each in start.hosted if each not in start.aside))
        return BrokerOffset(
            start.commands, start.hosted, max(self._clock.wall_ms(), start.now_ms), due,
            restored=restored, dispatched=stop, partitions=start.partitions, aside=start.aside,
            policies=start.policies,
        )  # fmt: skip

    def _look(self, start: BrokerOffset) -> BrokerOffset | None:
        base = self._as_stepped(start)
        now_ms = max(self._clock.wall_ms(), start.now_ms)
        commands, hosted, seen, unread_ms = self._new_commands(base)
        now_s = self._clock.monotonic_s()
        tried = {each for each in start.aside if self._tries.get(each, (0, now_s))[1] <= now_s}
        resting = base.aside.keys() - tried
        logs, unreadable = self._logs_of(self._to_look_at(hosted, seen, tried, resting))
        deleted = {each for each in logs if self._logs[each].state.is_deleted}
        for topic in deleted:  # its partitions are hosted no more
            del logs[topic], self._logs[topic], self._seen[topic]
            base = _without(base, topic)
        resting &= base.aside.keys()
        hosted = {each: number for each, number in hosted.items() if each.topic not in deleted}
        partitions, created = self._grown(base, hosted, logs, seen)
        again = {each for each in start.aside.keys() - resting if each in hosted}
        created |= {each: start.aside[each].created for each in again if start.aside[each].created}
        aside = {each: base.aside[each] for each in resting}
        for about in [each for each in hosted if each.topic in unreadable and each not in aside]:
            made = created.pop(about, ())
            aside[about] = self._set_aside(about, base, unreadable[about.topic], made)
        moved = {
            each: max(number, logs.get(each.topic, NO_COMMIT)) if each not in aside else number
            for each, number in hosted.items()
        }
        if unread_ms is not None:
            now_ms = max(min(now_ms, unread_ms), start.now_ms)
        again -= aside.keys()
        policies = self._policies(self._logs, base)
        due = {each for each, at in self._due.items() if at <= now_ms and each in hosted}
        snapshot = self._snapshot_is_due()
        self._failed = {}
        news = (commands, moved, aside, partitions, policies)
        before = (start.commands, start.hosted, start.aside, start.partitions, start.policies)
        is_new = news != before or bool(due) or snapshot
        late_s = LEASES_LATE_S if is_new and self._root.store.remote else 0.0
        lapsed = self._lapsed(aside, late_s) if unread_ms is None else ()
        if not (is_new or lapsed):
            return None
        if self._root.store.remote:
            self._moved |= {
                each for each in moved if moved[each] > start.hosted.get(each, NO_COMMIT)
            }
        for each in moved if snapshot else due:
            self._due.pop(each, None)
        self._before = base
        return BrokerOffset(
            commands, moved, now_ms, tuple(sorted(due | again)), lapsed, snapshot,
            dispatched=self._dispatch_read, partitions=partitions, created=created, aside=aside,
            policies=policies,
        )  # fmt: skip

    def _as_stepped(self, start: BrokerOffset) -> BrokerOffset:
        """The offset, with the brokers set aside that could not step in its batch."""
        self._failed |= self._hear()
        failed = self._failed.keys() - start.aside.keys()  # these were not in it: a snapshot was
        if not failed:
            return start
        hosted, aside = dict(start.hosted), dict(start.aside)
        for about in sorted(failed):
            hosted[about] = self._before.hosted.get(about, NO_COMMIT)
            made = start.created.get(about, ())
            aside[about] = self._set_aside(about, self._before, self._failed[about], made)
        return replace(start, hosted=hosted, aside=aside)

    def _set_aside(
        self, about: TopicPartition, since: BrokerOffset, error: str, created: tuple[str, ...]
    ) -> Aside:
        """Keep the partition's commands from that offset on; each try comes later than the last."""
        tries = self._tries.get(about, (0, 0.0))[0]
        wait_s = min(FIRST_RETRY_S * 2 ** min(tries, 10), LONGEST_RETRY_S)
        self._tries[about] = (tries + 1, self._clock.monotonic_s() + wait_s)
        _log.error("Set aside for %g s: %s, of which the broker says: %s", wait_s, about, error)
        self._due.pop(about, None)
        known = since.aside.get(about, Aside(since.commands, error, created))
        return replace(known, error=error)

    def _hear(self) -> dict[TopicPartition, str]:
        """Take in what the last steps reported; the errors of those that failed."""
        looks = not self._root.store.remote or self._awaits_steps or not self._dispatch_read
        stop = self._dispatch.refresh(looks=looks)
        failed: dict[TopicPartition, str] = {}
        if stop <= self._dispatch_read:
            return failed
        self._awaits_steps = False
        told = self._dispatch.read(
            self._dispatch_read, stop, keep=lambda _, to: to in ("", ASIDE_RECORD)
        )
        for stored in told:
            record, about = stored.record, stored.record.about
            if record.subscription == ASIDE_RECORD:
                failed[about] = record.data.decode()
            elif isinstance(item := record.item(), Stepped):
                self._due.pop(about, None)
                if item.next_due_ms is not None:
                    self._due[about] = item.next_due_ms
                self._durable[about] = item.durable
                consumers = tuple(Lease(*each) for each in item.consumers)
                if consumers != self._consumers.get(about, ()):
                    self._look_at_leases_s = 0.0
                self._consumers[about] = consumers
                self._tries.pop(about, None)
        self._dispatch_read = stop
        return failed

    def _new_commands(
        self, start: BrokerOffset
    ) -> tuple[int, dict[TopicPartition, int], dict[str, int], int | None]:
        """(next ledger, partitions with a broker by then, seen, time of the first unread command).

        Seen are the fewest partitions of each topic that a new subscriber saw.
        """
        hosted, seen = dict(start.hosted), dict[str, int]()
        is_quiet = self._news.is_quiet
        there = self._commands.refresh(looks=not is_quiet)
        if not is_quiet:
            self._news.system_seen()
        stop = min(there, start.commands + COMMANDS_AT_ONCE)
        if stop > start.commands:
            # Whoever subscribes has seen what is there by now: logs are asked behind the commands.
            busy = [self._logs[each] for each in self._busy if each in self._logs]
            self._root.store.at_once([
                partial(self._commands.fetch, start.commands, stop), *(each.ask for each in busy)
            ])  # fmt: skip
            read = self._commands.read(start.commands, stop)
            for ledger_id, together in groupby(read, key=lambda stored: stored.ledger_id):
                records = [each.record for each in together]
                is_new = (
                    each.about.partition >= seen.get(each.about.topic, inf) for each in records
                )
                if ledger_id > start.commands and any(is_new):
                    stop = ledger_id  # what is new on partition 0 is made there first
                    break
                for record in records:
                    about = record.about
                    hosted.setdefault(about, NO_COMMIT)
                    self._missing.pop(about.topic, None)  # who speaks of it has seen it
                    count = _partitions_seen(record) if about.partition == 0 else None
                    if count is not None:
                        seen[about.topic] = min(count, seen.get(about.topic, count))
        self._commands_read = stop
        unread_ms = None
        if stop < there:
            unread_ms = next(self._commands.read(stop, stop + 1)).publish_time_ms
        return stop, hosted, seen, unread_ms

    def _to_look_at(
        self,
        hosted: Mapping[TopicPartition, int],
        seen: Mapping[str, int],
        tried: AbstractSet[TopicPartition],
        resting: AbstractSet[TopicPartition],
    ) -> set[str]:
        """The topics whose logs may have news: a few, however many are hosted."""
        topics = dict.fromkeys(each.topic for each in hosted if each not in resting)
        unknown = topics.keys() - self._logs.keys()
        waiting = self._growing | seen.keys() | {each.topic for each in tried}
        undecided = {each for each, log in self._logs.items() if log.is_undecided}
        self._busy = self._news.busy(topics) | unknown | ((waiting | undecided) & topics.keys())
        return self._busy

    def _logs_of(self, topics: set[str]) -> tuple[dict[str, int], dict[str, str]]:
        """(the last commit of each topic that exists, the errors of those that can't be read)."""
        numbers: dict[str, int] = {}
        errors: dict[str, str] = {}

        def look(topic: str) -> None:
            try:
                ledger = self._log_of(topic)
                if ledger is not None:
                    numbers[topic] = self._seen[topic] = ledger.state.number
            except Exception as error:  # noqa: BLE001 - the other topics go on
                errors[topic] = described(error)

        for _ in self._root.store.answers(look, sorted(topics)):
            pass
        return numbers, errors

    def _policies(self, topics: Iterable[str], base: BrokerOffset) -> dict[str, Mapping[str, Any]]:
        """What the namespaces of these topics say, and those that the offset knows of."""
        found = dict(base.policies)
        for namespace in {TopicName.parse(topic).namespace for topic in topics}:
            name = str(namespace)
            found[name] = self._namespaces.policies(namespace, base.policies.get(name))
        return {name: said for name, said in found.items() if said}

    def _log_of(self, topic: str) -> ManagedLedger | None:
        """Its log, also if it is deleted; None if there never was such a topic."""
        ledger = self._logs.get(topic)
        with suppress(TopicDeletedError):
            if ledger is not None:
                ledger.refresh()
                return ledger
        now_s = self._clock.monotonic_s()
        if now_s < self._missing.get(topic, 0.0):
            return None
        ledger = self._root.open_log(TopicName.parse(topic))
        if ledger is None:
            self._missing[topic] = now_s + MISSING_EVERY_S
            return None
        self._logs[topic] = ledger
        return ledger

    def _grown(
        self,
        base: BrokerOffset,
        hosted: dict[TopicPartition, int],
        logs: Mapping[str, int],
        seen: Mapping[str, int],
    ) -> tuple[dict[str, int], dict[TopicPartition, tuple[str, ...]]]:
        """(number of partitions by topic, subscriptions to make on new partitions).

        As in Pulsar these are the durable subscriptions of the first partition. New partitions join
        `hosted`. A topic that grew behind a subscriber's back counts as `seen` until that one's
        subscription is known too: at the next look.
        """
        partitions, created = dict(base.partitions), dict[TopicPartition, tuple[str, ...]]()
        self._growing = set()
        for topic in logs:
            first = TopicPartition(topic, 0)
            state = self._logs[topic].state
            there = state.partitions
            known = partitions.get(topic, there)
            if state.incarnation > max(base.hosted.get(TopicPartition(topic, 0), 0), 0):
                known = there  # another topic than the one that had so many
            if known < there and first in base.hosted:
                new = [TopicPartition(topic, number) for number in range(known, there)]
                if (durable := self._durable.get(first)) is None:  # it has yet to say what there is
                    there = known
                    if first in base.aside and any(each not in base.hosted for each in new):
                        durable = self._durable_as_stored(first)
                if durable:
                    hosted.update((each, NO_COMMIT) for each in new if each not in hosted)
                    created.update(dict.fromkeys(new, durable))
            partitions[topic] = min(there, seen.get(topic, there))
            if partitions[topic] < state.partitions:
                self._growing.add(topic)
        for topic in seen.keys() - logs.keys():  # it can't be read just now
            partitions[topic] = min(seen[topic], partitions.get(topic, seen[topic]))
        return partitions, created

    def _durable_as_stored(self, about: TopicPartition) -> tuple[str, ...]:
        """The durable subscriptions of a broker that is set aside, and so says nothing."""
        with suppress(PulsarliteError):  # it may be why it is aside
            shards = last_shards(self._dispatch, self._dispatch_read)[1].get(about, {})
            held = from_shards(shards).subscriptions.values() if shards else ()
            return tuple(each.name for each in held if each.durable)
        return ()

    def _lapsed(self, aside: Mapping[TopicPartition, Aside], late_s: float) -> tuple[Lease, ...]:
        """The consumers whose leases are over, and where: but not where a broker is set aside.

        A lease of which no broker knows the consumer is forgotten: if it comes, it writes again.
        """
        if self._clock.monotonic_s() < self._look_at_leases_s + late_s:
            return ()
        known: dict[str, Lease] = {}
        for about, consumers in sorted(self._consumers.items()):
            for each in consumers if about not in aside else ():
                held = known.setdefault(each.path, each)
                known[each.path] = replace(held, partitions=(*held.partitions, about))
        store = self._root.store
        written = leases(store)
        self._read_leases(written)
        self._call(known)
        signs = {**dict.fromkeys(known), **written}
        over = self._watch.lapsed(signs, self._lease_ms)
        now_s = self._clock.monotonic_s()
        self._look_at_leases_s = now_s + LEASES_EVERY_S
        if store.remote:
            look_s = self._watch.look_by_s(signs, self._lease_ms) if signs else inf
            self._look_at_leases_s = max(self._look_at_leases_s, look_s)
        for path in over:
            if path not in known and self._leases[path] is not None:
                store.delete(path)
        return tuple(known[path] for path in over if path in known)

    def _read_leases(self, written: Mapping[str, int]) -> None:
        """Read the files that are new; over a network a consumer may have made its lease longer."""
        store, before = self._root.store, self._written
        same = {
            path for path, held in self._leases.items()
            if held is not None and (not store.remote or before.get(path) == written.get(path))
        }  # fmt: skip
        new = [path for path in written if path not in same]
        found = dict(zip(new, store.answers(partial(read_lease, store), new), strict=True))
        self._leases = {
            path: found[path] if path in found else self._leases[path] for path in written
        }
        for path in new:  # who was called has answered
            self._called.pop(path, None)
        self._written = dict(written)

    def _call(self, known: Mapping[str, Lease]) -> None:
        """Expect those to show life that rest, and whose topics have news: else they are gone."""
        for path, each in known.items():
            held = self._leases.get(path)
            rests = held is not None and held.lease_ms > each.lease_ms
            if rests and path not in self._called and not self._moved.isdisjoint(each.partitions):
                quiet_ms = ceil(self._watch.quiet_s(path) * 1000)
                self._called[path] = quiet_ms + each.lease_ms + CALL_MS
        self._moved.clear()

    def _lease_ms(self, path: str) -> int:
        lease = self._leases.get(path)
        lease_ms = DEFAULT_LEASE_MS if lease is None else lease.lease_ms
        return min(lease_ms, self._called.get(path, lease_ms))

    def _snapshot_is_due(self) -> bool:
        if self._snapshot_at is None:
            self._snapshot_at = self._dispatch.first_ledger() if self._dispatch.exists() else 0
        if self._dispatch_read - self._snapshot_at < SNAPSHOT_EVERY:
            return False
        self._snapshot_at = self._dispatch_read
        return True

    def pause_s(self) -> float:
        """The pause before the next look: it ends when a broker is due, at the latest."""
        news_s = max(self._news_s, self._news.newest_s)
        pause = pause_s(self._clock.monotonic_s() - news_s, remote=self._root.store.remote)
        if not self._due:
            return pause
        return max(0.001, min(pause, (min(self._due.values()) - self._clock.wall_ms()) / 1000))


def _without(offset: BrokerOffset, topic: str) -> BrokerOffset:
    """The offset without a topic that is deleted."""
    return replace(
        offset,
        hosted={each: number for each, number in offset.hosted.items() if each.topic != topic},
        partitions={each: number for each, number in offset.partitions.items() if each != topic},
        aside={each: aside for each, aside in offset.aside.items() if each.topic != topic},
    )


def _partitions_seen(record: Record) -> int | None:
    """The number of the topic's partitions that a Subscribe names; None in any other command."""
    if not record.data.startswith(b'{"$":"Subscribe",'):  # others are long: not decoded
        return None
    try:
        command = record.item()
    except PulsarliteError:  # its broker leaves it out, and says so
        return None
    return command.partitions if isinstance(command, Subscribe) else None
