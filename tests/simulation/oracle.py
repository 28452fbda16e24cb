"""What was promised, held against what happened, in plain sets of (ledger, entry, index)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    Command,
    InitialPosition,
    LeaseLapsed,
    LedgerAdded,
    RedeliverUnacknowledgedMessages,
    Report,
    Seek,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.broker.protocol.ready import Grant, OpenGrant, Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.dead_letter import DEAD_LETTER_REASON, Reason
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import is_quiet
from tests.simulation.deliveries import NO_EPOCH, Deliveries
from tests.simulation.lots import ViolationError

if TYPE_CHECKING:
    from tests.simulation.source import Message, Source
    from tests.simulation.world import World


class Oracle:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.messages: dict[Message, int] = {}
        """Message -> key."""
        self.deliver_at: dict[Message, int] = {}
        self.observed: set[Message] = set()
        """Those of which the broker knows."""
        self.acked: set[Message] = set()
        self.epoch = NO_EPOCH
        self.dead_lettered: set[Message] = set()
        self.owner: dict[Message, Source] = {}
        self.owned_at: dict[Message, int] = {}
        self.twice: set[Message] = set()
        """Not delivered yet when others of their batch were given back, which comes again whole."""
        self.not_before: dict[Message, int] = {}
        self.last_of_key: dict[int, Message] = {}
        self.exists = False
        self.published_at: dict[Message, int] = {}
        self.hidden: set[Message] = set()
        self.claimed: set[Message] = set()
        self.up_to: set[Message] = set()
        """What a cumulative acknowledgement may have taken, in this epoch."""
        """Acknowledged by somebody, whether the broker counts it by itself or not."""
        self.seen: set[Message] = set()
        self.lapsed: set[tuple[str, int]] = set()
        self.deliveries = Deliveries(world)

    # -- what happens ------------------------------------------------------------------------

    def published(self, added: LedgerAdded, messages: Sequence[Message]) -> None:
        assert added.sticky_key_hashes is not None
        for row, message in enumerate(messages):
            self.messages[message] = int(added.sticky_key_hashes[row])
            times = added.publish_times_ms
            published_at = added.published_at_ms if times is None else int(times[row])
            self.published_at[message] = published_at
            if added.deliver_at_ms is not None and added.deliver_at_ms[row] > 0:
                self.deliver_at[message] = int(added.deliver_at_ms[row])
        self.hidden |= set(self.world.plain(added.hidden))

    def gone(self, source: Source) -> None:
        """It closed, lapsed, or forgot: what it had may be delivered again."""
        for message in [m for m, owner in self.owner.items() if owner is source]:
            del self.owner[message]

    def rejected(self, messages: PositionSet) -> None:
        """Its user gives these back: they may be delivered again."""
        given_back = set(self.world.plain(messages))
        if not self._by_batch_index:  # then the whole batch comes again
            entries = {message[:2] for message in given_back}
            given_back = {message for message in self.messages if message[:2] in entries}
            self.twice |= {message for message in given_back if message not in self.owner}
        for message in given_back:
            self.owner.pop(message, None)

    def delivered(self, source: Source, attempts: Mapping[int, PositionSet]) -> None:
        """A micro-batch reaches its user, once for each batch id."""
        world = self.world
        batch = PositionSet()
        for attempt, messages in attempts.items():
            batch = batch.union(messages)
            self.deliveries.note(source.epoch, attempt, world.plain(messages))
        if source.epoch != self.epoch:
            return
        if (source.name, source.incarnation) in self.lapsed:
            return  # it does not know yet that others have what it holds
        rows = world.plain(batch)
        timed_out = {m for m in rows if m in self.owner and self._timed_out(m)}
        if not self._by_batch_index:  # its batch comes again whole, perhaps one by one
            self.rejected(world.made(timed_out))
        for message in rows:
            self._check_wanted(source, message)
            self._check_time(message, "delivered")
            before = self.owner.get(message)
            if before is source and message in self.twice:
                self.twice.discard(message)
            elif before is not None and message not in timed_out:
                self.fail(f"{message} was delivered to {source.name} and to {before.name}")
            self.owner[message] = source
            self.owned_at[message] = world.now_ms
            if message not in self.seen:
                self._check_key(message)
            self.seen.add(message)

    def _check_wanted(self, source: Source, message: Message) -> None:
        """Nobody was done with it."""
        if message in self.hidden:
            self.fail(f"{message} is a duplicate, and was delivered")
        if message in source.finished and self.world.goes_on_alone and self._by_batch_index:
            self.fail(f"{message} was delivered to {source.name}, who had finished it")
        if message in self.dead_lettered:
            self.fail(f"{message} was delivered after it became a dead letter")

    def _check_key(self, message: Message) -> None:
        """Its key's messages come in order, at first."""
        world = self.world
        if world.ordered and world.setting.kind is SubscriptionType.KEY_SHARED:
            key = self.messages[message]
            if self.last_of_key.get(key, (-1, -1, -1)) >= message:
                self.fail(f"{message} of key {key} came behind {self.last_of_key[key]}")
            self.last_of_key[key] = message

    def stepped(
        self, before: BrokerState, commands: Sequence[Command], after: BrokerState, ready: Ready
    ) -> None:
        """The broker made a step."""
        self.deliveries.follow(commands)
        for letter in ready.republications:
            for message in self.world.plain(letter.messages):
                if message in self.dead_lettered:
                    self.fail(f"{message} was copied twice")
                self.deliveries.check_burial(message)
                self.dead_lettered.add(message)
                self.owner.pop(message, None)
        self._follow_commands(before, commands, after)
        self._follow_rejections(before, commands)
        self.acked |= self.dead_lettered
        after.check()
        self._check_cursor(after)
        self._check_places(after)
        for grant in ready.grants:
            self._check_grant(grant)
        for opened in ready.open_grants:
            self._check_open_grant(after, opened)
        self._check_bounds(after, ready)
        self._check_breakers(before, after, ready)
        self._check_trim(before, ready)

    def check_nothing_is_left(self, after: BrokerState, ready: Ready) -> None:
        """A host that steps again only when told to misses nothing."""
        due_ms = ready.next_due_ms
        if due_ms is None:
            due_ms = after.now_ms + 1_000_000_000
        for now_ms in (after.now_ms, due_ms - 1):
            if after.now_ms <= now_ms < due_ms:
                _, idle = step(after, [], now_ms)
                if not is_quiet(idle):
                    self.fail(f"at {now_ms}, before {due_ms}, there was to do: {idle}")

    def finished(self) -> None:
        """All is quiet."""
        if self.missing():
            self.fail(f"lost: {self.missing()}")

    def is_done(self) -> bool:
        return not self.missing()

    def missing(self) -> list[Message]:
        """Published, and neither acknowledged nor dead letters."""
        return sorted(m for m in self.messages if m not in self.acked)

    def fail(self, text: str) -> None:
        raise ViolationError(text)

    # -- inside ------------------------------------------------------------------------------

    @property
    def _by_batch_index(self) -> bool:
        return self.world.setting.policies.batch_index_acknowledgment

    def _follow_commands(
        self, before: BrokerState, commands: Sequence[Command], after: BrokerState
    ) -> None:
        """The obvious cursor: a set to which every report of this epoch adds."""
        self._hear_of_ledgers(commands)
        subscription = after.subscriptions.get("s")
        if subscription is None:  # perhaps a consumer has heard of a seek meanwhile
            self.world.goes_on_alone &= not any(isinstance(each, Seek) for each in commands)
            self._begin(NO_EPOCH, set())
            return
        if subscription.epoch != self.epoch:
            self._begin_at_origin(commands, after, subscription)
        for place, command in enumerate(commands):
            if isinstance(command, Report) and command.epoch is None:
                self._acknowledge_by_sink(command)
            elif isinstance(command, Report) and command.epoch == self.epoch:
                up_to = command.acknowledged.mark_delete_position
                if up_to > EARLIEST and not command.consumer:
                    # The type that counts is the one at that command: later ones may change it.
                    then, _ = step(before, commands[:place], after.now_ms)
                    if then.subscriptions.get("s", subscription).subscription_type.is_shared:
                        continue
                    # It may leave out what others hold, and what waits to come again.
                    self.up_to |= {m for m in self.observed if m[:2] <= up_to}
                    self.up_to |= self._claim(command.acknowledged)
                    continue
                self._acknowledge(command.acknowledged)

    def _hear_of_ledgers(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, LedgerAdded):
                ledger = command.ledger
                for entry_id in range(ledger.entries):
                    for index in range(ledger.batch_sizes.size_of(entry_id)):
                        self.observed.add((ledger.ledger_id, entry_id, index))
        self.acked |= self.hidden & self.observed

    def _acknowledge_by_sink(self, report: Report) -> None:
        """What was delivered in this epoch counts; a sink itself knows no epoch."""
        self._acknowledge(report.acknowledged)
        for attempt, cursor in report.acknowledged_attempts.items():
            messages = self.deliveries.of_epoch(attempt, cursor.individually_deleted)
            self._acknowledge(Cursor().acknowledge(messages))

    def _begin(self, epoch: int, acked: set[Message]) -> None:
        """A seek, a new subscription, or none any more."""
        self.deliveries.begin(epoch, self.acked)
        self.epoch = epoch
        self.dead_lettered = set()
        self.owner, self.not_before, self.last_of_key = {}, {}, {}
        self.acked = acked
        self.claimed = set(acked)
        self.up_to = set()

    def _begin_at_origin(
        self, commands: Sequence[Command], after: BrokerState, subscription: Subscription
    ) -> None:
        origin = subscription.origin
        held = {m for m in self.observed if origin.contains(Position(*m[:2]), m[2])}
        stay = {ledger.ledger_id for ledger in after.ledgers_that_stay()}
        seeks = [command for command in commands if isinstance(command, Seek)]
        ends = (Unsubscribe, CloseConsumer, LeaseLapsed)
        self.world.goes_on_alone &= not seeks
        if self.epoch != NO_EPOCH and seeks:
            places = [self._before(seeks[-1], {ledger.ledger_id for ledger in after.ledgers})]
        else:
            places = self._where_it_begins(commands)
        hidden = self.hidden & self.observed
        requested = [{m for m in place | hidden if m[0] in stay} for place in places]
        ended = self.epoch == NO_EPOCH or any(isinstance(command, ends) for command in commands)
        is_plain = not (seeks and ended)
        if is_plain and {m for m in held if m[0] in stay} not in requested:
            self.fail(f"an epoch begins behind {sorted(held)}, and not behind one of {requested}")
        self._begin(subscription.epoch, held | {m for m in self.observed if m[0] not in stay})
        for command in commands:  # part of a batch was acknowledged in an earlier life
            if isinstance(command, Subscribe) and command.begins_behind is not None:
                self._claim(command.begins_behind)

    def _where_it_begins(self, commands: Sequence[Command]) -> list[set[Message]]:
        """Of a subscription that is new; one that is not durable goes on where a consumer was."""
        latest = self.world.setting.initial_position is InitialPosition.LATEST
        places = []
        for command in commands:
            if isinstance(command, Subscribe) and command.subscription == "s":
                cursor = command.begins_behind
                if cursor is None:
                    places.append(set(self.observed) if latest else set())
                else:
                    done = {m for m in self.observed if cursor.contains(Position(*m[:2]), m[2])}
                    places.append(done if self._by_batch_index else self._whole(done | self.hidden))
        return places

    def _whole(self, messages: set[Message]) -> set[Message]:
        """Those whose batch is complete."""
        missing = {message[:2] for message in self.messages.keys() - messages}
        return {message for message in messages if message[:2] not in missing}

    def _before(self, seek: Seek, there: set[int]) -> set[Message]:
        """What lies before the message that is to be the next."""
        if seek.position is not None:
            place = (*seek.position, max(seek.batch_index, 0))
            return {m for m in self.observed if m < place}
        assert seek.timestamp_ms is not None
        newest: dict[tuple[int, int], int] = {}
        for m in self.observed:
            if m[0] in there:
                newest[m[:2]] = max(newest.get(m[:2], 0), self.published_at[m])
        earlier = [entry for entry, time in newest.items() if time < seek.timestamp_ms]
        return {m for m in self.observed if earlier and m[:2] <= max(earlier)}

    def _follow_rejections(self, before: BrokerState, commands: Sequence[Command]) -> None:
        """When the broker heard of a rejection, and until when it must wait."""
        ends = (LeaseLapsed, CloseConsumer, Subscribe, RedeliverUnacknowledgedMessages, Seek)
        troubled = any(isinstance(command, ends) for command in commands)
        self._follow_what_is_given_back(commands)
        subscription = before.subscriptions.get("s")
        if troubled or subscription is None:
            return
        for command in commands:
            consumer = subscription.consumers.get(getattr(command, "consumer", ""))
            if not isinstance(command, Report) or consumer is None:
                continue
            if (command.epoch, command.incarnation) == (self.epoch, consumer.incarnation):
                self._note_delays(consumer, command)

    def _follow_what_is_given_back(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if not self._by_batch_index:  # then a batch comes again whole
                for messages in _given_back(command):
                    self.rejected(messages)
            if isinstance(command, LeaseLapsed | RedeliverUnacknowledgedMessages):
                if isinstance(command, LeaseLapsed):
                    self.lapsed.add((command.consumer, command.incarnation))
                for source in self.world.sources:
                    if source.name == command.consumer:
                        self.gone(source)

    def _note_delays(self, consumer: Consumer, report: Report) -> None:
        options = self.world.setting.consumer_options
        whole: set[tuple[int, int]] = set()
        """Batches that an earlier rejection gives back, if they come again whole."""
        for rejection in report.rejected:
            delay_ms = rejection.delay_ms
            if delay_ms is None:
                backoff = options.negative_ack_redelivery_backoff
                delay_ms = options.negative_ack_redelivery_delay_ms
                if backoff is not None:
                    delay_ms = backoff.min_delay_ms
            held = consumer.held
            if rejection.attempt is not None:
                held = consumer.pending.get(rejection.attempt, PositionSet())
            for message in self.world.plain(rejection.messages):
                is_held = held.contains(Position(*message[:2]), message[2])
                if is_held and message not in self.acked and message[:2] not in whole:
                    self.not_before[message] = self.world.now_ms + delay_ms
            if not self._by_batch_index:
                whole |= {message[:2] for message in self.world.plain(rejection.messages)}

    def _check_grant(self, grant: Grant) -> None:
        for message in self.world.plain(grant.messages):
            if message in self.acked:
                self.fail(f"{message} was granted after it was acknowledged")
            if not grant.again:
                self._check_time(message, "granted")

    def _check_open_grant(self, after: BrokerState, opened: OpenGrant) -> None:
        subscription = after.subscriptions["s"]
        others = PositionSet()
        for consumer in subscription.consumers.values():
            if consumer.name != opened.consumer:
                others = others.union(consumer.held)
        for message in self.observed:
            place = Position(*message[:2]), message[2]
            if not opened.after.contains(*place):
                if message in self.acked:
                    self.fail(f"{message} is in an open grant, and acknowledged")
                if others.contains(*place):
                    self.fail(f"{message} is in an open grant, and held by another")

    def _check_trim(self, before: BrokerState, ready: Ready) -> None:
        """What is trimmed was passed by all before the step began."""
        for subscription in before.subscriptions.values():
            for message in self.messages if subscription.durable else ():
                if message[0] in ready.trim and not subscription.cursor.contains(
                    Position(*message[:2]), message[2]
                ):
                    self.fail(f"{message} is trimmed, and {subscription.name} has not passed it")
        if ready.trim and before.ledgers[-1].ledger_id in ready.trim:
            self.fail("the newest ledger is trimmed")

    def _acknowledge(self, cursor: Cursor) -> None:
        new = self._claim(cursor)
        if self._by_batch_index:
            self.acked |= new

    def _claim(self, cursor: Cursor) -> set[Message]:
        new = {m for m in self.messages if cursor.contains(Position(*m[:2]), m[2])}
        self.claimed |= new
        return new

    def _check_cursor(self, after: BrokerState) -> None:
        subscription = after.subscriptions.get("s")
        if subscription is None:
            return
        there = {ledger.ledger_id for ledger in after.ledgers}
        for message in self.observed:
            if message[0] not in there:
                continue
            held = subscription.cursor.contains(Position(*message[:2]), message[2])
            if held and message not in self.acked and self._may_be_done(message):
                self.acked.add(message)
            if held != (message in self.acked):
                what = "acknowledged by nobody" if held else "acknowledged, and forgotten"
                self.fail(f"{message} is {what}")

    def _may_be_done(self, message: Message) -> bool:
        """It expired, its batch is complete, or it was acknowledged cumulatively."""
        if message in self.up_to and self._by_batch_index:
            return True
        ttl_ms = self.world.setting.policies.message_ttl_ms
        if ttl_ms and self.published_at[message] + ttl_ms < self.world.now_ms:
            return True
        entry = {each for each in self.messages if each[:2] == message[:2]}
        whole = self.claimed | self.hidden | self.dead_lettered
        return not self._by_batch_index and entry <= whole

    def _check_places(self, after: BrokerState) -> None:
        """Whatever is not acknowledged is in exactly one place."""
        subscription = after.subscriptions.get("s")
        if subscription is None or not subscription.subscription_type.is_shared:
            return
        seen = [subscription.replay, subscription.waiting.messages, after.delayed.messages]
        seen += [consumer.held for consumer in subscription.consumers.values()]
        places = {m for each in seen for m in self.world.plain(each)}
        for message in self.observed - self.acked - places:
            if message[:2] <= subscription.read_position:
                self.fail(f"{message} is nowhere")

    def _check_time(self, message: Message, what: str) -> None:
        now_ms = self.world.now_ms
        shared = self.world.setting.kind.is_shared
        if (shared or what == "delivered") and self.deliver_at.get(message, 0) > now_ms:
            self.fail(f"{message} was {what} before its producer's time")
        if self.not_before.get(message, 0) > now_ms:
            self.fail(f"{message} was {what} {self.not_before[message] - now_ms} ms early")

    def _timed_out(self, message: Message) -> bool:
        timeout_ms = self.world.setting.consumer_options.ack_timeout_ms
        together = [message]
        if not self._by_batch_index:
            together = [each for each in self.owned_at if each[:2] == message[:2]]
        first_ms = min(self.owned_at[each] for each in together)
        return timeout_ms > 0 and self.world.now_ms >= first_ms + timeout_ms

    def _check_breakers(self, before: BrokerState, after: BrokerState, ready: Ready) -> None:
        """While one is not closed, only a trial goes out, and no failure buries anything."""
        for name, subscription in after.subscriptions.items():
            breaker = subscription.breaker
            if breaker.is_closed:
                continue
            if any(each.subscription == name and not each.again for each in ready.open_grants):
                self.fail(f"an open grant, and the breaker of {name} is open")
            fresh = PositionSet.union_of(
                each.messages
                for each in ready.grants
                if each.subscription == name and not each.again
            )
            if fresh.difference(breaker.trial):
                self.fail(f"{fresh} was granted, on trial is {breaker.trial}")
            if (count := fresh.count(after.ledgers)) > breaker.size:
                self.fail(f"{count} messages were granted, a trial has {breaker.size}")
            was = before.subscriptions.get(name)
            if was is None or was.epoch != subscription.epoch or was.breaker.is_closed:
                continue
            if was.breaker.opened_ms != breaker.opened_ms:  # it was closed in between
                continue
            for letter in ready.republications:
                reason = dict(letter.properties).get(DEAD_LETTER_REASON)
                if letter.subscription == name and reason == Reason.REJECTED.value:
                    self.fail(f"{letter.messages} failed while the breaker was open, and is buried")

    def _check_bounds(self, after: BrokerState, ready: Ready) -> None:
        subscription = after.subscriptions.get("s")
        if subscription is None:
            return
        policies = after.policies
        shared = subscription.subscription_type.is_shared
        most_held = policies.max_unacked_messages_per_consumer
        total = 0
        for consumer in subscription.consumers.values():
            held = subscription.unacked_messages_of(consumer, after.ledgers)
            total += held
            fresh = any(g.consumer == consumer.name and not g.again for g in ready.grants)
            if fresh and held > consumer.permits:
                self.fail(f"{consumer.name} holds {held} and may hold {consumer.permits}")
            if fresh and shared and subscription.durable and held > most_held:
                self.fail(f"{consumer.name} holds {held}, above the limit of the topic")
        fresh = any(not grant.again for grant in ready.grants)
        limit = policies.max_unacked_messages_per_subscription
        if fresh and total > limit and shared:
            self.fail(f"the subscription holds {total} messages, and may hold {limit}")


def _given_back(command: Command) -> list[PositionSet]:
    if isinstance(command, Report):
        rejected = [each.messages for each in command.rejected]
        return rejected + [each.messages for each in command.reconsume_later]
    if isinstance(command, RedeliverUnacknowledgedMessages):
        return list((command.messages or {}).values())
    return []
