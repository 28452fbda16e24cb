"""True if what is there is what was published: logs, files, the broker's cursors, one by another.

Everything is read and nothing changed; what differs is a value, and never ends the looking.
"""

__all__ = ["verified", "verify"]
