"""A root that was restored from an older copy than the checkpoints: their queries stop."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import DataLossError
from tests.connector.reading import Batch, Run
from tests.connector.topics import send

CONSUMER: dict[str, Any] = {
    "topic": "t",
    "subscriptionName": "s",
    "subscriptionInitialPosition": "Earliest",
}


def test_a_copy_whose_log_is_shorter_than_its_broker_knows_is_refused_by_name(
    root: Path, tmp_path: Path
) -> None:
    with pulsar.Client(str(root), broker="embedded") as client:
        client.subscribe("t", "s", pulsar.ConsumerType.Shared).close()
        producer = client.create_producer("t")
        for value in (b"a", b"b"):
            producer.send(value)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    max((copy / "persistent/public/default/t/_log").glob("*.json")).unlink()
    with (
        pulsar.Client(str(copy), operation_timeout_seconds=1, broker="embedded") as client,
        pytest.raises(pulsar.ServiceUnitNotReady, match=r"\[TOPIC_REPLACED\].* Bring the folder"),
    ):
        client.subscribe("t", "s", pulsar.ConsumerType.Shared)


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_readers_checkpoint_that_is_newer_than_its_root_is_refused(
    root: Path, tmp_path: Path, partitions: int, *, fail: bool
) -> None:
    send(root, "t", "ab", numPartitions=partitions)
    shutil.copytree(root, tmp_path / "copy")
    send(root, "t", "cd")
    query: dict[str, Any] = {"topic": "t", "startingOffsets": "earliest", "failOnDataLoss": fail}
    before = Run(root, **query)
    begun = before.offset
    assert sorted(before.values()) == ["a", "b", "c", "d"]
    after = Run(tmp_path / "copy", start=before.offset, **query)
    with pytest.raises(DataLossError, match=r"names ledger \d of .*next one is"):
        after.next()
    with pytest.raises(DataLossError, match="older copy"):
        Run(tmp_path / "copy", start=begun, **query).read(Batch(begun, before.offset))


def test_a_consumers_checkpoint_that_is_newer_than_its_root_is_refused(
    root: Path, tmp_path: Path
) -> None:
    send(root, "t", "a")
    broker = EmbeddedBroker(Root(str(root), {}), "_broker/c")
    before = Run(root, **CONSUMER)
    for value in "bcd":
        if value == "d":
            shutil.copytree(root, tmp_path / "copy")
        send(root, "t", value)
        for _ in range(4):
            broker.until_quiet()
            before.all()
    broker.close()
    with pytest.raises(DataLossError, match=r"names ledger \d of .*next one is"):
        Run(tmp_path / "copy", start=before.offset, **CONSUMER).next()
