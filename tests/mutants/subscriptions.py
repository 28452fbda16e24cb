"""Mutants of brokers, subscriptions and consumers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pulsar_spark.broker.hosting import hosted_broker
from pulsar_spark.connector.runtime.broker import broker_input, broker_sink, embedded_broker
from pulsar_spark.connector.runtime.broker.planned_batch import PlannedBatch
from pulsar_spark.connector.runtime.consuming import subscription_client
from pulsar_spark.connector.runtime.consuming import withheld_batches as withheld
from pulsar_spark.connector.runtime.housekeeping import (
    redrive,
)
from pulsar_spark.connector.runtime.publishing import publishing
from pulsar_spark.connector.runtime.reading import (
    partition_view,
)
from pulsar_spark.consumer import partition_consumer
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.state import broker_query
from tests.mutants.mutant import breaks


@breaks(
    "LettersFirst",
    "connector/broker/test_embedded_broker.py"
    "::test_a_dead_letter_passes_by_an_exclusive_producer_of_its_topic",
)
def buries_without_a_letter(patch: Any) -> None:
    patch.setattr(broker_sink, "_publish_republications", lambda *_: None)


@breaks(
    "RedrivenOnce",
    "connector/housekeeping/test_redrive.py::test_a_newer_redrive_stops_an_older_one",
)
def redrives_behind_a_fence(patch: Any) -> None:
    original = publishing.commit_as_one

    def commit_as_one(*arguments: Any, fence: Any) -> None:
        original(*arguments)

    patch.setattr(redrive, "commit_as_one", commit_as_one)


@breaks(
    "GrantsOutliveTheBroker",
    "connector/subscription/test_subscription_reader.py::test_an_open_grant_is_read_on_while_no_broker_runs",
)
def reads_what_is_granted_one_by_one_only(patch: Any) -> None:
    original = partition_consumer.PartitionConsumer.offered

    def offered(*arguments: Any) -> Any:
        found = original(*arguments)
        return replace(found, waiting=replace(found.waiting, cursor=None))

    patch.setattr(partition_consumer.PartitionConsumer, "offered", offered)


@breaks(
    "KeptIsDelivered",
    "connector/subscription/test_compacted_subscriptions.py"
    "::test_what_is_compacted_while_it_waits_is_passed_over",
)
def delivers_what_compaction_removed(patch: Any) -> None:
    patch.setattr(partition_view.PartitionView, "removed", PositionSet())


@breaks(
    "OneBroker",
    "connector/broker/test_embedded_broker.py::test_a_broker_whose_term_is_over_writes_nothing",
)
def takes_every_term_for_the_newest(patch: Any) -> None:
    original = broker_sink.commit_batch

    def commit_batch(root: Any, tasks: Any, batch: Any, _term: int) -> None:
        original(root, tasks, batch, 99)

    for host in (broker_sink, embedded_broker):
        patch.setattr(host, "commit_batch", commit_batch)


@breaks(
    "PoisonIsSetApart",
    "connector/subscription/test_withheld.py::test_a_batch_is_withheld_once_it_was_begun_too_often_and_stays_so",
)
def counts_no_failures(patch: Any) -> None:
    patch.setattr(withheld.WithheldBatches, "_count", lambda *_: 0)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_broker_restarts.py::test_a_query_that_fails_is_begun_again_and_counted",
)
def takes_every_failure_for_the_last(patch: Any) -> None:
    patch.setattr(broker_query.Broker, "_may_pass", lambda *_: False)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_embedded_broker.py"
    "::test_a_broker_goes_on_after_an_error_at_any_change_of_the_store",
)
def plans_anew_after_an_error(patch: Any) -> None:
    original = embedded_broker.EmbeddedBroker.run_once

    def run_once(broker: embedded_broker.EmbeddedBroker) -> bool:
        broker._under_way = None
        return original(broker)

    patch.setattr(embedded_broker.EmbeddedBroker, "run_once", run_once)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_set_aside.py"
    "::test_a_query_that_repeats_a_batch_has_the_states_that_were_said_when_it_happened",
)
def steps_again_what_has_happened(patch: Any) -> None:
    patch.setattr(broker_input.BatchInput, "_with_what_happened", lambda _, rows: iter(rows))


@breaks(
    "TroubleStaysApart",
    "connector/broker/test_set_aside.py"
    "::test_a_step_that_fails_ends_nobody_elses_and_is_tried_again",
)
def ends_all_brokers_with_one(patch: Any) -> None:
    def described(error: Exception) -> str:
        raise error

    patch.setattr(hosted_broker, "described", described)


@breaks(
    "TheGoneAreNoticed",
    "connector/subscription/test_subscription_reader.py"
    "::test_a_consumer_that_is_refused_on_one_topic_leaves_the_others_to_the_next",
)
def stays_where_it_was_not_refused(patch: Any) -> None:
    patch.setattr(subscription_client.SubscriptionClient, "_report_and_leave", lambda *_: None)


@breaks(
    "NewIsReadFromItsBeginning",
    "connector/subscription/test_growth.py"
    "::test_the_first_consumer_of_a_new_partition_reads_it_from_the_beginning",
)
def subscribes_nobody_to_new_partitions(patch: Any) -> None:
    patch.setattr(
        PlannedBatch, "create", lambda batch, topic_partition, _: batch.host(topic_partition)
    )
