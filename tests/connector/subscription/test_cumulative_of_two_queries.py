"""Two queries of a Failover subscription, each with a sink that acknowledges cumulatively."""

from __future__ import annotations

from typing import Any

from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import tell
from pulsar_spark.connector.runtime.acknowledging.outcome_rows import batch_of
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.testing import Place
from tests.connector.reading import Batch, Run
from tests.connector.topics import send


def next_batch(run: Run) -> Batch:
    """The next micro-batch with messages; each look moves the clock."""
    for _ in range(20):
        if (batch := run.next()) is not None and batch.messages:
            return batch
    raise AssertionError("no micro-batch came")


def acknowledge_cumulative(root: Root, batch: Batch) -> None:
    """As the sink of a query does for the furthest row of its micro-batch."""
    last = batch.messages[-1]
    names = ("topic", "ledger_id", "entry_id", "partition", "batch_index", "attempt")
    row = (*(last[name] for name in names), "Cumulative")
    tell(root, "s", [fold([batch_of([row])], root, None)], None)


def test_what_one_query_was_given_and_holds_the_other_does_not_acknowledge(
    pulsarlite: Place,
) -> None:
    client, clock = pulsarlite.client, pulsarlite.clock
    url = pulsarlite.service_url
    given: dict[str, Any] = {
        "topic": "t", "subscriptionName": "s", "subscriptionType": "Failover", "ackMode": "manual",
        "subscriptionInitialPosition": "Earliest", "maxMessagesPerTrigger": 5,
    }  # fmt: skip
    send(url, "t", [b"%d" % number for number in range(5)])
    first = Run(url, consumerName="one", priorityLevel=1, **given)
    mine = next_batch(first)
    second = Run(url, consumerName="two", priorityLevel=0, **given)
    for _ in range(3):  # the first one hands over, and stays with what it was given
        second.next()
        first.next()
    send(url, "t", [b"%d" % number for number in range(5, 10)])
    others = next_batch(second)
    assert [each["value"] for each in mine.messages] == [b"%d" % number for number in range(5)]
    assert [each["value"] for each in others.messages] == [b"%d" % n for n in range(5, 10)]
    acknowledge_cumulative(pulsarlite.root, others)
    clock.advance(seconds=1)
    assert client.topic_stats("t").subscription("s").backlog == 5
    acknowledge_cumulative(pulsarlite.root, mine)
    clock.advance(seconds=1)
    assert client.topic_stats("t").subscription("s").backlog == 0
