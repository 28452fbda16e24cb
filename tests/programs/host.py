"""The host of a program: the modules that it calls, and what no client can do.

Invariant: this module needs nothing of this repository, since it is imported in the virtual
environment of Pulsar's own client too.
"""

from __future__ import annotations

from typing import Any, Protocol


class Host(Protocol):
    """A place in which programs run."""

    url: str
    pulsar: Any
    """The module `pulsar`, or the one that stands in for it."""
    asyncio: Any
    """The module `pulsar.asyncio`."""
    schema: Any
    """The module `pulsar.schema`."""

    def sleep(self, seconds: float) -> None:
        """Let that time pass."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a topic of so many partitions."""

    def update_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""

    def terminate(self, topic: str) -> None:
        """Let a topic take no further message."""

    def delete(self, topic: str) -> None:
        """Delete a topic with its subscriptions."""

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many messages, none of them batched, a subscription has not acknowledged."""

    def compact(self, topic: str) -> None:
        """Compact a topic, and return when that is done."""
