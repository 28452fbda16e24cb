"""A client shaped like Pulsar's, without Spark, on the code that Spark's sink and source run.

This room adds no rule: `sink` and `subscription` have them all. It names, waits and encodes.
"""

__all__ = [
    "aio", "client", "client_errors", "client_settings", "consumer", "message", "producer",
    "reader", "records", "transaction",
]  # fmt: skip
