"""The client beside a broker and a streaming query that Spark runs."""

from __future__ import annotations

from pathlib import Path

from pulsar_spark import pulsar
from tests.connector.subscriber import MakeSubscriber
from tests.waiting import eventually


def test_a_client_shares_a_subscription_with_a_streaming_query(
    served: Path, topic: str, subscriber: MakeSubscriber
) -> None:
    with pulsar.Client(str(served), operation_timeout_seconds=120) as client:
        producer = client.create_producer(topic)
        query = subscriber("query")
        query.start()
        consumer = client.subscribe(
            topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=1,
            initial_position=pulsar.InitialPosition.Earliest,
        )  # fmt: skip
        mine: list[str] = []

        def both_have_some() -> bool:
            producer.send(b"x")
            try:
                message = consumer.receive(1_000)
            except pulsar.Timeout:
                return False
            consumer.acknowledge(message)
            mine.append(str(message.message_id()))
            return bool(query.seen)

        eventually(both_have_some)
        assert len(mine) == len(set(mine))
