"""What traces cost: the same messages with and without, in turn, in one process.

    python -m benchmarks.tracing [--messages 20000] [--bytes 100] [--rounds 9]

*Client*: `send_async` in batches up to the flush, `receive`, `telemetry.processing` around nothing,
`acknowledge`; one process with an embedded broker on a folder. *Process*: a function that hashes
the value of each message, in its child as in Spark's task, from Arrow batches to outcomes; a
hundred messages name one context, as of one request, or (*own*) each its own. *Sink*: a task of
Spark's sink without Spark, whose rows name no context; *all* and *1 in 100* tasks are sampled.

*Off*: OpenTelemetry is not imported (it is hidden for that turn); messages that a function is given
have the contexts of *1 in 100*. *On*: it is set up, and nobody has a context. *1 in 100*: all have
one, and one of a hundred is sampled, as `TraceIdRatioBased(0.01)` has it. *All*: all are sampled,
recorded and handed to an exporter that drops them. A round is one turn of each. Times are the
processor's, of this process and its children, since other work on the machine is not in them; a
figure is the median of its turns, a ratio the median of the rounds' ratios to *off*.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from pyspark.sql.types import BinaryType, StructType

from pulsar_spark import pulsar, telemetry
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.spark.functions.processing import Processor
from pulsar_spark.connector.spark.stream_writer import MessageSink

BATCH = 10_000
OFF, ON, SOME, ALL = "off", "on", "1 in 100", "all"
SETTINGS = (OFF, ON, SOME, ALL)
Turn = Callable[[str], float]


class Dropping(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002 - they are dropped
        return SpanExportResult.SUCCESS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(1.0)))
    processor = BatchSpanProcessor(Dropping(), max_queue_size=1 << 17)
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider())
    payload = b"x" * given.bytes
    for name, share in (("process", 100), ("own", 1)):
        run_once = partial(processed, payload=payload, messages=given.messages, share=share)
        show(name, measured(run_once, given.rounds))
    show("sink", measured(lambda how: written(how, payload, given.messages * 10), given.rounds))
    with (
        tempfile.TemporaryDirectory() as root,
        pulsar.Client(root, broker="embedded") as client,
    ):
        show(
            "client", measured(lambda how: sent(client, how, payload, given.messages), given.rounds)
        )


def measured(run_once: Turn, rounds: int) -> dict[str, list[float]]:
    """Seconds by setting; the first round warms up."""
    found: dict[str, list[float]] = {each: [] for each in SETTINGS}
    for number in range(rounds + 1):
        first = number % len(SETTINGS)
        for how in SETTINGS[first:] + SETTINGS[:first]:
            seconds = run_once(how)
            if number:
                found[how].append(seconds)
    return found


def show(what: str, found: dict[str, list[float]]) -> None:
    for how, seconds in found.items():
        ratios = [mine / off for mine, off in zip(seconds, found[OFF], strict=True)]
        print(
            f"{what:8} {how:9} {statistics.median(seconds):7.3f} s, to off "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )


def processor_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def sent(client: pulsar.Client, how: str, payload: bytes, messages: int) -> float:
    topic = f"t-{time.perf_counter_ns()}"
    kind = pulsar.ConsumerType.Shared
    producer = client.create_producer(topic, batching_enabled=True, max_pending_messages=messages)
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=5_000)
    with switched(how):
        begun_s = processor_s()
        for span in contexts(how, messages):
            with span:
                producer.send_async(payload, None)
        producer.flush()
        for _ in range(messages):
            message = consumer.receive(60_000)
            with telemetry.processing(message):
                pass
            consumer.acknowledge(message)
        seconds = processor_s() - begun_s
    consumer.close()
    producer.close()
    return seconds


def contexts(how: str, messages: int) -> Iterator[Any]:
    """For each message the context in which it is sent: a hundred share one, as of one request."""
    for first in range(0, messages, 100):
        sampled = how == ALL or first % 10_000 == 0
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else 0)
        reported = trace.SpanContext(first + 1, first + 1, is_remote=False, trace_flags=flags)
        span = trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT if how in (OFF, ON) else reported)
        with trace.use_span(span):
            for _ in range(min(100, messages - first)):
                yield NOTHING


def written(how: str, payload: bytes, rows: int) -> float:
    """Ten tasks; of 1 in 100 none is among them, as mostly."""
    context = trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(how == ALL))
    values = pa.array([payload] * (rows // 100))
    batches = [pa.RecordBatch.from_pydict({"value": values})] * 10
    with (
        tempfile.TemporaryDirectory() as root,
        switched(how),
        trace.use_span(trace.NonRecordingSpan(context)),
    ):
        options = options_of({"serviceUrl": root, "topic": "t"})
        sink = MessageSink(options, Root.of(options), StructType().add("value", BinaryType()))
        begun_s = processor_s()
        for _ in range(10):
            sink.write(batches)
        return processor_s() - begun_s


def processed(how: str, payload: bytes, messages: int, share: int) -> float:
    batches = [batch_of(how, payload, first, share) for first in range(0, messages, BATCH)]
    with switched(how):
        begun_s = processor_s()
        for _ in Processor(hashed)(batches):
            pass
        return processor_s() - begun_s


def hashed(message: Any) -> None:
    hashlib.sha256(message.value).hexdigest()


def batch_of(how: str, payload: bytes, first: int, share: int) -> pa.RecordBatch:
    numbers = range(first, first + BATCH)
    rows: list[Any] = [[("k", "v")] for _ in numbers]
    if how != ON:
        names = [each // share + 1 for each in numbers]
        flags = ("01" if how == ALL or each % 100 == 1 else "00" for each in names)
        rows = [
            [("k", "v"), ("traceparent", f"00-{each:032x}-{each:016x}-{flag}")]
            for each, flag in zip(names, flags, strict=True)
        ]
    places = {"ledger_id": pa.int64(), "entry_id": pa.int64(), "partition": pa.int32()}
    columns = {name: pa.array([0] * BATCH, kind) for name, kind in places.items()}
    return pa.RecordBatch.from_pydict({
        **columns,
        "batch_index": pa.array([*range(BATCH)], pa.int32()),
        "attempt": pa.array([0] * BATCH, pa.int32()),
        "topic": pa.array(["t"] * BATCH),
        "value": pa.array([payload] * BATCH),
        "properties": pa.array(rows, pa.map_(pa.string(), pa.string())),
    })  # fmt: skip


@contextmanager
def switched(how: str) -> Iterator[None]:
    """Without OpenTelemetry if it is to be off."""
    names = ("opentelemetry.trace", "opentelemetry.metrics") if how == OFF else ()
    hidden = {name: sys.modules.pop(name) for name in names}
    try:
        yield
    finally:
        sys.modules.update(hidden)


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


NOTHING = _Nothing()

if __name__ == "__main__":
    main()
