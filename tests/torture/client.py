"""A consumer of the Python client, as a user's process: it receives message by message.

Invariants: nothing of it outlives its process; whoever starts again holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from tests.torture.place import Killed
from tests.torture.queries import POISON, Consumer

PREFETCH = (1, 1, 3, 20)


class Client(Consumer):
    """A `MessageConsumer`; each message is a micro-batch of its own to the oracle."""

    def _steps(self) -> Iterator[str]:
        world, oracle, lots = self.world, self.world.oracle, self.world.lots
        oracle.gone(self)
        options = self.given | {"serviceUrl": world.root.service_url}
        consumer = MessageConsumer(
            {name: str(value) for name, value in options.items()},
            prefetch=20 if world.setting.chunks else lots.draw_from(PREFETCH),
        )
        yield "made"
        at, at_ms = oracle.now(), world.clock.elapsed_ms
        while True:
            if not self.planning:
                at, at_ms = oracle.now(), world.clock.elapsed_ms
            self.planning = True
            message = consumer.receive()
            self.planning = bool(consumer.queue)
            if message is None:
                yield "idle"
            else:
                self._receive(message, at, at_ms)
                yield "delivered"
                self._settle(consumer, message)
                yield "committed"
            if lots.one_in(20):
                self._give_back(consumer)
            elif lots.one_in(30):
                self._leave(consumer)
                return

    def _receive(self, message: ReceivedMessage, at: int, at_ms: int) -> None:
        oracle, checkpoint = self.world.oracle, self.checkpoint
        number = checkpoint.last + 1
        checkpoint.offsets[number] = {}
        checkpoint.committed.add(number)
        self.planned_at[number] = at
        self.world.moments_ms[checkpoint.query_id, number] = at_ms
        row = _row(message)
        oracle.begun(self, number)
        oracle.reads(self, number, [row])
        if row["value"].startswith(POISON):
            self.planning = True  # it had been announced, and reached nobody
            raise Killed(self.name)
        oracle.delivered(self, number, [row])

    def _settle(self, consumer: MessageConsumer, message: ReceivedMessage) -> None:
        """As a sink is told to; what it forgets may be given back."""
        rows = self.world.drawn_acknowledgments(self, [_row(message)])
        asked = self.world.oracle.acknowledging(self.subscription, rows)
        for row in rows:
            if row["ack_type"] == "Individual":
                consumer.acknowledge(message)
            elif row["ack_type"] == "Cumulative":
                consumer.acknowledge_cumulative(message)
            elif row["ack_type"] == "Negative":
                consumer.negative_acknowledge(message, delay_ms=row["delay_ms"])
            else:
                consumer.reconsume_later(message, row["delay_ms"])
        self._reported(consumer, asked)

    def _leave(self, consumer: MessageConsumer) -> None:
        if self.planning:
            self.world.oracle.unlogged(self)
        self.world.oracle.gone(self)
        self.world.leaving.add(self.name)
        consumer.close()
        self.planning = False

    def _give_back(self, consumer: MessageConsumer) -> None:
        if self.planning:  # what it has taken beforehand counts as delivered
            self.world.oracle.unlogged(self)
        asked = self.world.oracle.giving_back(self)
        consumer.redeliver_unacknowledged_messages()
        self.planning = False
        self._reported(consumer, asked)

    def _reported(self, consumer: MessageConsumer, asked: list[Any]) -> None:
        """What it could not say yet it says some time."""
        if consumer.is_connected():
            end = self.world.commands_end()
            for each in asked:
                each.commands = end


def _row(message: ReceivedMessage) -> dict[str, Any]:
    ledger_id, entry_id, partition, batch_index = message.place
    return {
        "topic": message.topic, "partition": partition, "ledger_id": ledger_id,
        "entry_id": entry_id, "batch_index": batch_index, "value": message.value,
        "properties": message.properties, "attempt": message.attempt,
    }  # fmt: skip
