"""The grants of each type of subscription, and its revokes.

A dispatcher reads and changes one subscription's state; it hears no command.
"""

__all__ = [
    "dispatcher_multiple_consumers", "dispatcher_single_active", "dispatcher_sticky_key",
    "granting",
]  # fmt: skip
