"""Consumers that are killed, stay away, or are moved, and come back: nothing is lost or stuck.

Driven as Spark drives them; the broker steps when the test says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.broker.protocol.commands import LeaseLapsed, Rejection, Report, Seek, Subscribe
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import SystemClock
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.testing import Place
from tests.connector.ack_sink.test_acknowledging import write
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Batch, Message, Run
from tests.connector.topics import files_below, numbers, send

ABOUT = TopicPartition("persistent://public/default/t", 0)

pytestmark = pytest.mark.usefixtures("impatient")

Consume = Callable[..., Run]
SHARED: dict[str, Any] = {
    "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
    "subscriptionType": "Shared",
}  # fmt: skip


class Behind(SystemClock):
    """Wall time has just begun."""

    def wall_ms(self) -> int:
        return 1_000


@pytest.fixture
def broker(root: Path) -> PlainBroker:
    return PlainBroker(root, "_broker/c")


@pytest.fixture
def consume(root: Path) -> Consume:
    def make(**given: Any) -> Run:
        return Run(root, **(SHARED | given))

    return make


def turns(broker: PlainBroker, *runs: Run) -> list[Batch]:
    """Consumers and the broker by turns, until none has anything to do; their micro-batches."""
    batches: list[Batch] = []
    for _ in range(30):
        found = [batch for run in runs if (batch := run.next()) is not None]
        batches += found
        before = broker.batches
        broker.until_quiet()
        if not found and broker.batches == before:
            return batches
    raise AssertionError("they do not come to rest")


def values(batches: list[Batch]) -> list[str]:
    return [value for batch in batches for value in batch.values]


def connected(broker: PlainBroker, run: Run) -> Run:
    """Subscribed, and told what it holds; it has planned nothing yet."""
    run.next()
    run.next()
    broker.until_quiet()
    return run


def tell(root: Path, command: Any) -> None:
    SystemTopic(Root(str(root), {}), COMMANDS).append([Record.of(ABOUT, "s", command)])


def said(root: Path, kind: type) -> list[Any]:
    commands = SystemTopic(Root(str(root), {}), COMMANDS)
    commands.refresh()
    return [item for each in commands.read(0) if isinstance(item := each.record.item(), kind)]


def lapses(root: Path, broker: PlainBroker, name: str) -> None:
    """The lease of the consumer's latest run is over."""
    runs = [each.incarnation for each in said(root, Subscribe) if each.consumer == name]
    tell(root, LeaseLapsed("s", name, runs[-1]))
    broker.until_quiet()


# -- killed between its report and Spark's log ---------------------------------------------------


def test_what_was_reported_and_never_logged_goes_to_the_next_active_consumer(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", ["before"])
    given = {"subscriptionType": "Failover"}
    first = connected(broker, consume(consumerName="a", priorityLevel=1, **given))
    assert values(turns(broker, first)) == ["before"]
    send(root, "t", numbers(0, 4))
    assert first.planned() is not None, "reported, and killed before Spark wrote it down"
    second = consume(consumerName="b", priorityLevel=0, **given)
    second.next()
    second.next()
    broker.until_quiet()
    again = consume(consumerName="a", priorityLevel=1, start=first.offset, **given)
    assert sorted(values(turns(broker, again, second))) == numbers(0, 4)


def test_an_ack_timeout_of_what_was_reported_and_never_logged_begins_with_the_next_run() -> None:
    """Else the broker gives to another what the run that comes back has yet to deliver."""
    with Place() as place:
        broker = PlainBroker(place.service_url, "_broker/c")
        given = SHARED | {"ackMode": "manual", "ackTimeout": "2s"}
        a = given | {"consumerName": "a", "priorityLevel": 1}
        send(place.service_url, "t", ["before"])
        first = connected(broker, Run(place.service_url, **a))
        assert values(turns(broker, first)) == ["before"]
        send(place.service_url, "t", numbers(0, 4))
        broker.until_quiet()
        assert first.planned() is not None, "reported, and killed before Spark wrote it down"
        broker.until_quiet()
        again = connected(broker, Run(place.service_url, start=first.offset, **a))
        other = connected(broker, Run(place.service_url, consumerName="b", **given))
        place.clock.advance(seconds=3)
        broker.until_quiet()
        assert sorted(values(turns(broker, other, again))) == numbers(0, 4)
        place.clock.advance(seconds=3)
        assert sorted(values(turns(broker, other, again))) == [*numbers(0, 4), "before"], "in time"


def test_a_key_whose_messages_were_reported_and_never_logged_does_not_drain_for_ever(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    keys = [f"key{number % 8}" for number in range(16)]
    send(root, "t", ["before"], columns={"key": ["key"]})
    given = {"subscriptionType": "Key_Shared"}
    first = connected(broker, consume(consumerName="a", **given))
    assert values(turns(broker, first)) == ["before"]
    send(root, "t", numbers(0, 16), columns={"key": keys}, batchingEnabled=False)
    broker.until_quiet()
    second = consume(consumerName="b", **given)
    second.next()
    second.next()
    assert first.planned() is not None, "before it hears that keys are another's by now"
    broker.until_quiet()
    again = consume(consumerName="a", start=first.offset, **given)
    assert sorted(values(turns(broker, again, second)), key=int) == numbers(0, 16)


# -- away for longer than its lease --------------------------------------------------------------


def test_a_batch_that_others_acknowledged_and_that_was_trimmed_is_no_loss(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", ["a"])
    send(root, "t", ["b"])
    away = connected(broker, consume(consumerName="away"))
    batch = away.planned()
    assert batch is not None
    assert sorted(m["value"] for m in away.read(batch)) == [b"a", b"b"]
    lapses(root, broker, "away")
    other = connected(broker, consume(consumerName="other"))
    assert sorted(values(turns(broker, other))) == ["a", "b"]
    send(root, "t", ["c"])
    assert values(turns(broker, other)) == ["c"]
    back = consume(consumerName="away", start=batch.start)
    assert back.read(batch) == [], "others have processed it, and retention has trimmed it"
    back.commit(batch)
    send(root, "t", ["d"])
    assert values(turns(broker, back)) == ["d"]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_non_durable_consumer_that_lapsed_goes_on_where_it_was(
    consume: Consume, broker: PlainBroker, root: Path, kind: str
) -> None:
    given = {"subscriptionMode": "NonDurable", "consumerName": "c", "subscriptionType": kind}
    send(root, "t", numbers(0, 3), batchingEnabled=False)
    run = connected(broker, consume(**given))
    assert values(turns(broker, run)) == numbers(0, 3)
    for number in range(3, 9, 2):
        lapses(root, broker, "c")
        send(root, "t", [str(number)], batchingEnabled=False)
        assert values(turns(broker, run)) == [str(number)], "noticed in the run"
        lapses(root, broker, "c")
        send(root, "t", [str(number + 1)], batchingEnabled=False)
        run = consume(start=run.offset, **(given | {"subscriptionInitialPosition": "Latest"}))
        assert values(turns(broker, run)) == [str(number + 1)], "noticed by the next run"


def test_available_now_runs_of_a_non_durable_consumer_follow_each_other(
    consume: Consume, root: Path
) -> None:
    given = {"subscriptionMode": "NonDurable", "available_now": True, "maxMessagesPerTrigger": 2}
    given |= {"subscriptionType": "Exclusive", "delayedDelivery": True}
    later = [None, 3_600_000, None, None]
    send(root, "t", numbers(0, 4), columns={"deliver_after": later}, batchingEnabled=False)
    with PlainBroker(root, "_broker/c"):
        run = consume(**given)
        assert run.values() == ["0", "2", "3"], "the other one's time has not come"
        for number in range(4, 8):
            run = consume(start=run.offset, **given)
            assert run.values() == [], "not what was there before"
            send(root, "t", [str(number)])
            run = consume(start=run.offset, **given)
            assert run.values() == [str(number)]


# -- what may have been delivered ----------------------------------------------------------------


def test_a_message_that_nobody_was_given_never_becomes_a_dead_letter(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 3))
    for number in range(4):
        connected(broker, consume(consumerName=f"c{number}", maxRedeliverCount=1))
        lapses(root, broker, f"c{number}")
    last = consume(consumerName="last", maxRedeliverCount=1)
    batches = turns(broker, last)
    assert values(batches) == numbers(0, 3)
    counts = [message["redelivery_count"] for batch in batches for message in batch.messages]
    assert counts == [0, 0, 0]


# -- redeliveries, and seeks ---------------------------------------------------------------------


def test_offsets_and_reports_do_not_grow_with_the_redeliveries_of_the_oldest_message(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 4), batchingEnabled=False)
    run = connected(broker, consume(ackMode="manual", negativeAckRedeliveryDelay="0ms"))
    oldest = PositionSet.of([(0, 0)])
    sizes, reports = [], []
    for _ in range(40):
        batches = turns(broker, run)
        assert "0" in values(batches)
        sizes.append(len(json.dumps(run.offset)))
        reports.append(len(said(root, Report)[-1].delivered))
        tell(root, Report("s", epoch=None, rejected=(Rejection(None, oldest, 0),)))
        broker.until_quiet()
    assert max(sizes[1:]) <= sizes[1] + 8, sizes
    assert max(reports) <= 2


def rows_of(messages: list[Message], *names: str) -> dict[str, list[Any]]:
    return {name: [message[name] for message in messages] for name in names}


IDS = ("ledger_id", "entry_id", "partition", "batch_index")


@pytest.mark.parametrize("ack_type", ["Individual", "Cumulative"])
def test_an_acknowledgement_in_flight_does_not_undo_a_seek_back(
    consume: Consume, broker: PlainBroker, root: Path, ack_type: str
) -> None:
    send(root, "t", numbers(0, 4), batchingEnabled=False)
    run = connected(broker, consume(ackMode="manual", subscriptionType="Exclusive"))
    first = [message for batch in turns(broker, run) for message in batch.messages]
    tell(root, Seek("s", EARLIEST))
    broker.until_quiet()
    rows = rows_of(first, *IDS, "attempt")
    write(Root(str(root), {}), rows | {"ack_type": [ack_type] * 4})
    second = turns(broker, run)
    assert values(second) == numbers(0, 4), "it was delivered before the seek"
    again = [message for batch in second for message in batch.messages]
    assert {m["attempt"] for m in first}.isdisjoint({m["attempt"] for m in again})
    write(Root(str(root), {}), rows_of(again, *IDS, "attempt") | {"ack_type": [ack_type] * 4})
    turns(broker, run)
    latest = run.reader.reportLatestOffset()
    assert latest is not None
    assert latest["topics"][ABOUT.topic]["0"]["backlog"] == 0


def test_the_lag_is_told_in_messages_and_age_though_the_broker_says_nothing_new(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 4), batchingEnabled=False)
    run = connected(broker, consume(ackMode="manual"))
    first = [message for batch in turns(broker, run) for message in batch.messages]

    def lag() -> tuple[int | None, bool]:
        report = run.reader.reportLatestOffset()
        assert report is not None
        reported = report["topics"][ABOUT.topic]["0"]
        return reported["backlog"], reported["oldestBacklogMessageAgeSeconds"] is not None

    assert lag() == (4, True)
    write(Root(str(root), {}), rows_of(first, *IDS))
    turns(broker, run)
    assert lag() == (0, False)
    send(root, "t", numbers(4, 6), batchingEnabled=False)
    run.reader._topics.refresh()  # as its next look does; the broker has not heard of them
    assert lag() == (2, True)


def test_an_acknowledgement_without_attempt_counts_whenever_it_comes(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 4), batchingEnabled=False)
    run = connected(broker, consume(ackMode="manual"))
    first = [message for batch in turns(broker, run) for message in batch.messages]
    tell(root, Seek("s", EARLIEST))
    write(Root(str(root), {}), rows_of(first[:2], *IDS))
    assert values(turns(broker, run)) == ["2", "3"]


# -- checkpoints and clocks ----------------------------------------------------------------------


@pytest.mark.parametrize(("was", "is_"), [("manual", "auto"), ("auto", "manual")])
def test_a_checkpoint_of_the_other_ack_mode_is_refused(
    consume: Consume, broker: PlainBroker, root: Path, was: str, is_: str
) -> None:
    send(root, "t", numbers(0, 4))
    run = connected(broker, consume(ackMode=was))
    assert values(turns(broker, run)) == numbers(0, 4)
    before = files_below(root)
    with pytest.raises(InvalidOptionError, match=f"ackMode {was}, and ackMode is {is_}"):
        consume(ackMode=is_, start=run.offset).next()
    assert files_below(root) == before, "nothing of it was said to anybody"


def test_a_consumer_whose_clock_is_behind_is_let_in_under_its_own_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, "t", numbers(0, 3))
    elsewhere = f"file://{root}"  # to this process the store of another machine
    given: dict[str, Any] = {"consumerName": "c", "available_now": True, **SHARED}
    with PlainBroker(root, "_broker/c"):
        assert Run(elsewhere, **given).values() == numbers(0, 3)
        send(root, "t", ["3"])
        monkeypatch.setattr(open_store(elsewhere), "clock", Behind())
        assert Run(elsewhere, **given).values() == ["3"]
    assert len(said(root, Subscribe)) == 3, "refused once, and told by which number it is let in"
    assert not list((root / "_leases").iterdir())


def test_messages_withheld_before_a_seek_go_by_the_seek_after_a_restart(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", "ab", batchingEnabled=False)
    given: dict[str, Any] = {"maxRedeliverCount": 9, "maxBatchAttempts": 1}
    first = consume(consumerName="c", **given)
    connected(broker, first)
    batch = first.planned()
    assert batch is not None
    assert first.read(batch)  # and its query ends in it
    seek = Seek("s", EARLIEST)
    SystemTopic(Root(str(root), {}), COMMANDS).append([Record.of(ABOUT, "s", seek)])
    broker.until_quiet()
    again = consume(consumerName="c", start=batch.start, **given)
    assert again.read(batch) == [], "withheld"
    again.offset = batch.end  # Spark has it in its log, and tells the source with the next one
    late = again.next()  # before the broker has answered
    assert late is None or not late.messages
    other = consume(consumerName="d")
    assert sorted(values(turns(broker, other, again))) == ["a", "b"]
