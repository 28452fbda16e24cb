"""Statistics as Pulsar prints them: `topics stats` and its relatives, and metrics of topics.

Nothing is counted here that a view does not count: rows are summed, named and printed.
"""

__all__ = ["internal_stats", "opentelemetry_gauges", "prometheus_text", "pulsar_stats"]
