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

from pulsar_spark.connector.source.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.system.lease import Lease, LeaseKeeper, leases, read_lease
from pulsar_spark.connector.system.subscription_admin import subscriptions
from pulsar_spark.connector.system.system_topics import COMMANDS, DISPATCH, Record, SystemTopic
from pulsar_spark.errors import (
    BrokerRefusedError,
    ConsumerBusyError,
    ConsumerReplacedError,
    PulsarliteError,
    ServerError,
    TopicDeletedError,
)
from pulsar_spark.options.consumer_options import permits_of, subscribe_command
from pulsar_spark.planning.admission import Pace
from pulsar_spark.planning.partition_consumer import PartitionConsumer
from pulsar_spark.planning.stream_offset import StreamOffset
from pulsar_spark.protocol.commands import CloseConsumer, InitialPosition
from pulsar_spark.protocol.ready import Reply, Stepped
from pulsar_spark.topic_name import TopicPartition

TOLD_AFTER_S, REMOTE_TOLD_AFTER_S, TOLD_EVERY_S = 5.0, 30.0, 30.0
"""How long the broker may be silent before the log says so, and how often the log repeats it."""
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
    ) -> None:
        """Sends nothing. `begun` names the consumer; it is the offset of an earlier run, or empty.

        Messages that it names were granted before, and stay granted; all else begins anew.
        """
        self._pace = pace
        self._topics, self._options, self._root = topics, topics.options, topics.root
        self._last_reports = last_reports
        self.name = begun.consumer
        self._resumes = {partition for partition, _ in begun.items()}
        self._is_new = not self._resumes and not begun.incarnation
        """Whether no run of this consumer has subscribed to anything."""
        self.committed = begun
        """The latest offset that Spark has committed, or is about to repeat."""
        self.subscription: str = self._options["subscriptionName"]
        self.consumers: dict[TopicPartition, PartitionConsumer] = {}
        self.stepped: dict[TopicPartition, Stepped] = {}
        self._told: set[TopicPartition] = set()
        """The partitions that are not as they were when `take_heard` was asked last."""
        self._unjudged: set[TopicPartition] = set()
        """Those of which was heard what may be a refusal that is still to be dealt with."""
        self._known: Mapping[TopicPartition, Any] = {}
        """The partitions of the topics to which it has subscribed, ..."""
        self._unsaid: set[TopicPartition] = set()
        """... and those where that has failed: it is said again."""
        self._commands = SystemTopic(self._root, COMMANDS)
        self._dispatch = SystemTopic(self._root, DISPATCH)
        self._heard = self._dispatch.refresh()
        self._keeper = LeaseKeeper(self._root.store)
        self.incarnation = self._next_incarnation(begun.incarnation)
        self.requests = count(1)
        """The numbers of its next requests."""
        self.heard_s = self._root.clock.monotonic_s()
        """When the broker was last heard, whatever it said."""
        self._tell_at_s: float | None = None
        self.is_closed = False

    # -- saying ------------------------------------------------------------------------------

    def subscribe(self) -> None:
        """Subscribe to all partitions of its topics, unless that was done before."""
        there = self._topics.partitions()
        if there is self._known and not self._unsaid:
            return
        for gone in [each for each in self.consumers if not self._topics.is_open(each)]:
            del self.consumers[gone]
            self._resumes.discard(gone)
        new = [each for each in there if each not in self.consumers or each in self._unsaid]
        self._unsaid.intersection_update(new)
        if new:
            self._subscribe(new)
        self._is_new, self._known = False, there

    def say(self, *commands: Mapping[TopicPartition, Any]) -> None:
        """Append these commands to `__commands`, as one commit."""
        self._commands.append(
            Record.of(about, self.subscription, command)
            for each in commands
            for about, command in each.items()
        )
        if self._tell_at_s is None:
            after_s = REMOTE_TOLD_AFTER_S if self._root.store.remote else TOLD_AFTER_S
            self._tell_at_s = self._root.clock.monotonic_s() + after_s

    def permits(self) -> int:
        """How many messages of each partition the consumer may hold."""
        return self._permits(len(self.consumers))

    def close(self) -> None:
        """Send the last reports and leave, also where the broker has not answered yet."""
        asked = [
            each for each, one in self.consumers.items() if one.connected or one.refusal is None
        ]
        self._say_and_go(asked)

    def leave(self) -> None:
        """Send nothing more, and let the lease end: the broker knows that the consumer is gone."""
        self._keeper.stop(remove=True)
        self.is_closed = True

    def abandon(self) -> Lease | None:
        """Send nothing more and show no life; the lease that will lapse, if it has one."""
        self.is_closed = True
        return self._keeper.stop()

    # -- hearing -----------------------------------------------------------------------------

    def hear(self) -> bool:
        """Take in the broker's news; False if none was for this consumer.

        ConsumerReplacedError if a newer run has its name; BrokerRefusedError if the broker does
        not let it in.
        """
        stop = self._dispatch.refresh()
        if stop <= self._heard:
            self._look_at_refusals()
            self._tell_if_waiting()
            return False
        self.heard_s, self._tell_at_s = self._root.clock.monotonic_s(), None
        trimmed_up_to = self._dispatch.open().state.partition(0).trimmed_up_to
        if trimmed_up_to.ledger_id >= self._heard:
            _log.warning("Consumer %s was too far behind the broker: it asks again", self.name)
            self._heard = stop
            self._resumes |= {about for about, each in self.consumers.items() if each.connected}
            self._subscribe(list(self.consumers))
            return False
        told: set[TopicPartition] = set()
        mine = ("", self.subscription)
        for stored in self._dispatch.read(
            self._heard, stop, keep=lambda about, name: about in self.consumers and name in mine
        ):
            about, item = stored.record.about, stored.record.item()
            if isinstance(item, Stepped):
                self.stepped[about] = item
            else:
                self.consumers[about].hear(item)
            told.add(about)
        self._heard = stop
        self._told |= told
        self._unjudged |= told
        self._look_at_refusals()
        return bool(told)

    def take_heard(self) -> set[TopicPartition]:
        """The partitions of which something was heard or asked since the last call."""
        told, self._told = self._told, set()
        return told

    @property
    def is_ahead(self) -> bool:
        """Whether the broker has just told of messages that no look at a log has found."""
        topics = self._topics
        heard = ((about, self.stepped.get(about)) for about in self._told if topics.is_open(about))
        return any(
            step is not None and step.last_position > topics.view(about).last_position
            for about, step in heard
        )

    def ask(self) -> bool:
        """Look for the broker's news, for the `hear` that follows; whether there is any."""
        return self._dispatch.ask()

    def ask_on(self) -> None:
        """The same for what comes behind it."""
        self._dispatch.ask_on()

    def forget(self) -> None:
        """No `hear` has followed."""
        self._dispatch.forget()

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
        """Where the broker's news appear."""
        return self._dispatch.watched(self._heard)

    def backlog(self, about: TopicPartition) -> int | None:
        """The subscription's backlog on the partition, as the broker last reported it."""
        step = self.stepped.get(about)
        return None if step is None else dict(step.backlogs).get(self.subscription)

    # -- inside ------------------------------------------------------------------------------

    def _subscribe(self, partitions: list[TopicPartition]) -> None:
        self._unsaid.update(partitions)
        timeout_ms = self._options["leaseTimeout"]
        self._keeper.keep(Lease(self.subscription, self.name, self.incarnation, timeout_ms))
        late = self._late(partitions)
        permits = self._permits(len({*self.consumers, *partitions}))
        commands, made = {}, {}
        for about in partitions:
            command = replace(
                subscribe_command(
                    self._options,
                    self.name,
                    self.incarnation,
                    about.partition,
                    permits,
                    first_topic=self._topics.first_topic,
                    retries=about.topic == self._topics.retry_topic,
                ),
                resumes=about in self._resumes,
                request_id=next(self.requests),
                partitions=self._topics.view(about).ledger.state.partitions,
                topic_incarnation=self._topics.view(about).ledger.state.incarnation,
            )
            if about in late:
                command = replace(command, initial_position=InitialPosition.EARLIEST)
            new = PartitionConsumer(command, self._options["ackMode"] == "auto")
            consumer = made[about] = self.consumers.get(about, new)
            if not command.durable:  # the broker forgot the subscription: begin where it was
                done = consumer.done(self.committed.get(about))
                command = replace(command, begins_behind=done)
            consumer.subscribe_again(command)
            commands[about] = command
        self.say(commands)
        self.consumers |= made
        self._told |= made.keys()
        self._unsaid.difference_update(made)

    def _permits(self, partitions: int) -> int:
        return permits_of(self._options, partitions, self._pace.queue if self._pace else None)

    def _say_and_go(self, partitions: Iterable[TopicPartition]) -> None:
        """Append the last reports and CloseConsumer in one commit; only then the lease ends."""
        command = CloseConsumer(self.subscription, self.name, self.incarnation)
        try:
            last = [*self._last_reports().items(), *((each, command) for each in partitions)]
            said = [Record.of(about, self.subscription, each) for about, each in last]
            if said:
                self._commands.append(said)
        except BaseException:
            self._keeper.stop()
            raise
        self.leave()

    def _late(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that are younger than the subscription: it begins at their first message.

        For a consumer that resumes: new partitions of its topics, new topics of its pattern. For a
        new one with a pattern: topics without the subscription, if other topics have it. For both:
        topics that it made itself.
        """
        new = {*partitions} - self._resumes - self.consumers.keys()
        by_pattern = bool(self._options["topicsPattern"])
        if not self._is_new:
            topics = {each.topic for each in (*self._resumes, *self.consumers)} | self._topics.made
            return {each for each in new if by_pattern or each.topic in topics}
        if not by_pattern or self._options["subscriptionInitialPosition"] != "Latest":
            return {each for each in new if each.topic in self._topics.made}
        known = subscriptions(self._root)
        same = (each for each in known if each.name == self.subscription and each.durable)
        there = {each.topic_partition.topic for each in same}
        late = {each for each in new if each.topic not in there}
        return late if late != new else set()

    def _look_at_refusals(self) -> None:
        """Deal with those that are new; after an error of the store the next look does."""
        told = self._unjudged & self.consumers.keys()
        refused = {a: reply for a in told if (reply := self.consumers[a].refusal)}
        refused = {  # a topic that is deleted may be left out at the next look
            a: reply
            for a, reply in refused.items()
            if reply.error is not NO_TOPIC or not self._topics.goes_on_without(a.topic)
        }
        if refused:
            self._deal_with(refused)
        self._unjudged.clear()

    def _deal_with(self, refused: Mapping[TopicPartition, Reply]) -> None:
        """Subscribe again if it was let in before; else leave, and say why."""
        about, reply = next(iter(refused.items()))
        is_first_answer = reply.request_id == self.consumers[about].command.request_id
        never_was = reply.error is ServerError.SUBSCRIPTION_NOT_FOUND and is_first_answer
        if reply.error not in GONE or never_was:
            try:
                self._say_and_go([each for each in self.consumers if each not in refused])
            except PulsarliteError as error:
                _log.warning("Consumer %s leaves without a word: %s", self.name, error)
                self.abandon()
            raise _refused(about, self.subscription, self.name, reply)
        # A lease file of a run that was let in is deleted by the broker: a batch may still read it.
        let_in = {about for about, each in self.consumers.items() if each.was_connected}
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

    def _tell_if_waiting(self) -> None:
        now_s = self._root.clock.monotonic_s()
        if self._tell_at_s is not None and now_s >= self._tell_at_s:
            self._tell_at_s = now_s + TOLD_EVERY_S
            _log.warning(
                "Consumer %s of subscription %s waits for the broker of %s, which is silent: it "
                "begins, is busy, or is not there. If none runs: pulsarlite standalone "
                "--service-url %s",
                self.name,
                self.subscription,
                self._root.service_url,
                self._root.service_url,
            )


def _refused(about: TopicPartition, subscription: str, name: str, reply: Reply) -> Exception:
    error = reply.error
    assert error is not None
    text = (
        f"The broker refuses consumer {name} of subscription {subscription} on {about}: "
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
            f"create {about.topic} {subscription}"
        )
    return BrokerRefusedError(error, text)
