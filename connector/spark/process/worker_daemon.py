"""The process from which Spark forks its Python workers, with what they need loaded beforehand.

    spark.python.daemon.module = pulsar_spark.connector.spark.process.worker_daemon

Invariant: it loads modules, and does nothing else that pyspark's own daemon would not do. Each
worker would load them for itself: 0.6 seconds of a core (docs/decisions/0034).
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

LOADED = (
    "pandas",
    "pulsar_spark.connector.spark.data_source",
    "pulsar_spark.connector.spark.functions.processing",
    "pulsar_spark.state.broker_processor",
)

if __name__ == "__main__":
    for name in (*sys.argv[1:2], *LOADED):
        with suppress(ImportError):  # whoever needs it says so
            import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()
