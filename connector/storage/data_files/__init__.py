"""Data files: Parquet, row groups, pages, columns of sequence ids.

One file at a time; which files a topic has is the log's to say.
"""

__all__ = ["content_digest", "held_output", "ledger_file", "sequence_ids"]
