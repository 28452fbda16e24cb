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

from pulsar_spark.broker.protocol.commands import Report
from pulsar_spark.broker.subscriptions.delayed_messages import DelayedMessages
from pulsar_spark.connector.runtime.consuming.subscription_client import SubscriptionClient
from pulsar_spark.connector.runtime.reading.micro_batch import admission
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.reading.subscribed_topics import Absent, SubscribedTopics
from pulsar_spark.connector.runtime.topics.ledger_columns import delivery_times_of
from pulsar_spark.connector.runtime.topics.policies import NamespaceWatch
from pulsar_spark.connector.runtime.topics.prefetch import Prefetcher, prefetched
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.storage.process_identity import UNKNOWN
from pulsar_spark.consumer.admission import FEWEST, Pace
from pulsar_spark.consumer.partition_consumer import Offered
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.errors import BrokerAbsentError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.consumer_options import has_pace
from pulsar_spark.options.options import Options
from pulsar_spark.options.topic_policies import hosted_policies

NO_REQUESTS: Mapping[TopicPartition, int] = MappingProxyType({})
FLOOR_EVERY_S = 5.0
"""The least seconds between two reports of a moved floor alone; the topic keeps a ledger so long.
"""

Completed = Callable[[TopicPartition, Report, LedgerList], Report]
"""(partition, report, its ledgers) -> the report, completed by the host."""


class ConsumerRun:
    """Plans and reports, over all topic partitions. Opens nothing before `check`."""

    def __init__(
        self,
        options: Options,
        root: Root,
        held_back: Callable[[TopicPartition], PositionSet] = lambda _: NOTHING,
        completed: Completed = lambda _subject, report, _ledgers: report,
        *,
        prefetches: bool = False,
        process: str = UNKNOWN,
    ) -> None:
        """`held_back` returns granted messages of a partition that are not to be planned now.

        A host that `prefetches` delivers later than it plans, and completes each report with what
        it has delivered and acknowledged since the report before. `process` is the one that the
        consumer ends with, if no other can take it up.
        """
        self._prefetches = prefetches
        self.topics = SubscribedTopics(options, root, Absent.MADE)
        self.active_s = root.clock.monotonic_s()
        """The time of the last news."""
        self._options, self._root, self._clock = options, root, root.clock
        self._held_back, self._completed, self._process = held_back, completed, process
        self._admission = admission(options, self.active_s)
        least = max(FEWEST, options["minMessagesPerTrigger"] or 0)
        self._pace = Pace(least) if has_pace(options) else None
        self._running: tuple[int, float] | None = None
        """Messages of the micro-batch that was planned last, and when, until it is committed."""
        self._times = DeliveryTimes(root) if options["delayedDelivery"] else None
        self._client: SubscriptionClient | None = None
        self._delivered: dict[TopicPartition, PositionSet] = {}
        """This run's deliveries by hand under AvailableNow: rejections wait for the next run."""
        self._last_reports_sent: dict[TopicPartition, Report] = {}
        self._lasting: dict[TopicPartition, Report] = {}
        """The part of each report that the next one would repeat."""
        self._reported_s = 0.0
        self._asked: dict[TopicPartition, int] = {}
        self._requested_s = 0.0
        self.observed: set[TopicPartition] = set()
        """The partitions of which the last `observe` told something new."""
        self.behind: set[TopicPartition] = set()
        """The partitions that have a backlog, or commits of which the broker has not reported."""
        self._to_plan: set[TopicPartition] = set()
        """The partitions with activity since the last plan, or with waiting messages."""
        self._looked: StreamOffset | None = None
        """The offset behind which the last plan was made."""
        self._to_report: set[TopicPartition] = set()
        """The partitions that may have something new to report."""
        self._reported: tuple[StreamOffset, StreamOffset] | None = None
        """The two offsets of the last report."""

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
            client = SubscriptionClient(
                self.topics,
                begun,
                self._last_reports,
                self._pace,
                prefetches=self._prefetches,
                process=self._process,
            )
            try:
                client.subscribe()
            except BaseException:
                client.abandon()  # else its lease lives on, and it may have been heard
                raise
            self._client = client
        self._client.committed = begun
        return self._client

    def observe(self) -> bool:
        """Take in news of the logs and of the broker; False if there was none.

        The logs are looked at again where the broker knows more: it may have granted that.
        """
        client = self._connection
        announced = self.topics.activity
        asked: list[Prefetcher] = [self.topics] if announced.is_quiet else [self.topics, client]
        with prefetched(self._root.store, asked):
            activity = self.topics.refresh()
            client.subscribe()
            if not announced.is_quiet:
                announced.system_polled()
                if client.observe():
                    activity = True
                if client.is_ahead:
                    with prefetched(self._root.store, [self.topics]):
                        self.topics.refresh()
        self.observed = client.take_changed() | self.topics.changed()
        self._to_plan |= self.observed
        self._to_report |= self.observed
        self.behind -= self.observed
        self.behind |= {
            topic_partition for topic_partition in self.observed if self._is_behind(topic_partition)
        }
        if activity:
            self.active_s = self._clock.monotonic_s()
            client.wake()
        else:
            self.active_s = max(self.active_s, announced.newest_s)
            client.rest(self._clock.monotonic_s() - self.active_s)
        return activity

    def _is_behind(self, topic_partition: TopicPartition) -> bool:
        client = self._connection
        if not self.topics.is_open(topic_partition):
            return False
        if (step := client.stepped.get(topic_partition)) is None:
            return True
        unobserved = self.topics.view(topic_partition).last_position > step.last_position
        return unobserved or bool(client.backlog(topic_partition))

    @property
    def watched(self) -> list[Watched]:
        """The folders in which commits and the broker's answers appear."""
        return self.topics.watched + self._connection.watched

    @property
    def _connection(self) -> SubscriptionClient:
        assert self._client is not None, "it is connected first"
        return self._client

    # -- planning ------------------------------------------------------------------------------

    @property
    def has_open_request(self) -> bool:
        """True if a request to the broker is still without its answer."""
        return bool(self._asked)

    def ledgers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LedgerList]:
        """The ledgers of each of these partitions, but of those whose topic was deleted."""
        every = list(partitions)
        self.topics.open_all(topic_partition.topic for topic_partition in every)
        return {
            topic_partition: self.topics.view(topic_partition).ledgers
            for topic_partition in filter(self.topics.is_open, every)
        }

    def plan(self, begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin."""
        client = self._connection
        self._keep_pace()
        changes: dict[TopicPartition, PartitionOffset] = {}
        offered: dict[TopicPartition, Offered] = {}
        held: set[TopicPartition] = set()
        for partition in self._to_poll(begun):
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
            number = sum(
                each.count(waiting[topic_partition].ledgers)
                for topic_partition, each in taken.items()
            )
            self._running = number, self._clock.monotonic_s()
        planned = replace(
            begun.with_changes(changes), subscription=client.subscription, consumer=client.name,
            incarnation=client.incarnation, suspects="", ack_mode=self._options["ackMode"],
        )  # fmt: skip
        return replace(planned, incarnations=self.topics.incarnations(planned))

    def _to_poll(self, begun: StreamOffset) -> list[TopicPartition]:
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
        """Note that the plan is reported, and is read now."""
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
            if not client.observe():
                view.check_present(Cursor(consumer.floor))
                consumer.give_up(trimmed)

    # -- reporting -------------------------------------------------------------------------------

    def report(
        self,
        begun: StreamOffset,
        planned: StreamOffset,
        requests: Mapping[TopicPartition, int] = NO_REQUESTS,
        *commands: Mapping[TopicPartition, Any],
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
        self._append(self._changed_reports(reports), *commands)
        self._to_report = {
            topic_partition
            for topic_partition in reports
            if self._may_report_more(topic_partition, reports[topic_partition])
        }
        self._reported = begun, planned

    @property
    def may_report(self) -> bool:
        """True if a partition may have something new to report."""
        return bool(self._to_report)

    def to_report(self, topic_partition: TopicPartition) -> None:
        """Note that the host has something to add to the partition's report."""
        self._to_report.add(topic_partition)

    def close(self) -> None:
        """Report and leave: messages that were granted but not delivered go to others at once."""
        self._connection.close()

    def _may_report_more(self, topic_partition: TopicPartition, report: Report) -> bool:
        """True if the report changes by itself: with time, or with what is held back."""
        is_late = report.committed != self._last_reports_sent[topic_partition].committed
        view = self.topics.view(topic_partition)
        return is_late or bool(self._held_back(topic_partition)) or view.chunks.known() is not None

    def _last_reports(self) -> dict[TopicPartition, Report]:
        committed = self._connection.committed
        return self._changed_reports(
            self._reports(self._connection.consumers, committed, committed)
        )

    def _append(
        self,
        reports: Mapping[TopicPartition, Report],
        *commands: Mapping[TopicPartition, Any],
    ) -> None:
        if reports or any(commands):
            self._connection.send(reports, *commands)
            self._last_reports_sent |= {
                topic_partition: self._lasting[topic_partition] for topic_partition in reports
            }
            self._reported_s = self._clock.monotonic_s()

    def _changed_reports(
        self, reports: Mapping[TopicPartition, Report]
    ) -> dict[TopicPartition, Report]:
        """The reports that differ from the last ones that were sent."""
        late = self._clock.monotonic_s() - self._reported_s > FLOOR_EVERY_S
        activity = {}
        for partition, report in reports.items():
            last_report = self._last_reports_sent.get(partition)
            if last_report is not None:
                same = replace(report, sequence=last_report.sequence)
                if same == last_report or (
                    not late and replace(same, committed=last_report.committed) == last_report
                ):
                    continue
            activity[partition] = report
        return activity

    def _reports(
        self,
        partitions: Iterable[TopicPartition],
        begun: StreamOffset,
        planned: StreamOffset,
        requests: Mapping[TopicPartition, int] = NO_REQUESTS,
    ) -> dict[TopicPartition, Report]:
        """The reports of the connected partitions whose topic is still there."""
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
                if self._prefetches:
                    report = replace(report, delivered={})
                whole = self._completed(partition, report, view.ledgers)
                lasting = whole
                if self._prefetches:
                    lasting = replace(report, permits=whole.permits, committed=whole.committed)
                self._lasting[partition] = replace(lasting, request_id=None)
                reports[partition] = whole
        return reports

    def is_drained(self, begun: StreamOffset) -> bool:
        """True if the broker has answered, knows all up to the end, and has granted nothing more.

        BrokerAbsentError if it does not answer in time.
        """
        client = self._connection
        consumers = client.consumers
        if not self._asked and all(each.connected for each in consumers.values()):
            self._asked = dict(zip(consumers, client.requests, strict=False))
            self._append(self._reports(consumers, begun, begun, self._asked))
        if all(self._has_answered(partition, client) for partition in consumers):
            return True
        now_s = self._clock.monotonic_s()
        self._requested_s = self._requested_s or now_s
        silent_s = now_s - max(self._requested_s, client.active_broker_s)
        if silent_s > self._options["drainTimeout"] / 1000:
            url = self._root.service_url
            raise BrokerAbsentError(
                f"The broker of {url} has been silent for drainTimeout ({silent_s:.1f} s), and "
                f"consumer {client.name} of subscription {client.subscription} can't know "
                "whether it has all that was there at its start. Start one: pulsarlite standalone "
                f"--service-url {url}"
            )
        return False

    def _has_answered(self, partition: TopicPartition, client: SubscriptionClient) -> bool:
        """True if the broker knows this run's report and its end, and has granted what it could.

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
        topic_partition, ledger = view.topic_partition, view.ledger
        last_report = self._namespaces.policies(TopicName.parse(topic_partition.topic).namespace)
        policies = hosted_policies(ledger.state.settings, last_report)
        if not policies.delayed_delivery:
            return PositionSet()
        delayed = self._delayed.get(topic_partition, DelayedMessages())
        number = topic_partition.partition
        while (
            info := ledger.ledgers(number).first_after(self._seen.get(topic_partition, -1))
        ) is not None:
            if info.max_deliver_at_ms is not None and info.max_deliver_at_ms > now_ms:
                with ledger.reader() as reader:
                    times = delivery_times_of(ledger, info, reader)
                if times is not None:
                    delayed = delayed.add_ledger(info, times, now_ms)
            self._seen[topic_partition] = info.ledger_id
        due_ms = now_ms + policies.delayed_delivery_ahead_ms
        delayed, _ = delayed.scheduled_messages(due_ms, policies.delayed_delivery_tick_ms)
        trimmed = ledger.state.partition(number).trimmed_up_to.ledger_id
        delayed = delayed.without([each for each in delayed.messages.ledger_ids if each <= trimmed])
        self._delayed[topic_partition] = delayed
        return delayed.messages
