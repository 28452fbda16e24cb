"""Housekeeping of topics: compaction, clean-up, redrive, and the broker's schedule for them.

Each is one commit that says what may go, or a few transactions; nothing is deleted without it, and
no batch waits for it.
"""

__all__ = ["compaction", "housekeeper", "redrive", "transaction_cleanup"]
