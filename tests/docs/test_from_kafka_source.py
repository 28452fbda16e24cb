"""The page for those who come from Spark's Kafka source names what there is, on both sides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pulsar_spark.connector.runtime.publishing.outgoing_messages import Numbering
from pulsar_spark.connector.runtime.topics.message_columns import READ_COLUMNS
from pulsar_spark.options.options import OPTIONS, Scope
from tests.architecture.sources import REPOSITORY
from tests.connector.reading import messages
from tests.connector.topics import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE: Final = (REPOSITORY / "docs/from-kafka-source.md").read_text(encoding="utf-8")
OF_KAFKAS_SOURCE: Final = {
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "startingOffsetsByTimestampStrategy",
    "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "groupIdPrefix", "kafka.group.id", "includeHeaders",
}  # fmt: skip
"""Those of Spark's «Structured Streaming + Kafka Integration Guide»."""
OF_KAFKAS_COLUMNS: Final = {
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
}  # fmt: skip


def cells(heading: str) -> list[tuple[set[str], set[str]]]:
    """Of each row of the table below that heading: what is Kafka's, and what is here."""
    table = PAGE.split(f"## {heading}\n")[1].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    found = [tuple({*re.findall("`([^`]+)`", cell)} for cell in row) for row in rows]
    return [(kafkas, ours) for kafkas, ours in found]


@pytest.mark.parametrize(
    ("heading", "scope"),
    [("Options of the source", Scope.READ), ("Options of the sink", Scope.WRITE)],
)
def test_every_option_that_is_named_for_one_of_kafkas_is_there_and_has_a_meaning_there(
    heading: str, scope: Scope
) -> None:
    known = {option.name for option in OPTIONS if option.scope & scope}
    named = {name for _, ours in cells(heading) for name in ours}
    assert named
    assert named <= known


def test_every_option_of_kafkas_source_is_answered() -> None:
    answered = {name for kafkas, _ in cells("Options of the source") for name in kafkas}
    assert answered >= OF_KAFKAS_SOURCE
    rows = PAGE.split("## Options of the source\n")[1].split("\n\n")[0].splitlines()[2:]
    assert all("`" in row.split("|")[2] or row.split("|")[2].strip() == "none" for row in rows)


def test_every_option_elsewhere_on_the_page_is_an_option() -> None:
    known = {option.name for option in OPTIONS}
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = {*re.findall(r"`([a-z]+[A-Z]\w+)`", prose)}
    kafkas = OF_KAFKAS_SOURCE | OF_KAFKAS_COLUMNS | {"availableNow", "foreachBatch"}
    assert named - kafkas <= known


def test_the_columns_are_those_of_both_sources() -> None:
    table = cells("Columns")
    ours = {name for _, names in table for name in names}
    assert {name for kafkas, _ in table for name in kafkas} == OF_KAFKAS_COLUMNS
    internal = {"first_chunk_message_id", "schema_error", "ordering_key"}
    assert ours == {each.name for each in READ_COLUMNS} - internal


@pytest.mark.spark
def test_the_job_runs_as_it_stands_there(spark: SparkSession, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/from-kafka-source.md", "exec"), names)
    root = tmp_path / "root"
    send(root, "orders", ["2 apples"], columns={"key": ["anna"]})
    query = names["bill"](spark, str(root), str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    (bill,) = messages(root, "bills")
    assert (bill["key"], bill["value"]) == ("anna", b"billed 2 apples")
    assert (bill["producer_name"], bill["sequence_id"]) == tuple(Numbering(f"{query.id}-0", 0))
