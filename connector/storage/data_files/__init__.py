"""Data files: Parquet, row groups, pages, columns of sequence ids.

One file at a time; which files a topic has is the log's to say.
"""

__all__ = ["commit_files", "content_digest", "ledger_file", "sequence_ids"]
