"""How Spark finds `format("pulsarlite")` with no register call.

At the first look-up of any Python data source, Spark imports every top-level module whose name
starts with `pyspark_` and takes its `DefaultSource`. That happens in programs that never use
Pulsarlite too, so nothing is imported here but the class that Spark asks for: the real data
source is loaded when somebody opens one.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Stands for `pulsar_spark.connector.spark.data_source.PulsarliteDataSource`, and makes one."""

    def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # type: ignore[misc]
        """A PulsarliteDataSource, never a DefaultSource: so `__init__` here is not called."""
        from pulsar_spark.connector.spark.data_source import PulsarliteDataSource

        return PulsarliteDataSource(options)

    @classmethod
    def name(cls) -> str:
        """The name by which users ask for the format."""
        return "pulsarlite"
