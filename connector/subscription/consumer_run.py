"""One run of a consumer: what it may read next, and what it has to report, without Spark.

Invariants: a micro-batch has only messages that were granted, and they are reported before anybody
reads them; an offset is where a micro-batch ends, and with the offset before it says which messages
the batch has; a report is absolute. The host says what was committed, by the offset from which it
plans on. A look, a plan and a report cost the partitions in which something happened or waits.
Stands where Pulsar has `ConsumerImpl`; Spark's source and `MessageConsumer` host it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pulsar_spark.connector.source.micro_batch import admission
from pulsar_spark.connector.source.partition_view import PartitionView
from pulsar_spark.connector.source.subscribed_topics import Absent, SubscribedTopics
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.subscription.subscription_client import SubscriptionClient
from pulsar_spark.connector.topic_log.ledger_columns import delivery_times_of
from pulsar_spark.connector.topic_log.looked_ahead import Asker, looked_ahead
from pulsar_spark.connector.topic_log.policies import NamespaceWatch
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import BrokerAbsentError
from pulsar_spark.options.consumer_options import has_pace
from pulsar_spark.options.options import Options
from pulsar_spark.options.topic_policies import hosted_policies
from pulsar_spark.planning.admission import FEWEST, Pace
from pulsar_spark.planning.partition_consumer import Offered
from pulsar_spark.planning.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.protocol.commands import Report
from pulsar_spark.subscriptions.delayed_messages import DelayedMessages
from pulsar_spark.topic_name import TopicName, TopicPartition

NO_REQUESTS: Mapping[TopicPartition, int] = MappingProxyType({})
NO_COMMANDS: Mapping[TopicPartition, Any] = MappingProxyType({})
FLOOR_EVERY_S = 5.0
"""How often at most a consumer reports a moved floor alone: the topic keeps a ledger so long."""

Completed = Callable[[TopicPartition, Report, LedgerList], Report]
"""(partition, report, its ledgers) -> the report, completed by the host."""


class ConsumerRun:
    """Plans and reports, over all topic partitions. Opens nothing before `check`."""

    def __init__(
        self,
        options: Options,
        root: Root,
        held_back: Callable[[TopicPartition], PositionSet] = lambda _: NOTHING,
        completed: Completed = lambda _about, report, _ledgers: report,
    ) -> None:
        """`held_back` returns granted messages of a partition that are not to be planned now."""
        self.topics = SubscribedTopics(options, root, Absent.MADE)
        self.news_s = root.clock.monotonic_s()
        """The time of the last news."""
        self._options, self._root, self._clock = options, root, root.clock
        self._held_back, self._completed = held_back, completed
        self._admission = admission(options, self.news_s)
        least = max(FEWEST, options["minMessagesPerTrigger"] or 0)
        self._pace = Pace(least) if has_pace(options) else None
        self._running: tuple[int, float] | None = None
        """Messages of the micro-batch that was planned last, and when, until it is committed."""
        self._times = DeliveryTimes(root) if options["delayedDelivery"] else None
        self._client: SubscriptionClient | None = None
        self._delivered: dict[TopicPartition, PositionSet] = {}
        """This run's deliveries by hand under AvailableNow: rejections wait for the next run."""
        self._said: dict[TopicPartition, Report] = {}
        self._said_s = 0.0
        self._asked: dict[TopicPartition, int] = {}
        self._asked_s = 0.0
        self.heard: set[TopicPartition] = set()
        """The partitions of which the last `hear` told something new."""
        self.behind: set[TopicPartition] = set()
        """Those where the subscription has a backlog, or the broker has not heard of all."""
        self._to_plan: set[TopicPartition] = set()
        """The partitions in which something happened since the last plan, or waits, ..."""
        self._looked: StreamOffset | None = None
        """... and the offset behind which that was."""
        self._to_report: set[TopicPartition] = set()
        """The partitions of which there may be something new to report, ..."""
        self._reported: tuple[StreamOffset, StreamOffset] | None = None
        """... beside what has changed since these two offsets."""

    # -- who it is -----------------------------------------------------------------------------

    def check(self) -> None:
        """Open or make the topics, and the retry letter topic, if it is to be read."""
        self.topics.refresh()
        self.topics.open_retry_topic()

    def pinned(self) -> StreamOffset:
        """An offset that only names the consumer: a run after a crash has to be the same one.

        Spark stores it before anybody hears of the consumer.
        """
        name = self._options["subscriptionName"]
        consumer = self._options["consumerName"] or f"{name}-{uuid.uuid4().hex[:10]}"
        return StreamOffset({}, name, consumer, ack_mode=self._options["ackMode"])

    def connected(self, begun: StreamOffset) -> SubscriptionClient:
        """The connection to the broker; the first call makes it."""
        known = StreamOffset() if self._client is None else self._client.committed
        self.topics.check_incarnations(begun, begun.changed_since(known))
        if self._client is None:
            client = SubscriptionClient(self.topics, begun, self._last_reports, self._pace)
            try:
                client.subscribe()
            except BaseException:
                client.abandon()  # else its lease lives on, and it may have been heard
                raise
            self._client = client
        self._client.committed = begun
        return self._client

    def hear(self) -> bool:
        """Take in news of the logs and of the broker; False if there was none.

        The logs are looked at again where the broker knows more: it may have granted that.
        """
        client = self._connection
        announced = self.topics.news
        asked: list[Asker] = [self.topics] if announced.is_quiet else [self.topics, client]
        with looked_ahead(self._root.store, asked):
            news = self.topics.refresh()
            client.subscribe()
            if not announced.is_quiet:
                announced.system_seen()
                if client.hear():
                    news = True
                if client.is_ahead:
                    with looked_ahead(self._root.store, [self.topics]):
                        self.topics.refresh()
        self.heard = client.take_heard() | self.topics.changed()
        self._to_plan |= self.heard
        self._to_report |= self.heard
        self.behind -= self.heard
        self.behind |= {about for about in self.heard if self._is_behind(about)}
        if news:
            self.news_s = self._clock.monotonic_s()
            client.wake()
        else:
            self.news_s = max(self.news_s, announced.newest_s)
            client.rest(self._clock.monotonic_s() - self.news_s)
        return news

    def _is_behind(self, about: TopicPartition) -> bool:
        client = self._connection
        if not self.topics.is_open(about):
            return False
        if (step := client.stepped.get(about)) is None:
            return True
        unheard = self.topics.view(about).last_position > step.last_position
        return unheard or bool(client.backlog(about))

    @property
    def watched(self) -> list[Watched]:
        """Where news appear, of the logs and of the broker."""
        return self.topics.watched + self._connection.watched

    @property
    def _connection(self) -> SubscriptionClient:
        assert self._client is not None, "it is connected first"
        return self._client

    # -- planning ------------------------------------------------------------------------------

    @property
    def must_ask(self) -> bool:
        """Whether a request to the broker is still without its answer."""
        return bool(self._asked)

    def ledgers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LedgerList]:
        """The ledgers of each of these partitions, but of those whose topic was deleted."""
        every = list(partitions)
        self.topics.open_all(about.topic for about in every)
        return {
            about: self.topics.view(about).ledgers for about in filter(self.topics.is_open, every)
        }

    def plan(self, begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin."""
        client = self._connection
        self._keep_pace()
        changes: dict[TopicPartition, PartitionOffset] = {}
        offered: dict[TopicPartition, Offered] = {}
        held: set[TopicPartition] = set()
        for partition in self._to_look_at(begun):
            consumer = client.consumers[partition]
            if not consumer.offers:
                continue
            start = begun.get(partition)
            consumer.forget_planned(start)
            offered[partition], is_held = self._offered(partition, start, client)
            if is_held or offered[partition].waiting.count(1):
                held.add(partition)
            if start is None or start.epoch != consumer.epoch:
                self._delivered.pop(partition, None)
                changes[partition] = consumer.plan(None, {}, offered[partition].waiting.ledgers)
        # A pattern without topics: a later run has to know that it may be late for none of them.
        pinned = bool(changes) or (not client.consumers and not begun.incarnation)
        waiting = {partition: each.waiting for partition, each in offered.items()}
        now_s = None if self.topics.ends else self._clock.monotonic_s()
        taken = self._admission.admit(waiting, now_s)
        for partition, messages in taken.items():
            consumer, start = client.consumers[partition], begun.get(partition)
            by_attempt = offered[partition].by_attempt(messages)
            changes[partition] = consumer.plan(start, by_attempt, waiting[partition].ledgers)
            if self.topics.ends and not consumer.automatic:
                delivered = self._delivered.get(partition, PositionSet()).union(messages)
                self._delivered[partition] = delivered.after(consumer.floor)
        self._to_plan, self._looked = {*held, *changes}, begun
        if not (pinned or taken):
            return None
        if self._pace is not None and taken:
            number = sum(each.count(waiting[about].ledgers) for about, each in taken.items())
            self._running = number, self._clock.monotonic_s()
        planned = replace(
            begun.with_changes(changes), subscription=client.subscription, consumer=client.name,
            incarnation=client.incarnation, suspects="", ack_mode=self._options["ackMode"],
        )  # fmt: skip
        return replace(planned, incarnations=self.topics.incarnations(planned))

    def _to_look_at(self, begun: StreamOffset) -> list[TopicPartition]:
        """The partitions with something new since the last plan, and where messages wait."""
        consumers = self._connection.consumers
        moved = consumers if self._looked is None else begun.changed_since(self._looked)
        at = {*self._to_plan, *moved} & consumers.keys()
        return sorted(filter(self.topics.is_open, at))

    def _keep_pace(self) -> None:
        if self._pace is None:
            return
        if self._running is not None:  # who plans on has committed it
            messages, since_s = self._running
            self._running = None
            self._pace.took(messages, self._clock.monotonic_s() - since_s)
        self._admission.max_messages = self._pace.size

    def planned(self) -> None:
        """What was planned is reported, and is read now."""
        self._asked = {}
        self._admission.planned(self._clock.monotonic_s())

    def _offered(
        self, partition: TopicPartition, start: PartitionOffset | None, client: SubscriptionClient
    ) -> tuple[Offered, bool]:
        """(the messages of one partition to plan, whether there are others that are held back).

        DataLossError if granted messages were trimmed.
        """
        consumer, view = client.consumers[partition], self.topics.view(partition)
        while True:
            ledgers = view.ledgers  # first: what a commit hides is there before its ledgers
            held = self._held_back(partition)
            if self._times is not None and not consumer.command.subscription_type.is_shared:
                held = held.union(self._times.ahead(view, self._clock.wall_ms()))
            delivered = self._delivered.get(partition, NOTHING)
            hidden = [view.hidden.since(consumer.floor.ledger_id), held, delivered]
            offered = consumer.offered(
                start, ledgers, PositionSet.union_of(hidden), self.topics.end_of(partition),
                view.removed,
            )  # fmt: skip
            trimmed = view.lost_up_to
            if not offered.begins_before(trimmed):
                return offered, bool(held)
            # Messages that everybody has acknowledged are trimmed too, and the log may know of that
            # before this consumer does.
            if not client.hear():
                view.check_present(Cursor(consumer.floor))
                consumer.give_up(trimmed)

    # -- reporting -------------------------------------------------------------------------------

    def report(
        self,
        begun: StreamOffset,
        planned: StreamOffset,
        requests: Mapping[TopicPartition, int] = NO_REQUESTS,
        commands: Mapping[TopicPartition, Any] = NO_COMMANDS,
    ) -> None:
        """Send the reports that say something new, and behind them these commands, as one commit.

        The broker answers to `requests`.
        """
        consumers = self._connection.consumers
        moved: Iterable[TopicPartition] = consumers
        if self._reported is not None:
            committed, delivered = self._reported
            moved = {*begun.changed_since(committed), *planned.changed_since(delivered)}
        at = {*self._to_report, *moved, *requests} & consumers.keys()
        reports = self._reports(sorted(at), begun, planned, requests)
        self._say(self._news_of(reports), commands)
        self._to_report = {about for about in reports if self._may_say_more(about, reports[about])}
        self._reported = begun, planned

    def to_report(self, about: TopicPartition) -> None:
        """Note that the host has something to add to the partition's report."""
        self._to_report.add(about)

    def close(self) -> None:
        """Report and leave: messages that were granted but not delivered go to others at once."""
        self._connection.close()

    def _may_say_more(self, about: TopicPartition, report: Report) -> bool:
        """Whether the report changes by itself: with time, or with what is held back."""
        is_late = report.committed != self._said[about].committed
        view = self.topics.view(about)
        return is_late or bool(self._held_back(about)) or view.chunks.known() is not None

    def _last_reports(self) -> dict[TopicPartition, Report]:
        committed = self._connection.committed
        return self._news_of(self._reports(self._connection.consumers, committed, committed))

    def _say(
        self,
        reports: Mapping[TopicPartition, Report],
        commands: Mapping[TopicPartition, Any] = NO_COMMANDS,
    ) -> None:
        if reports or commands:
            self._connection.say(reports, commands)
            self._said |= {about: replace(each, request_id=None) for about, each in reports.items()}
            self._said_s = self._clock.monotonic_s()

    def _news_of(self, reports: Mapping[TopicPartition, Report]) -> dict[TopicPartition, Report]:
        """The reports that differ from the last ones that were sent."""
        late = self._clock.monotonic_s() - self._said_s > FLOOR_EVERY_S
        news = {}
        for partition, report in reports.items():
            said = self._said.get(partition)
            if said is not None:
                same = replace(report, sequence=said.sequence)
                if same == said or (not late and replace(same, committed=said.committed) == said):
                    continue
            news[partition] = report
        return news

    def _reports(
        self,
        partitions: Iterable[TopicPartition],
        begun: StreamOffset,
        planned: StreamOffset,
        requests: Mapping[TopicPartition, int] = NO_REQUESTS,
    ) -> dict[TopicPartition, Report]:
        """Of those where it is connected, and whose topic is still there."""
        client = self._connection
        permits = client.permits()
        reports = {}
        for partition in partitions:
            consumer = client.consumers[partition]
            if consumer.connected and self.topics.is_open(partition):
                view = self.topics.view(partition)
                report = consumer.report(
                    begun.get(partition), planned.get(partition), view.ledgers, permits,
                    requests.get(partition), view.removed,
                )  # fmt: skip
                if not consumer.automatic:  # dead chunks: no row tells the user of them
                    dead = view.chunks.abandoned(self._clock.wall_ms()).after(consumer.floor)
                    report = replace(report, acknowledged=report.acknowledged.acknowledge(dead))
                reports[partition] = self._completed(partition, report, view.ledgers)
        return reports

    def is_drained(self, begun: StreamOffset) -> bool:
        """Whether the broker has answered, knows all up to the end, and has granted nothing more.

        BrokerAbsentError if it does not answer in time.
        """
        client = self._connection
        consumers = client.consumers
        if not self._asked and all(each.connected for each in consumers.values()):
            self._asked = dict(zip(consumers, client.requests, strict=False))
            self._say(self._reports(consumers, begun, begun, self._asked))
        if all(self._is_heard_out(partition, client) for partition in consumers):
            return True
        now_s = self._clock.monotonic_s()
        self._asked_s = self._asked_s or now_s
        silent_s = now_s - max(self._asked_s, client.heard_s)
        if silent_s > self._options["drainTimeout"] / 1000:
            url = self._root.service_url
            raise BrokerAbsentError(
                f"The broker of {url} has been silent for drainTimeout ({silent_s:.1f} s), and "
                f"consumer {client.name} of subscription {client.subscription} can't know "
                "whether it has all that was there at its start. Start one: pulsarlite standalone "
                f"--service-url {url}"
            )
        return False

    def _is_heard_out(self, partition: TopicPartition, client: SubscriptionClient) -> bool:
        """Whether the broker knows this run's report and its end, and has granted what it could.

        The answer to a request comes with the end of the step that took it in.
        """
        asked, step = self._asked.get(partition), client.stepped.get(partition)
        if asked is None or step is None or client.consumers[partition].answered < asked:
            return False
        end = self.topics.end_of(partition)
        return end is None or step.last_position >= end


class DeliveryTimes:
    """Messages that an Exclusive or Failover consumer holds back until their delivery time.

    A ledger's times are read once, and only if one of them lies ahead. Stands in for the broker's
    delayed delivery, which open grants (all that comes) rule out.
    """

    def __init__(self, root: Root) -> None:
        self._namespaces = NamespaceWatch(root.store)
        self._delayed: dict[TopicPartition, DelayedMessages] = {}
        self._seen: dict[TopicPartition, int] = {}
        """The newest ledger whose times are known."""

    def ahead(self, view: PartitionView, now_ms: int) -> PositionSet:
        """The messages of the partition whose time is later than `now_ms`."""
        about, ledger = view.about, view.ledger
        said = self._namespaces.policies(TopicName.parse(about.topic).namespace)
        policies = hosted_policies(ledger.state.settings, said)
        if not policies.delayed_delivery:
            return PositionSet()
        delayed = self._delayed.get(about, DelayedMessages())
        number = about.partition
        while (info := ledger.ledgers(number).first_after(self._seen.get(about, -1))) is not None:
            if info.max_deliver_at_ms is not None and info.max_deliver_at_ms > now_ms:
                with ledger.reader() as reader:
                    times = delivery_times_of(ledger, info, reader)
                if times is not None:
                    delayed = delayed.add_ledger(info, times, now_ms)
            self._seen[about] = info.ledger_id
        due_ms = now_ms + policies.delayed_delivery_ahead_ms
        delayed, _ = delayed.scheduled_messages(due_ms, policies.delayed_delivery_tick_ms)
        trimmed = ledger.state.partition(number).trimmed_up_to.ledger_id
        delayed = delayed.without([each for each in delayed.messages.ledger_ids if each <= trimmed])
        self._delayed[about] = delayed
        return delayed.messages
