"""A function on each message: what it raises, kills or delays is that one message's outcome."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import pulsar_spark
from pulsar_spark import RetryLater
from pulsar_spark.broker.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.broker.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    MultiplierRedeliveryBackoff,
)
from pulsar_spark.broker.protocol.ready import Stepped
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.functions.processing import Message, Processor, messages_of
from pulsar_spark.connector.spark.process.child_process import ChildProcess
from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.reading import Run
from tests.connector.topics import maps, numbers, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABOUT = TopicPartition("persistent://public/default/t", 0)
Outcome = tuple[str, str | None]


def batch_of(*values: str, **columns: pa.Array) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "ledger_id": pa.array([3] * count, pa.int64()),
            "entry_id": pa.array(range(count), pa.int64()),
            "partition": pa.array([0] * count, pa.int32()),
            "batch_index": pa.array([0] * count, pa.int32()),
            "topic": ["t"] * count,
            "key": ["k"] * count,
            "value": pa.array([value.encode() for value in values], pa.binary()),
            "redelivery_count": pa.array([1] * count, pa.int32()),
            **columns,
        }
    )


def outcomes(
    function: Callable[[Any], object], *batches: pa.RecordBatch, **given: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in Processor(function, **given)(iter(batches)):
        found += each.to_pylist()
    assert [each["entry_id"] for each in found] == [
        place for batch in batches for place in range(batch.num_rows)
    ]
    return found


def said(found: list[dict[str, Any]]) -> list[str]:
    """Per message: `.` for done, else the error."""
    return ["." if each["ack_type"] == "Individual" else each["error"] for each in found]


def obedient(message: Message) -> None:
    """Does what the message says."""
    match (message.value or b"").decode().split():
        case ["raise"]:
            raise ValueError("no good")
        case ["leave"]:
            sys.exit(4)
        case ["exit"]:
            os._exit(3)
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["crash"]:
            ctypes.string_at(0)
        case ["hang"]:
            signal.pause()
        case ["later", milliseconds]:
            raise RetryLater(int(milliseconds), {"why": "busy"})


def test_messages_are_given_with_what_their_rows_have() -> None:
    batch = batch_of("a", "b", properties=maps([{"x": "1"}, None]))
    first, second = messages_of(batch)
    assert first == Message(b"a", "k", {"x": "1"}, "t", 3, 0, 0, 0, 1)
    assert second.properties == {}
    assert next(messages_of(batch.select(["entry_id"]))) == Message(entry_id=0)


def test_a_message_that_python_cannot_hold_fails_alone() -> None:
    far = pa.array([0, 1 << 30, 2], pa.int32()).cast(pa.date32())  # Spark's dates go further.
    text = pa.array([b"k", b"k", b"\xff"], pa.binary()).view(pa.string())
    value = pa.StructArray.from_arrays([far], ["day"])
    first, *rest = said(outcomes(obedient_to_none, batch_of(*"abc", value=value, key=text)))
    assert first == "."
    assert "OverflowError" in rest[0]
    assert "UnicodeDecodeError" in rest[1]


def obedient_to_none(_: Message) -> None:
    """Takes whatever comes."""


def test_a_typed_value_is_given_with_its_maps_as_dicts() -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("m", pa.map_(pa.string(), pa.struct([("n", pa.map_(pa.string(), pa.int32()))]))),
            ("l", pa.list_(pa.map_(pa.string(), pa.int32()))),
        ]
    )
    full = {"id": 1, "m": [("a", {"n": [("b", 2)]}), ("c", None)], "l": [[("d", 3)], None]}
    values = pa.array([full, None, {"id": 2}], kind)
    given = messages_of(batch_of(*"abc", schema_error=pa.array([None, "no", None]), value=values))
    assert [(each.value, each.schema_error) for each in given] == [
        ({"id": 1, "m": {"a": {"n": {"b": 2}}, "c": None}, "l": [{"d": 3}, None]}, None),
        (None, "no"),
        ({"id": 2, "m": None, "l": None}, None),
    ]


def test_a_function_that_returns_acknowledges_and_its_child_ends_with_the_task(
    tmp_path: Path,
) -> None:
    def note(_: Message) -> None:
        with (tmp_path / "pids").open("a") as file:
            file.write(f"{os.getpid()}\n")

    found = outcomes(note, batch_of(*"abc"), batch_of(), batch_of("d"))
    assert said(found) == ["."] * 4
    assert {name: each for name, each in found[0].items() if each is not None} == {
        "ledger_id": 3, "entry_id": 0, "partition": 0, "batch_index": 0, "topic": "t",
        "ack_type": "Individual",
    }  # fmt: skip
    (pid,) = set((tmp_path / "pids").read_text().split())
    assert int(pid) != os.getpid()
    assert not _lives(int(pid))


@pytest.mark.parametrize("function", ["work", lambda: None])
def test_what_can_not_be_called_with_a_message_is_refused_at_once(function: Any) -> None:
    with pytest.raises(TypeError, match="is no function of one argument, a message"):
        pulsar_spark.process(None, function)  # type: ignore[arg-type]


def test_what_a_function_raises_is_caught_message_by_message() -> None:
    found = outcomes(obedient, batch_of("a", "raise", "b", "leave"), batch_of("raise", "c"))
    here = f"{Path(__file__).name}:"
    first, second, third = (each["error"] for each in found if each["error"])
    assert first.startswith("ValueError: no good (")
    assert here in first
    assert first.endswith(" in obedient)")
    assert second.startswith("SystemExit: 4")
    assert third == first
    assert [each["ack_type"][0] for each in found] == list("ININNI")


@pytest.mark.parametrize(
    ("order", "error"),
    [
        ("exit", "its process exited with 3"),
        ("kill", "its process was killed by SIGKILL (out of memory?)"),
        ("crash", "its process was killed by SIGSEGV: Fatal Python error: Segmentation fault"),
        ("hang", "it took longer than 0.5 s, and was killed"),
    ],
)
def test_a_message_that_kills_its_process_is_known_and_the_others_go_on(
    order: str, error: str
) -> None:
    batch = batch_of("a", order, "b", order, order, "raise", "c")
    found = outcomes(obedient, batch, batch_of("d", order), timeout_s=0.5)
    short = [each if each == "." else each[: len(error)] for each in said(found)]
    raised = short[5]
    assert short == [".", error, ".", error, error, raised, ".", ".", error]
    assert raised.startswith("ValueError")


def test_what_a_child_started_does_not_hide_its_death() -> None:
    def leave_one_behind(message: Message) -> None:
        if message.value == b"fork":
            child = os.fork()
            if not child:
                signal.alarm(20)
                signal.pause()
            os._exit(child % 2 and 9)

    found = outcomes(leave_one_behind, batch_of("a", "fork", "b"))
    assert [each[:18] for each in said(found)] == [".", "its process exited", "."]


def test_retry_later_names_its_delay_and_counts_where_properties_are_read() -> None:
    properties = maps([{"RECONSUMETIMES": "4"}, {}, None])
    attempts = pa.array([7, 8, 9], pa.int32())
    found = outcomes(
        obedient, batch_of("later 1500", "a", "later 20", properties=properties, attempt=attempts)
    )
    names = ("ack_type", "delay_ms", "reconsume_times", "attempt")
    assert [tuple(each[name] for name in names) for each in found] == [
        ("ReconsumeLater", 1500, 4, 7), ("Individual", None, None, 8),
        ("ReconsumeLater", 20, 0, 9),
    ]  # fmt: skip
    assert [dict(each["properties"] or ()) for each in found] == [
        {"why": "busy"}, {}, {"why": "busy"},
    ]  # fmt: skip
    (alone,) = outcomes(obedient, batch_of("later 20"))
    assert (alone["ack_type"], alone["delay_ms"]) == ("Negative", 20)


def test_a_function_keeps_what_it_has_in_memory_until_its_process_dies() -> None:
    seen: list[bytes | None] = []

    def count(message: Message) -> None:
        seen.append(message.value)
        if message.value == b"exit":
            os._exit(0)
        raise ValueError(len(seen))

    found = outcomes(count, batch_of("a", "b"), batch_of("c", "exit", "d"))
    assert [each.split(" (")[0] for each in said(found)] == [
        "ValueError: 1", "ValueError: 2", "ValueError: 3", "its process exited with 0",
        "ValueError: 1",
    ]  # fmt: skip
    assert not seen, "this process has not run it"


def test_errors_of_any_length_and_form_are_told() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    def fail(message: Message) -> None:
        if message.value == b"mute":
            raise Mute
        raise ValueError("\ud800ü" if message.value == b"odd" else "x" * 100_000)

    first, second, third = said(outcomes(fail, batch_of("long", "odd", "mute")))
    assert len(first) <= 2_000
    assert "\\ud800ü" in second
    assert third.startswith("Mute (")


@pytest.mark.parametrize("order", ["raise", "exit", "hang"])
def test_a_batch_that_fails_is_halved_until_the_message_is_found(
    order: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"

    def each(batch: pa.RecordBatch) -> None:
        with calls.open("a") as file:
            file.write(f"{batch.num_rows}\n")
        for message in messages_of(batch):
            obedient(message)

    values = ["a"] * 5 + [order] + ["b"] * 10
    found = outcomes(each, batch_of(*values), batch_of("c"), batch=True, timeout_s=0.5)
    assert [each == "." for each in said(found)] == [value != order for value in [*values, "c"]]
    assert calls.read_text().split() == ["16", "8", "4", "4", "2", "1", "1", "2", "8", "1"]


def test_what_a_function_returns_is_a_column_if_it_is_asked_for() -> None:
    def length(message: Message) -> object:
        if message.value == b"bad":
            raise ValueError("no good")
        return len(message.value or b"") if message.value != b"odd" else "text"

    found = outcomes(length, batch_of("a", "bad", "odd", "ccc"), result=pa.int64())
    assert [each["result"] for each in found] == [1, None, None, 3]
    assert [each["ack_type"] for each in found] == ["Individual", "Negative"] * 1 + [
        "Negative", "Individual"
    ]  # fmt: skip
    assert "Could not convert 'text'" in found[2]["error"]


def test_a_batch_function_returns_a_result_for_each_message_or_it_failed() -> None:
    def lengths(batch: pa.RecordBatch) -> object:
        values = batch.column("value").to_pylist()
        if b"bad" in values:
            raise ValueError("no good")
        return [len(each) for each in values] if len(values) != 3 else [1]

    found = outcomes(lengths, batch_of("a", "bb", "bad"), batch=True, result=pa.int64())
    assert [each["result"] for each in found] == [1, 2, None]
    assert said(found)[:2] == [".", "."]
    (wrong,) = outcomes(lambda _: 7, batch_of("a"), batch=True, result=pa.int64())
    assert "returned no array or list of as many results, but int" in wrong["error"]


def test_what_is_rejected_becomes_a_dead_letter_at_once() -> None:
    def never(_: Message) -> None:
        raise pulsar_spark.Reject("unreadable")

    (found,) = outcomes(never, batch_of("a"))
    assert (found["ack_type"], found["error"]) == ("DeadLetter", "unreadable")


@pytest.mark.parametrize(
    ("raised", "ack_type", "error"),
    [
        (lambda: pulsar_spark.Reject("\ud800"), "DeadLetter", r"\ud800"),
        (lambda: pulsar_spark.Reject(KeyError("k")), "DeadLetter", "KeyError: 'k'"),
        (lambda: RetryLater(10**20), "Negative", "InvalidOptionError: "),
        (lambda: RetryLater(float("nan")), "Negative", "InvalidOptionError: "),  # type: ignore[arg-type]
        (lambda: RetryLater(1, {"tries": 1}), "Negative", "TypeError: Property 'tries' is 1"),  # type: ignore[dict-item]
        (lambda: RetryLater(1, {"\ud800": "\ud800"}), "ReconsumeLater", None),
    ],
)
def test_whatever_a_function_says_of_a_message_is_an_outcome_of_that_message_alone(
    raised: Callable[[], Exception], ack_type: str, error: str | None
) -> None:
    def raise_it(message: Message) -> None:
        if message.value == b"b":
            raise raised()

    found = outcomes(raise_it, batch_of("a", "b", "c", properties=maps([{}] * 3)))
    done = "Individual"
    assert [each["ack_type"] for each in found] == [done, ack_type, done]
    said = found[1]["error"]
    assert said is error or said.startswith(error)


@pytest.mark.parametrize("times", ["99999999999", "9" * 5000, "-1", "٣", "", "often"])
def test_a_count_that_is_none_of_ours_does_not_keep_a_message_from_being_put_off(
    times: str,
) -> None:
    (found,) = outcomes(
        obedient, batch_of("later 20", properties=maps([{"RECONSUMETIMES": times}]))
    )
    assert (found["ack_type"], found["reconsume_times"]) == ("ReconsumeLater", 0)


def test_a_batch_that_wants_to_be_retried_later_is_so_as_a_whole() -> None:
    def busy(batch: pa.RecordBatch) -> None:
        raise RetryLater("1s")

    found = outcomes(busy, batch_of("a", "b", properties=maps([{}, {}])), batch=True)
    assert [(each["ack_type"], each["delay_ms"]) for each in found] == [
        ("ReconsumeLater", 1000)
    ] * 2


def test_a_task_that_ends_early_leaves_no_child() -> None:
    def work(batch: pa.RecordBatch, start: int, stop: int) -> Iterator[bytes]:
        yield b"one"
        signal.pause()

    with ChildProcess(work) as child:
        results = child.run(batch_of("a"), 0, 1)
        assert next(results) == b"one"
        pid = child.pid
        results.close()  # type: ignore[attr-defined]
        assert not _lives(pid)
        others = child.run(batch_of("b"), 0, 1)
        assert next(others) == b"one", "a new one takes over"
        pid = child.pid
        assert _lives(pid)
    assert not _lives(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_child_does_not_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from tests.connector.functions.test_processing import batch_of\n"
        "from pulsar_spark.connector.spark.functions.processing import Processor\n"
        "def hang(message):\n"
        "    print(os.getpid(), flush=True)\n"
        "    signal.pause()\n"
        "list(Processor(hang)(iter([batch_of('a')])))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        worker.kill()
        worker.wait()
    eventually(lambda: not _lives(pid), what="the child ends")


def test_errors_of_processing_end_in_the_dead_letter(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.connector.ack_sink.test_acknowledging import write

    place = Root(str(root), {})
    send(root, "t", ["a", "exit", "b"], batchingEnabled=False)
    options = ConsumerOptions(
        negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(0, 0),
        dead_letter_policy=DeadLetterPolicy(1),
    )
    command = Subscribe(
        "s", "c", 1, SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST,
        permits=100, options=options,
    )  # fmt: skip
    SystemTopic(place, COMMANDS).append([Record.of(ABOUT, "s", command)])
    loop = EmbeddedBroker(place, "_broker/c")
    loop.until_quiet()
    ((messages),) = Run(root, topic="t", startingOffsets="earliest").all()
    batch = pa.RecordBatch.from_pylist(messages.messages)
    for _ in range(2):
        (rows,) = Processor(obedient)(iter([batch]))
        write(place, dict(zip(rows.schema.names, rows.columns, strict=True)))
        loop.until_quiet()
    ((dead_letters),) = Run(root, topic="t-s-DLQ", startingOffsets="earliest",
                       includeProperties="true").all()  # fmt: skip
    (letter,) = dead_letters.messages
    assert letter["value"] == b"exit"
    assert dict(letter["properties"])["ERROR"] == "its process exited with 3"
    dispatch = SystemTopic(place, DISPATCH)
    steps = [each.record.item() for each in dispatch.read(0, dispatch.refresh(),
             keep=lambda _, name: not name)]  # fmt: skip
    assert [each for each in steps if isinstance(each, Stepped)][-1].backlogs == (("s", 0),)


def test_a_stream_is_processed_and_goes_on_behind_a_message_that_kills_its_process(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    from tests.connector.ack_sink.test_acknowledging import said as commands

    send(root, "t", [*numbers(0, 4), "exit", "later 5", *numbers(4, 8)], batchingEnabled=False)
    reader = spark.readStream.format("pulsarlite").options(
        serviceUrl=str(root), topic="t", startingOffsets="earliest", includeProperties="true"
    )

    def handle(message: Message) -> None:
        text = (message.value or b"").decode()
        if text == "exit":
            os._exit(3)
        if text.startswith("later"):
            raise RetryLater(5)

    rows = pulsar_spark.process(reader.load(), handle, timeout="1m")
    writer = rows.writeStream.format("pulsarlite").options(
        serviceUrl=str(root), subscriptionName="s", checkpointLocation=str(tmp_path / "c")
    )
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    ((_, report),) = commands(Root(str(root), {}))
    assert str(report.acknowledged.individually_deleted) == "0:0-3,6-9"
    ((rejected,), (later,)) = report.rejected, report.reconsume_later
    assert str(rejected.messages) == "0:4"
    assert rejected.properties == (("ERROR", "its process exited with 3"),)
    assert (str(later.messages), later.delay_ms, later.reconsume_times) == ("0:5", 5, 0)


def test_typed_values_are_processed_and_misfits_reach_the_function_or_end_the_query(
    spark: SparkSession, root: Path
) -> None:
    orders = spark.sql("select struct(id, map('k', id) as m) as value from range(3)")
    options = {"topic": "t", "schemaType": "JSON", "serviceUrl": str(root)}
    orders.coalesce(1).write.format("pulsarlite").mode("append").options(**options).save()
    send(root, "t", ['{"id":"x"}', None])

    def handle(message: Message) -> str:
        if message.value is None:
            return message.schema_error or "nothing"
        return f"{message.value['id']} {message.value['m']['k']}"

    def work(mismatch: str, *, batch: bool = False) -> list[Any]:
        reader = spark.read.format("pulsarlite").options(serviceUrl=str(root), topic="t")
        frame = reader.options(valueSchema="auto", onSchemaMismatch=mismatch).load()
        function = (lambda rows: rows["value"].field("id")) if batch else handle
        kind = "bigint" if batch else "string"
        rows = pulsar_spark.process(frame, function, batch=batch, result=kind)
        return [
            (row.ack_type, row.result) for row in rows.orderBy("ledger_id", "batch_index").collect()
        ]

    assert work("null") == [
        ("Individual", "0 0"), ("Individual", "1 1"), ("Individual", "2 2"),
        ("Individual", "value.id is 'x', and no whole number below 9223372036854775808"),
        ("Individual", "nothing"),
    ]  # fmt: skip
    found = [number for _, number in work("null", batch=True)]
    assert found == [0, 1, 2, None, None]
    with pytest.raises(PySparkException, match=r"SCHEMA_MISMATCH.*value\.id is 'x'"):
        work("fail")


def test_a_dataframe_is_processed_in_batches_with_all_its_columns(
    spark: SparkSession, root: Path
) -> None:
    send(root, "t", numbers(0, 20))
    reader = spark.read.format("pulsarlite").options(serviceUrl=str(root), topic="t")
    frame: DataFrame = reader.load().selectExpr("*", "cast(value as string) as text").drop("topic")

    def handle(batch: pa.RecordBatch) -> None:
        if "13" in batch.column("text").to_pylist():
            raise ValueError("unlucky")

    found = pulsar_spark.process(frame, handle, batch=True, topic="u").collect()
    assert [each.batch_index for each in found if each.ack_type == "Negative"] == [13]
    assert {each.topic for each in found} == {"u"}
    squares = pulsar_spark.process(
        frame, lambda message: int(message.value or 0) ** 2, topic="u", result="bigint"
    )
    assert sorted(each.result for each in squares.collect()) == [n * n for n in range(20)]
    with pytest.raises(InvalidMessageError, match="no column topic"):
        pulsar_spark.process(frame, handle)
    with pytest.raises(InvalidMessageError, match="no column batch_index"):
        pulsar_spark.process(frame.drop("batch_index"), handle)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")  # a zombie that nobody reaps does not live
    return not (status.exists() and "State:\tZ" in status.read_text())
