"""Where an offset lies: in Spark's checkpoint if it is small, else in a file that it names.

Invariants: an offset in the checkpoint stays below 64 KB (Spark keeps a hundred of them, and
prints each three times in its progress); a spilled one is named after its contents, so writing
it twice is harmless, and it is durable before the checkpoint names it.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from typing import Any

from pulsar_spark.connector.object_store import join
from pulsar_spark.connector.topics import Root
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.stream_offset import StreamOffset
from pulsar_spark.topic_name import TopicName

LARGEST_INLINE_BYTES = 48 * 1024
"""An offset whose text is longer is spilled."""
SPILLED_KEPT = 1000
"""How many of its own spilled offsets a query keeps; Spark asks for the last hundred at most."""
VERSION = 1


class OffsetStore:
    """Turns offsets into what Spark writes down, and back."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._last: tuple[dict[str, Any], StreamOffset] | None = None
        self._spilled: deque[str] = deque()

    def save(self, offset: StreamOffset) -> dict[str, Any]:
        """The JSON value for the checkpoint."""
        value = offset.to_json_value()
        text = json.dumps(value, separators=(",", ":"))
        if len(text) > LARGEST_INLINE_BYTES:
            value = self._spill(offset, text.encode())
        self._last = (value, offset)
        return value

    def load(self, value: dict[str, Any]) -> StreamOffset:
        """Read `save`. CorruptFileError or FutureVersionError if it can't be."""
        if self._last is not None and self._last[0] == value:
            return self._last[1]
        path = value.get("spilled") if isinstance(value, dict) else None
        if path is None:
            return StreamOffset.from_json_value(value)
        if value.get("version", 0) > VERSION:
            raise FutureVersionError(
                f"A spilled offset has version {value['version']}, and this Pulsarlite reads up "
                f"to {VERSION}: update it to the one that wrote the checkpoint."
            )
        data = self._root.store.get(path)
        if data is None or hashlib.sha256(data).hexdigest() not in path:
            state = "missing" if data is None else "damaged"
            raise CorruptFileError(
                f"Offset file {path}, which the checkpoint names, is {state}. Restore it from a "
                "copy, or start with a new checkpoint."
            )
        return StreamOffset.from_json_value(json.loads(data))

    def release(self, committed: dict[str, Any]) -> None:
        """Spark has committed that offset: delete spilled ones that nothing asks for any more."""
        while len(self._spilled) > SPILLED_KEPT and self._spilled[0] != committed.get("spilled"):
            self._root.store.delete(self._spilled.popleft())

    def _spill(self, offset: StreamOffset, data: bytes) -> dict[str, Any]:
        topic = TopicName.parse(next(iter(offset.items()))[0].topic)
        name = f"{hashlib.sha256(data).hexdigest()}.json"
        path = join(topic.storage_path, "offsets", name)
        self._root.store.put_if_absent(path, data)
        if path not in self._spilled:
            self._spilled.append(path)
        return {"spilled": path, "version": VERSION}
