"""What was promised, held against what happened, in plain sets of (ledger, entry, index)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pulsar_spark.broker_state import BrokerState
from pulsar_spark.commands import (
    CloseConsumer,
    Command,
    LeaseLapsed,
    LedgerAdded,
    RedeliverUnacknowledgedMessages,
    Report,
    Seek,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.consumer import Consumer
from pulsar_spark.cursor import Cursor
from pulsar_spark.position import Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.ready import Grant, Ready
from pulsar_spark.topic_subscriptions import cursor_before

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
        self.heard: set[Message] = set()
        """Those of which the broker knows."""
        self.acked: set[Message] = set()
        self.epoch = 0
        self.buried: set[Message] = set()
        self.owner: dict[Message, Source] = {}
        self.owned_at: dict[Message, int] = {}
        self.not_before: dict[Message, int] = {}
        self.last_of_key: dict[int, Message] = {}
        self.exists = False
        self.published_at: dict[Message, int] = {}
        self.hidden: set[Message] = set()
        self.claimed: set[Message] = set()
        """Acknowledged by somebody, whether the broker counts it by itself or not."""
        self.seen: set[Message] = set()
        self.lapsed: set[tuple[str, int]] = set()

    # -- what happens ------------------------------------------------------------------------

    def published(self, added: LedgerAdded, messages: Sequence[Message]) -> None:
        assert added.sticky_key_hashes is not None
        for row, message in enumerate(messages):
            self.messages[message] = int(added.sticky_key_hashes[row])
            self.published_at[message] = added.published_at_ms
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
        if not self.world.policies.batch_index_acknowledgment:  # then the whole batch comes again
            entries = {message[:2] for message in given_back}
            given_back = {message for message in self.messages if message[:2] in entries}
        for message in given_back:
            self.owner.pop(message, None)

    def delivered(self, source: Source, batch: PositionSet) -> None:
        """A micro-batch reaches its user, once for each batch id."""
        committed = source.committed
        if committed is None or committed.epoch != self.epoch:
            return
        world = self.world
        if (source.name, source.incarnation) in self.lapsed:
            return  # it does not know yet that others have what it holds
        for message in world.plain(batch):
            if message in self.hidden:
                self.fail(f"{message} is a duplicate, and was delivered")
            if message in self.buried:
                self.fail(f"{message} was delivered after it became a dead letter")
            self._check_time(message, "delivered")
            before = self.owner.get(message)
            if before is not None and not self._timed_out(message):
                self.fail(f"{message} was delivered to {source.name} and to {before.name}")
            self.owner[message] = source
            self.owned_at[message] = world.now_ms
            is_first = message not in self.seen
            self.seen.add(message)
            if is_first and world.ordered and world.kind is SubscriptionType.KEY_SHARED:
                key = self.messages[message]
                if self.last_of_key.get(key, (-1, -1, -1)) >= message:
                    self.fail(f"{message} of key {key} came behind {self.last_of_key[key]}")
                self.last_of_key[key] = message

    def stepped(
        self, before: BrokerState, commands: Sequence[Command], after: BrokerState, ready: Ready
    ) -> None:
        """The broker made a step."""
        for letter in ready.letters:
            for message in self.world.plain(letter.messages):
                if message in self.buried:
                    self.fail(f"{message} was copied twice")
                self.buried.add(message)
                self.owner.pop(message, None)
        self._follow_commands(before, commands, after)
        self._follow_rejections(before, commands)
        self.acked |= self.buried
        after.check()
        self._check_cursor(after)
        self._check_places(after)
        for grant in ready.grants:
            self._check_grant(grant)
        for opened in ready.open_grants:
            for message in self.acked:
                if message in self.heard and not opened.after.contains(
                    Position(*message[:2]), message[2]
                ):
                    self.fail(f"{message} is in an open grant, and acknowledged")
        self._check_bounds(after, ready)

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
        from tests.simulation.world import ViolationError

        raise ViolationError(text)

    # -- inside ------------------------------------------------------------------------------

    def _follow_commands(
        self, before: BrokerState, commands: Sequence[Command], after: BrokerState
    ) -> None:
        """The obvious cursor: a set to which every report of this epoch adds."""
        for command in commands:
            if isinstance(command, LedgerAdded):
                ledger = command.ledger
                for entry_id in range(ledger.entries):
                    for index in range(ledger.batch_sizes.size_of(entry_id)):
                        self.heard.add((ledger.ledger_id, entry_id, index))
        self.acked |= self.hidden & self.heard
        existed = self.exists
        for command in commands:
            if isinstance(command, Seek) and existed:
                self.epoch += 1
                self.buried = set()
                self.owner, self.not_before, self.last_of_key = {}, {}, {}
                assert command.position is not None
                state = before.copy()
                state.ledgers, state.trimming = after.ledgers, after.trimming
                state.hidden = after.hidden
                cursor = cursor_before(state, command.position)
                self.acked = {m for m in self.heard if cursor.contains(Position(*m[:2]), m[2])}
                self.claimed = set(self.acked)
                trimmed = {ledger.ledger_id for ledger in after.ledgers}
                self.acked |= {m for m in self.heard if m[0] not in trimmed}
            elif isinstance(command, Report) and existed and command.epoch == self.epoch:
                self._acknowledge(command.acknowledged)
            elif isinstance(command, Subscribe):
                existed = True
        self.exists = "s" in after.subscriptions
        if self.exists and self.epoch != after.subscriptions["s"].epoch:
            self.fail("the broker is in another epoch")

    def _follow_rejections(self, before: BrokerState, commands: Sequence[Command]) -> None:
        """When the broker heard of a rejection, and until when it must wait."""
        ends = (LeaseLapsed, CloseConsumer, Subscribe, RedeliverUnacknowledgedMessages, Seek)
        troubled = any(isinstance(command, ends) for command in commands)
        for command in commands:
            if isinstance(command, LeaseLapsed | RedeliverUnacknowledgedMessages):
                if isinstance(command, LeaseLapsed):
                    self.lapsed.add((command.consumer, command.incarnation))
                for source in self.world.sources:
                    if source.name == command.consumer:
                        self.gone(source)
        subscription = before.subscriptions.get("s")
        if troubled or subscription is None:
            return
        for command in commands:
            consumer = subscription.consumers.get(getattr(command, "consumer", ""))
            if not isinstance(command, Report) or consumer is None:
                continue
            if (command.epoch, command.incarnation) == (self.epoch, consumer.incarnation):
                self._note_delays(consumer, command)

    def _note_delays(self, consumer: Consumer, report: Report) -> None:
        options = self.world.consumer_options
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
                if is_held and message not in self.acked:
                    self.not_before[message] = self.world.now_ms + delay_ms

    def _check_grant(self, grant: Grant) -> None:
        for message in self.world.plain(grant.messages):
            if message in self.acked:
                self.fail(f"{message} was granted after it was acknowledged")
            if not grant.again:
                self._check_time(message, "granted")

    def _acknowledge(self, cursor: Cursor) -> None:
        new = {m for m in self.messages if cursor.contains(Position(*m[:2]), m[2])}
        self.claimed |= new
        if self.world.policies.batch_index_acknowledgment:
            self.acked |= new

    def _check_cursor(self, after: BrokerState) -> None:
        subscription = after.subscriptions.get("s")
        if subscription is None:
            return
        there = {ledger.ledger_id for ledger in after.ledgers}
        for message in self.heard:
            if message[0] not in there:
                continue
            held = subscription.cursor.contains(Position(*message[:2]), message[2])
            if held and message not in self.acked and self._may_be_done(message):
                self.acked.add(message)
            if held != (message in self.acked):
                what = "acknowledged by nobody" if held else "acknowledged, and forgotten"
                self.fail(f"{message} is {what}")

    def _may_be_done(self, message: Message) -> bool:
        """It expired, or its batch is complete."""
        ttl_ms = self.world.policies.message_ttl_ms
        if ttl_ms and self.published_at[message] + ttl_ms < self.world.now_ms:
            return True
        entry = {each for each in self.messages if each[:2] == message[:2]}
        whole = self.claimed | self.hidden | self.buried
        return not self.world.policies.batch_index_acknowledgment and entry <= whole

    def _check_places(self, after: BrokerState) -> None:
        """Whatever is not acknowledged is in exactly one place."""
        subscription = after.subscriptions.get("s")
        if subscription is None or not subscription.subscription_type.is_shared:
            return
        seen = [subscription.replay, subscription.waiting.messages, after.delayed.messages()]
        seen += [consumer.held for consumer in subscription.consumers.values()]
        places = {m for each in seen for m in self.world.plain(each)}
        for message in self.heard - self.acked - places:
            if message[:2] <= subscription.read_position:
                self.fail(f"{message} is nowhere")

    def _check_time(self, message: Message, what: str) -> None:
        now_ms = self.world.now_ms
        if self.world.kind.is_shared and self.deliver_at.get(message, 0) > now_ms:
            self.fail(f"{message} was {what} before its producer's time")
        if self.not_before.get(message, 0) > now_ms:
            self.fail(f"{message} was {what} {self.not_before[message] - now_ms} ms early")

    def _timed_out(self, message: Message) -> bool:
        timeout_ms = self.world.consumer_options.ack_timeout_ms
        return timeout_ms > 0 and self.world.now_ms >= self.owned_at[message] + timeout_ms

    def _check_bounds(self, after: BrokerState, ready: Ready) -> None:
        subscription = after.subscriptions.get("s")
        if subscription is None:
            return
        policies = after.policies
        total = 0
        for consumer in subscription.consumers.values():
            held = subscription.unacked_messages_of(consumer, after.ledgers)
            total += held
            fresh = any(g.consumer == consumer.name and not g.again for g in ready.grants)
            if fresh and held > consumer.permits:
                self.fail(f"{consumer.name} holds {held} and may hold {consumer.permits}")
            if fresh and held > policies.max_unacked_messages_per_consumer:
                self.fail(f"{consumer.name} holds {held}, above the limit of the topic")
        fresh = any(not grant.again for grant in ready.grants)
        limit = policies.max_unacked_messages_per_subscription
        if fresh and total > limit and subscription.subscription_type.is_shared:
            self.fail(f"the subscription holds {total} messages, and may hold {limit}")
