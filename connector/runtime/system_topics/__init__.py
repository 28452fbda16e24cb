"""The system topics in which consumers and the broker meet, leases, the broker's offset.

Both sides import this room; it imports neither.
"""

__all__ = [
    "broker_offset", "hosted_topics", "lease", "message_strip", "subscription_admin",
    "system_topics",
]  # fmt: skip
