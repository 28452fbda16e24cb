"""Chunked messages of a subscription: acknowledged, redelivered, copied and trimmed as a whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_decisions import TransactionDecisions
from pulsar_spark.log.chunked_messages import ChunkedMessages, ChunkRun
from pulsar_spark.log.transaction_attempt import Transaction
from tests.connector.ack_sink.test_acknowledging import write
from tests.connector.functions.test_batch_transaction import backlog
from tests.connector.reading import Message, Run
from tests.connector.reading import messages as messages_of
from tests.connector.sink.test_chunked_messages import NOW_US, send_rows
from tests.connector.topic_log.stores import publish
from tests.connector.topics import ledger_of, send

CHUNKED: dict[str, Any] = {
    "chunkingEnabled": True, "batchingEnabled": False, "maxMessageSize": 10,
}  # fmt: skip
LARGE = "0123456789abcdefghijK"
GIVEN: dict[str, Any] = {
    "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
    "maxMessagesPerTrigger": 2,
}  # fmt: skip


@pytest.fixture
def loop(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedBroker:
    monkeypatch.setattr("pulsar_spark.connector.spark.stream_reader.LONGEST_WAIT_S", 0.0)
    return EmbeddedBroker(Root(str(root), {}), "_broker/broker")


def received(run: Run, loop: EmbeddedBroker) -> list[Message]:
    found: list[Message] = []
    for _ in range(8):
        found += [each for batch in run.all() for each in batch.messages]
        loop.until_quiet()
    return found


def ledger_ids(root: Path) -> list[int]:
    return [each.ledger_id for each in ledger_of(root, "t").ledgers(0)]


def say(root: Path, message: Message, ack_type: str, **more: Any) -> None:
    """As a sink with `subscriptionName` does, with the row as it was read."""
    names = ("ledger_id", "entry_id", "partition", "batch_index", "attempt")
    columns = {name: [message[name]] for name in names}
    write(Root(str(root), {}), {**columns, "ack_type": [ack_type], **more})


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_a_chunked_message_is_delivered_once_and_acknowledged_whole(
    root: Path, loop: EmbeddedBroker, kind: str, mode: str
) -> None:
    send(root, "t", ["small", LARGE, "end"], **CHUNKED)
    run = Run(root, subscriptionType=kind, ackMode=mode, receiverQueueSize=10, **GIVEN)
    found = received(run, loop)
    assert [each["value"].decode() for each in found] == ["small", LARGE, "end"]
    if mode == "manual":
        assert backlog(root) == 5
        for each in found:
            say(root, each, "Individual")
        loop.until_quiet()
    assert backlog(root) == 0


def test_one_that_is_rejected_comes_again_whole(root: Path, loop: EmbeddedBroker) -> None:
    send(root, "t", [LARGE], **CHUNKED)
    run = Run(root, ackMode="manual", **GIVEN)
    (first,) = received(run, loop)
    say(root, first, "Negative", delay_ms=[0])
    loop.until_quiet()
    (again,) = received(run, loop)
    assert (again["value"].decode(), again["attempt"] > first["attempt"]) == (LARGE, True)


@pytest.mark.parametrize(
    ("ack_type", "topic", "more"),
    [
        ("DeadLetter", "t-s-DLQ", {}),
        ("ReconsumeLater", "t-s-RETRY", {"delay_ms": [0], "reconsume_times": [0]}),
    ],
)
def test_a_letter_has_all_of_it_and_no_chunk_is_left_behind(
    root: Path, loop: EmbeddedBroker, ack_type: str, topic: str, more: dict[str, Any]
) -> None:
    send(root, "t", [LARGE, "end"], **CHUNKED)
    dead_letters: dict[str, Any] = {"maxRedeliverCount": 3, "retryLetterTopic": "t-s-RETRY"}
    run = Run(root, ackMode="manual", **dead_letters, **GIVEN)
    large, end = received(run, loop)
    say(root, large, ack_type, **{name: pa.array(value) for name, value in more.items()})
    loop.until_quiet()
    assert [each["value"].decode() for each in messages_of(root, topic)] == [LARGE]
    assert backlog(root) == 1
    say(root, end, "Individual")
    loop.until_quiet()
    assert backlog(root) == 0


def test_a_trim_leaves_the_chunks_of_a_message_that_stays(root: Path) -> None:
    now_ms = time.time_ns() // 1_000_000 - NOW_US // 1000  # where `send_rows` counts from
    send_rows(root, ("w", -1, 0, "plain"), at_ms=now_ms)
    send_rows(root, ("x", 0, 3, "a"), ("y", 0, 3, "d"), at_ms=now_ms)
    send_rows(root, ("x", 1, 3, "b"), ("x", 2, 3, "c"), at_ms=now_ms)
    send_rows(root, ("y", 1, 3, "e"), at_ms=now_ms)

    LedgerStore(ledger_of(root, "t")).trim({0: 3})
    assert ledger_ids(root) == [1, 2, 3], "y is in the making"
    send_rows(root, ("y", 2, 3, "f"), at_ms=now_ms)
    LedgerStore(ledger_of(root, "t")).trim({0: 4})
    assert ledger_ids(root) == [1, 2, 3, 4], "y is in the last one"
    reader = Run(root, topic="t", startingOffsets="earliest", failOnDataLoss=False)
    assert reader.values() == ["abc", "def"]
    LedgerStore(ledger_of(root, "t")).trim({0: 5})
    assert ledger_ids(root) == [], "and what was asked for before"


def test_the_broker_trims_chunks_that_an_open_transaction_had_kept_without_waiting_for_it(
    root: Path, loop: EmbeddedBroker
) -> None:
    for _ in range(2):
        send(root, "t", [LARGE], **CHUNKED)
    run = Run(root, **GIVEN)
    loop.until_quiet()
    transaction = Transaction.of(("query", 0), "attempt", 60_000)
    publish(ledger_of(root, "t"), "open", transaction=transaction)
    assert len(received(run, loop)) == 2
    assert backlog(root) == 0
    assert ledger_ids(root) == [0, 1], "the open transaction ends the log"
    TransactionDecisions(Root(str(root), {}).store, transaction.id).abort("attempt")
    send(root, "t", [LARGE], **CHUNKED)
    assert len(received(run, loop)) == 1
    assert ledger_ids(root) == [2], "the last one stays, and those of before go along"


def test_a_message_that_is_never_completed_keeps_nothing_for_ever(root: Path) -> None:
    send_rows(root, ("x", 0, 3, "a"))  # long ago
    send_rows(root, ("w", -1, 0, "plain"))
    LedgerStore(ledger_of(root, "t")).trim({0: 1})
    assert ledger_ids(root) == [1]


def test_chunks_of_no_message_are_not_left_to_who_acknowledges_by_hand(
    root: Path, loop: EmbeddedBroker
) -> None:
    now_ms = time.time_ns() // 1_000_000 - NOW_US // 1000
    send_rows(root, ("x", 0, 3, "a"), ("w", -1, 0, "plain"))  # long ago
    send_rows(root, ("y", 0, 3, "a"), at_ms=now_ms)  # may still go on
    run = Run(root, ackMode="manual", **GIVEN)
    (plain,) = received(run, loop)
    say(root, plain, "Individual")
    assert received(run, loop) == []
    assert backlog(root) == 1
    send_rows(root, ("y", 1, 3, "b"), ("y", 2, 3, "c"), at_ms=now_ms)
    (late,) = received(run, loop)
    say(root, late, "Individual")
    assert received(run, loop) == []
    assert (late["value"], backlog(root)) == (b"abc", 0)


def test_which_ledgers_are_needed_follows_from_the_messages_that_stay() -> None:
    def run(uuid: str, chunk_id: int, of: int) -> ChunkRun:
        return ChunkRun(0 if uuid == "x" else 1, uuid, chunk_id, 1, of, 10)

    known = ChunkedMessages.of(
        {
            0: (run("x", 0, 2),),
            1: (run("x", 1, 2), run("y", 0, 2)),
            2: (run("y", 1, 2),),
            3: (run("x", 0, 2),),
        }
    )
    assert known.needed([0, 1, 2]) == frozenset()
    assert known.needed([0, 1]) == {0, 1}  # 0 has a chunk of a message that ends in 1
    assert known.needed([0]) == {0}
    assert known.needed([0, 1, 2, 3]) == {3}  # a message in the making
