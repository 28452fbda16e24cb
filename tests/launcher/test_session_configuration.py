"""The defaults of `pulsar_spark.session`, and that each can be overridden."""

from __future__ import annotations

from pulsar_spark.connector.session import DEFAULTS, LOCAL, SMALL_MESSAGES, configuration


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
    (name,) = LOCAL
    assert configuration({name: "mine"}, master="local")[name] == "mine"


def test_small_messages_add_settings_that_can_be_overridden_too() -> None:
    assert SMALL_MESSAGES.items() <= configuration({}, small_messages=True).items()
    assert not SMALL_MESSAGES.keys() & configuration({}).keys()
    for name in SMALL_MESSAGES:
        assert configuration({name: 5}, small_messages=True)[name] == "5"
