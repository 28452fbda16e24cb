"""What hosts a broker and its consumers, broken in one place at a time; a cluster must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pulsar_spark.connector.runtime.broker import broker_source
from pulsar_spark.connector.runtime.broker.broker_source import BrokerSource
from pulsar_spark.connector.runtime.broker.planned_batch import PlannedBatch
from pulsar_spark.connector.runtime.consuming.subscription_client import SubscriptionClient
from pulsar_spark.connector.runtime.consuming.withheld_batches import WithheldBatches
from pulsar_spark.connector.runtime.system_topics.lease import LeaseWatch
from pulsar_spark.connector.spark import subscription_reader
from pulsar_spark.consumer.suspect_messages import SuspectMessages
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

Patch = Callable[[Any], None]
"""Takes pytest's monkeypatch, or anything with its `setattr`."""


def speaks_of_one_partition_only(patch: Any) -> None:
    """What it has to say of the others is never heard."""
    original = SubscriptionClient.send
    patch.setattr(
        SubscriptionClient,
        "send",
        lambda self, *commands: original(self, *(dict([*each.items()][:1]) for each in commands)),
    )


def gives_the_dead_up_in_one_partition_only(patch: Any) -> None:
    """In the others they stay for another lease, or for ever."""
    original = BrokerSource._lapsed

    def lapsed(self: BrokerSource, *given: Any, **how: Any) -> Any:
        return tuple(
            replace(each, partitions=each.partitions[:1]) for each in original(self, *given, **how)
        )

    patch.setattr(BrokerSource, "_lapsed", lapsed)


def stays_where_it_was_not_refused(patch: Any) -> None:
    """Immortal, and in the way of everybody."""
    patch.setattr(SubscriptionClient, "_report_and_leave", lambda *_: None)


def subscribes_nobody_to_new_partitions(patch: Any) -> None:
    """Whoever comes first says where the subscription begins there."""
    patch.setattr(
        PlannedBatch, "create", lambda batch, topic_partition, _: batch.host(topic_partition)
    )


def goes_by_the_partitions_that_it_saw_itself(patch: Any) -> None:
    """A topic that grew before the broker looked had all its partitions from the start."""
    patch.setattr(broker_source, "_partitions_seen", lambda _: None)


def begins_new_topics_at_their_end(patch: Any) -> None:
    """As the option says for a subscription that is new."""
    patch.setattr(SubscriptionClient, "_late", lambda *_: set())


def times_leases_by_a_clock_that_jumps(patch: Any) -> None:
    """All consumers lapse at once when it is set."""
    original = LeaseWatch.lapsed

    class Wall:
        def __init__(self, clock: Any) -> None:
            self.clock = clock

        def monotonic_s(self) -> float:
            return float(self.clock.wall_ms() / 1000)

    def lapsed(self: LeaseWatch, *given: Any) -> list[str]:
        if not isinstance(self._clock, Wall):
            self._clock = Wall(self._clock)  # type: ignore[assignment]
        return original(self, *given[:2])

    patch.setattr(LeaseWatch, "lapsed", lapsed)


def renews_half_a_lease_at_each_gap(patch: Any) -> None:
    """Where looks are far apart nobody is ever given up."""
    original = LeaseWatch.lapsed

    def lapsed(self: LeaseWatch, signs: Any, lease_ms: Any, *_: Any) -> list[str]:
        now_s = self._clock.monotonic_s()
        if now_s - self._polled_s > 5:
            self._polled_s = now_s
            self._quiet = {
                path: (sign, max(quiet_s - lease_ms(path) / 2000, 0.0))
                for path, (sign, quiet_s) in self._quiet.items()
            }
        return original(self, signs, lease_ms)

    patch.setattr(LeaseWatch, "lapsed", lapsed)


def counts_pauses_in_full(patch: Any) -> None:
    """Who stood still along with the broker is given up."""
    original = LeaseWatch.lapsed

    def lapsed(self: LeaseWatch, signs: Any, lease_ms: Any, *_: Any) -> list[str]:
        paused_s = self._clock.monotonic_s() - self._polled_s
        self._quiet = {
            path: (sign, quiet_s + max(paused_s - lease_ms(path) / 2000, 0.0))
            for path, (sign, quiet_s) in self._quiet.items()
        }
        return original(self, signs, lease_ms)

    patch.setattr(LeaseWatch, "lapsed", lapsed)


def counts_no_failures(patch: Any) -> None:
    """The query ends at the same message for ever."""
    patch.setattr(WithheldBatches, "_count", lambda *_: 0)


def acknowledges_what_it_withheld(patch: Any) -> None:
    """The neighbours of the message that ended the query are read by nobody."""
    patch.setattr(
        subscription_reader, "report_without_suspects", lambda _suspected, _about, report, _: report
    )


def buries_the_neighbours_too(patch: Any) -> None:
    """A withheld batch is given up as a whole."""

    def failed(self: SuspectMessages, batch: Any, failures: int, *_: Any) -> Any:
        dead_lettered: dict[Any, PositionSet] = {}
        for (topic_partition, _attempt), part in batch.items():
            dead_lettered[topic_partition] = dead_lettered.get(topic_partition, NOTHING).union(part)
        return SuspectMessages(None, self.groups, dead_lettered, failures)

    patch.setattr(SuspectMessages, "failed", failed)


CLUSTER_MUTANTS: tuple[Patch, ...] = (
    speaks_of_one_partition_only,
    gives_the_dead_up_in_one_partition_only,
    stays_where_it_was_not_refused,
    subscribes_nobody_to_new_partitions,
    goes_by_the_partitions_that_it_saw_itself,
    begins_new_topics_at_their_end,
    times_leases_by_a_clock_that_jumps,
    renews_half_a_lease_at_each_gap,
    counts_pauses_in_full,
    counts_no_failures,
    acknowledges_what_it_withheld,
    buries_the_neighbours_too,
)
