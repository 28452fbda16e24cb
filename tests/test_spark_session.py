"""The session that tests and notebooks share, on real Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pulsar_spark
from pulsar_spark.connector.spark.session import DEFAULTS, LOCAL, check_connect, configuration
from pulsar_spark.errors import InvalidOptionError, MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_session_has_what_pulsarlite_needs(spark: SparkSession) -> None:
    for name, value in (DEFAULTS | LOCAL).items():
        assert spark.conf.get(name) == value


def test_workers_run_this_very_python(spark: SparkSession) -> None:
    rows = spark.range(1).rdd.map(lambda _: sys.executable).collect()
    assert rows == [sys.executable]


def test_asking_again_gives_the_session_that_runs(spark: SparkSession) -> None:
    assert pulsar_spark.session(app_name="another") is spark


def test_a_setting_that_is_none_of_spark_s_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="cores is none of these"):
        pulsar_spark.session(cores=2)


def test_a_remote_session_is_told_what_a_session_can_still_choose() -> None:
    reported = configuration({"spark.sql.ansi.enabled": False}, master="sc://host:15002")
    assert reported == {
        name: value for name, value in DEFAULTS.items() if name.startswith("spark.sql.")
    } | {"spark.sql.ansi.enabled": "false"}


def test_who_can_t_talk_to_a_server_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingPackageError, match=r"pulsarlite\[connect\]"):
        check_connect()


def test_registering_again_is_harmless(spark: SparkSession) -> None:
    pulsar_spark.register(spark)
    pulsar_spark.register(spark)


def test_messages_are_handed_over_by_number_to_who_said_how_large_they_are(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    def counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    by_number = configuration({}, message_bytes=100).items() - configuration({}).items()
    assert len(by_number) == 2
    for name, value in by_number:
        set_for_this_test(spark, request, name, value)
    rows = spark.range(0, 65_000, 1, 1).selectExpr("repeat('m', 2000) as value")  # over 64 MiB
    taken = rows.mapInArrow(counts, "rows long").collect()
    assert [row.rows for row in taken] == [60_000, 5_000]


@pytest.mark.parametrize("kind", ["FileContextBased", "FileSystemBased"])
def test_of_two_writers_of_a_checkpoint_file_the_second_is_refused(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    jvm: Any = spark.sparkContext._jvm
    package = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "0"))
    conf = jvm.org.apache.hadoop.conf.Configuration()
    manager = getattr(package, f"{kind}CheckpointFileManager")(path, conf)
    first, second = manager.createAtomic(path, False), manager.createAtomic(path, False)
    for stream, data in ((first, b"first"), (second, b"second")):
        stream.write(bytearray(data))
    assert not (tmp_path / "0").exists()
    first.close()
    with pytest.raises(Exception, match="FileAlreadyExists"):
        second.close()
    assert (tmp_path / "0").read_bytes() == b"first"


def set_for_this_test(
    spark: SparkSession, request: pytest.FixtureRequest, name: str, value: str
) -> None:
    """Set it for this test alone."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    if before is None:
        request.addfinalizer(lambda: spark.conf.unset(name))
    else:
        request.addfinalizer(lambda: spark.conf.set(name, before))
