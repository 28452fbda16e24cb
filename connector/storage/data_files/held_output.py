"""The output of a data file that may stay in memory: small ones are stored inside their commit.

Invariants: up to a limit nothing is opened in the store; beyond it all goes there, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_spark.connector.storage.object_store import Output


class HeldOutput:
    """An output that opens the store's with the first byte beyond `most_bytes`."""

    def __init__(self, open_output: Callable[[], Output], most_bytes: int) -> None:
        self._open_output, self._most_bytes = open_output, most_bytes
        self._bytes = bytearray()
        self._output = None if most_bytes else open_output()

    @property
    def held(self) -> bytes | None:
        """What was written; None if it is in the store."""
        return bytes(self._bytes) if self._output is None else None

    def write(self, data: Any) -> None:
        if self._output is None:
            self._bytes += data
            if len(self._bytes) <= self._most_bytes:
                return
            self._output, data = self._open_output(), bytes(self._bytes)
            self._bytes.clear()
        self._output.sink.write(data)

    def close(self) -> int:
        """Make it durable and visible, unless it is held; its size in bytes. Errors of `Output`."""
        return len(self._bytes) if self._output is None else self._output.close()

    def abort(self) -> None:
        """Forget what was written to the store. Harmless after `close`."""
        if self._output is not None:
            self._output.abort()
