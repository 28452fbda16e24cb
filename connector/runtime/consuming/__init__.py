"""A consumer as a streaming source: it reports, plans from grants, withholds what ends queries.

Entered by `subscription_reader`; grants are decided by the broker, never here.
"""

__all__ = [
    "consumer_run", "pending_reports", "receiver_queue", "subscription_client",
    "withheld_batches",
]  # fmt: skip
