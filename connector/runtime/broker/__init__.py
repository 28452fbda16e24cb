"""The broker query: its source, its tasks, its sink, and who starts it.

The step itself is `pulsar_spark/broker/machine`; here it gets its input and has its wishes done.
"""

__all__ = [
    "broker_heartbeat", "broker_input", "broker_sink", "broker_source", "broker_thread",
    "embedded_broker",
]  # fmt: skip
