"""Reading without a subscription, and what every reader shares: views, tasks, columns, values.

Nothing here talks to the broker.
"""

__all__ = [
    "chunk_reading", "dead_letters", "input_partition", "message_reader", "micro_batch",
    "offset_store", "partition_view", "reader_run", "received_message", "start_positions",
    "subscribed_topics",
]  # fmt: skip
