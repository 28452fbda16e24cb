"""Mutants of consumers without Spark, and of the broker's rules for what they were handed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from pulsar_spark.broker.machine import acknowledgment
from pulsar_spark.broker.subscriptions import message_redelivery
from pulsar_spark.connector.client import message_consumer
from pulsar_spark.connector.client.consumer import Batch, Consumer
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.runtime.broker import watched_leases
from pulsar_spark.connector.runtime.consuming.receiver_queue import ReceiverQueue
from pulsar_spark.connector.runtime.consuming.subscription_client import SubscriptionClient
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.remote_store import RemoteStore
from pulsar_spark.connector.tools.command_line import standalone_command
from pulsar_spark.model.positions.position_set import NOTHING
from tests.mutants.mutant import breaks

HANDED_OUT = "connector/client/test_handed_out.py"


@breaks(
    "CumulativeTakesTheHanded",
    f"{HANDED_OUT}::test_a_cumulative_acknowledgement_leaves_what_another_was_handed_and_holds",
)
def takes_all_before_a_cumulative_acknowledgement(patch: Any) -> None:
    def handed(state: Any, subscription: Any, _command: Any, acknowledged: Any) -> Any:
        return acknowledgment._published(state, subscription, acknowledged)

    patch.setattr(acknowledgment, "_handed", handed)


@breaks(
    "DeadWasHanded",
    f"{HANDED_OUT}::test_a_message_that_kills_its_process_is_counted_and_none_that_lay_beside_it",
)
def counts_the_queue_of_a_lapsed_consumer(patch: Any) -> None:
    def suspects(holder: Any) -> Any:
        holder.consumer.delivered = holder.consumer.held
        return NOTHING

    patch.setattr(message_redelivery, "_suspects_of", suspects)


@breaks(
    "QueuesEndWithTheirLease",
    "client_torture/test_client_torture.py"
    "::test_the_schedules_of_a_point_hold[a_queue_outlives_its_lease]",
)
def never_doubts_a_lease(patch: Any) -> None:
    patch.setattr(SubscriptionClient, "is_overdue", False)


@breaks(
    "TheBusyHandOver",
    f"{HANDED_OUT}::test_a_busy_program_hands_over_what_it_has_not_been_handed",
)
def polls_only_within_a_call(patch: Any) -> None:
    patch.setattr(MessageConsumer, "attend", lambda *_: inf)


@breaks(
    "HandedOutIsDelivered",
    f"{HANDED_OUT}::test_the_ack_timeout_begins_when_a_message_is_handed_out",
    f"{HANDED_OUT}::test_a_restart_counts_no_delivery_of_what_was_only_prefetched",
)
def counts_what_is_queued(patch: Any) -> None:
    original = ReceiverQueue.put

    def put(queue: ReceiverQueue, messages: Any, is_suspect: Any) -> None:
        original(queue, messages, is_suspect)
        queue._handed.extend(messages)

    patch.setattr(ReceiverQueue, "put", put)


@breaks(
    "HandedOutIsDelivered",
    f"{HANDED_OUT}::test_what_a_closed_consumer_had_rejected_comes_at_once",
)
def forgets_what_a_closed_consumer_rejected(patch: Any) -> None:
    original = message_redelivery._grant_again

    def grant_again(holder: Any, messages: Any, delay: Any) -> None:
        original(holder, messages, delay)
        holder.consumer.rejected = NOTHING

    patch.setattr(message_redelivery, "_grant_again", grant_again)


@breaks(
    "OneTopicIsSought",
    "connector/client/test_seeking.py::test_a_seek_to_a_message_moves_no_other_topic",
    "connector/client/test_seeking.py"
    "::test_a_seek_to_a_message_leaves_the_retry_letter_topic_alone",
)
def seeks_every_topic_s_partition_of_that_number(patch: Any) -> None:
    original = MessageConsumer.seeks

    def seeks(consumer: MessageConsumer, to: Any, one: Any = None) -> Any:
        commands = original(consumer, to)
        return {
            each: command
            for each, command in commands.items()
            if one is None or each.partition == one.partition
        }

    patch.setattr(MessageConsumer, "seeks", seeks)


@breaks(
    "BatchesAreWhole",
    "connector/client/test_consumer.py::test_a_batch_that_fails_hands_out_next_what_it_had_taken",
)
def strands_a_batch_that_fails(patch: Any) -> None:
    @contextmanager
    def batch(consumer: Consumer) -> Iterator[Batch]:
        made = Batch(consumer._batch_policy, consumer._clock)
        try:
            yield made
        finally:
            consumer._engine.hand_out([each.received for each in made.messages])

    patch.setattr(Consumer, "batch", batch)


@breaks(
    "TheBrokerComesBack",
    "connector/client/test_taken_over.py"
    "::test_a_process_that_was_taken_over_is_a_client_of_the_other_broker",
)
def ends_when_taken_over(patch: Any) -> None:
    def stand_by(_: SharedBroker) -> None:
        raise  # noqa: PLE0704 - the error of the broker that was taken over

    patch.setattr(SharedBroker, "_stand_by", stand_by)


@breaks(
    "TheGoneAreNoticed",
    "connector/client/test_process_end.py"
    "::test_what_a_killed_consumer_held_comes_to_the_next_at_once",
)
def takes_every_process_for_alive(patch: Any) -> None:
    patch.setattr(watched_leases, "is_gone", lambda _: False)


@breaks(
    "NewIsReadFromItsBeginning",
    "connector/client/test_topics_made_again.py"
    "::test_a_topic_that_is_deleted_and_made_again_is_read_on",
)
def reads_no_topic_that_was_made_again(patch: Any) -> None:
    original = SubscribedTopics._open

    def opened(topics: SubscribedTopics, topic: str, ledger: Any) -> None:
        if topic not in topics.left_out:
            original(topics, topic, ledger)

    patch.setattr(SubscribedTopics, "_open", opened)


@breaks(
    "LogIsWhole",
    "connector/storage/test_refusing_services.py"
    "::test_a_store_that_ignores_conditional_writes_is_refused_before_a_message_is_confirmed",
)
def tries_no_conditional_write(patch: Any) -> None:
    patch.setattr(RemoteStore, "check_writes", lambda _: None)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_broker_thread.py"
    "::test_a_store_that_is_away_for_some_time_does_not_end_the_command",
)
def ends_the_command_with_the_store(patch: Any) -> None:
    def status(broker: Any, _print_line: Any, *, is_known: bool) -> Any:
        del is_known
        return broker.status(), True

    patch.setattr(standalone_command, "_status_of", status)


@breaks(
    "QueuesAreBounded",
    f"{HANDED_OUT}::test_a_queue_is_bounded_by_bytes_but_for_one_larger_message",
)
def bounds_a_queue_by_number_only(patch: Any) -> None:
    patch.setattr(message_consumer, "QUEUE_BYTES", "1000g")


@breaks(
    "TroubleStaysApart",
    "connector/broker/test_open_transactions.py"
    "::test_a_letter_that_waits_for_an_open_transaction_holds_up_no_other_topic",
)
def waits_for_the_open_transaction_of_one_topic(patch: Any) -> None:
    patch.setattr(ManagedLedger, "is_undecided", False)
