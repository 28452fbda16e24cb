"""Subscriptions of a topic: consumers come and go, and a subscription begins somewhere.

Invariants: a subscription's type changes only while nobody is connected; one consumer name is one
consumer, and a higher incarnation replaces a lower; a command of an incarnation that is over
changes nothing; a refused command changes nothing. Follows Pulsar's
`PersistentTopic.internalSubscribe` and `PersistentSubscription.addConsumer`.
"""

from __future__ import annotations

from dataclasses import replace

from pulsar_spark.broker.dispatchers import dispatcher_single_active, dispatcher_sticky_key
from pulsar_spark.broker.dispatchers.granting import grants_again
from pulsar_spark.broker.machine.acknowledgment import acknowledge_cursor, existing
from pulsar_spark.broker.machine.message_finder import (
    cursor_before,
    message_after,
    position_at_time,
)
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    Seek,
    SkipMessages,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.broker.protocol.ready import EpochBegan, Ready, RefusedError
from pulsar_spark.broker.selectors.failover_selector import FIRST_COME, FailoverSelector
from pulsar_spark.broker.selectors.shared_dispatch import SharedDispatch
from pulsar_spark.broker.selectors.sticky_key_selector import HashRange, StickyRangeSelector
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.dead_letter import Reason, check_republication_topics
from pulsar_spark.broker.subscriptions.message_redelivery import Holder, give_back_all
from pulsar_spark.broker.subscriptions.redelivery_tracker import RedeliveryTracker
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.errors import ConsumerAssignError, InvalidTopicNameError, ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, LATEST
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.topic_name import TopicName, check_subscription_name


def subscribe(state: BrokerState, command: Subscribe, out: Ready) -> None:
    """Let a consumer in, or refuse it; tell one that is in already what it holds."""
    if not state.is_persistent:
        command = replace(  # there it lasts as long as somebody is connected
            command,
            durable=False,
            initial_position=InitialPosition.LATEST,
            start_message_id=None,
            begins_behind=None,
        )
    subscription = state.subscriptions.get(command.subscription)
    held = subscription.consumers.get(command.consumer) if subscription else None
    _check(state, subscription, held, command)
    if subscription is not None and held is not None:
        _subscribe_again(Holder(state, subscription, held, out), command)
        return
    if subscription is None:
        subscription = _created(state, command)
    if not subscription.consumers:
        _first_consumer(state, subscription, command)
    _join(subscription, command)
    state.subscriptions[command.subscription] = subscription
    state.was_subscribed |= subscription.durable
    consumer = Consumer(
        command.consumer,
        command.incarnation,
        command.priority_level,
        command.options,
        command.permits,
        EARLIEST if command.resumes else subscription.cursor.mark_delete_position,
    )
    subscription.consumers[command.consumer] = consumer
    subscription.incarnations.pop(command.consumer, None)
    out.welcomes.append(command)
    dispatcher_sticky_key.selector_changed(state, subscription, out)


def create(state: BrokerState, command: CreateSubscription, out: Ready) -> None:
    """Make a subscription without consumers; one that exists stays as it is."""
    if command.subscription not in state.subscriptions:
        if not state.is_persistent:
            text = "A non-persistent topic keeps no subscription that nobody is connected to"
            raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)
        start = command.initial_position
        requested = Subscribe(command.subscription, "admin", initial_position=start)
        _check_request(state, requested)
        _check_subscriptions(state)
        state.subscriptions[command.subscription] = _created(state, requested)
        state.was_subscribed = True
    out.confirm(command)


def welcome(subscription: Subscription, out: Ready) -> None:
    """Answer the consumers that this batch let in, with all that they hold."""
    for command in out.welcomes:
        consumer = subscription.consumers.get(command.consumer)
        if command.subscription != subscription.name or consumer is None:
            continue
        if consumer.incarnation != command.incarnation:
            continue
        out.reply(
            command, epoch=subscription.epoch, origin=subscription.origin_for_consumers,
            first_attempt=subscription.first_attempt,
        )  # fmt: skip
        if consumer.is_revoking:
            out.revokes = [
                each for each in out.revokes
                if (each.subscription, each.consumer) != (subscription.name, consumer.name)
            ]  # fmt: skip
            out.revokes.append(dispatcher_single_active.revoke_of(subscription, consumer))
            if consumer.has_open_grant:
                continue  # all undelivered messages are asked back
        grants_again(subscription, consumer, out)
        reported = {(grant.subscription, grant.consumer) for grant in out.open_grants}
        if consumer.has_open_grant and (subscription.name, consumer.name) not in reported:
            grant = dispatcher_single_active.open_grant_of(subscription, consumer, again=True)
            out.open_grants.append(grant)


def close(state: BrokerState, command: CloseConsumer | LeaseLapsed, out: Ready) -> None:
    """Take a consumer out; one that is given up may have its undone messages buried."""
    subscription = state.subscriptions.get(command.subscription)
    consumer = subscription.consumers.get(command.consumer) if subscription else None
    if subscription is None or consumer is None or consumer.incarnation != command.incarnation:
        return
    holder = Holder(state, subscription, consumer, out)
    give_back_all(holder, Reason.CONSUMER_GONE if isinstance(command, LeaseLapsed) else None)
    del subscription.consumers[consumer.name]
    subscription.remember(consumer)
    if subscription.failover is not None:
        subscription.failover = subscription.failover.remove(consumer.name)
    elif subscription.selector is not None:
        subscription.selector = subscription.selector.remove(consumer.name)
    else:
        subscription.shared = subscription.shared.remove(consumer.name)
    if isinstance(command, LeaseLapsed):
        text = "Its lease lapsed: what it held goes to others. Subscribe with a new incarnation."
        out.reply(command, ServerError.CONSUMER_REPLACED, text)
    else:
        out.confirm(command)
    if not subscription.consumers and not subscription.durable:
        _delete(state, subscription, out)
        return
    dispatcher_sticky_key.selector_changed(state, subscription, out)


def unsubscribe(state: BrokerState, command: Unsubscribe, out: Ready) -> None:
    """Delete the subscription, for its only consumer, or for an admin if nobody is connected."""
    subscription = existing(state, command.subscription)
    connected = {each.name: each.incarnation for each in subscription.consumers.values()}
    requested = {command.consumer: command.incarnation} if command.consumer else {}
    if connected != requested:
        text = "Unconnected or shared consumer attempting to unsubscribe"
        raise RefusedError(ServerError.CONSUMER_BUSY, text)
    _delete(state, subscription, out)
    out.confirm(command)


def delete_all(state: BrokerState, out: Ready) -> None:
    """Delete all subscriptions, as their topic is gone; their consumers are told."""
    for subscription in list(state.subscriptions.values()):
        for each in subscription.consumers.values():
            gone = CloseConsumer(subscription.name, each.name, each.incarnation)
            out.reply(gone, ServerError.TOPIC_NOT_FOUND, "The topic was deleted")
        _delete(state, subscription, out)


def seek(state: BrokerState, command: Seek, out: Ready) -> None:
    """Begin a new epoch; consumers stay, and hold nothing."""
    subscription = existing(state, command.subscription)
    if not state.is_persistent:
        text = "A non-persistent topic keeps nothing to go back to"
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)
    position, batch_index = command.position, command.batch_index
    if position is None and command.timestamp_ms is None:
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, "Seek names neither id nor time")
    if position is None:
        position = position_at_time(state, command.timestamp_ms or 0)
    subscription.begin_epoch(
        cursor_before(state, position, batch_index, compacted=subscription.read_compacted)
    )
    out.epochs.append(
        EpochBegan(
            subscription.name, subscription.epoch, subscription.origin, subscription.first_attempt
        )
    )
    out.confirm(command, epoch=subscription.epoch)


def skip(state: BrokerState, command: SkipMessages, out: Ready) -> None:
    """Acknowledge the oldest messages of the backlog, whoever has them."""
    subscription = existing(state, command.subscription)
    skipped = subscription.cursor.unread(state.ledgers)
    if command.position is not None:
        skipped = skipped.up_to(command.position)
    if command.before_ms is not None:
        newer = position_at_time(state, command.before_ms)
        skipped = skipped if newer == LATEST else skipped.up_to(newer.previous)
    if command.count is not None:
        skipped = skipped.prefix(command.count, state.ledgers)
    if command.position is not None or command.before_ms is not None:
        subscription.counts = subscription.counts.plus(state.ledgers, expired=skipped)
    subscription.acknowledge(Cursor().acknowledge(skipped), state.ledgers)
    out.confirm(command)


# -- inside --------------------------------------------------------------------------------------


def _check(
    state: BrokerState, subscription: Subscription | None, held: Consumer | None, command: Subscribe
) -> None:
    """RefusedError if the consumer can't come in, in the order in which Pulsar looks."""
    _check_request(state, command)
    if subscription is None:
        if command.durable and not state.policies.auto_subscription_creation:
            raise RefusedError(ServerError.SUBSCRIPTION_NOT_FOUND, "Subscription does not exist")
        _check_subscriptions(state)
    else:
        _check_run(subscription, held, command)
        if subscription.consumers:
            _check_alike(subscription, held, command)
    if held is not None:
        return
    kind = command.subscription_type.value
    if kind not in state.policies.subscription_types_enabled.split(","):
        text = f"Topic[{state.topic}] doesn't support {kind} sub type!"
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)
    limit = state.policies.max_consumers_per_topic
    if 0 < limit <= sum(len(each.consumers) for each in state.subscriptions.values()):
        raise RefusedError(ServerError.CONSUMER_BUSY, "Topic reached max consumers limit")
    limit = state.policies.max_consumers_per_subscription
    if subscription is not None and 0 < limit <= len(subscription.consumers):
        raise RefusedError(ServerError.CONSUMER_BUSY, "Subscription reached max consumers limit")


def _check_request(state: BrokerState, command: Subscribe) -> None:
    """RefusedError if every subscription would refuse it."""
    try:
        check_subscription_name(command.subscription)
        policy = command.options.dead_letter_policy
        check_republication_topics(state.topic, command.subscription, policy)
    except InvalidTopicNameError as error:
        raise RefusedError(ServerError.NAMING_ERROR, error.message) from error
    if not command.consumer.strip():
        raise RefusedError(ServerError.NAMING_ERROR, "Empty consumer name")
    if command.read_compacted and command.subscription_type.is_shared:
        text = "readCompacted only allowed on failover or exclusive subscriptions"
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)
    if command.read_compacted and not state.is_persistent:
        text = "readCompacted only allowed on persistent topics"
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)


def _check_run(subscription: Subscription, held: Consumer | None, command: Subscribe) -> None:
    """RefusedError if its durability is wrong, or its run over."""
    if subscription.durable != command.durable:
        kind = "Non-durable" if command.durable else "Durable"
        text = f"{kind} subscription with the same name already exists."
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)
    newest = subscription.newest_run_of(command.consumer)
    if held is not None and command.incarnation < newest:
        text = "A newer run has this consumer's name: stop this one"
        raise RefusedError(ServerError.CONSUMER_REPLACED, text, newest)
    if held is None and command.incarnation <= newest:
        text = "This run was closed, or its lease lapsed"
        raise RefusedError(ServerError.CONSUMER_REPLACED, text, newest)


def _check_alike(subscription: Subscription, held: Consumer | None, command: Subscribe) -> None:
    """RefusedError if connected consumers share in another way, or not at all."""
    kind = command.subscription_type
    if subscription.subscription_type is not kind:
        text = (
            "Subscription is of different type. Active subscription type of "
            f"'{subscription.subscription_type.value}' is different than the connecting "
            f"consumer's type '{kind.value}'."
        )
    elif kind is SubscriptionType.EXCLUSIVE and held is None:
        text = "Exclusive consumer is already connected"
    elif subscription.read_compacted != command.read_compacted:
        text = "Subscription is of different type: readCompacted differs"
    elif kind is SubscriptionType.KEY_SHARED and not subscription.key_shared_policy.matches(
        command.key_shared_policy
    ):
        text = "Subscription is of different type: its Key_Shared policy differs"
    else:
        return
    raise RefusedError(ServerError.CONSUMER_BUSY, text)


def _check_subscriptions(state: BrokerState) -> None:
    limit = state.policies.max_subscriptions_per_topic
    if 0 < limit <= len(state.subscriptions):
        text = f"Exceed the maximum subscriptions: {limit}"
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)


def _created(state: BrokerState, command: Subscribe) -> Subscription:
    latest = command.initial_position is InitialPosition.LATEST
    position, batch_index = LATEST if latest else EARLIEST, -1
    if command.begins_behind is not None:
        position = EARLIEST
    elif command.start_message_id is not None:
        position, batch_index = command.start_message_id
        if not command.start_message_id_inclusive and position not in (EARLIEST, LATEST):
            position, batch_index = message_after(state, position, batch_index)
    cursor = cursor_before(state, position, batch_index, compacted=command.read_compacted)
    created = Subscription(
        command.subscription,
        command.subscription_type,
        command.durable,
        cursor,
        cursor,
        epoch=state.next_epoch,
        first_attempt=state.next_attempt,
        tracker=RedeliveryTracker(state.next_attempt - 1, state.next_attempt - 1),
        read_compacted=command.read_compacted,
    )
    if command.begins_behind is not None:
        acknowledge_cursor(state, created, command.begins_behind)
        created.origin = created.cursor
    created.read_position = created.announced = created.cursor.mark_delete_position
    return created


def _first_consumer(state: BrokerState, subscription: Subscription, command: Subscribe) -> None:
    """Let the first consumer settle the subscription's type, and what it reads."""
    if subscription.read_compacted and not command.read_compacted:
        subscription.pass_over(Cursor().acknowledge(state.only_compacted), state.ledgers)
    subscription.read_compacted = command.read_compacted
    kind = command.subscription_type
    subscription.subscription_type = kind
    subscription.key_shared_policy = command.key_shared_policy
    subscription.shared, subscription.failover, subscription.selector = SharedDispatch(), None, None
    if kind is SubscriptionType.KEY_SHARED:
        subscription.selector = dispatcher_sticky_key.new_selector(
            command.key_shared_policy, state.policies
        )
    elif not kind.is_shared:
        topic, on_ring = state.topic, state.policies.failover_consistent_hashing
        if state.partition >= 0 and on_ring:
            topic = str(TopicName.parse(topic).partition(state.partition))
        is_exclusive = kind is SubscriptionType.EXCLUSIVE
        index = FIRST_COME if command.partitions == 1 and not on_ring else state.partition
        subscription.failover = FailoverSelector(topic, index, on_ring, is_exclusive)
    subscription.rewind()


def _join(subscription: Subscription, command: Subscribe) -> None:
    """Let a consumer join, or rejoin. RefusedError, without effect, if ranges clash."""
    name = command.consumer
    if subscription.failover is not None:
        is_in = name in subscription.consumers
        failover = subscription.failover.remove(name) if is_in else subscription.failover
        subscription.failover = failover.add(name, name, command.priority_level)
    elif subscription.selector is not None:
        selector = subscription.selector.remove(name)
        try:
            subscription.selector = selector.add(name, name, _ranges_of(command))
        except ConsumerAssignError as error:
            raise RefusedError(ServerError.CONSUMER_ASSIGN_ERROR, error.message) from error
    else:
        shared = subscription.shared.remove(name)
        subscription.shared = shared.add(name, command.priority_level)


def _ranges_of(command: Subscribe) -> list[HashRange] | None:
    return [HashRange(low, high) for low, high in command.key_shared_policy.ranges] or None


def _joins_differently(subscription: Subscription, consumer: Consumer, command: Subscribe) -> bool:
    """True if a new run asks for another priority, or for other ranges, than the one before."""
    selector = subscription.selector
    if isinstance(selector, StickyRangeSelector):
        asked = tuple(sorted(_ranges_of(command) or []))
        return dict(selector.ranges)[consumer.name] != asked
    return selector is None and consumer.priority_level != command.priority_level


def _subscribe_again(holder: Holder, command: Subscribe) -> None:
    """Answer a doubled command, or a new run: what it holds; nothing without checkpoint."""
    state, subscription, consumer, out = holder
    if command.incarnation > consumer.incarnation:
        if _joins_differently(subscription, consumer, command):
            _join(subscription, command)
            consumer.priority_level = command.priority_level
            dispatcher_sticky_key.selector_changed(state, subscription, out)
        consumer.incarnation = command.incarnation
        consumer.options = command.options
        consumer.permits = command.permits
        consumer.sequence = consumer.redeliver_sequence = -1
        consumer.timeouts = PositionMap()  # what of them it delivers, its own reports say
        if not command.resumes:
            consumer.committed = subscription.cursor.mark_delete_position
            give_back_all(holder, Reason.CONSUMER_GONE)
            consumer.reports_delivered = True
    out.welcomes.append(command)


def _delete(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    del state.subscriptions[subscription.name]
    state.next_epoch = max(state.next_epoch, subscription.epoch + 1)
    state.next_attempt = max(state.next_attempt, subscription.tracker.highest_attempt + 1)
    out.deleted_subscriptions += (subscription.name,)
