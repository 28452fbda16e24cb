"""A root in memory with a client and an embedded broker, whose clock moves when told."""

from __future__ import annotations

from tests.connector.client.conftest import client, url

__all__ = ["client", "url"]
