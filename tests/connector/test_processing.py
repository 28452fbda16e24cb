"""A function on each message: failures, crashes and hangs are its message's, and nobody else's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pulsar_spark
from pulsar_spark.connector.broker_query import standalone
from pulsar_spark.connector.function_process import FunctionProcess, Work
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError, TopicNotFoundError
from pulsar_spark.outcome import LONGEST_ERROR, Outcome, Reject, RetryLater
from tests.connector.reading import Run
from tests.connector.topics import send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DONE = Outcome()


def values(*texts: str) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "value": pa.array([text.encode() for text in texts]),
            "properties": pa.array(
                [[("n", text)] for text in texts], pa.map_(pa.string(), pa.string())
            ),
        }
    )


def run(function: Callable[..., Any], *texts: str, **given: Any) -> list[Outcome]:
    timeout_s = given.pop("timeout_s", None)
    with FunctionProcess(Work(function, **given), timeout_s) as process:
        return process.run(values(*texts))


def errors(outcomes: list[Outcome]) -> list[str | None]:
    return [each.error for each in outcomes]


def test_what_a_function_returns_and_raises_is_told_message_by_message() -> None:
    def function(message: Any) -> Any:
        name = message.properties["n"]
        if name == "bad":
            raise ValueError("no number")
        if name == "later":
            raise RetryLater("5s", "busy")
        if name == "never":
            raise Reject("unreadable")
        if name == "exit":
            raise SystemExit(3)
        return len(message.value) if name != "wrong" else "text"

    names = ("a", "bad", "later", "never", "exit", "wrong", "bb")
    outcomes = run(function, *names, result_type=pa.int64())
    assert [each.ack_type for each in outcomes] == [
        "Individual", "Negative", "Negative", "DeadLetter", "Negative", "Negative", "Individual"
    ]  # fmt: skip
    assert errors(outcomes)[1:5] == ["ValueError: no number", "busy", "unreadable", "SystemExit: 3"]
    assert "Could not convert 'text'" in (outcomes[5].error or "")
    assert [each.delay_ms for each in outcomes] == [None, None, 5000, None, None, None, None]
    assert [each.result for each in outcomes] == [1, None, None, None, None, None, 2]


@pytest.mark.parametrize("by_batch", [False, True])
def test_who_kills_the_process_is_known_and_the_others_go_on(by_batch: bool) -> None:
    def function(given: Any) -> None:
        found = given.column("value").to_pylist() if by_batch else [given.value]
        if b"segfault" in found:
            os.kill(os.getpid(), signal.SIGSEGV)
        if b"exit" in found:
            os._exit(7)
        if b"kill" in found:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"raise" in found:
            raise KeyError("x")

    names = ("a", "segfault", "b", "exit", "kill", "c", "raise", "d")
    outcomes = run(function, *names, by_batch=by_batch)
    told = dict(zip(names, errors(outcomes), strict=True))
    assert [name for name, error in told.items() if error is None] == ["a", "b", "c", "d"]
    assert "signal 11 (SIGSEGV)" in (told["segfault"] or "")
    assert "exit code 7" in (told["exit"] or "")
    assert "signal 9 (SIGKILL, as the system does when memory" in (told["kill"] or "")
    assert told["raise"] == "KeyError: 'x'"


def test_a_message_that_hangs_is_given_up_after_the_timeout() -> None:
    def function(message: Any) -> None:
        if message.value == b"hang":
            threading.Event().wait()

    outcomes = run(function, "a", "hang", "b", timeout_s=0.3)
    assert errors(outcomes)[::2] == [None, None]
    assert "longer than the timeout of 0.3 s" in (outcomes[1].error or "")


def test_one_process_serves_many_batches_and_ends_with_its_task() -> None:
    def function(message: Any) -> int:
        return os.getpid()

    with FunctionProcess(Work(function, result_type=pa.int64())) as process:
        seen = {each.result for _ in range(3) for each in process.run(values("a", "b"))}
        (child,) = seen
        assert child != os.getpid()
        os.kill(child, signal.SIGKILL)
        eventually(lambda: process._child is not None and process._child._has_died(), 10)
        (another,) = {each.result for each in process.run(values("a", "b"))}
        assert another != child
    with pytest.raises(ProcessLookupError):
        os.kill(another, 0)


def test_a_batch_function_gets_arrow_and_gives_a_result_a_message() -> None:
    def function(batch: pa.RecordBatch) -> pa.Array:
        if batch.num_rows == 2:
            return pa.array([1])
        return pc.binary_length(batch.column("value"))

    outcomes = run(function, "a", "bb", "ccc", by_batch=True, result_type=pa.int64())
    assert [each.result for each in outcomes] == [1, 2, 3]
    outcomes = run(function, "a", "bb", by_batch=True, result_type=pa.int64())
    assert [each.result for each in outcomes] == [1, 2], "a wrong number is halved as an error is"


def test_an_error_s_text_has_a_bound() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert len(Outcome.of_error(ValueError("x" * 5000)).error or "") == LONGEST_ERROR
    assert Outcome.of_error(OddError()).error == "OddError: its text can't be had: RuntimeError"
    assert Outcome.of_error(RetryLater()) == Outcome("Negative")
    with pytest.raises(ValueError, match="not below 0"):
        RetryLater(-1)


# -- on Spark ----------------------------------------------------------------------------------


def test_what_can_not_be_processed_is_said_at_once(spark: SparkSession) -> None:
    frame = spark.range(1)
    with pytest.raises(InvalidMessageError, match="no column ledger_id"):
        pulsar_spark.process(frame, print)
    ids = "1L as ledger_id, 0L as entry_id, 0 as partition, 0 as batch_index, 't' as topic"
    with pytest.raises(InvalidOptionError, match="timeout: A delay can't be 'soon'"):
        pulsar_spark.process(spark.sql(f"select {ids}"), print, timeout="soon")


@pytest.mark.slow
def test_one_bad_message_never_stops_a_query_and_ends_as_a_dead_letter(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    send(root, "t", ["1", "boom", "3", "die", "never", "6"], batchingMaxMessages=4)

    def messages() -> DataFrame:
        return spark.readStream.format("pulsarlite").options(
            serviceUrl=str(root), topic="t", subscriptionName="s", subscriptionType="Shared",
            subscriptionInitialPosition="Earliest", ackMode="manual", maxRedeliverCount=1,
            negativeAckRedeliveryDelay="100ms",
        ).load()  # fmt: skip

    def letters() -> dict[bytes, str]:
        given: dict[str, Any] = {"topic": "t-s-DLQ", "startingOffsets": "earliest"}
        try:
            batches = Run(root, includeProperties=True, **given).all()
        except TopicNotFoundError:
            return {}
        found = [each for batch in batches for each in batch.messages]
        assert len(found) == len({each["value"] for each in found}), "a letter was written twice"
        return {each["value"]: dict(each["properties"])["ERROR"] for each in found}

    with standalone(spark, str(root)):
        query = (
            pulsar_spark.process(messages(), _work)
            .writeStream.format("pulsarlite")
            .options(serviceUrl=str(root), subscriptionName="s")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            eventually(lambda: len(letters()) == 3, 120, "three dead letters")
            assert query.isActive
        finally:
            query.stop()
    found = letters()
    assert found[b"boom"] == "ValueError: invalid literal for int() with base 10: b'boom'"
    assert "exit code 9" in found[b"die"]
    assert found[b"never"] == "unreadable"


def _work(message: Any) -> int:
    if message.value == b"die":
        os._exit(9)
    if message.value == b"never":
        raise pulsar_spark.Reject("unreadable")
    return int(message.value)
