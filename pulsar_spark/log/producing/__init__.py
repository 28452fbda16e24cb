"""The way of a message to its partition and its entry: hashes, routers, containers, chunks.

No sink and no file: tasks of the connector's sink call these.
"""

__all__ = ["batch_message_container", "hashing", "message_router"]
