"""On real Spark: the lag in a query's progress, and a trace's span."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pulsar_spark
from tests.connector.reading import messages
from tests.connector.topics import numbers, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_query_that_logs_what_it_does_tells_its_lag(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    send(root, "t", numbers(0, 5))
    stream = (
        spark.readStream.format("pulsarlite").schema("value binary")
        .option("topic", "t").option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", 2).option("statsIntervalSeconds", 1)
        .load(str(root))
    )  # fmt: skip
    query = (
        stream.writeStream.format("pulsarlite").option("topic", "copy")
        .option("statsIntervalSeconds", 1)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="1 second").start(str(root))
    )  # fmt: skip
    try:
        query.processAllAvailable()
        reported = [
            json.loads(each.sources[0].latestOffset)["topics"]["persistent://public/default/t"]["0"]
            for each in query.recentProgress
            if each.numInputRows
        ]
    finally:
        query.stop()
    assert [each["backlog"] for each in reported] == [3, 1, 0]
    assert [each["oldestBacklogMessageAgeSeconds"] is None for each in reported] == [
        False,
        False,
        True,
    ]
    assert len(messages(root, "copy")) == 5


SPANS = Path(tempfile.gettempdir()) / f"pulsarlite-spans-{os.getuid()}"


def set_up() -> None:
    """OpenTelemetry as a worker sets it up: spans go to a file, a line each."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    provider = TracerProvider()
    exporter = ConsoleSpanExporter(
        out=SPANS.open("a"), formatter=lambda span: f"{span.to_json(indent=None)}\n"
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def test_a_trace_goes_from_a_task_of_the_sink_to_a_function_in_sparks_workers(
    spark: SparkSession, root: Path
) -> None:
    SPANS.unlink(missing_ok=True)
    rows = spark.createDataFrame(
        [(b"a", {"traceparent": GIVEN}), (b"b", None)],
        "value binary, properties map<string, string>",
    ).coalesce(1)
    write = rows.write.format("pulsarlite").mode("append").option("topic", "t")
    write.option("tracing", f"{__name__}:{set_up.__name__}").save(str(root))
    read = spark.read.format("pulsarlite").option("topic", "t").option("includeProperties", "true")
    frame = read.load(str(root))
    done = pulsar_spark.process(frame, lambda _: None, tracing=set_up)
    assert done.count() == 2
    reported = [*map(json.loads, SPANS.read_text(encoding="utf-8").splitlines())]
    SPANS.unlink()
    sent, *found = reported
    assert sent["name"] == "send persistent://public/default/t"
    assert sent["attributes"]["messaging.batch.message_count"] == 2
    assert {each["name"] for each in found} == {"process persistent://public/default/t"}
    traces = {each["context"]["trace_id"]: each["parent_id"] for each in found}
    mine = {"0x" + GIVEN[3:35]: "0x" + GIVEN[36:52]}
    assert traces == mine | {sent["context"]["trace_id"]: sent["context"]["span_id"]}
