"""The choice of the next consumer: Failover, Shared and the three ways of Key_Shared.

A selector knows consumers by name and number only; it holds no message and grants nothing.
"""

__all__ = ["failover_selector", "shared_dispatch", "sticky_key_selector"]
