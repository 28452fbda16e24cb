"""The states of a queue as tables: one function gives Arrow, and Spark and datasets are shells.

Nothing here changes anything, and nothing but `view_reader` knows Spark.
"""

__all__ = [
    "dispatch_history", "message_sets", "queue_dataset", "queue_view", "state_rows",
    "topic_stats",
]  # fmt: skip
