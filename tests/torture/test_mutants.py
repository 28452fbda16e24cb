"""What really runs, broken in one place at a time: some schedule has to notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pulsar_spark.broker.dispatchers import dispatcher_sticky_key
from pulsar_spark.broker.machine import retention, topic_subscriptions
from pulsar_spark.connector.runtime.broker import broker_source
from pulsar_spark.connector.runtime.broker.broker_input import BatchInput
from pulsar_spark.connector.runtime.broker.planned_batch import PlannedBatch
from pulsar_spark.connector.runtime.consuming import subscription_client
from pulsar_spark.connector.runtime.consuming.withheld_batches import WithheldBatches
from pulsar_spark.connector.runtime.publishing import publishing
from pulsar_spark.connector.runtime.system_topics.lease import LeaseWatch
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_writer
from pulsar_spark.connector.spark.subscription_reader import SubscriptionStreamReader
from pulsar_spark.consumer.partition_consumer import PartitionConsumer
from pulsar_spark.consumer.suspect_messages import SuspectMessages
from pulsar_spark.model.positions.position import LATEST, Position
from pulsar_spark.model.positions.position_map import PositionMap
from tests.simulation.lots import Lots
from tests.torture.oracle import ViolationError
from tests.torture.setting import Setting, drawn_setting
from tests.torture.world import run_schedule

MOST_SCHEDULES = 400

Mutant = Callable[[pytest.MonkeyPatch], None]


def publishes_a_repeated_batch_again(patch: pytest.MonkeyPatch) -> None:
    original = publishing.publish

    def publish(root: Root, written: Any, _application: Any, *given: Any, **options: Any) -> None:
        original(root, written, None, *given, **options)

    patch.setattr(stream_writer, "publish", publish)


def gives_consumers_up_who_live(patch: pytest.MonkeyPatch) -> None:
    original = LeaseWatch.lapsed

    def lapsed(
        self: LeaseWatch, signs: Any, lease_ms: Callable[[str], int], *listed_s: Any
    ) -> list[str]:
        return original(self, signs, lambda path: lease_ms(path) // 8, *listed_s)

    patch.setattr(LeaseWatch, "lapsed", lapsed)


def forgets_that_a_consumer_comes_back(patch: pytest.MonkeyPatch) -> None:
    original = dataclasses.replace

    def changed(command: Any, **changes: Any) -> Any:
        return original(command, **changes | ({"resumes": False} if "resumes" in changes else {}))

    patch.setattr(subscription_client, "replace", changed)


def trims_what_nobody_has_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "_passed_by_all", lambda _: Position(1 << 40, 0))


def acknowledges_what_it_has_only_planned(patch: pytest.MonkeyPatch) -> None:
    original = PartitionConsumer.report

    def report(self: PartitionConsumer, _begun: Any, planned: Any, *given: Any) -> Any:
        return original(self, planned, planned, *given)

    patch.setattr(PartitionConsumer, "report", report)


def grants_keys_that_drain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dispatcher_sticky_key, "_draining_slots", lambda *_: None)


def subscribes_nobody_to_new_partitions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PlannedBatch, "create", lambda batch, topic_partition, _: batch.host(topic_partition)
    )


def sees_no_growth_behind_a_subscriber(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker_source, "_partitions_seen", lambda _: None)


def withholds_no_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WithheldBatches, "_count", lambda *_: 0)


def reads_a_batch_that_it_withheld(patch: pytest.MonkeyPatch) -> None:
    original = WithheldBatches.leaves_out

    def leaves_out(*given: Any) -> bool:
        original(*given)
        return False

    patch.setattr(WithheldBatches, "leaves_out", leaves_out)


def forgets_what_it_withheld(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WithheldBatches, "behind", lambda *_: SuspectMessages())


def tries_again_what_it_tried_apart(patch: pytest.MonkeyPatch) -> None:
    def committed(self: SuspectMessages) -> SuspectMessages:
        groups = self.groups if self.released is None else (*self.groups, self.released)
        return dataclasses.replace(self, released=None, groups=groups)

    patch.setattr(SuspectMessages, "committed", committed)


def goes_on_with_another_ack_mode(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubscriptionStreamReader, "_check_checkpoint", lambda *_: None)


def seeks_to_the_end_whatever_the_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_subscriptions, "position_at_time", lambda *_: LATEST)


def redelivers_before_the_delay_is_over(patch: pytest.MonkeyPatch) -> None:
    original = PositionMap.split
    patch.setattr(PositionMap, "split", lambda self, now_ms: original(self, now_ms + 60_000))


def steps_again_what_has_happened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchInput, "_with_what_happened", lambda _, rows: iter(rows))


MUTANTS: tuple[Mutant, ...] = (
    steps_again_what_has_happened,
    sees_no_growth_behind_a_subscriber,
    withholds_no_batch,
    reads_a_batch_that_it_withheld,
    forgets_what_it_withheld,
    tries_again_what_it_tried_apart,
    subscribes_nobody_to_new_partitions,
    goes_on_with_another_ack_mode,
    seeks_to_the_end_whatever_the_time,
    redelivers_before_the_delay_is_over,
    publishes_a_repeated_batch_again,
    gives_consumers_up_who_live,
    forgets_that_a_consumer_comes_back,
    trims_what_nobody_has_acknowledged,
    acknowledges_what_it_has_only_planned,
    grants_keys_that_drain,
)


def keeps_keys_in_order(setting: Setting) -> bool:
    disorder = {"maxRedeliverCount", "allowOutOfOrderDelivery"} & setting.options.keys()
    shared = setting.kind == "Key_Shared" and setting.consumers > 1
    return shared and not setting.manual and not disorder


def has_poison(setting: Setting) -> bool:
    return setting.poison


WHERE: Mapping[Mutant, Callable[[Setting], bool]] = {
    grants_keys_that_drain: keeps_keys_in_order,
    withholds_no_batch: has_poison,
    reads_a_batch_that_it_withheld: has_poison,
    forgets_what_it_withheld: has_poison,
    tries_again_what_it_tried_apart: has_poison,
}
"""Of a mutant that changes nothing elsewhere, the schedules that can notice it."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_what_is_broken_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    where = WHERE.get(mutant)
    for seed in range(MOST_SCHEDULES):
        if where is not None and not where(drawn_setting(Lots(seed))):
            continue
        try:
            run_schedule(seed)
        except ViolationError as error:
            print(f"schedule {seed}: {error}")
            return
    pytest.fail(f"nobody noticed that it {mutant.__name__.replace('_', ' ')}")
