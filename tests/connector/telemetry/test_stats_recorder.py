"""The line that a producer and a consumer log at an interval, as Pulsar's Java client has it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from pulsar_spark import pulsar
from pulsar_spark.connector.inspect.telemetry.stats_recorder import (
    KEPT,
    LOG,
    ConsumerStatsRecorder,
    ProducerStatsRecorder,
    Sample,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.stream_writer import MessageSink
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.options.options import Options
from tests.connector.client.clients import all_of, shared
from tests.connector.reading import Run
from tests.connector.topics import numbers, send

PRODUCER = (
    "[{}] [{}] --- Publish throughput: {} msg/s --- {} Mbit/s --- Latency: med: {} ms - 95pct: {} "
    "ms - 99pct: {} ms - 99.9pct: {} ms - max: {} ms --- BatchSize: med: {} - 95pct: {} - 99pct: "
    "{} - 99.9pct: {} - max: {} --- MsgSize: med: {} bytes - 95pct: {} bytes - 99pct: {} bytes - "
    "99.9pct: {} bytes - max: {} bytes --- Ack received rate: {} ack/s --- Failed messages: {} --- "
    "Pending messages: {}"
)
CONSUMER = (
    "[{}] [{}] [{}] Prefetched messages: {} --- Consume throughput received: {} msgs/s --- {} "
    "Mbit/s --- Ack sent rate: {} ack/s --- Failed messages: {} --- batch messages: {} ---Failed "
    "acks: {}"
)
"""The constants in Pulsar 4.2.4's ProducerStatsRecorderImpl and ConsumerStatsRecorderImpl."""


def numbers_in(line: str, template: str) -> tuple[str, ...]:
    """What stands for each {} of Pulsar's own text."""
    pattern = re.escape(template).replace(r"\{\}", r"(\S*)")
    found = re.fullmatch(pattern, line)
    assert found is not None, line
    return found.groups()


def lines(caplog: pytest.LogCaptureFixture, begin: str = "") -> list[str]:
    said = [each.getMessage() for each in caplog.records if each.name == LOG.name]
    return [line for line in said if begin in line]


def test_a_line_reads_as_pulsars_and_has_the_rates_of_its_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    clock = ManualClock()
    producer = ProducerStatsRecorder(clock, 10, "t", "p", lambda: 3)
    consumer = ConsumerStatsRecorder(clock, 10, "t", "s", "c", lambda: 7)
    producer.published(20, 10 << 20, [0.001] * 19 + [0.1])
    producer.failed(2)
    consumer.received(30, 5 << 20)
    consumer.acknowledged(15)
    clock.advance(seconds=10)
    said = numbers_in(lines(caplog, "Publish")[0], PRODUCER)
    assert said[:9] == ("t", "p", "2.00", "8.00", "1.000", "5.950", "81.190", "98.119", "100.000")
    assert said[-3:] == ("2.00", "2", "3")
    assert numbers_in(lines(caplog, "Consume")[0], CONSUMER) == (
        "t", "s", "c", "7", "3.00", "4.00", "1.50", "0", "1", "0",
    )  # fmt: skip
    clock.advance(seconds=60)
    assert len(lines(caplog)) == 2, "nothing happened since"
    producer.published(5, 5, [0])
    producer.close()
    assert len(lines(caplog)) == 3
    producer.close()
    clock.advance(seconds=60)
    assert len(lines(caplog)) == 3


def test_percentiles_of_many_values_need_few_of_them() -> None:
    sample = Sample()
    for first in range(0, 100_000, 100):
        sample.add(range(first, first + 100))
    assert len(sample._held) <= KEPT
    median = float(sample.text("").split()[1])
    assert median == pytest.approx(50_000, rel=0.05)


def test_a_clients_producers_and_consumers_log_at_the_clients_interval(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    client = pulsar.Client(url, stats_interval_in_seconds=60)
    consumer = shared(client, consumer_name="c")
    producer = client.create_producer("t", producer_name="p")
    for _ in range(6):
        producer.send(b"12345678")
    messages = all_of(consumer)
    for message in messages[:4]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[4])
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(seconds=61)
    topic = "persistent://public/default/t"
    assert numbers_in(lines(caplog, "Publish")[0], PRODUCER)[:3] == (topic, "p", "0.10")
    said = numbers_in(lines(caplog, "Consume")[0], CONSUMER)
    assert said[:3] == (topic, "s", "c")
    assert said[6:8] == ("0.07", "1")
    client.close()


def test_who_has_no_log_pays_nothing(client: pulsar.Client) -> None:
    assert not LOG.isEnabledFor(logging.INFO)
    assert client.create_producer("t")._engine._stats is None
    assert shared(client)._engine._stats is None


def test_a_streaming_sink_logs_what_its_micro_batches_published(
    url: str, client: pulsar.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    given = {"serviceUrl": url, "topic": "t", "statsIntervalSeconds": "60"}
    options = Options.parse(given)
    for batch in range(2):  # Spark makes a sink for each
        sink = MessageSink(options, Root.of(options), StructType().add("value", BinaryType()))
        rows = pa.RecordBatch.from_pydict({"value": pa.array([b"12345678"] * 3)})
        sink.commit([sink.write([rows])], ("query", batch), "run")
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(seconds=61)
    (line,) = lines(caplog, "Publish")
    said = numbers_in(line, PRODUCER)
    assert said[:3] == ("persistent://public/default/t", "query", "0.10")


def test_a_streaming_source_logs_what_its_micro_batches_had(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    send(root, "t", numbers(0, 5), batchingMaxMessages=2)
    run = Run(
        root,
        topic="t",
        startingOffsets="earliest",
        maxMessagesPerTrigger=2,
        statsIntervalSeconds=60,
    )
    assert sum(len(batch.messages) for batch in run.all()) == 5
    assert run.reader._stats is not None
    run.reader._stats.close()
    said = numbers_in(lines(caplog, "Consume")[0], CONSUMER)
    assert (said[0], said[8]) == ("persistent://public/default/t", "3")
