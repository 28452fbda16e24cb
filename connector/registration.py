"""Makes `format("pulsarlite")` known to one Spark session, for those who want it explicit.

Invariant: calling it twice, or where Spark has already found the format by itself, is harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOUND_ALREADY = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Register the format with this session.

    An installed Pulsarlite needs no such call: Spark finds it through `pyspark_pulsarlite`. An
    editable install is found in that way only where the repository is the working folder.
    """
    from pulsar_spark.connector.data_source import PulsarliteDataSource

    try:
        spark.dataSource.register(PulsarliteDataSource)
    except PySparkException as error:
        if error.getCondition() != _FOUND_ALREADY:
            raise
