"""Users' programs: they call the client's public face, and do with messages what is drawn.

Invariants: a program tells the oracle of each call before it makes it and of what it returned;
it takes errors of the client as users do, and tries again; in the end it only receives and
acknowledges all that it was handed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_spark import pulsar
from tests.client_torture.oracle import FOREVER, RESTART, Followed, Handout, Seat
from tests.client_torture.turns import Process

if TYPE_CHECKING:
    from tests.client_torture.world import World

POISON = "poison"
LATE = "late"
"""The consumer that comes at the end, and is nearer than all others."""
POLLS_MS = (100, 1_000, 4_000)
LOCKED_OUT_MS = 3_000
"""The longest time from the end of its predecessor until a program is let in."""
BUSY_S = 20.0


class Program:
    """A thread of a process, which runs until the process ends or the schedule is over."""

    def __init__(self, world: World, process: Process, name: str) -> None:
        self.world, self.process, self.name = world, process, name
        self.turns, self.lots, self.oracle = world.turns, world.lots, world.oracle
        self.is_topic_gone = False
        """True if a call ended since its topic was deleted."""

    def run(self) -> None:
        raise NotImplementedError

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """The answer of the call, or the client's exception with which it ended."""
        try:
            return call()
        except pulsar.PulsarException as error:
            self.world.note(f"{self.name}: {what}: {type(error).__name__} {error}"[:160])
            self.oracle_hears(what, error)
            return error
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - the client's calls end with no other
            self.world.note(f"{self.name}: {what}: {type(error).__name__} {error}"[:160])
            self.oracle.fail("raw", f"{self.name}: {what} ended with {error!r}")
            return error

    def oracle_hears(self, what: str, error: pulsar.PulsarException) -> None:
        """Nothing goes wrong in the end: only what a call waits for may be missing."""
        if isinstance(error, pulsar.TopicNotFound) and self.world.remade:
            self.is_topic_gone = True
        elif not isinstance(error, pulsar.Timeout) and self.world.is_calm_for(10.0):
            self.oracle.fail("error", f"{self.name}: {what}: {type(error).__name__}: {error}")


class Publisher(Program):
    """Publishes what it is given, one by one, with others or in a transaction."""

    def __init__(self, world: World, process: Process, name: str, values: list[str]) -> None:
        super().__init__(world, process, name)
        self.values = values

    def run(self) -> None:
        producers = {each: self._producer(each) for each in self.world.topics}
        while self.values and not self.world.finishing:
            topic = self.lots.draw_from(self.world.topics)
            self.is_topic_gone = False
            self._publish(producers[topic])
            if self.is_topic_gone:
                self.attempt("close", producers[topic].close)
                producers[topic] = self._producer(topic)
            self.turns.sleep(self.lots.draw(0, 1_500) / 1000)
        for producer in producers.values():
            self.attempt("close", producer.close)

    def _producer(self, topic: str) -> pulsar.Producer:
        client = self.world.client(self.process)
        while True:
            made = self.attempt("create_producer", lambda: client.create_producer(
                topic, batching_enabled=self.lots.one_in(2),
                batching_max_publish_delay_ms=self.lots.draw_from((1, 50)),
                send_timeout_millis=5_000,
            ))  # fmt: skip
            if isinstance(made, pulsar.Producer):
                return made
            self.turns.sleep(1)

    def _publish(self, producer: pulsar.Producer) -> None:
        count = self.lots.draw(1, max(12, self.world.setting.messages // 5))
        values, self.values[:] = self.values[:count], self.values[count:]
        keys = {value: self._key() for value in values}
        for value, key in keys.items():
            self.oracle.sent(value, producer.topic(), key)
        if self.lots.one_in(2):
            for value, key in keys.items():
                sent = self.attempt("send", lambda v=value, k=key: producer.send(  # type: ignore[misc]
                    v.encode(), partition_key=k))  # fmt: skip
                if isinstance(sent, pulsar.MessageId):
                    self.oracle.confirmed(value)
            return
        for value, key in keys.items():
            producer.send_async(value.encode(), self._reported(value), partition_key=key)
        self.attempt("flush", producer.flush)

    def _reported(self, value: str) -> Callable[[Any, Any], None]:
        def reported(result: pulsar.Result, _id: Any) -> None:
            if result == pulsar.Result.Ok:
                self.oracle.confirmed(value)
            self.is_topic_gone |= result == pulsar.Result.TopicNotFound

        return reported

    def _key(self) -> str | None:
        return None if self.lots.one_in(3) else f"k{self.lots.draw(0, 4)}"


class ConsumerProgram(Program):
    """Receives, and does with each message what is drawn."""

    def __init__(
        self, world: World, process: Process, name: str, followed: Followed, number: int
    ) -> None:
        super().__init__(world, process, name)
        self.followed, self.number = followed, number
        self.setting = world.setting
        self.style = self.setting.styles[number]
        self.seat: Seat | None = None
        self.busy = False
        """At the end it neither receives nor leaves."""

    # -- its life --------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            client = self.world.client(self.process)
            consumer = self._subscribed(client)
            assert self.seat is not None
            self._work(client, consumer, self.seat)
            if not self.world.finishing:
                self.turns.sleep(self.lots.draw_from((0, 0, 1, 4)))

    def _work(self, client: pulsar.Client, consumer: pulsar.Consumer, seat: Seat) -> None:
        others = []
        if self.style == "threads":
            others = [self.turns.spawn(
                self.process, f"{self.name}-2", lambda: self._receive_all(consumer, seat, 0)
            )]  # fmt: skip
        if self.style == "asyncio":
            from tests.client_torture.awaiting import run_in_loop

            run_in_loop(self, consumer, seat)
        elif self.style == "listener":
            while not self._is_leaving(seat):
                self.turns.sleep(0.2)
                self._in_background(client, consumer, seat)
        else:
            self._receive_all(consumer, seat, self.setting.doing_one_in)
        self.turns.block(lambda: all(each.is_done for each in others))

    def _is_leaving(self, seat: Seat) -> bool:
        return seat.gone < self.oracle.now()

    def _subscribed(self, client: pulsar.Client) -> pulsar.Consumer:
        """Try until it is let in."""
        begun_ms = self.turns.now_ms
        while True:
            made = self.attempt("subscribe", lambda: self._subscribe(client))
            waited_ms = self.turns.now_ms - max(begun_ms, self.world.calm_since_ms)
            # A single slow call may take two seconds; a broker that failed waits before it is back.
            is_excused = self.world.store.one_is_slow_in or self.world.broker_failed
            if waited_ms > LOCKED_OUT_MS * self.world.patience and not is_excused:
                self.oracle.fail("locked out", f"{self.name} was let in after {waited_ms:.0f} ms")
            if isinstance(made, pulsar.Consumer):
                return made
            self.turns.sleep(0.5)

    def _subscribe(self, client: pulsar.Client) -> pulsar.Consumer:
        setting, lots = self.setting, self.lots
        topics: Any = list(self.world.topics)
        if setting.by_pattern:
            topics = re.compile(r"persistent://public/default/[tu]$")
        elif len(topics) == 1:
            topics = topics[0]
        dead_letters = None
        if setting.max_redeliver_count is not None:
            dead_letters = pulsar.ConsumerDeadLetterPolicy(
                setting.max_redeliver_count, dead_letter_topic="t-s-DLQ"
            )
        name = f"{self.name}" if setting.named else None
        seat = self.oracle.seated(
            f"{self.name}#{len(self.oracle.seats)}", self.followed, self.process,
            receipts=setting.receipts, is_shared=self.style == "threads",
        )  # fmt: skip
        options = setting.options
        if setting.priorities:
            options |= {"priorityLevel": "0" if self.name == LATE else str(9 - self.number)}
        listener = None
        if self.style == "listener":
            listener = self._listener(seat)
        self.seat = seat
        try:
            return client.subscribe(
                topics, self.followed.name,
                pulsar.ConsumerType[setting.kind.replace("_", "")],
                message_listener=listener,
                receiver_queue_size=lots.draw_from(setting.queue),
                consumer_name=name,
                unacked_messages_timeout_ms=setting.ack_timeout_ms or None,
                negative_ack_redelivery_delay_ms=setting.nack_ms,
                initial_position=pulsar.InitialPosition.Earliest,
                pattern_auto_discovery_period=1,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(
                    setting.batch[0], -1, setting.batch[1]
                ),
                dead_letter_policy=dead_letters,
                retry_enable=setting.retry,
                ack_receipt_enabled=setting.receipts,
                acknowledgments_group_time_millis=setting.group_ms,
                options=options,
            )  # fmt: skip
        except BaseException:
            self.oracle.leaves(seat)
            raise

    def _listener(self, seat: Seat) -> Callable[[Any, Any], None]:
        began = [self.oracle.now()]

        def listener(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            handout = self.oracle.handed(seat, message, began[0])
            self.settle(consumer, seat, handout)
            began[0] = self.oracle.now()

        return listener

    # -- receiving -------------------------------------------------------------------------------

    def _receive_all(self, consumer: pulsar.Consumer, seat: Seat, doing_one_in: int) -> None:
        while not self._is_leaving(seat):
            if self.busy:
                self.turns.sleep(1)
                continue
            if self.style == "batch" and not self.world.finishing and self.lots.one_in(2):
                self._receive_batch(consumer, seat)
            else:
                began = self.oracle.now()
                patience_ms = 4_000 if self.world.finishing else self.lots.draw_from(POLLS_MS)
                found = self.attempt("receive", partial(self._receive, consumer, seat, patience_ms))
                if isinstance(found, pulsar.Message):
                    self.settle(consumer, seat, self.oracle.handed(seat, found, began))
                elif not isinstance(found, pulsar.Timeout) and self._ends_with(
                    consumer, seat, found
                ):
                    return
            if self.world.finishing:
                self.settle_held(consumer, seat)
            elif doing_one_in and self.lots.one_in(doing_one_in):
                self._in_background(self.world.client(self.process), consumer, seat)

    def _receive(
        self, consumer: pulsar.Consumer, seat: Seat, patience_ms: int
    ) -> pulsar.Message | None:
        """The next message; None where another thread has closed the consumer."""
        try:
            return consumer.receive(patience_ms)
        except pulsar.AlreadyClosed:
            if seat.is_shared and self._is_leaving(seat):
                return None
            raise

    def _receive_batch(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        began = self.oracle.now()
        found = self.attempt("batch_receive", consumer.batch_receive)
        if isinstance(found, list):
            handouts = [self.oracle.handed(seat, each, began) for each in found]
            for each in handouts:
                self.settle(consumer, seat, each)
        else:
            self._ends_with(consumer, seat, found)

    def _ends_with(self, consumer: pulsar.Consumer, seat: Seat, error: Any) -> bool:
        """True if the consumer is of no more use."""
        self.turns.sleep(0.1)
        if isinstance(error, (pulsar.AlreadyClosed, pulsar.NotConnected, pulsar.ConsumerBusy)):
            self.close(consumer, seat)
            return True
        return False

    # -- what it does with a message -------------------------------------------------------------

    def settle(self, consumer: pulsar.Consumer, seat: Seat, handout: Handout) -> None:
        """Acknowledge or reject the message, as is drawn; in the end acknowledge it."""
        if handout.published.value.startswith(POISON) and not self.world.finishing:
            self.world.kill(self.process)
        what = "ack" if self.world.finishing else self.lots.draw_from(self.setting.verdicts)
        message = handout.message
        if what == "ack":
            self.acknowledge(consumer, seat, [handout], lambda: consumer.acknowledge(message))
        elif what == "cumulative":
            self.acknowledge(
                consumer, seat, self.oracle.up_to(handout),
                lambda: consumer.acknowledge_cumulative(message),
            )  # fmt: skip
        elif what == "nack":
            self.oracle.rejected([handout], self.setting.nack_ms)
            self.attempt("negative_acknowledge", lambda: consumer.negative_acknowledge(message))
        elif what == "later":
            delay_ms = self.lots.draw(0, 3_000)
            self.oracle.rejected([handout], delay_ms)
            self.attempt("reconsume_later", lambda: consumer.reconsume_later(message, delay_ms))

    def acknowledge(
        self,
        consumer: pulsar.Consumer,
        seat: Seat,
        handouts: list[Handout],
        call: Callable[[], None],
    ) -> None:
        made = self.oracle.acknowledging(handouts)
        answer = self.attempt("acknowledge", call)
        if isinstance(answer, Exception):
            for handout, each in zip(handouts, made, strict=True):
                handout.acknowledged.remove(each)  # it may not have been taken in
                if not handout.acknowledged:
                    seat.held[handout.published.value] = handout
        elif seat.receipts:
            self.oracle.receipt(made)

    def settle_held(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        for each in list(seat.held.values()):
            self.acknowledge(
                consumer, seat, [each], lambda m=each.message: consumer.acknowledge(m)  # type: ignore[misc]
            )  # fmt: skip

    # -- what it does besides --------------------------------------------------------------------

    def _in_background(self, client: pulsar.Client, consumer: pulsar.Consumer, seat: Seat) -> None:
        if self.world.finishing:
            if not self.busy:
                self.settle_held(consumer, seat)
            return
        if self.style == "listener" and not self.lots.one_in(self.setting.doing_one_in):
            return
        what = self.lots.draw_from(self.setting.doings)
        self.world.note(f"{self.name}: {what}")
        doings: dict[str, Callable[[], object]] = {
            "idle": lambda: self.turns.sleep(self.lots.draw(0, 3_000) / 1000),
            "busy": lambda: self.turns.sleep(BUSY_S),
            "close": lambda: self.close(consumer, seat),
            "settle": lambda: self._settle_some(consumer, seat),
            "redeliver": lambda: self._redeliver(consumer, seat),
            "seek": lambda: self._seek(consumer, seat, what),
            "seek_id": lambda: self._seek(consumer, seat, what),
            "seek_and_settle": lambda: self._seek_and_settle(consumer, seat),
            "transaction": lambda: self._transact(client, consumer, seat),
            "unsubscribe": lambda: self._unsubscribe(consumer, seat),
            "pause": lambda: self._pause(consumer),
        }
        doings[what]()

    def _settle_some(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        for each in self.lots.random.sample(list(seat.held.values()), len(seat.held) // 2):
            self.settle(consumer, seat, each)

    def _redeliver(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        self.oracle.rejected(self.oracle.unacknowledged(seat), 0)
        self.attempt("redeliver", consumer.redeliver_unacknowledged_messages)

    def _seek_and_settle(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        """Seek, then settle the messages that it was handed before: that has no effect."""
        before = list(seat.held.values())
        self._seek(consumer, seat, "seek")
        for each in before:
            self.settle(consumer, seat, each)

    def _pause(self, consumer: pulsar.Consumer) -> None:
        if self.style == "listener":
            consumer.pause_message_listener()
            self.turns.sleep(self.lots.draw(0, 10))
            consumer.resume_message_listener()

    def close(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        self.oracle.leaves(seat)
        if not isinstance(self.attempt("close", consumer.close), Exception):
            self.oracle.has_left(seat)

    def _unsubscribe(self, consumer: pulsar.Consumer, seat: Seat) -> None:
        """Delete the subscription; where others are connected that is refused, and it closes."""
        sought = self.oracle.seeks(seat, None, RESTART)
        self.oracle.leaves(seat)

        def unsubscribe() -> None:
            try:
                consumer.unsubscribe()
            except (pulsar.BrokerMetadataError, pulsar.ConsumerBusy):
                if len(self.setting.styles) == 1:
                    raise

        if not isinstance(self.attempt("unsubscribe", unsubscribe), Exception):
            sought.done = self.oracle.now() if consumer._is_closed else FOREVER
        with suppress(pulsar.PulsarException):
            consumer.close()

    def _seek(self, consumer: pulsar.Consumer, seat: Seat, what: str) -> None:
        handouts = [
            each for mine in seat.followed.handouts.values() for each in mine
            if "-RETRY" not in each.place[0]
        ]  # fmt: skip
        to = self.lots.draw_from(("earliest", "earliest", "latest", "id", "id"))
        to = "id" if what == "seek_id" else to
        if to != "id":
            sought = self.oracle.seeks(seat, None, (-1, -1, -1) if to == "earliest" else to)
            target = getattr(pulsar.MessageId, to)
        elif handouts:
            chosen = self.lots.draw_from(handouts)
            sought = self.oracle.seeks(seat, chosen.place, chosen.position)
            target = chosen.message.message_id()
        else:
            return
        if not isinstance(self.attempt("seek", lambda: consumer.seek(target)), Exception):
            sought.done = self.oracle.now()

    def _commit(
        self, transaction: pulsar.Transaction, chosen: list[Handout]
    ) -> pulsar.PulsarException | None:
        """Commit; a conflict is an answer if one of the messages was acknowledged before."""
        try:
            transaction.commit()
        except pulsar.TransactionConflict as error:
            if not self.oracle.may_conflict(chosen):
                raise
            return error
        return None

    def _transact(self, client: pulsar.Client, consumer: pulsar.Consumer, seat: Seat) -> None:
        """Acknowledge in a transaction what it holds; some of it another does too."""
        held = list(seat.held.values())
        if not held:
            return
        chosen = self.lots.sample(held)
        open_ones = [client.new_transaction() for _ in range(self.lots.draw(1, 2))]
        for each in open_ones:
            consumer.acknowledge_in(each, *(one.message for one in chosen))
        for each in open_ones:
            if self.lots.one_in(4):
                self.attempt("abort", each.abort)
                continue
            made = self.oracle.acknowledging(chosen)
            answer = self.attempt("commit", partial(self._commit, each, chosen))
            if answer is not None:
                for handout, done in zip(chosen, made, strict=True):
                    if not isinstance(answer, pulsar.Timeout):
                        handout.acknowledged.remove(done)
                    if not handout.acknowledged:
                        seat.held[handout.published.value] = handout
            else:
                self.oracle.committed(chosen)
                if seat.receipts:
                    self.oracle.receipt(made)
