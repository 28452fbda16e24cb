"""What was promised, held against what users saw; it asks the code under test for nothing else.

It knows what was published and confirmed, what each sink was given and when, what was acknowledged
or given back, who showed life when. A message that comes twice needs something that explains it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.hosting.broker_rows import QUARANTINED
from pulsar_spark.broker.protocol.commands import Seek
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.dead_letter import ORIGIN_MESSAGE_ID, REAL_TOPIC
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position import LATEST
from pulsar_spark.model.topic_name import TopicName
from tests.connector.reading import Message, Run
from tests.torture.place import ADMIN

if TYPE_CHECKING:
    from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
    from tests.torture.queries import Checkpoint, Consumer, Rows
    from tests.torture.world import World

Id = tuple[str, int, int, int, int]
"""Topic, partition, ledger, entry, batch index."""
States = dict[tuple[str, int], BrokerState]
"""(topic, partition) -> its broker's state."""
FOREVER = 1 << 60


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass
class Stored:
    """A message as a Reader found it."""

    id: Id
    value: str
    key: str | None
    publish_ms: int
    deliver_at_ms: int | None
    origin: tuple[str, str] | None
    at: int
    trimmed: bool = False


@dataclass
class Delivery:
    """A message in a sink. Moments count what happened, `_ms` is time."""

    consumer: str
    batch: tuple[str, int]
    planned: int
    at: int
    at_ms: int
    attempt: int


@dataclass
class Asked:
    """A seek or a rejection, from when it was asked for until the broker had done it."""

    place: tuple[str, int]
    """Topic, partition."""
    at: int
    commands: int = FOREVER
    """Where `__commands` ended behind it; not known of what was killed on the way."""
    done: int = FOREVER
    not_before_ms: int = 0
    """Of a rejection: when the delay that it asked for is over, by whatever clock is ahead."""
    seek: Seek | None = None

    def overlaps(self, since: int, until: int) -> bool:
        return self.at <= until and self.done >= since

    def passes(self, each: Stored, last_earlier: Id | None) -> bool:
        """Whether a seek leaves a message behind that was there when it was done."""
        if self.seek is None or each.id[:2] != self.place:
            return False
        if self.seek.timestamp_ms is None:
            return self.seek.position == LATEST
        return last_earlier is not None and each.id <= last_earlier


@dataclass
class Followed:
    """What is known of one subscription."""

    name: str
    topics: tuple[str, ...]
    shared: bool
    ordered: bool
    ack_timeout_ms: int = 0
    max_redeliver_count: int | None = None
    delays: bool = True
    rewinds: bool = False
    """Failover: who becomes active begins behind what is acknowledged."""
    changed: list[int] = field(default_factory=list)
    """When consumers came or went."""
    passed: set[Id] = field(default_factory=set)
    """What a seek may have left behind."""
    deliveries: dict[Id, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    claimed: set[Id] = field(default_factory=set)
    rejected: dict[Id, list[Asked]] = field(default_factory=lambda: defaultdict(list))
    sought: list[Asked] = field(default_factory=list)
    skipped: list[Asked] = field(default_factory=list)
    given_back: dict[str, list[Asked]] = field(default_factory=lambda: defaultdict(list))
    """Of a consumer, all that it held."""
    first_of_key: dict[tuple[str, int, str], Id] = field(default_factory=dict)
    dead_letters: dict[Id, int] = field(default_factory=dict)
    """When a message became a dead letter."""


class Oracle:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.followed: dict[str, Followed] = {}
        self.stored: dict[Id, Stored] = {}
        self.by_value: dict[str, Stored] = {}
        self.values_sent: set[str] = set()
        self.values_confirmed: set[str] = set()
        self.batches: dict[tuple[str, int], dict[Id, Message]] = {}
        self.begun_times: dict[tuple[str, int], int] = defaultdict(int)
        self.read: dict[tuple[str, int], dict[Id, int]] = {}
        """What a micro-batch had when it was first read, and when each message was planned."""
        self.withheld: set[tuple[str, int]] = set()
        self.ttl_ms: dict[str, int] = {}
        """Of topics that have had such a policy."""
        self.gone_at: dict[str, list[int]] = defaultdict(list)
        self.known: dict[tuple[str, int, str, str], int] = {}
        """(topic, partition, subscription, consumer) -> the incarnation that the broker knows."""
        self.reports_lost: dict[str, int] = defaultdict(int)
        """Subscription -> how often somebody died who may have reported a batch."""
        self.unlogged_ms: dict[str, list[int]] = defaultdict(list)
        self._readers: dict[str, Run] = {}
        self._looked_at = -1
        self._moment = 0

    def now(self) -> int:
        """A new moment, behind all that were."""
        self._moment += 1
        return self._moment

    def fail(self, text: str) -> None:
        raise ViolationError(text)

    # -- publishing ------------------------------------------------------------------------------

    def sent(self, rows: Rows) -> None:
        self.values_sent |= {row["value"].decode() for row in rows}

    def confirmed(self, rows: Rows) -> None:
        self.look()
        for row in rows:
            value = row["value"].decode()
            if value not in self.by_value:
                self.fail(f"{value} was published and confirmed, and is not there")
            self.values_confirmed.add(value)

    def look(self) -> None:
        """Read what is new in all topics, as nobody who could be in trouble."""
        published = self.world.store.published
        if published != self._looked_at:
            with self.world.clock.acting(ADMIN), self.world.store.nearby():
                self._poll()
        self._looked_at = published

    def _poll(self) -> None:
        for topic in self.world.all_topics():
            reader = self._readers.get(topic)
            if reader is None:
                reader = self._readers[topic] = Run(
                    self.world.root.service_url, topic=topic, startingOffsets="earliest",
                    includeProperties=True, failOnDataLoss=False, topicDiscoveryInterval="0",
                )  # fmt: skip
            while (batch := reader.next()) is not None:
                for row in batch.messages:
                    self._store(row)

    def _store(self, row: Message) -> None:
        properties = dict(row["properties"] or ())
        origin = None
        if ORIGIN_MESSAGE_ID in properties:
            origin = (properties[REAL_TOPIC], properties[ORIGIN_MESSAGE_ID])
        at = row["deliver_at"]
        stored = Stored(
            id_of(row), row["value"].decode(), row["key"],
            int(row["publish_time"].timestamp() * 1000),
            None if at is None else int(at.timestamp() * 1000), origin, self.now(),
        )  # fmt: skip
        self.stored[stored.id] = stored
        if stored.value not in self.values_sent:
            self.fail(f"{stored.value} was published by nobody")
        if is_dead_letter(stored.id[0]):
            self._dead_letter(stored)
        elif not is_retry(stored.id[0]):
            if stored.value in self.by_value:
                self.fail(f"{stored.value} is there twice: {self.by_value[stored.value]}, {stored}")
            self.by_value[stored.value] = stored

    def _dead_letter(self, letter: Stored) -> None:
        followed = self.followed["s"]
        assert followed.max_redeliver_count is not None
        original = self._original(letter)
        before = followed.dead_letters.get(original.id, FOREVER)
        if before < FOREVER and not any(each.done >= before for each in followed.sought):
            self.fail(f"{original} became a dead letter twice")
        for each in self.stored.values():  # a retry's letter names what that was a copy of
            if each.id == original.id or (is_retry(each.id[0]) and each.value == letter.value):
                followed.dead_letters[each.id] = self.now()
                followed.claimed.add(each.id)
        given = len(followed.deliveries[original.id])
        if not given + self.reports_lost["s"]:
            self.fail(f"{original} became a dead letter, and nobody was given it")

    def _original(self, letter: Stored) -> Stored:
        """The message of a subscribed topic that was copied last: perhaps itself a retry."""
        assert letter.origin is not None
        topic, text = letter.origin
        origin = MessageId.parse(text)
        place = (topic, origin.partition, origin.ledger_id, origin.entry_id)
        for each in self.stored.values():
            if each.value == letter.value and each.id[:4] == place:
                return each
        self.fail(f"{letter} is a copy of nothing that was published")
        raise AssertionError

    # -- consuming -------------------------------------------------------------------------------

    def begun(self, consumer: Consumer, number: int) -> None:
        self.begun_times[consumer.checkpoint.query_id, number] += 1

    def logged(self, consumer: Consumer, number: int, rows: Iterable[Message]) -> None:
        """Its query was killed behind Spark's log and before it read a batch of these rows.

        The batch may be withheld when it is first read; what is tried apart of it was planned then.
        """
        batch = (consumer.checkpoint.query_id, number)
        at = consumer.planned_at[number]
        self.read.setdefault(batch, {id_of(row): at for row in rows})

    def reads(self, consumer: Consumer, number: int, rows: Iterable[Message]) -> None:
        """Its query has these rows. One that was begun often, or is a trial, may be withheld."""
        batch = (consumer.checkpoint.query_id, number)
        found = {id_of(row) for row in rows}
        if batch not in self.read:
            self.read[batch] = {each: self._planned(consumer, number, each) for each in found}
            return
        had, at = self.read[batch], consumer.planned_at[number]
        if more := found - had.keys():
            self.fail(f"batch {batch} is repeated with more than it had: {more}")
        is_trial = any(planned < at for planned in had.values())
        allowed: int = consumer.given.get("maxBatchAttempts", 3)
        if not found and (is_trial or self.begun_times[batch] >= allowed):
            self.withheld.add(batch)

    def _planned(self, consumer: Consumer, number: int, which: Id) -> int:
        """When a batch's message was planned; one tried apart, with the batch that is withheld."""
        for earlier in reversed(range(number)):
            batch = (consumer.checkpoint.query_id, earlier)
            if which in self.read.get(batch, ()):
                if batch in self.withheld:
                    return self.read[batch][which]
                break
        return consumer.planned_at[number]

    def settled(self, consumer: Consumer, last: int) -> None:
        """Spark asks for the batch behind `last`: all up to it is committed."""
        if not consumer.manual:
            followed = self.followed[consumer.subscription]
            for number in consumer.checkpoint.committed:
                if number <= last:
                    followed.claimed |= set(
                        self.batches.get((consumer.checkpoint.query_id, number), ())
                    )

    def acknowledging(self, subscription: str, rows: Rows) -> list[Asked]:
        """From now on these may be taken in, whether or not that is confirmed; the rejections."""
        followed, at = self.followed[subscription], self.now()
        asked = []
        for row in rows:
            which = id_of(row)
            if row["ack_type"] == "Cumulative":  # whether or not somebody had it
                up_to = {each for each in self.stored if each[:2] == which[:2] and each <= which}
                followed.claimed |= up_to
                followed.passed |= up_to
                continue
            if row["ack_type"] in ("Individual", "ReconsumeLater"):
                followed.claimed.add(which)
            if row["ack_type"] != "Individual":
                due_ms = self.world.clock.elapsed_ms + (row.get("delay_ms") or 0)
                rejected = Asked(which[:2], at, not_before_ms=due_ms - self.world.most_ahead_ms)
                followed.rejected[which].append(rejected)
                asked.append(rejected)
                followed.ordered = False
        return asked

    def giving_back(self, consumer: Consumer) -> list[Asked]:
        """It asks for all that it has not acknowledged."""
        at = self.now()
        asked = [Asked(place, at) for place in self.world.partitions(self.world.all_topics())]
        self.followed[consumer.subscription].given_back[consumer.name] += asked
        return asked

    def latest_is_now(self, partitions: int) -> None:
        """What is there need not be delivered, but of the partitions that a topic grew by."""
        self.look()
        for followed in self.followed.values():
            followed.passed |= {each for each in self.stored if each[1] < partitions}

    def gone(self, consumer: Consumer) -> None:
        """What it had may be delivered again."""
        self.gone_at[consumer.name].append(self.now())

    def restored(self, old: Checkpoint, new: Checkpoint) -> None:
        """What was committed is committed under another name."""
        for number in new.committed:
            before, batch = (old.query_id, number), (new.query_id, number)
            self.batches[batch] = self.batches.get(before, {})
            self.read[batch] = self.read.get(before, {})
            if before in self.withheld:
                self.withheld.add(batch)

    def unlogged(self, consumer: Consumer) -> None:
        """It died, and may have said of a batch that it would deliver it."""
        self.reports_lost[consumer.subscription] += 1
        self.unlogged_ms[consumer.name].append(self.world.clock.elapsed_ms)

    def sought(
        self, subscription: str, commands: int, seek: Seek, partitions: Iterable[tuple[str, int]]
    ) -> None:
        followed, at = self.followed[subscription], self.now()
        followed.sought += [Asked(place, at, commands, seek=seek) for place in partitions]
        followed.ordered = False

    def skipped(
        self, subscription: str, commands: int, partitions: Iterable[tuple[str, int]]
    ) -> None:
        """What is there when that is done may be left behind; it explains no delivery."""
        to_the_end, at = Seek(subscription, LATEST), self.now()
        self.followed[subscription].skipped += [
            Asked(place, at, commands, seek=to_the_end) for place in partitions
        ]

    def policy_changes(self, topic: str, name: str, value: Any) -> None:
        """Nothing waits where delays are off; what has lived for long enough may expire."""
        if name == "delayed_delivery":
            for followed in self.followed.values():
                followed.delays = False
        if name == "message_ttl_ms":
            self._expire()  # by the one that there was
            self.ttl_ms[topic] = value

    def _expire(self) -> None:
        latest_ms = self.world.clock.elapsed_ms + self.world.most_ahead_ms
        for topic, ttl_ms in self.ttl_ms.items():
            old = {each.id for each in self.stored.values() if each.id[0] == topic
                   and 0 < ttl_ms <= latest_ms - each.publish_ms}  # fmt: skip
            for followed in self.followed.values():
                followed.passed |= old

    def delivered(self, consumer: Consumer, number: int, rows: Iterable[Message]) -> None:
        """A sink gets a micro-batch; one that it has had it leaves alone."""
        batch = (consumer.checkpoint.query_id, number)
        followed = self.followed[consumer.subscription]
        found: dict[Id, Message] = {}
        for row in rows:
            which = id_of(row)
            if which in found:
                self.fail(f"{which} is twice in batch {batch}")
            found[which] = row
        before = self.batches.get(batch)
        if before is not None:
            self._check_repeated(followed, batch, before, found)
            return
        self.batches[batch] = found
        if found.keys() - self.stored.keys():
            self.look()
        at = self.now()
        new: dict[Id, Delivery] = {}
        for which, row in found.items():
            stored = self.stored.get(which)
            if stored is None or stored.value != row["value"].decode():
                self.fail(f"{row} was delivered, and {stored} was published")
                return
            delivery = Delivery(
                consumer.name, batch, self.read[batch][which], at,
                self.world.clock.elapsed_ms, row["attempt"],
            )  # fmt: skip
            new[which] = delivery
            self._check_time(followed, stored)
            for earlier in followed.deliveries[which]:
                if not self._is_explained(followed, which, earlier, delivery):
                    self.fail(f"{stored} was delivered twice:\n  {earlier}\n  {delivery}")
        self._check_keys(followed, batch, found)
        for which, delivery in new.items():
            followed.deliveries[which].append(delivery)

    def _check_repeated(
        self, followed: Followed, batch: tuple[str, int], before: dict[Id, Message],
        again: dict[Id, Message],
    ) -> None:  # fmt: skip
        for which in before.keys() - again.keys() - followed.claimed - followed.passed:
            if batch not in self.withheld:
                self.fail(f"{which} is not in batch {batch} any more, and nobody is done with it")

    def _is_explained(
        self, followed: Followed, which: Id, earlier: Delivery, later: Delivery
    ) -> bool:
        for each in (earlier, later):
            if any(each.planned <= at <= later.at for at in self.gone_at[each.consumer]):
                return True
            if each.batch in self.withheld:
                return True
        since = min(earlier.planned, later.planned)
        if followed.rewinds and any(since <= at <= later.at for at in followed.changed):
            return True
        back = (each for one in (earlier, later) for each in followed.given_back[one.consumer])
        mine = (each for each in back if each.place == which[:2])
        asked = [*followed.rejected[which], *followed.sought, *mine]
        if any(each.overlaps(since, later.at) and each.not_before_ms <= later.at_ms
               for each in asked):  # fmt: skip
            return True
        # A timeout runs from when a delivery was announced, also by who died before it was made.
        announced_ms = [self._planned_ms(earlier), *self.unlogged_ms[earlier.consumer]]
        waited_ms = later.at_ms - min(announced_ms)
        return 0 < followed.ack_timeout_ms <= waited_ms

    def _planned_ms(self, delivery: Delivery) -> int:
        return self.world.moments_ms.get(delivery.batch, delivery.at_ms)

    def _check_time(self, followed: Followed, stored: Stored) -> None:
        if stored.deliver_at_ms is None or not followed.delays:
            return
        latest_ms = self.world.clock.elapsed_ms + self.world.most_ahead_ms
        if stored.deliver_at_ms > latest_ms:
            self.fail(f"{stored} was delivered {stored.deliver_at_ms - latest_ms} ms early")

    def _check_keys(
        self, followed: Followed, batch: tuple[str, int], found: dict[Id, Message]
    ) -> None:
        last: dict[tuple[str, int, str], Id] = {}
        for which in sorted(found):
            stored = self.stored[which]
            if stored.key is None or stored.deliver_at_ms or followed.deliveries[which]:
                continue
            key = (*which[:2], stored.key)
            before = followed.first_of_key.get(key)
            if followed.ordered and before is not None and which < before:
                self.fail(f"{stored} came first in {batch}, behind {self.stored[before]}")
            last[key] = max(which, last.get(key, which))
        for key, each in last.items():
            followed.first_of_key[key] = max(each, followed.first_of_key.get(key, each))

    # -- the broker ------------------------------------------------------------------------------

    def turned(self, broker: EmbeddedBroker) -> None:
        """The broker has made a batch."""
        self.begun_anew(broker)
        quarantined = {(row.topic, row.partition) for row in broker.done if row.kind == QUARANTINED}
        quarantined |= {(each.topic, each.partition) for each in broker.hosted.quarantined}
        for followed in self.followed.values():
            reported = (*followed.rejected.values(), *followed.given_back.values())
            asked = (each for asked in reported for each in asked)
            for each in (*followed.sought, *followed.skipped, *asked):
                taken_in = (
                    broker.offset.commands[1] >= each.commands and each.place not in quarantined
                )
                if each.done == FOREVER and taken_in:
                    each.done = self.now()
                    self._pass(followed, each)
        self._expire()
        self._check_trimmed()

    def begun_anew(self, broker: EmbeddedBroker) -> None:
        """It has perhaps repeated a batch. What that had set aside it says at its first turn."""
        states = _states(broker)
        self._check_states(broker, states)
        self._follow_consumers(states)
        self.look()

    def _pass(self, followed: Followed, asked: Asked) -> None:
        """A seek is done: what was there before may be left behind, and nothing else."""
        if asked.seek is None:
            return
        last_earlier: dict[tuple[str, int], Id] = {}
        for each in self.stored.values():
            if each.publish_ms < (asked.seek.timestamp_ms or 0):
                place = each.id[:2]
                last_earlier[place] = max(each.id, last_earlier.get(place, each.id))
        followed.passed |= {
            each.id for each in self.stored.values()
            if asked.passes(each, last_earlier.get(each.id[:2]))
        }  # fmt: skip

    def _check_states(self, broker: EmbeddedBroker, states: States) -> None:
        for key, state in states.items():
            try:
                state.check()
            except AssertionError as error:  # noqa: PERF203 - it says whose state it is
                self.fail(f"the broker of {key} holds {error}")
        for row in broker.done:
            if row.kind == QUARANTINED and b"schedule" not in row.data:
                self.fail(f"{row.topic}-{row.partition} was set aside: {row.data.decode()}")

    def _follow_consumers(self, states: States) -> None:
        now = {key: each for key, each in self.known.items() if key[:2] not in states}
        for (topic, partition), state in states.items():
            for subscription in state.subscriptions.values():
                for each in subscription.consumers.values():
                    now[topic, partition, subscription.name, each.name] = each.incarnation
        for key, incarnation in self.known.items():
            if now.get(key) != incarnation:
                self._changed(key, incarnation, gone=key not in now)
        for key in self.known.keys() ^ now.keys():
            self.followed[key[2]].changed.append(self.now())
        self.known = now

    def _changed(self, key: tuple[str, int, str, str], incarnation: int, *, gone: bool) -> None:
        subscription, name = key[2:]
        consumer = self.world.consumers[name]
        touched_ms = self.world.store.touched[Lease(subscription, name, incarnation).path]
        quiet_ms = self.world.clock.elapsed_ms - touched_ms
        if quiet_ms >= self.world.lease_ms:
            self.gone_at[name].append(self.now())
            if consumer.is_running:
                self.followed[subscription].ordered = False
        elif gone and name not in self.world.leaving:
            self.fail(f"{name} was given up on {key[:2]}, having shown life {quiet_ms} ms ago")

    def _check_trimmed(self) -> None:
        for topic in self.world.topics:
            state = self.world.root.open(TopicName.parse(topic)).state
            there = {
                (partition, ledger.ledger_id)
                for partition in range(state.partitions)
                for ledger in state.ledgers(partition)
            }
            for each in self.stored.values():
                if each.id[0] != topic or each.trimmed or each.id[1:3] in there:
                    continue
                each.trimmed = True
                for followed in self.followed.values():
                    if topic not in followed.topics:
                        continue
                    if each.id not in followed.claimed | followed.passed:
                        self.fail(f"{each} was trimmed, and {followed.name} is not done with it")

    # -- the end ---------------------------------------------------------------------------------

    def missing(self) -> list[tuple[str, Stored]]:
        """What no sink of a subscription has seen, or that nobody is done with."""
        self.look()
        found = []
        for followed in self.followed.values():
            for each in self.stored.values():
                mine = each.id[0] in followed.topics or (
                    followed.name == "s" and is_retry(each.id[0])
                )
                done = each.id in followed.claimed
                seen = bool(followed.deliveries[each.id]) or each.id in followed.dead_letters
                if mine and not (done and seen) and each.id not in followed.passed:
                    found.append((followed.name, each))
        return found


def _states(broker: EmbeddedBroker) -> States:
    """Of what it hosts. Those too that it has found stored, and not decoded yet."""
    return {
        key: from_shards(hosted.shards) if hosted.state is None else hosted.state
        for key, hosted in broker.brokers.items()
        if hosted.shards
    }


def id_of(row: Any) -> Id:
    """Of a message, or of a row that acknowledges one."""
    return (
        row["topic"], row["partition"], row["ledger_id"], row["entry_id"], row["batch_index"],
    )  # fmt: skip


def is_dead_letter(topic: str) -> bool:
    return topic.endswith("-DLQ")


def is_retry(topic: str) -> bool:
    return topic.endswith("-RETRY")
