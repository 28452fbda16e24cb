"""Traces and metrics by OpenTelemetry, for who has imported it (docs/monitoring.md).

with pulsar_spark.telemetry.processing(message):
store(message.value())
"""

from pulsar_spark.connector.inspect.statistics.opentelemetry_gauges import observe
from pulsar_spark.connector.inspect.telemetry.tracing import processing

__all__ = ["observe", "processing"]
