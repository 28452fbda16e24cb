"""A consumer's talk with the broker: it speaks in `__commands`, and listens in `__dispatch`.

Invariants: a lease is written before anybody hears of the consumer; commands of one moment are one
commit; records of `__dispatch` that were trimmed unheard are asked for again; an older run under
the same name learns that it was replaced and stops; a run whose lease had lapsed subscribes again.
Follows Pulsar's `ConsumerImpl` and its `ClientCnx`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from pulsar_spark.broker.protocol.commands import CloseConsumer, InitialPosition
from pulsar_spark.broker.protocol.ready import Reply, Stepped
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.system_topics.lease import (
    HEARTBEAT_PATH,
    Lease,
    LeaseKeeper,
    leases,
    read_lease,
)
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.storage.process_identity import UNKNOWN
from pulsar_spark.consumer.admission import Pace
from pulsar_spark.consumer.partition_consumer import PartitionConsumer
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.errors import (
    BrokerRefusedError,
    ConsumerBusyError,
    ConsumerReplacedError,
    PulsarliteError,
    ServerError,
    TopicDeletedError,
)
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.consumer_options import permits_of, subscribe_command

WARN_AFTER_S, REMOTE_WARN_AFTER_S, WARN_EVERY_S = 5.0, 30.0, 30.0
"""Seconds of a broker's silence before the log warns, and between two warnings."""
GONE = frozenset(
    {
        ServerError.CONSUMER_REPLACED,
        ServerError.CONSUMER_NOT_FOUND,
        ServerError.SUBSCRIPTION_NOT_FOUND,
    }
)
"""Refusals of a consumer that was let in before: it subscribes again."""
NO_TOPIC = ServerError.TOPIC_NOT_FOUND
LastReports = Callable[[], Mapping[TopicPartition, Any]]
"""-> what a consumer that leaves has to report, by partition."""

_log = logging.getLogger(__name__)


class SubscriptionClient:
    """One run of a consumer, over all its topic partitions."""

    def __init__(
        self,
        topics: SubscribedTopics,
        begun: StreamOffset,
        last_reports: LastReports,
        pace: Pace | None = None,
        *,
        prefetches: bool = False,
        process: str = UNKNOWN,
    ) -> None:
        """Sends nothing. `begun` names the consumer; it is the offset of an earlier run, or empty.

        Messages that it names were granted before, and stay granted; all else begins anew. The
        broker is told whether the host `prefetches`.
        """
        self._pace, self._prefetches, self._process = pace, prefetches, process
        self._topics, self._options, self._root = topics, topics.options, topics.root
        self._last_reports = last_reports
        self.name = begun.consumer
        self._resumes = {partition for partition, _ in begun.items()}
        self._is_new = not self._resumes and not begun.incarnation
        """True if no run of this consumer has subscribed to anything."""
        self.committed = begun
        """The latest offset that Spark has committed, or is about to repeat."""
        self.subscription: str = self._options["subscriptionName"]
        self.consumers: dict[TopicPartition, PartitionConsumer] = {}
        self.stepped: dict[TopicPartition, Stepped] = {}
        self._reported: set[TopicPartition] = set()
        """The partitions that are not as they were when `take_changed` was asked last."""
        self._unjudged: set[TopicPartition] = set()
        """The partitions that received an answer which may be a refusal, not handled yet."""
        self._known: Mapping[TopicPartition, Any] = {}
        """The partitions of the topics to which it has subscribed."""
        self._unsubscribed: set[TopicPartition] = set()
        """The partitions where a Subscribe failed: it is sent again."""
        self._commands = SystemTopic(self._root, COMMANDS)
        self._dispatch = SystemTopic(self._root, DISPATCH)
        self._observed = self._dispatch.refresh()
        self._keeper = LeaseKeeper(self._root.store)
        self.incarnation = self._next_incarnation(begun.incarnation)
        self.requests = count(1)
        """The numbers of its next requests."""
        self.active_broker_s = self._root.clock.monotonic_s()
        """When the broker was last heard, whatever it said."""
        self._warn_at_s: float | None = None
        self._heartbeat_ms: int | None = None
        """When the broker's sign of life was written, as of the last time that it was silent."""
        self.is_closed = False

    # -- saying ------------------------------------------------------------------------------

    def subscribe(self) -> None:
        """Subscribe to all partitions of its topics, unless that was done before."""
        there = self._topics.partitions()
        if there is self._known and not self._unsubscribed:
            return
        for gone in [
            topic_partition
            for topic_partition in self.consumers
            if not self._exists(topic_partition)
        ]:
            del self.consumers[gone]
            self.stepped.pop(gone, None)
            self._resumes.discard(gone)
        new = [each for each in there if each not in self.consumers or each in self._unsubscribed]
        self._unsubscribed.intersection_update(new)
        if new:
            self._subscribe(new)
        self._is_new, self._known = False, there

    def send(self, *commands: Mapping[TopicPartition, Any]) -> None:
        """Append these commands to `__commands`, as one commit."""
        self._commands.append(
            Record.of(topic_partition, self.subscription, command)
            for each in commands
            for topic_partition, command in each.items()
        )
        if self._warn_at_s is None:
            self._warn_at_s = self._root.clock.monotonic_s() + self._warn_after_s

    def permits(self) -> int:
        """The number of messages of each partition that the consumer may hold."""
        return self._permits(len(self.consumers))

    def close(self) -> None:
        """Send the last reports and leave, also where the broker has not answered yet."""
        asked = [
            each for each, one in self.consumers.items() if one.connected or one.refusal is None
        ]
        self._report_and_leave(asked)

    def leave(self) -> None:
        """Send nothing more, and let the lease end: the broker knows that the consumer is gone."""
        self._keeper.stop(remove=True)
        self.is_closed = True

    def abandon(self) -> Lease | None:
        """Send nothing more and show no life; the lease that will lapse, if it has one."""
        self.is_closed = True
        return self._keeper.stop()

    # -- hearing -----------------------------------------------------------------------------

    def observe(self) -> bool:
        """Take in the broker's news; False if none was for this consumer.

        ConsumerReplacedError if a newer run has its name; BrokerRefusedError if the broker does
        not let it in.
        """
        stop = self._dispatch.refresh()
        if stop <= self._observed:
            self._check_refusals()
            self._warn_if_waiting()
            return False
        self.active_broker_s, self._warn_at_s = self._root.clock.monotonic_s(), None
        trimmed_up_to = self._dispatch.open().state.partition(0).trimmed_up_to
        if trimmed_up_to.ledger_id >= self._observed:
            _log.warning("Consumer %s was too far behind the broker: it asks again", self.name)
            self._observed = stop
            self._resumes |= {
                topic_partition
                for topic_partition, each in self.consumers.items()
                if each.connected
            }
            self._subscribe(list(self.consumers))
            return False
        reported: set[TopicPartition] = set()
        mine = ("", self.subscription)
        for stored in self._dispatch.read(
            self._observed,
            stop,
            keep=lambda topic_partition, name: topic_partition in self.consumers and name in mine,
        ):
            topic_partition, item = stored.record.topic_partition, stored.record.item()
            if isinstance(item, Stepped):
                self.stepped[topic_partition] = item
            else:
                self.consumers[topic_partition].observe(item)
            reported.add(topic_partition)
        self._observed = stop
        self._reported |= reported
        self._unjudged |= reported
        self._check_refusals()
        return bool(reported)

    def take_changed(self) -> set[TopicPartition]:
        """The partitions of which something was heard or asked since the last call."""
        reported, self._reported = self._reported, set()
        return reported

    @property
    def is_ahead(self) -> bool:
        """True if the broker has just told of messages that no look at a log has found."""
        topics = self._topics
        observed = (
            (topic_partition, self.stepped.get(topic_partition))
            for topic_partition in self._reported
            if topics.is_open(topic_partition)
        )
        return any(
            step is not None and step.last_position > topics.view(topic_partition).last_position
            for topic_partition, step in observed
        )

    def ask(self) -> bool:
        """Look for the broker's news, for the `observe` that follows; whether there is any."""
        return self._dispatch.ask()

    def prefetch_more(self) -> None:
        """The same for what comes behind it."""
        self._dispatch.prefetch_more()

    def forget(self) -> None:
        """No `observe` has followed."""
        self._dispatch.forget()

    @property
    def is_overdue(self) -> bool:
        """True if it may have been given up, since it stood still for longer than its lease."""
        return self._keeper.is_overdue

    def confirm(self, asked_s: float) -> None:
        """The broker has answered what was asked then: it was not given up before."""
        self._keeper.confirm(asked_s)

    def wake(self) -> None:
        """There is news: whoever watches the lease is to see it soon."""
        self._keeper.wake()

    def rest(self, quiet_s: float) -> None:
        """Nothing has happened for so long: the lease may be a long one, if nothing is held."""
        if self._root.store.remote and all(
            each.connected and self.backlog(a) == 0 for a, each in self.consumers.items()
        ):
            self._keeper.rest(quiet_s)

    @property
    def watched(self) -> list[Watched]:
        """The folders in which the broker's answers appear."""
        return self._dispatch.watched(self._observed)

    def backlog(self, topic_partition: TopicPartition) -> int | None:
        """The subscription's backlog on the partition, as the broker last reported it."""
        step = self.stepped.get(topic_partition)
        return None if step is None else dict(step.backlogs).get(self.subscription)

    # -- inside ------------------------------------------------------------------------------

    def _exists(self, topic_partition: TopicPartition) -> bool:
        """True if the topic is read, and is the one to which it has subscribed."""
        if not self._topics.is_open(topic_partition):
            return False
        made = self._topics.view(topic_partition).ledger.state.incarnation
        return made == self.consumers[topic_partition].command.topic_incarnation

    def _subscribe(self, partitions: list[TopicPartition]) -> None:
        self._unsubscribed.update(partitions)
        timeout_ms = self._options["leaseTimeout"]
        run = (self.subscription, self.name, self.incarnation, timeout_ms)
        self._keeper.keep(Lease(*run, process=self._process))
        late = self._late(partitions)
        permits = self._permits(len({*self.consumers, *partitions}))
        commands, made = {}, {}
        for topic_partition in partitions:
            command = replace(
                subscribe_command(
                    self._options,
                    self.name,
                    self.incarnation,
                    topic_partition.partition,
                    permits,
                    first_topic=self._topics.first_topic,
                    retries=topic_partition.topic == self._topics.retry_topic,
                ),
                resumes=topic_partition in self._resumes,
                request_id=next(self.requests),
                partitions=self._topics.view(topic_partition).ledger.state.partitions,
                topic_incarnation=self._topics.view(topic_partition).ledger.state.incarnation,
            )
            if self._prefetches:
                command = replace(command, options=replace(command.options, prefetches=True))
            if topic_partition in late:
                command = replace(command, initial_position=InitialPosition.EARLIEST)
            new = PartitionConsumer(command, self._options["ackMode"] == "auto")
            consumer = made[topic_partition] = self.consumers.get(topic_partition, new)
            if not command.durable:  # the broker forgot the subscription: begin where it was
                done = consumer.done(self.committed.get(topic_partition))
                command = replace(command, begins_behind=done)
            consumer.subscribe_again(command)
            commands[topic_partition] = command
        self.send(commands)
        self.consumers |= made
        self._reported |= made.keys()
        self._unsubscribed.difference_update(made)

    def _permits(self, partitions: int) -> int:
        return permits_of(self._options, partitions, self._pace.queue if self._pace else None)

    def _report_and_leave(self, partitions: Iterable[TopicPartition]) -> None:
        """Append the last reports and CloseConsumer in one commit; only then the lease ends."""
        command = CloseConsumer(self.subscription, self.name, self.incarnation)
        try:
            last = [*self._last_reports().items(), *((each, command) for each in partitions)]
            records = [
                Record.of(topic_partition, self.subscription, each)
                for topic_partition, each in last
            ]
            if records:
                self._commands.append(records)
        except BaseException:
            self._keeper.stop()
            raise
        self.leave()

    def _late(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that are younger than the subscription: it begins at their first message.

        For a consumer that resumes: new partitions of its topics, new topics of its pattern. For a
        new one with a pattern: topics without the subscription, if other topics have it. For both:
        topics that it made itself, or that were made again.
        """
        new = {*partitions} - self._resumes - self.consumers.keys()
        by_pattern = bool(self._options["topicsPattern"])
        made = self._topics.made | self._topics.made_again
        if not self._is_new:
            topics = {each.topic for each in (*self._resumes, *self.consumers)} | made
            return {each for each in new if by_pattern or each.topic in topics}
        if not by_pattern or self._options["subscriptionInitialPosition"] != "Latest":
            return {each for each in new if each.topic in made}
        known = subscriptions(self._root)
        same = (each for each in known if each.name == self.subscription and each.durable)
        there = {each.topic_partition.topic for each in same}
        late = {each for each in new if each.topic not in there}
        return late if late != new else set()

    def _check_refusals(self) -> None:
        """Deal with those that are new; after an error of the store the next look does."""
        reported = self._unjudged & self.consumers.keys()
        refused = {a: reply for a in reported if (reply := self.consumers[a].refusal)}
        refused = {  # a topic that is deleted may be left out at the next look
            a: reply
            for a, reply in refused.items()
            if reply.error is not NO_TOPIC or not self._topics.goes_on_without(a.topic)
        }
        if refused:
            self._handle_refusals(refused)
        self._unjudged.clear()

    def _handle_refusals(self, refused: Mapping[TopicPartition, Reply]) -> None:
        """Subscribe again if it was let in before; else leave, and say why."""
        topic_partition, reply = next(iter(refused.items()))
        is_first_answer = reply.request_id == self.consumers[topic_partition].command.request_id
        never_was = reply.error is ServerError.SUBSCRIPTION_NOT_FOUND and is_first_answer
        if reply.error not in GONE or never_was:
            try:
                self._report_and_leave([each for each in self.consumers if each not in refused])
            except PulsarliteError as error:
                _log.warning("Consumer %s leaves without a word: %s", self.name, error)
                self.abandon()
            raise _refused(topic_partition, self.subscription, self.name, reply)
        # A lease file of a run that was let in is deleted by the broker: a batch may still read it.
        let_in = {
            topic_partition
            for topic_partition, each in self.consumers.items()
            if each.was_connected
        }
        self._keeper.stop(remove=not let_in)
        if self._newest_run() > self.incarnation:
            self.is_closed = True
            raise ConsumerReplacedError(
                f"A newer run of consumer {self.name} of subscription {self.subscription} has "
                "taken over: this one stops. Two queries that share a subscription need two "
                "consumerNames (or none: then each gets its own)."
            )
        _log.warning(
            "Consumer %s of subscription %s was given up (%s): what it held may go to others; it "
            "subscribes again", self.name, self.subscription, reply.message,
        )  # fmt: skip
        self._keeper = LeaseKeeper(self._root.store)
        newest = max(reply.newest for reply in refused.values())
        self.incarnation = self._next_incarnation(max(self.incarnation, newest))
        self._resumes |= let_in
        self._subscribe(list(self.consumers))

    def _next_incarnation(self, last: int) -> int:
        """A number above that of every known run under this name."""
        return max(self._root.clock.wall_ms(), self._newest_run() + 1, last + 1)

    def _newest_run(self) -> int:
        """The highest number of a run under this name that has a lease; 0 if there is none."""
        known = (read_lease(self._root.store, path) for path in leases(self._root.store))
        me = self.subscription, self.name
        mine = (each for each in known if each and (each.subscription, each.consumer) == me)
        return max((each.incarnation for each in mine), default=0)

    @property
    def _warn_after_s(self) -> float:
        return REMOTE_WARN_AFTER_S if self._root.store.remote else WARN_AFTER_S

    def _shows_broker_life(self) -> bool:
        """True if the broker has signed since the last call: it is there, and busy."""
        found, before = self._root.store.info(HEARTBEAT_PATH), self._heartbeat_ms
        self._heartbeat_ms = None if found is None else found.modified_ms
        return self._heartbeat_ms is not None and self._heartbeat_ms != before

    def _warn_if_waiting(self) -> None:
        now_s = self._root.clock.monotonic_s()
        if self._warn_at_s is not None and now_s >= self._warn_at_s:
            if self._shows_broker_life():
                self._warn_at_s = now_s + self._warn_after_s
                return
            self._warn_at_s = now_s + WARN_EVERY_S
            _log.warning(
                "Consumer %s of subscription %s waits for the broker of %s, which is silent: it "
                "begins, is busy, or is not there. If none runs: pulsarlite standalone "
                "--service-url %s",
                self.name,
                self.subscription,
                self._root.service_url,
                self._root.service_url,
            )


def _refused(
    topic_partition: TopicPartition, subscription: str, name: str, reply: Reply
) -> Exception:
    error = reply.error
    assert error is not None
    text = (
        f"The broker refuses consumer {name} of subscription {subscription} on {topic_partition}: "
        f"{error.value}: {reply.message.rstrip('.')}."
    )
    if error is ServerError.CONSUMER_BUSY:
        return ConsumerBusyError(
            f"{text} Choose another subscriptionType, or another subscriptionName, or wait until "
            "the other consumer is gone (one that died is given up after its leaseTimeout)."
        )
    if error is NO_TOPIC:
        return TopicDeletedError(f"{text} Start with a new checkpoint if there is a new one.")
    if error is ServerError.SUBSCRIPTION_NOT_FOUND:
        text += (
            " Policy auto_subscription_creation is off there. Make it: pulsarlite subscriptions "
            f"create {topic_partition.topic} {subscription}"
        )
    return BrokerRefusedError(error, text)
