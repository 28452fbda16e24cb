"""A consumer's side: offsets, how much a micro-batch takes, what it holds, what it suspects.

Pure planning over cursors; reading files and talking to the broker is the connector's.
"""

__all__ = ["admission", "partition_consumer", "stream_offset", "suspect_messages"]
