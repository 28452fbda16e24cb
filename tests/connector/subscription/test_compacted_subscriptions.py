"""Exclusive and Failover consumers with `readCompacted`: what they get, and what is done for them.

The broker steps when the test says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_spark.broker.hosting.broker_rows import COMPACTED, LEDGER, command_of
from pulsar_spark.broker.protocol.commands import LeaseLapsed, Rejection, Report, Seek, Subscribe
from pulsar_spark.connector.runtime.broker.broker_input import BatchInput
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.system_topics.broker_offset import BrokerOffset, PartitionBatch
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.acknowledgment_sink import AcknowledgmentSink
from pulsar_spark.errors import (
    ConsumerBusyError,
    DataLossError,
    InvalidOptionError,
)
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.options.options import Scope
from tests.connector.housekeeping.test_compaction import put
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Batch, Run
from tests.connector.subscription.test_subscription_reader import ABOUT, said, tell, turns
from tests.connector.topics import ledger_of, options_of, trim

pytestmark = pytest.mark.usefixtures("impatient")

Consume = Callable[..., Run]


@pytest.fixture
def broker(root: Path, tmp_path: Path) -> PlainBroker:
    return PlainBroker(root, "_broker/broker")


@pytest.fixture
def consume(root: Path) -> Consume:
    def make(**given: Any) -> Run:
        names: dict[str, Any] = {"topic": "t", "subscriptionName": "s", "readCompacted": True}
        names |= {"subscriptionInitialPosition": "Earliest", "subscriptionType": "Exclusive"}
        return Run(root, **(names | given))

    return make


def pairs(batches: list[Batch]) -> list[str]:
    return [f"{m['key'] or ''}={m['value'].decode()}" for each in batches for m in each.messages]


def backlog(run: Run) -> int | None:
    """Of the subscription, as the broker last said."""
    report = run.reader.reportLatestOffset()
    assert report is not None
    (topic,) = report["topics"].values()
    backlog: int | None = topic["0"]["backlog"]
    return backlog


def begin(run: Run, broker: PlainBroker) -> Batch:
    """The first micro-batch that has messages, read and not committed."""
    while (planned := run.planned()) is None or not run.read(planned):
        if planned is not None:
            run.commit(planned)
        broker.until_quiet()
    return planned


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize("most", [1, 2, 100])
def test_the_first_messages_are_the_compacted_ones_and_nothing_stays_behind(
    consume: Consume, broker: PlainBroker, root: Path, kind: str, most: int
) -> None:
    put(root, "a=1", "b=1", "c=1", "=x", "b=2", batchingMaxMessages=2)
    put(root, "a=2", "c=", "d=1", "d=")
    put(root, "=y")
    compact(ledger_of(root, "t"))
    put(root, "a=3", "a=4")
    run = consume(subscriptionType=kind, maxMessagesPerTrigger=most)
    batches = turns(run, broker)
    assert pairs(batches) == ["b=2", "a=2", "a=3", "a=4"]
    assert all(len(batch.messages) <= most for batch in batches)
    assert backlog(run) == 0
    put(root, "a=5")
    assert pairs(turns(run, broker)) == ["a=5"]


def test_what_is_compacted_while_it_waits_is_passed_over(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "c=1", batchingMaxMessages=1)
    run = consume(maxMessagesPerTrigger=1)
    first = begin(run, broker)
    run.commit(first)
    assert pairs([first]) == ["a=1"]
    put(root, "b=2", "c=")
    compact(ledger_of(root, "t"))
    assert pairs(turns(run, broker)) == ["b=2"]
    assert backlog(run) == 0


def test_removed_messages_at_the_end_are_not_left_pending(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "a=")
    compact(ledger_of(root, "t"))
    run = consume()
    assert pairs(turns(run, broker)) == []
    assert backlog(run) == 0


def test_with_manual_acknowledgement_only_what_was_removed_is_acknowledged(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2", "c=1", "c=2", batchingMaxMessages=1)
    compact(ledger_of(root, "t"))
    run = consume(ackMode="manual")
    assert pairs(turns(run, broker)) == ["b=1", "a=2", "c=2"]
    assert backlog(run) == 3
    messages = PositionSet.of([(0, 1), (0, 2), (0, 4)])
    tell(root, Report("s", epoch=None, acknowledged=Cursor().acknowledge(messages)))
    turns(run, broker)
    assert backlog(run) == 0


def test_a_repeated_micro_batch_has_the_same_rows_whatever_was_compacted_since(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2", batchingMaxMessages=2)
    put(root, "c=1", "d=1")
    compact(ledger_of(root, "t"))
    put(root, "e=1", "e=2")
    run = consume()
    planned = begin(run, broker)
    assert pairs([planned]) == ["b=1", "a=2", "c=1", "d=1", "e=1", "e=2"]
    before = list(planned.messages)
    put(root, "a=3", "b=", "e=3")
    compact(ledger_of(root, "t"))
    LedgerStore(ledger_of(root, "t"), grace_ms=0).sweep()
    again = consume(start=planned.start)
    assert again.read(planned) == before, "from where they were published, if need be"
    again.commit(planned)
    assert pairs(turns(again, broker)) == ["a=3", "e=3"]


def test_a_new_subscription_begins_with_what_outlived_its_ledgers(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", batchingMaxMessages=1)
    put(root, "b=2", "c=1")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    run = consume(maxMessagesPerTrigger=1)
    assert pairs(turns(run, broker)) == ["a=1", "b=2", "c=1"]
    assert backlog(run) == 0
    assert pairs(turns(consume(subscriptionName="plain", readCompacted=False), broker)) == []
    put(root, "c=2", "d=1")
    assert pairs(turns(run, broker)) == ["c=2", "d=1"]
    compact(ledger_of(root, "t"))
    assert pairs(turns(consume(subscriptionName="new"), broker)) == ["a=1", "b=2", "c=2", "d=1"]


def test_what_outlived_its_ledgers_is_acknowledged_one_by_one_too(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "c=1", batchingMaxMessages=2)
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    run = consume(ackMode="manual", consumerName="c")
    assert pairs(turns(run, broker)) == ["a=1", "b=1", "c=1"]
    done = PositionSet.of_batch((0, 0), 2, 0b10)
    tell(root, Report("s", epoch=None, acknowledged=Cursor().acknowledge(done)))
    broker.until_quiet()
    tell(root, LeaseLapsed("s", "c", said(root, Subscribe)[-1].incarnation))
    broker.until_quiet()
    assert "c=1" in pairs(turns(consume(ackMode="manual", consumerName="d"), broker))


def test_a_sink_acknowledges_what_outlived_its_ledgers(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2", batchingMaxMessages=2)
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    run = consume(ackMode="manual")
    batches = turns(run, broker)
    options = options_of(root, Scope.WRITE, {"subscriptionName": "s"})
    rows = [message for batch in batches for message in batch.messages]
    names = ("topic", "ledger_id", "entry_id", "partition", "batch_index")
    table = pa.RecordBatch.from_pylist([{name: row[name] for name in names} for row in rows])
    schema = from_arrow_schema(table.schema)
    sink = AcknowledgmentSink(options, Root.of(options), schema)
    sink.commit([sink.write([table])], None, None)
    turns(run, broker)
    assert backlog(run) == 0


def test_what_outlived_its_ledgers_may_become_a_dead_letter(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2", batchingMaxMessages=2)
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    run = consume(ackMode="manual", deadLetterTopic="dead")
    assert pairs(turns(run, broker)) == ["b=1", "a=2"]
    messages = PositionSet.of_batch((0, 0), 2, 0b10).union(PositionSet.of([(0, 1)]))
    tell(root, Report("s", epoch=None, rejected=(Rejection(None, messages, to_dead_letter=True),)))
    turns(run, broker)
    assert pairs(Run(root, topic="dead", startingOffsets="earliest").all()) == ["b=1", "a=2"]
    assert backlog(run) == 0


@pytest.mark.parametrize("most", [1, 100])
def test_chunked_messages_come_whole_from_both_sides_of_the_horizon(
    consume: Consume, broker: PlainBroker, root: Path, most: int
) -> None:
    given = {"chunkingEnabled": True, "batchingEnabled": False, "maxMessageSize": 100}
    put(root, "a=" + "1" * 250, "b=" + "2" * 250, **given)
    put(root, "a=" + "3" * 350, "c=4", **given)
    compact(ledger_of(root, "t"))
    trim(root, "t", 1)
    put(root, "a=" + "5" * 450, **given)
    run = consume(maxMessagesPerTrigger=most)
    found = [(pair[0], pair[2], len(pair) - 2) for pair in pairs(turns(run, broker))]
    assert found == [("b", "2", 250), ("a", "3", 350), ("c", "4", 1), ("a", "5", 450)]
    assert backlog(run) == 0


def test_ledgers_trimmed_under_a_subscription_are_read_from_the_compacted_file(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2", "c=1", batchingMaxMessages=1)
    run = consume(maxMessagesPerTrigger=1)
    first = begin(run, broker)
    run.commit(first)
    plain = consume(subscriptionName="plain", readCompacted=False, maxMessagesPerTrigger=2)
    turns(plain, broker)
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    broker.until_quiet()
    assert pairs(turns(run, broker)) == ["b=1", "a=2", "c=1"]
    assert turns(plain, broker) == []


def test_a_grant_of_a_ledger_of_which_nothing_is_left_is_passed_over(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", batchingMaxMessages=1)
    given = {"ackMode": "manual", "maxMessagesPerTrigger": 1, "consumerName": "c"}
    run = consume(**given)
    assert pairs(turns(run, broker)) == ["a=1", "b=1"]
    tell(root, Report("s", epoch=None, rejected=(Rejection(None, PositionSet.of([(0, 0)]), 0),)))
    broker.until_quiet()
    put(root, "a=2", "b=2")
    compact(ledger_of(root, "t"))
    trim(root, "t", 1)
    assert pairs(turns(run, broker)) == ["a=2", "b=2"]


def test_the_next_of_a_failover_goes_on_in_the_compacted_part(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2", "c=1", "c=2", "d=1", batchingMaxMessages=1)
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    given = {"subscriptionType": "Failover", "maxMessagesPerTrigger": 1}
    one = consume(consumerName="one", **given)
    one.commit(begin(one, broker))
    one.next()  # acknowledges the first message, and plans the second
    broker.until_quiet()
    two = consume(consumerName="two", **given)
    assert pairs(turns(two, broker)) == []
    tell(root, LeaseLapsed("s", "one", said(root, Subscribe)[0].incarnation))
    assert pairs(turns(two, broker)) == ["a=2", "c=2", "d=1"]
    assert backlog(two) == 0


def test_a_seek_goes_back_to_what_compaction_has_kept(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1", "a=2")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    put(root, "c=1")
    run = consume()
    assert pairs(turns(run, broker)) == ["b=1", "a=2", "c=1"]
    tell(root, Seek("s", EARLIEST))
    assert pairs(turns(run, broker)) == ["b=1", "a=2", "c=1"]


def test_a_broker_that_lost_its_checkpoint_still_has_what_outlived_its_ledgers(
    consume: Consume, broker: PlainBroker, root: Path, tmp_path: Path
) -> None:
    put(root, "a=1", "b=1", "a=2")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    run = consume(maxMessagesPerTrigger=1)
    run.next()
    run.next()
    broker.until_quiet()
    broker.stop()
    other = PlainBroker(root, "_broker/another")
    assert pairs(turns(run, other)) == ["b=1", "a=2"]
    put(root, "c=1")
    assert pairs(turns(consume(subscriptionName="new"), other)) == ["b=1", "a=2", "c=1"]


def test_a_batch_of_the_broker_knows_no_more_than_it_did(root: Path) -> None:
    """It is read anew after a crash, when there are more ledgers, and they are compacted."""
    put(root, "a=1", "b=1")
    put(root, "c=1")
    compact(ledger_of(root, "t"))
    trim(root, "t", 1)
    number = ledger_of(root, "t").state.number

    def reported() -> list[tuple[str, Any]]:
        end = BrokerOffset(parts={ABOUT: PartitionBatch((-1, number))}, now_ms=1)
        rows = BatchInput(Root(str(root), {}), end).rows()
        ordered = sorted(rows, key=attrgetter("phase", "place", "row"))
        return [(row.kind, command_of(row)) for row in ordered if row.kind in (LEDGER, COMPACTED)]

    before = reported()
    put(root, "d=1")
    compact(ledger_of(root, "t"))
    for commands in (before, reported()):
        (_, added), (_, compacted) = commands
        assert added.ledger.ledger_id == 1
        assert compacted.compacted.horizon == Position(1, 0)
        assert [each.ledger_id for each in compacted.compacted.ledgers] == [0, 1]
    assert before[1][1].compacted.before(0, ledger_of(root, "t").ledgers(0)) is None


def test_the_broker_trims_what_is_compacted_and_no_more(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    def ledgers() -> list[int]:
        return [each.ledger_id for each in ledger_of(root, "t").ledgers(0)]

    for number in range(3):
        put(root, f"a={number}", f"b{number}=x")
    compact(ledger_of(root, "t"))
    run = consume(readCompacted=False)
    turns(run, broker)
    assert ledgers() == [2], "the newest stays"
    for number in range(3, 6):
        put(root, f"a={number}")
    turns(run, broker)
    assert ledgers() == [3, 4, 5], "not compacted yet"
    compact(ledger_of(root, "t"))
    turns(run, broker)
    assert ledgers() == [5], "once they are, the broker lets them go"
    new = turns(consume(subscriptionName="new"), broker)
    assert pairs(new) == ["b0=x", "b1=x", "b2=x", "a=5"]


def test_a_micro_batch_says_so_if_it_can_not_be_repeated(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1", "b=1")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    run = consume()
    planned = begin(run, broker)
    put(root, "a=2")
    compact(ledger_of(root, "t"))
    with pytest.raises(DataLossError, match="removed by a compaction since"):
        consume(start=planned.start).read(planned)
    again = consume(start=planned.start, failOnDataLoss=False)
    again.read(planned)
    assert pairs([planned]) == ["b=1"]


def test_who_shares_a_subscription_may_not(root: Path) -> None:
    for kind in ("Shared", "Key_Shared"):
        given = {"topic": "t", "readCompacted": True, "subscriptionName": "s"}
        with pytest.raises(InvalidOptionError, match="needs subscriptionType Exclusive or Failov"):
            options_of(root, Scope.STREAM_READ, {**given, "subscriptionType": kind})


def test_the_broker_refuses_it_where_several_share(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    put(root, "a=1")
    run = consume(subscriptionType="Failover", consumerName="one")
    turns(run, broker)
    other = consume(subscriptionType="Failover", consumerName="two", readCompacted=False)
    with pytest.raises(ConsumerBusyError, match="readCompacted differs"):
        turns(other, broker)


@pytest.mark.parametrize("seed", range(6))
def test_at_any_time_all_that_is_kept_is_delivered_once(
    consume: Consume, broker: PlainBroker, root: Path, seed: int
) -> None:
    draw = random.Random(seed)
    put(root, "a=0")
    run = consume(maxMessagesPerTrigger=draw.choice([1, 3, 100]))
    published: list[str] = ["a=0"]
    got: list[str] = []
    compacted = 0
    for step in range(10):
        activity = [
            f"{draw.choice('abcd')}={step}.{number}" for number in range(draw.randint(1, 6))
        ]
        put(root, *activity, batchingMaxMessages=draw.randint(1, 4))
        published += activity
        if draw.random() < 0.4:
            compact(ledger_of(root, "t"))
            compacted = len(published)
        if draw.random() < 0.3:
            LedgerStore(ledger_of(root, "t"), grace_ms=0).sweep()
        for _ in range(draw.randint(0, 4)):
            if draw.random() < 0.3:
                run = consume(start=run.offset, maxMessagesPerTrigger=draw.choice([1, 3, 100]))
            batch = run.next()
            got += pairs([batch] if batch else [])
            broker.until_quiet()
    got += pairs(turns(run, broker, 100))
    assert got == sorted(set(got), key=published.index), "in order, each once"
    last = {pair[0]: pair for pair in published}
    assert set(last.values()) <= set(got)
    assert set(published[compacted:]) <= set(got)
    assert backlog(run) == 0
