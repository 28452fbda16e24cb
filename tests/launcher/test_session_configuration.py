"""The defaults of `pulsar_spark.session`, and that each can be overridden."""

from __future__ import annotations

import pytest

from pulsar_spark.connector.spark.session import DEFAULTS, LOCAL, configuration
from pulsar_spark.errors import InvalidOptionError

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def test_every_default_can_be_overridden() -> None:
    for name in DEFAULTS:
        assert configuration({name: "mine"})[name] == "mine"


def test_none_leaves_a_setting_out() -> None:
    assert "spark.ui.enabled" not in configuration({"spark.ui.enabled": None})


def test_values_are_written_as_spark_reads_them() -> None:
    found = configuration({"spark.ui.enabled": True, "spark.sql.shuffle.partitions": 8})
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.sql.shuffle.partitions"] == "8"


def test_a_local_master_writes_its_checkpoints_without_a_process_each() -> None:
    assert LOCAL.items() <= configuration({}, master="local[2]").items()
    assert not LOCAL.keys() & configuration({}, master="spark://host:7077").keys()
    name = next(each for each in LOCAL if each.endswith("checkpointFileManagerClass"))
    assert configuration({name: "mine"}, master="local")[name] == "mine"


@pytest.mark.parametrize(
    ("message_bytes", "rows"),
    [(1, 60_000), (100, 60_000), (500, 60_000), (1_000, 30_000), (5_000_000, 6), (10**9, 1)],
)
def test_who_says_how_large_messages_are_gets_batches_by_number(
    message_bytes: int, rows: int
) -> None:
    found = configuration({}, message_bytes=message_bytes)
    assert (found[ROWS], found[BYTES]) == (str(rows), "2147483647")
    assert configuration({ROWS: 5}, message_bytes=message_bytes)[ROWS] == "5"
    assert not {ROWS, BYTES} & configuration({}).keys()


@pytest.mark.parametrize("message_bytes", [0, -1])
def test_no_message_has_less_than_a_byte(message_bytes: int) -> None:
    with pytest.raises(InvalidOptionError, match=f"message_bytes is {message_bytes}"):
        configuration({}, message_bytes=message_bytes)
