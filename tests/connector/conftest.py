"""What the connector's tests share: queries on real Spark, short to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.connector import stream_reader
from tests.connector.spark_query import SparkQuery
from tests.store.conftest import s3_root, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MakeQuery", "impatient", "query", "s3_root", "s3_server"]

MakeQuery = Callable[..., SparkQuery]


@pytest.fixture
def query(spark: SparkSession, root: Path, tmp_path: Path) -> MakeQuery:
    """Makes a streaming query with a checkpoint of the test's own."""

    def make(
        checkpoint: str = "checkpoint", schema: str | None = None, **given: object
    ) -> SparkQuery:
        return SparkQuery(spark, root, tmp_path / checkpoint, schema, given)

    return make


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for news waits no longer than it has to, where no Spark asks again at once."""
    monkeypatch.setattr(stream_reader, "LONGEST_WAIT_S", 0.0)
