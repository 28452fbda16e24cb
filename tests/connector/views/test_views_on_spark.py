"""The views as Spark reads them: columns, SQL, joins, a moment that is past, a root left by a kill.

The rows are those of `test_views`; here they come through Spark's tasks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import struct, to_json

import pulsar_spark
from pulsar_spark import pulsar
from tests.connector.client.clients import EARLIEST, all_of, python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KILLED = """
import os, signal
from pulsar_spark import pulsar
client = pulsar.Client({root!r}, broker="embedded")
consumer = client.subscribe(
    "t", "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="dies",
    initial_position=pulsar.InitialPosition.Earliest,
)
producer = client.create_producer("t")
for number in range(6):
    producer.send(str(number).encode())
messages = [consumer.receive(5000) for _ in range(6)]
consumer.acknowledge(messages[1])
consumer.acknowledge(messages[4])
try:
    consumer.receive(500)
except pulsar.Timeout:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a client left behind that was killed: six messages, two of them acknowledged."""
    root = tmp_path_factory.mktemp("queue")
    done = python(KILLED.format(root=str(root)))
    assert done.returncode == -9, done.stderr
    return root


def view(spark: SparkSession, root: Path, name: str, schema: str = "", **given: Any) -> DataFrame:
    reader = spark.read.format("pulsarlite").option("serviceUrl", str(root)).option("view", name)
    reader = reader.schema(schema) if schema else reader
    return reader.options(**given).load()


def test_what_a_kill_left_behind_can_be_seen_and_joined(spark: SparkSession, queue: Path) -> None:
    for name in ("messages", "unacknowledged", "acknowledgements", "cursors"):
        view(spark, queue, name, includeValue="true").createOrReplaceTempView(name)
    held = spark.sql("SELECT consumer_name, count(*) FROM unacknowledged GROUP BY 1").collect()
    assert [tuple(row) for row in held] == [("dies", 4)]
    keys = "USING (topic, partition, ledger_id, entry_id, batch_index)"
    joined = spark.sql(
        f"SELECT string(m.value) AS value, a.acknowledged_by FROM messages m "
        f"LEFT JOIN acknowledgements a {keys} ORDER BY 1"
    ).collect()
    assert [row.acknowledged_by for row in joined] == [
        None, "consumer", None, None, "consumer", None,
    ]  # fmt: skip
    cursor = spark.sql("SELECT * FROM cursors").first()
    assert cursor is not None
    assert (cursor.holes, cursor.total_non_contiguous_deleted_messages_range) == (3, 2)


def test_as_of_a_batch_spark_sees_what_is_over(spark: SparkSession, queue: Path) -> None:
    batches = [row.batch for row in view(spark, queue, "batches").orderBy("batch").collect()]
    backlogs = [
        view(spark, queue, "backlog", asOf=str(batch)).count()
        for batch in (batches[0], batches[-1])
    ]
    assert backlogs == [0, 4]


def test_only_what_a_schema_names_is_there(spark: SparkSession, queue: Path) -> None:
    assert "value" not in view(spark, queue, "backlog").columns
    chosen = view(spark, queue, "backlog", "state string, value binary")
    assert chosen.columns == ["state", "value"]
    assert {row.state for row in chosen.collect()} == {"held"}


def test_spark_and_a_dataset_have_the_same_rows(spark: SparkSession, queue: Path) -> None:
    for name in ("subscriptions", "ledgers", "batches", "consumers"):
        frame = view(spark, queue, name)
        table = pulsar_spark.dataset(str(queue), view=name).to_table(frame.columns)
        assert table.num_rows > 0, name
        assert frame.toArrow().cast(table.schema).to_pylist() == table.to_pylist(), name


def test_statistics_are_a_dataframe_and_json(spark: SparkSession, queue: Path) -> None:
    frame = view(spark, queue, "stats", topic="t")
    (reported,) = frame.select(
        "msgInCounter", "subscriptions.s.msgBacklog", "subscriptions.s.consumers.consumerName"
    ).collect()
    assert reported == (6, 4, ["dies"])
    (text,) = frame.select(to_json(struct("*"))).first() or ("",)
    said = json.loads(text)
    assert said["subscriptions"]["s"]["consumers"][0]["unackedMessages"] == 4


def test_sql_makes_views_without_python(spark: SparkSession, queue: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW held USING pulsarlite "
        f"OPTIONS (serviceUrl '{queue}', view 'unacknowledged', topic 't')"
    )
    assert spark.sql("SELECT DISTINCT subscription FROM held").first() == ("s",)


def test_what_is_misspelt_is_refused_when_the_dataframe_is_made(
    spark: SparkSession, queue: Path
) -> None:
    with pytest.raises(AnalysisException, match="it takes messages, backlog"):
        view(spark, queue, "backlogs")
    with pytest.raises(AnalysisException, match="__dispatch has the batches from 0"):
        view(spark, queue, "backlog", asOf="999999")
    with pytest.raises(AnalysisException, match="Did you mean subscription"):
        view(spark, queue, "backlog", "subscripton string").collect()


def test_the_next_consumer_gets_what_the_killed_one_held(spark: SparkSession, queue: Path) -> None:
    with pulsar.Client(str(queue), broker="embedded") as client:
        subscription = client.subscribe(
            "t", "other", consumer_type=pulsar.ConsumerType.Shared, initial_position=EARLIEST
        )
        for message in all_of(subscription, 1000):
            subscription.acknowledge(message)
        subscription.close()
    counts = view(spark, queue, "subscriptions", "subscription string, msg_backlog long").collect()
    assert {row.subscription: row.msg_backlog for row in counts} == {"s": 4, "other": 0}
