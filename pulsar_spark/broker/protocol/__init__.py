"""Commands to the broker, its answers, and their form on the wire.

Commands go in, `Ready` comes out; nothing here decides anything.
"""

__all__ = ["commands", "policies", "ready", "wire_format"]
