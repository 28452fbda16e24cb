"""The broker's state of a topic partition: subscriptions, consumers, due and delayed messages.

State and its small moves; who may have what is `dispatchers`', in what order is `broker`'s.
"""

__all__ = [
    "breaker", "broker_state", "consumer", "dead_letter", "delayed_messages",
    "delivery_counts", "message_redelivery", "redelivery_tracker", "subscription",
]  # fmt: skip
