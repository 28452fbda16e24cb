"""The way of a row to disk: checked, routed, batched, chunked, written, published.

Entered by `stream_writer`; nothing here reads a message.
"""

__all__ = ["message_routing", "message_writer", "outgoing_messages", "publishing"]
