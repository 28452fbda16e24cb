"""Telemetry of producers and consumers: recorded statistics, OpenTelemetry, traces.

Nothing here knows a topic's files. OpenTelemetry is never imported here but by its user.
"""

__all__ = ["client_logs", "instruments", "stats_recorder", "tracing"]
