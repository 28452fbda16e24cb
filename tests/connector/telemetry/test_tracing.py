"""One trace from whoever publishes through `process` to the dead letter, and metrics on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pyspark.sql.types import BinaryType, StructType

import pulsar_spark
from pulsar_spark import pulsar, telemetry
from pulsar_spark.connector.inspect.telemetry import instruments, tracing
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.spark.functions.processing import Processor
from pulsar_spark.connector.spark.stream_writer import MessageSink
from pulsar_spark.errors import InvalidOptionError
from tests.connector.client.clients import EARLIEST, all_of, python, shared, subscribe

TOPIC = "persistent://public/default/t"
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EXPORTER, READER = InMemorySpanExporter(), InMemoryMetricReader()


@pytest.fixture(scope="module", autouse=True)
def provided() -> None:
    """OpenTelemetry as a program sets it up: once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([READER]))


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


def by_name(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {each.name: each for each in spans.get_finished_spans()}


def traceparent(message: pulsar.Message) -> str:
    return message.properties()["traceparent"]


def finished(spans: InMemorySpanExporter) -> list[Any]:
    return [*spans.get_finished_spans()]


def tracer() -> trace.Tracer:
    return trace.get_tracer("the program")


def batch_of(messages: list[pulsar.Message]) -> pa.RecordBatch:
    """As a source gives them to a function."""
    columns: dict[str, Any] = {
        "value": [each.data() for each in messages],
        "properties": pa.array(
            [list(each.properties().items()) for each in messages],
            pa.map_(pa.string(), pa.string()),
        ),
        "topic": [TOPIC] * len(messages),
        "attempt": pa.array([each.received.attempt for each in messages], pa.int32()),
    }
    for place, name in enumerate(("ledger_id", "entry_id", "partition", "batch_index")):
        kind = pa.int64() if place < 2 else pa.int32()
        columns[name] = pa.array([each.received.place[place] for each in messages], kind)
    return pa.RecordBatch.from_pydict(columns)


def test_one_trace_goes_from_the_publisher_through_process_to_the_dead_letter(
    client: pulsar.Client, spans: InMemorySpanExporter
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, "buried")
    consumer = shared(client, dead_letter_policy=policy)
    dead_letters = subscribe(client, "buried")
    with tracer().start_as_current_span("order placed") as root:
        client.create_producer("t").send(b"poison")
    downstream = client.create_producer("downstream")

    def handle(message: pulsar_spark.Message) -> None:
        downstream.send(b"seen")
        raise pulsar_spark.Reject("never")

    messages = all_of(consumer)
    consumer.settle(Processor(handle).outcomes(batch_of(messages)).to_pylist())
    (letter,) = all_of(dead_letters, 5000)
    with telemetry.processing(letter, "undertaker") as span:
        assert span.is_recording()
    found = by_name(spans)
    trace_id = root.get_span_context().trace_id
    assert {each.context.trace_id for each in found.values()} == {trace_id}
    sent, processed = found[f"send {TOPIC}"], found[f"process {TOPIC}"]
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.parent.span_id == root.get_span_context().span_id
    assert processed.parent.span_id == sent.context.span_id
    assert processed.status.status_code is StatusCode.ERROR
    assert processed.attributes["error.type"] == "Reject"
    onward = found["send persistent://public/default/downstream"]
    assert onward.parent.span_id == processed.context.span_id
    dead_lettered = found["process persistent://public/default/buried"]
    assert dead_lettered.attributes["messaging.destination.subscription.name"] == "undertaker"
    for each in (sent, processed):
        operation = "send" if each is sent else "process"
        assert each.attributes["messaging.system"] == "pulsarlite"
        assert each.attributes["messaging.operation.name"] == operation
        assert each.attributes["messaging.operation.type"] == operation
        assert each.attributes["messaging.destination.name"] == TOPIC
    assert processed.attributes["messaging.message.id"] == "0:0:0:0"


def test_a_message_keeps_the_context_that_it_was_given(
    client: pulsar.Client, spans: InMemorySpanExporter
) -> None:
    consumer, producer = shared(client), client.create_producer("t")
    state = {"traceparent": GIVEN, "tracestate": "vendor=1"}
    with tracer().start_as_current_span("another"):
        producer.send(b"a", properties=state)
        producer.send_async(b"b", None, properties={"k": "v"})
        producer.send_async(b"c", None)
    producer.send_async(b"d", None)
    producer.flush()
    messages = {each.data(): each for each in all_of(consumer)}
    assert messages[b"a"].properties() == state
    assert messages[b"b"].properties()["k"] == "v"
    assert traceparent(messages[b"b"]) == traceparent(messages[b"c"]) != GIVEN
    assert messages[b"d"].properties() == {}, "no span was active"
    with telemetry.processing(messages[b"a"]) as span:
        assert f"{span.get_span_context().trace_id:032x}" == GIVEN[3:35]
        assert span.get_span_context().trace_state.get("vendor") == "1"
    with telemetry.processing(messages[b"d"]) as nothing:
        assert nothing is None


def test_what_is_not_sampled_is_neither_written_nor_continued(
    client: pulsar.Client, spans: InMemorySpanExporter
) -> None:
    consumer, producer = shared(client), client.create_producer("t")
    context = trace.SpanContext(1, 1, is_remote=False)
    with trace.use_span(trace.NonRecordingSpan(context)):
        producer.send(b"a")
    for number, flags in enumerate(("00", "", "zz", "01")):
        producer.send(b"%d" % number, properties={"traceparent": f"00-{1:032x}-{1:016x}-{flags}"})
    messages = {each.data(): each for each in all_of(consumer)}
    assert messages[b"a"].properties() == {}
    for number in range(4):
        with telemetry.processing(messages[b"%d" % number]) as span:
            assert (span is not None) == (number == 3)
    Processor(lambda _: None).outcomes(batch_of([*messages.values()]))
    assert [each.name for each in spans.get_finished_spans()] == [f"process {TOPIC}"] * 2


def given(count: int) -> list[Any]:
    """Messages that name one context, as a function is given them."""
    properties = {"traceparent": GIVEN}
    return [pulsar_spark.Message(properties=properties, topic=TOPIC, ledger_id=number)
            for number in range(count)]  # fmt: skip


def test_messages_in_a_row_of_one_context_share_a_span(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "SHARED_S", 3600)
    seen = set()

    def handle(message: pulsar_spark.Message) -> None:
        seen.add(trace.get_current_span().get_span_context().span_id)
        if message.ledger_id == 1:
            raise ValueError(message.ledger_id)

    within = tracing.Traced(handle)
    first, *_ = given(1)
    for message in (*given(3), replace(first, properties={}), first):
        with suppress(ValueError):
            within(message)
    within.close()
    shared_span, single = finished(spans)
    assert seen == {0, shared_span.context.span_id, single.context.span_id}
    assert {f"{each.parent.span_id:016x}" for each in (shared_span, single)} == {GIVEN[36:52]}
    assert shared_span.attributes["messaging.batch.message_count"] == 3
    assert shared_span.attributes["error.type"] == "ValueError"
    (event,) = shared_span.events
    assert event.attributes["messaging.message.id"] == "1:-1:-1:-1"
    assert single.attributes["messaging.message.id"] == "0:-1:-1:-1"
    assert single.status.status_code is StatusCode.UNSET


def test_a_message_that_takes_long_has_a_span_of_its_own(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "SHARED_S", -1)
    within = tracing.Traced(lambda _: None)
    for message in given(3):
        within(message)
    within.close()
    reported = [each.attributes["messaging.message.id"] for each in finished(spans)]
    assert reported == ["0:-1:-1:-1", "1:-1:-1:-1", "2:-1:-1:-1"]


def set_up() -> None:
    """What the option `tracing` names; here the fixture has done it."""


def test_a_sinks_task_has_a_span_that_its_rows_name(
    url: str, client: pulsar.Client, spans: InMemorySpanExporter
) -> None:
    consumer = shared(client)
    sent = {"serviceUrl": url, "topic": "t", "tracing": f"{__name__}:set_up"}
    options = options_of(sent)
    rows = StructType().add("value", BinaryType())
    sink = MessageSink(options, Root.of(options), rows)
    kind = pa.map_(pa.string(), pa.string())
    properties = pa.array([[("traceparent", GIVEN)], None, [("k", "v")]], kind)
    values = pa.array([b"a", b"b", b"c"])
    batches = [{"value": values, "properties": properties}, {"value": values}]
    sink.commit([sink.write(map(pa.RecordBatch.from_pydict, batches))], None, None)
    (span,) = finished(spans)
    assert (span.name, span.kind) == (f"send {TOPIC}", SpanKind.PRODUCER)
    assert span.attributes["messaging.batch.message_count"] == 6
    context = span.context
    mine = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    reported = [each.properties() for each in all_of(consumer)]
    assert reported[:3] == [{"traceparent": GIVEN}, {"traceparent": mine},
                        {"k": "v", "traceparent": mine}]  # fmt: skip
    assert reported[3:] == [{"traceparent": mine}] * 3


def test_a_sink_whose_tracing_is_not_there_says_so_before_it_runs(url: str) -> None:
    options = options_of({"serviceUrl": url, "topic": "t", "tracing": "nowhere:set_up"})
    with pytest.raises(InvalidOptionError, match="tracing nowhere:set_up can't be imported"):
        MessageSink(options, Root.of(options), StructType().add("value", BinaryType()))


def test_a_listener_runs_within_its_messages_trace(
    client: pulsar.Client, spans: InMemorySpanExporter
) -> None:
    seen: list[int] = []

    def listener(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    consumer = client.subscribe("t", "s", initial_position=EARLIEST, message_listener=listener)
    with tracer().start_as_current_span("root") as root:
        client.create_producer("t").send(b"a")
    clock: Any = client.root.clock
    clock.advance(1000)
    assert seen == [root.get_span_context().trace_id]
    assert (
        by_name(spans)[f"process {TOPIC}"].attributes["messaging.destination.subscription.name"]
        == "s"
    )
    consumer.close()


def test_an_error_says_where_it_was_raised_as_without_a_trace(client: pulsar.Client) -> None:
    consumer = shared(client)
    with tracer().start_as_current_span("root"):
        client.create_producer("t").send(b"a")
    batch = batch_of(all_of(consumer))
    (row,) = Processor(lambda message: message.properties["k"]).outcomes(batch).to_pylist()
    assert row["error"].startswith("KeyError: 'k' (")
    assert "test_tracing.py" in row["error"]
    (row,) = Processor(int).outcomes(batch).to_pylist()
    assert row["error"].startswith("TypeError")
    assert ".py" not in row["error"], "no frame of ours is named"


def test_a_functions_own_process_is_set_up_and_exports_before_it_ends(tmp_path: Path) -> None:
    """As in Spark's task: the function runs in a child, which is killed at its end."""
    done = python(f"""
import pyarrow as pa
from pulsar_spark.connector.spark.functions.processing import Processor

def set_up():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    provider = TracerProvider()
    out = open({str(tmp_path / "spans")!r}, "a")
    def line(span):
        return span.to_json(indent=None) + "\\n"
    exporter = ConsoleSpanExporter(out=out, formatter=line)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    trace.set_tracer_provider(provider)

properties = pa.array([[("traceparent", {GIVEN!r})], []], pa.map_(pa.string(), pa.string()))
columns = {{"value": pa.array([b"a", b"b"]), "properties": properties}}
for name in ("ledger_id", "entry_id"):
    columns[name] = pa.array([0, 1])
for name in ("partition", "batch_index", "attempt"):
    columns[name] = pa.array([0, 0], pa.int32())
columns["topic"] = pa.array(["t", "t"])
list(Processor(lambda message: None, tracing=set_up)([pa.RecordBatch.from_pydict(columns)]))
import sys
assert "opentelemetry" not in sys.modules
""")
    assert done.returncode == 0, done.stderr
    (span,) = map(json.loads, (tmp_path / "spans").read_text().splitlines())
    assert span["context"]["trace_id"] == "0x" + GIVEN[3:35]
    assert span["parent_id"] == "0x" + GIVEN[36:52]


def test_opentelemetry_is_not_imported_by_who_does_not_use_it() -> None:
    done = python("""
import sys
import pulsar_spark
from pulsar_spark import pulsar, telemetry
from pulsar_spark.connector.spark.functions.processing import Processor
client = pulsar.Client("memory://untraced")
consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
client.create_producer("t").send(b"a", properties={"traceparent": "00-1-2-01"})
message = consumer.receive(1000)
with telemetry.processing(message) as span:
    assert span is None
client.close()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
""")
    assert done.returncode == 0, done.stderr


def collected() -> dict[str, list[Any]]:
    """Name -> its data points."""
    data = READER.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_a_client_counts_by_the_conventions_names(client: pulsar.Client) -> None:
    consumer = subscribe(client, "counted", name="billing")
    producer = client.create_producer("counted")
    with tracer().start_as_current_span("root"):
        for number in range(3):
            producer.send_async(b"%d" % number, None)
    producer.flush()
    for message in all_of(consumer):
        with telemetry.processing(message):
            pass
    found = {
        name: {
            (
                each.attributes["messaging.operation.name"],
                getattr(each, "value", None) or each.count,
            )
            for each in points
            if str(each.attributes["messaging.destination.name"]).endswith("/counted")
        }
        for name, points in collected().items()
        if name in instruments.INSTRUMENTS
    }
    assert found == {
        "messaging.client.sent.messages": {("send", 3)},
        "messaging.client.consumed.messages": {("receive", 3)},
        "messaging.client.operation.duration": {("send", 1)},
        "messaging.process.duration": {("process", 3)},
    }


def test_gauges_tell_of_all_topics_of_a_root(tmp_path: Path) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        subscribe(client)
        client.create_producer("t").send(b"a")
        telemetry.observe(str(tmp_path))
        found = collected()
    (backlog,) = found["pulsarlite.subscription.backlog"]
    assert backlog.value == 1
    assert backlog.attributes["messaging.destination.name"] == TOPIC
    assert backlog.attributes["messaging.destination.subscription.name"] == "s"
    (stored,) = found["pulsar.broker.topic.storage.size"]
    assert (stored.value, stored.attributes["pulsar.namespace"]) == (1, "public/default")
    (sent,) = found["pulsar.broker.topic.message.outgoing.count"]
    assert sent.attributes["messaging.destination.subscription.name"] == "s"
    assert found["pulsarlite.broker.up"][0].value == 1
