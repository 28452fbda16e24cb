"""A topic's log as values: its commits, their fold, publications, producers, chunks, duplicates.

No file is opened and no name chosen here: `connector/runtime/topics` stores and loads these values.
"""

__all__ = [
    "chunked_messages", "compacted_ledgers", "ledger_commit", "ledger_log", "partition_state",
    "producer_registry", "publication", "sequence_ranges", "transaction_attempt",
]  # fmt: skip
