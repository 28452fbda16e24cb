"""A root that was restored from an older copy than the checkpoints: their queries stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsar_spark.connector.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import DataLossError
from tests.connector.reading import Batch, Run
from tests.connector.topics import send


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_readers_checkpoint_that_is_newer_than_its_root_is_refused(
    root: Path, tmp_path: Path, partitions: int, *, fail: bool
) -> None:
    send(root, "t", "ab", numPartitions=partitions)
    shutil.copytree(root, tmp_path / "copy")
    send(root, "t", "cd")
    query = {"topic": "t", "startingOffsets": "earliest", "failOnDataLoss": fail}
    before = Run(root, **query)
    begun = before.offset
    assert sorted(before.values()) == ["a", "b", "c", "d"]
    after = Run(tmp_path / "copy", start=before.offset, **query)
    with pytest.raises(DataLossError, match=r"newer than persistent.*next one is"):
        after.next()
    with pytest.raises(DataLossError, match="newer than"):
        Run(tmp_path / "copy", start=begun, **query).read(Batch(begun, before.offset))


def test_a_consumers_checkpoint_that_is_newer_than_its_root_is_refused(
    root: Path, tmp_path: Path
) -> None:
    consumer = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
    send(root, "t", "a")
    broker = EmbeddedBroker(Root(str(root), {}), "_broker/c")
    before = Run(root, **consumer)
    for value in "bcd":
        if value == "d":
            shutil.copytree(root, tmp_path / "copy")
        send(root, "t", value)
        for _ in range(4):
            broker.until_quiet()
            before.all()
    broker.close()
    with pytest.raises(DataLossError, match=r"newer than persistent.*next one is"):
        Run(tmp_path / "copy", start=before.offset, **consumer).next()
