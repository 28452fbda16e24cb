"""Mutants of the client and the broker: each brings the fault of one point back.

A mutant is noticed by the rule of its point, at a seed of its point (`points.py`). The points
that no schedule can show have their mutants in `tests/mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any
from unittest import mock

from pulsar_spark.broker.machine import acknowledgment
from pulsar_spark.broker.subscriptions import message_redelivery
from pulsar_spark.connector.client.consumer import Batch, Consumer
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Acknowledgments
from pulsar_spark.connector.runtime.acknowledging.transaction_conflicts import ConflictCheck
from pulsar_spark.connector.runtime.broker import watched_leases
from pulsar_spark.connector.runtime.consuming.receiver_queue import ReceiverQueue
from pulsar_spark.connector.runtime.consuming.subscription_client import SubscriptionClient
from pulsar_spark.connector.storage.remote_store import RemoteStore
from pulsar_spark.connector.tools.command_line import standalone_command
from pulsar_spark.model.positions.position_set import NOTHING

Mutant = Callable[[], AbstractContextManager[object]]


def takes_all_up_to_it() -> AbstractContextManager[object]:
    """A cumulative acknowledgement takes all before its message, whoever was handed that."""

    def handed(state: Any, subscription: Any, _command: Any, acknowledged: Any) -> Any:
        return acknowledgment._published(state, subscription, acknowledged)

    return mock.patch.object(acknowledgment, "_handed", handed)


def counts_the_queue_of_the_dead() -> AbstractContextManager[object]:
    """All that a lapsed consumer held counts as delivered."""

    def suspects(holder: Any) -> Any:
        holder.consumer.delivered = holder.consumer.held
        return NOTHING

    return mock.patch.object(message_redelivery, "_suspects_of", suspects)


def never_doubts_its_lease() -> AbstractContextManager[object]:
    """A consumer that stood still hands out its queue without the broker's answer."""
    return mock.patch.object(SubscriptionClient, "is_overdue", False)


def attends_to_nothing() -> AbstractContextManager[object]:
    """A consumer polls the broker only within a call of its program."""
    return mock.patch.object(MessageConsumer, "attend", return_value=inf)


@contextmanager
def counts_what_is_queued() -> Iterator[None]:
    """A message counts as handed out from when it is queued."""
    put = ReceiverQueue.put

    def put_and_note(queue: ReceiverQueue, messages: Any, is_suspect: Any) -> None:
        put(queue, messages, is_suspect)
        queue._handed.extend(messages)

    with mock.patch.object(ReceiverQueue, "put", put_and_note):
        yield


@contextmanager
def forgets_what_the_gone_rejected() -> Iterator[None]:
    """A rejected message waits out its delay, though its consumer is gone."""
    grant_again = message_redelivery._grant_again

    def granted_again(holder: Any, messages: Any, delay: Any) -> None:
        grant_again(holder, messages, delay)
        holder.consumer.rejected = NOTHING

    with mock.patch.object(message_redelivery, "_grant_again", granted_again):
        yield


@contextmanager
def seeks_by_the_partition_s_number() -> Iterator[None]:
    """A seek to an id moves the partition of that number of each topic."""
    seeks = MessageConsumer.seeks

    def of_all(consumer: MessageConsumer, to: Any, one: Any = None) -> Any:
        commands = seeks(consumer, to)
        return {
            each: command for each, command in commands.items()
            if one is None or each.partition == one.partition
        }  # fmt: skip

    with mock.patch.object(MessageConsumer, "seeks", of_all):
        yield


def strands_a_batch_that_failed() -> AbstractContextManager[object]:
    """The messages of a batch that was cancelled, or failed, count as handed out."""

    @contextmanager
    def batch(consumer: Consumer) -> Iterator[Batch]:
        made = Batch(consumer._batch_policy, consumer._clock)
        try:
            yield made
        finally:
            consumer._engine.hand_out([each.received for each in made.messages])

    return mock.patch.object(Consumer, "batch", batch)


def believes_in_every_epoch() -> AbstractContextManager[object]:
    """An acknowledgement of a message that was received before a seek counts after it."""
    return mock.patch.object(Acknowledgments, "since", lambda found, _: found)


def ends_when_taken_over() -> AbstractContextManager[object]:
    """An embedded broker that was taken over passes its error to its clients' calls."""

    def stand_by(_: SharedBroker) -> None:
        raise  # noqa: PLE0704 - what has ended the broker

    return mock.patch.object(SharedBroker, "_stand_by", stand_by)


def looks_at_a_store_that_is_away() -> AbstractContextManager[object]:
    """The command ends with an error of the store."""

    def status(broker: Any, _print_line: Any, *, is_known: bool) -> Any:
        del is_known
        return broker.status(), True

    return mock.patch.object(standalone_command, "_status_of", status)


MUTANTS: dict[str, Mutant] = {
    "failover_acknowledges_what_was_only_queued": takes_all_up_to_it,
    "what_lay_beside_poison_becomes_a_dead_letter": counts_the_queue_of_the_dead,
    "a_queue_outlives_its_lease": never_doubts_its_lease,
    "a_busy_program_hands_nothing_over": attends_to_nothing,
    "the_ack_timeout_runs_in_the_queue": counts_what_is_queued,
    "a_restart_counts_what_was_only_queued": counts_what_is_queued,
    "what_the_gone_had_rejected_waits_out_its_delay": forgets_what_the_gone_rejected,
    "a_seek_moves_other_topics": seeks_by_the_partition_s_number,
    "a_cancelled_batch_is_lost": strands_a_batch_that_failed,
    "a_batch_that_failed_is_stranded": strands_a_batch_that_failed,
    "an_acknowledgement_undoes_a_seek": believes_in_every_epoch,
    "two_transactions_acknowledge_one_message": lambda: mock.patch.object(
        ConflictCheck, "__call__", return_value=None
    ),
    "an_embedded_broker_that_slept_never_works_again": ends_when_taken_over,
    "who_was_killed_is_locked_out": lambda: mock.patch.object(
        watched_leases, "is_gone", return_value=False
    ),
    "a_store_that_ignores_conditions_loses": lambda: mock.patch.object(
        RemoteStore, "check_writes", return_value=None
    ),
    "the_command_ends_with_the_store_away": looks_at_a_store_that_is_away,
}
"""Point -> what brings its fault back."""
