"""Brokers that are broken on purpose, each in one place; the simulation must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pulsar_spark.broker.dispatchers import (
    dispatcher_multiple_consumers,
    dispatcher_single_active,
    dispatcher_sticky_key,
    granting,
)
from pulsar_spark.broker.hosting.shards import ShardWriter
from pulsar_spark.broker.machine import acknowledgment, retention, topic_subscriptions
from pulsar_spark.broker.machine import step as broker_step
from pulsar_spark.broker.protocol.commands import SubscriptionType
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions import message_redelivery
from pulsar_spark.broker.subscriptions.breaker import Breaker
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.delayed_messages import DelayedMessages
from pulsar_spark.broker.subscriptions.redelivery_tracker import RedeliveryTracker
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.consumer.partition_consumer import PartitionConsumer
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from tests.simulation.setting import Setting

Patch = Callable[[Any], None]
"""Takes pytest's monkeypatch, or anything with its `setattr`."""


def loses_what_is_given_back(patch: Any) -> None:
    """Messages of a consumer that goes are granted to nobody."""
    original = message_redelivery.give_back

    def give_back(*arguments: Any, **options: Any) -> None:
        if not options["seen"]:
            return
        original(*arguments, **options)

    patch.setattr(message_redelivery, "give_back", give_back)
    patch.setattr(dispatcher_sticky_key, "give_back", give_back)
    patch.setattr(dispatcher_single_active, "give_back", give_back)


def grants_again_at_the_same_attempt(patch: Any) -> None:
    """A redelivery is nothing new in the difference of two offsets."""
    original = RedeliveryTracker.by_next_attempt

    def by_next_attempt(self: RedeliveryTracker, messages: Any) -> Any:
        for attempt, part in original(self, messages):
            yield max(attempt - 1, self.base_attempt + 1), part

    patch.setattr(RedeliveryTracker, "by_next_attempt", by_next_attempt)


def grants_keys_that_drain(patch: Any) -> None:
    """Pulsar before 4.0 when consumers come and go."""
    patch.setattr(dispatcher_sticky_key, "_draining_slots", lambda *_: None)


def hands_over_at_once(patch: Any) -> None:
    """Pulsar's Failover: the new consumer does not wait for the old one's last report."""

    def revoke(subscription: Subscription, consumer: Consumer, out: Any) -> None:
        consumer.revision += 1
        consumer.obeyed = consumer.revision
        out.revokes.append(dispatcher_single_active.revoke_all(subscription, consumer))
        consumer.open_attempt = -1
        subscription.active = ""

    patch.setattr(dispatcher_single_active, "_revoke", revoke)


def forgets_holes_when_stored(patch: Any) -> None:
    """Pulsar's graceful close forgets acknowledged batch indexes."""
    original = ShardWriter.put_set

    def put_set(self: ShardWriter, key: str, messages: PositionSet) -> Any:
        return original(self, key, NOTHING if key.endswith("/cursor") else messages)

    patch.setattr(ShardWriter, "put_set", put_set)


def comes_early(patch: Any) -> None:
    """Pulsar's trackers round down."""
    original = PositionMap.split
    patch.setattr(PositionMap, "split", lambda self, now_ms: original(self, now_ms + 256))


def delivers_delayed_messages_early(patch: Any) -> None:
    """Pulsar's tracker, up to a tick."""
    original = DelayedMessages.scheduled_messages
    patch.setattr(
        DelayedMessages,
        "scheduled_messages",
        lambda self, now_ms, tick_ms: original(self, now_ms + tick_ms, tick_ms),
    )


def believes_late_rejections(patch: Any) -> None:
    """A rejection that came twice takes back what was granted since."""

    def take_back(self: Consumer, attempt: int, messages: Any) -> Any:
        return original(self, max(self.pending, default=attempt), messages)

    original = Consumer.take_back
    patch.setattr(Consumer, "take_back", take_back)


def believes_reports_of_an_older_epoch(patch: Any) -> None:
    """After a seek, what was acknowledged before it is lost."""
    original = acknowledgment.report

    def report(state: BrokerState, command: Any, out: Any) -> None:
        subscription = state.subscriptions.get(command.subscription)
        if subscription is not None:
            command = replace(command, epoch=subscription.epoch)
        original(state, command, out)

    from pulsar_spark.broker.machine import step as broker
    from pulsar_spark.broker.protocol.commands import Report

    patch.setitem(broker.HANDLERS, Report, report)


def grants_one_too_many(patch: Any) -> None:
    """More than a consumer said that it may hold."""

    def capacities_of(state: Any, subscription: Any) -> Any:
        capacities, room, blocked = original(state, subscription)
        more = {name: count + 1 for name, count in capacities.items()}
        return more, room + len(more), blocked

    original = granting.capacities_of
    patch.setattr(dispatcher_multiple_consumers, "capacities_of", capacities_of)
    patch.setattr(dispatcher_sticky_key, "capacities_of", capacities_of)


def draws_lots(patch: Any) -> None:
    """A step that is run again gives something else."""
    calls = [0]
    original = granting.read_new

    def read_new(state: Any, subscription: Any, messages: int, excluded: Any) -> Any:
        calls[0] += 1
        return original(state, subscription, max(messages - calls[0] % 2, 1), excluded)

    patch.setattr(dispatcher_multiple_consumers, "read_new", read_new)
    patch.setattr(dispatcher_sticky_key, "read_new", read_new)


def forgets_individual_acknowledgements(patch: Any) -> None:
    """Pulsar: a cumulative acknowledgement forgets individual ones behind it in its batch."""
    original = Cursor.union

    def union(self: Cursor, other: Cursor) -> Cursor:
        result = original(self, other)
        if other.mark_delete_position > self.mark_delete_position:
            return Cursor(result.mark_delete_position, other.individually_deleted)
        return result

    patch.setattr(Cursor, "union", union)


def skips_the_rest_of_a_batch(patch: Any) -> None:
    """What of an entry was not taken is read by nobody."""
    original = granting.read_new

    def read_new(*arguments: Any) -> Any:
        return original(*arguments)[0], NOTHING

    patch.setattr(dispatcher_multiple_consumers, "read_new", read_new)
    patch.setattr(dispatcher_sticky_key, "read_new", read_new)


def reuses_the_epoch_of_a_deleted_subscription(patch: Any) -> None:
    """Late reports to the old one acknowledge messages of the new one."""
    original = topic_subscriptions._created

    def created(*arguments: Any) -> Subscription:
        subscription = original(*arguments)
        subscription.epoch = 0
        return subscription

    patch.setattr(topic_subscriptions, "_created", created)


def trims_what_somebody_needs(patch: Any) -> None:
    """Whatever the slowest has not passed yet is gone."""
    patch.setattr(retention, "_passed_by_all", lambda state: state.last_position)


def forgets_to_look_again(patch: Any) -> None:
    """Nobody says when the next redelivery is due."""
    patch.setattr(Ready, "due_at", lambda *_: None)


def gives_a_seek_no_new_epoch(patch: Any) -> None:
    original = Subscription.begin_epoch

    def begin_epoch(self: Subscription, cursor: Cursor) -> None:
        original(self, cursor)
        self.epoch -= 1

    patch.setattr(Subscription, "begin_epoch", begin_epoch)


def believes_what_a_dead_run_said(patch: Any) -> None:
    """What it reported and did not live to write down stays with it for ever."""
    original = acknowledgment._take_delivered

    def take_delivered(holder: Any, delivered: Any) -> None:
        consumer: Consumer = holder.consumer
        before = consumer.delivered
        original(holder, delivered)
        kept = before if consumer.has_open_grant else before.intersection(consumer.held)
        consumer.delivered = consumer.delivered.union(kept)

    patch.setattr(acknowledgment, "_take_delivered", take_delivered)


def counts_what_was_only_granted(patch: Any) -> None:
    """A death before the first report counts as a delivery of all that was granted."""
    original = message_redelivery.give_back_all

    def give_back_all(holder: Any, reason: Any) -> None:
        holder.consumer.reports_delivered = holder.consumer.sequence >= 0
        original(holder, reason)

    patch.setattr(topic_subscriptions, "give_back_all", give_back_all)


def believes_a_sink_whenever_it_read(patch: Any) -> None:
    """A seek back is undone by the acknowledgement in flight."""

    def of_any_epoch(_subscription: Subscription, command: Any) -> Cursor:
        cursor: Cursor = command.acknowledged
        for each in command.acknowledged_attempts.values():
            cursor = cursor.union(each)
        return cursor

    patch.setattr(acknowledgment, "of_this_epoch", of_any_epoch)


def begins_attempts_anew_after_a_seek(patch: Any) -> None:
    """So that two deliveries of a message have the same attempt."""
    patch.setattr(RedeliveryTracker, "begin_epoch", lambda _: RedeliveryTracker())


def begins_attempts_anew_in_a_new_subscription(patch: Any) -> None:
    """Of the name of one that was deleted, of which a sink may have messages."""
    original = topic_subscriptions._delete

    def delete(state: BrokerState, *arguments: Any) -> None:
        original(state, *arguments)
        state.next_attempt = 0

    patch.setattr(topic_subscriptions, "_delete", delete)


def forgets_where_a_non_durable_consumer_was(patch: Any) -> None:
    """Once its subscription is gone, it begins at the initial position."""
    original = topic_subscriptions._created

    def created(state: BrokerState, command: Any) -> Subscription:
        return original(state, replace(command, begins_behind=None))

    patch.setattr(topic_subscriptions, "_created", created)


def tells_a_non_durable_consumer_of_no_holes(patch: Any) -> None:
    """Which only its own checkpoint remembers."""
    without = property(lambda self: Cursor(self.cursor.mark_delete_position))
    patch.setattr(Subscription, "origin_for_consumers", without)


def keeps_every_attempt_in_the_offset(patch: Any) -> None:
    """It grows with each redelivery of the oldest message."""
    patch.setattr(PartitionConsumer, "_not_superseded", lambda _self, attempts, _ledgers: attempts)


def buries_while_the_sink_is_down(patch: Any) -> None:
    """An open breaker pardons nothing."""
    patch.setattr(message_redelivery, "UNCOUNTED_WHILE_OPEN", frozenset())


def tries_all_at_once(patch: Any) -> None:
    """An open breaker lets everything through to those who share, once its pause is over."""

    def due_ms(self: Breaker, *_: Any) -> int | None:
        return None

    patch.setattr(Breaker, "due_ms", due_ms)


def reads_on_while_it_is_open(patch: Any) -> None:
    """The holder of an open grant keeps it when the breaker opens."""
    patch.setattr(dispatcher_single_active, "_grant_trial", lambda *_: None)
    original = dispatcher_single_active.dispatch

    def dispatch(state: BrokerState, subscription: Subscription, out: Ready) -> None:
        held, subscription.breaker = subscription.breaker, Breaker()
        original(state, subscription, out)
        subscription.breaker = held

    for kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
        patch.setitem(broker_step.DISPATCHERS, kind, dispatch)


MUTANTS: tuple[Patch, ...] = (
    buries_while_the_sink_is_down,
    tries_all_at_once,
    reads_on_while_it_is_open,
    loses_what_is_given_back,
    grants_again_at_the_same_attempt,
    grants_keys_that_drain,
    hands_over_at_once,
    forgets_holes_when_stored,
    comes_early,
    delivers_delayed_messages_early,
    believes_late_rejections,
    believes_reports_of_an_older_epoch,
    grants_one_too_many,
    draws_lots,
    forgets_individual_acknowledgements,
    skips_the_rest_of_a_batch,
    reuses_the_epoch_of_a_deleted_subscription,
    trims_what_somebody_needs,
    forgets_to_look_again,
    gives_a_seek_no_new_epoch,
    believes_what_a_dead_run_said,
    counts_what_was_only_granted,
    believes_a_sink_whenever_it_read,
    begins_attempts_anew_after_a_seek,
    begins_attempts_anew_in_a_new_subscription,
    forgets_where_a_non_durable_consumer_was,
    tells_a_non_durable_consumer_of_no_holes,
    keeps_every_attempt_in_the_offset,
)


def goes_on_alone(setting: Setting) -> bool:
    """One consumer, and its checkpoint alone says where it is."""
    return setting.alone and not setting.manual


def is_settled_by_hand(setting: Setting) -> bool:
    """And anything may happen meanwhile, a seek above all."""
    return setting.manual and not setting.calm and not setting.policies.breaker_threshold


WHERE: Mapping[Patch, Callable[[Setting], bool]] = {
    believes_a_sink_whenever_it_read: is_settled_by_hand,
    forgets_where_a_non_durable_consumer_was: goes_on_alone,
    tells_a_non_durable_consumer_of_no_holes: goes_on_alone,
}
"""Of a mutant that changes nothing elsewhere, the schedules that can notice it, longer ones."""
