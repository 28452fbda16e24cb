"""Positions, message ids, sets of messages, cursors, and their bytes.

Nothing here knows of topics, subscriptions, commands or storage: this is the algebra on which all
other rooms stand. It imports `pulsar_spark.errors` alone.
"""

__all__ = [
    "batch_part", "cursor", "ledger_info", "message_id", "position", "position_map",
    "position_set",
]  # fmt: skip
