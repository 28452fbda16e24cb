"""The session that tests and notebooks share, on real Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pulsar_spark
from pulsar_spark.connector.session import DEFAULTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_has_what_pulsarlite_needs(spark: SparkSession) -> None:
    for name in DEFAULTS:
        assert spark.conf.get(name) == DEFAULTS[name]


def test_workers_run_this_very_python(spark: SparkSession) -> None:
    rows = spark.range(1).rdd.map(lambda _: sys.executable).collect()
    assert rows == [sys.executable]


def test_asking_again_gives_the_session_that_runs(spark: SparkSession) -> None:
    assert pulsar_spark.session(app_name="another") is spark


def test_registering_again_is_harmless(spark: SparkSession) -> None:
    pulsar_spark.register(spark)
    pulsar_spark.register(spark)
