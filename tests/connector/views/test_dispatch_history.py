"""The batches of `__dispatch`: where each begins and ends, however many tasks wrote it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import pulsar_spark
from pulsar_spark.broker.hosting.broker_rows import OutputRow
from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.inspect.views.view_columns import VIEWS
from pulsar_spark.connector.runtime.broker import broker_sink, embedded_broker
from pulsar_spark.connector.runtime.broker.broker_sink import SteppedTask
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.topics import numbers, send
from tests.golden import ROOT as GOLDEN_ROOT

TOPIC = "persistent://public/default/t"


def test_a_batch_that_several_tasks_wrote_is_one(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Spark each task writes a ledger of its own; only one has the batch's offset."""
    written: list[SteppedTask] = []

    def write_apart(root: Root, rows: Iterable[OutputRow], query_id: str | None) -> SteppedTask:
        held = [*rows]
        partitions = sorted({(each.topic, each.partition) for each in held}, reverse=True)
        written[:] = [
            broker_sink.write_rows(
                root,
                [each for each in held if (each.topic, each.partition) == topic_partition],
                query_id,
            )
            for topic_partition in partitions
        ]
        return written[0]

    def commit_all(root: Root, _tasks: object, application: tuple[str, int], term: int) -> None:
        broker_sink.commit_batch(root, written, application, term)

    monkeypatch.setattr(embedded_broker, "write_rows", write_apart)
    monkeypatch.setattr(embedded_broker, "commit_batch", commit_all)
    url = place.service_url
    send(url, "t", numbers(0, 8), numPartitions=3, batchingEnabled=False)
    SystemTopic(place, COMMANDS).append(
        Record.of(TopicPartition(TOPIC, each), "s", CreateSubscription("s")) for each in range(3)
    )
    broker = EmbeddedBroker(place)
    broker.until_quiet()
    first = batches(url)[-1]
    send(url, "t", numbers(8, 20), batchingEnabled=False)
    broker.until_quiet()
    last = batches(url)[-1]
    assert last - first > 1, "a batch is several ledgers"
    assert [backlog(url, each) for each in (first, last)] == [8, 20]


def test_the_golden_root_has_every_view_of_every_batch(tmp_path: Path) -> None:
    url = str(shutil.copytree(GOLDEN_ROOT, tmp_path / "root"))
    assert batches(url) == [*range(8)]
    for batch in (0, 4, 7):
        for name, view in VIEWS.items():
            if view.has_as_of:
                table = pulsar_spark.dataset(url, view=name, as_of=batch).to_table()
                assert table.schema.names == view.schema.names
    last = pulsar_spark.dataset(url, view="backlog").to_table(["subscription", "state"])
    assert Counter(last["state"].to_pylist()) == {"held": 24, "ready": 16}


def batches(url: str) -> list[int]:
    found: list[int] = pulsar_spark.dataset(url, view="batches").to_table()["batch"].to_pylist()
    return found


def backlog(url: str, as_of: int) -> int:
    table = pulsar_spark.dataset(url, view="subscriptions", as_of=as_of).to_table()
    assert table["partition"].to_pylist() == [0, 1, 2]
    return sum(table["msg_backlog"].to_pylist())
