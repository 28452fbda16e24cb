"""The place of an offset: in Spark's checkpoint if it is small, else in a file that it names.

Invariants: an offset in the checkpoint stays below 64 KB (Spark keeps a hundred of them, and
prints each three times in its progress); a spilled one is named after its owner and contents, so
writing it twice is harmless, and no query deletes a file that another checkpoint names; the file is
durable before the checkpoint names it. The owner is a checkpoint's, and is known from its offsets.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import deque
from typing import Any

from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.planning.stream_offset import StreamOffset
from pulsar_spark.records.stored_data import parse_json
from pulsar_spark.records.stored_record import StoredFormat, readable
from pulsar_spark.topic_name import TopicName

LARGEST_INLINE_BYTES = 48 * 1024
"""The longest text of an offset that is not spilled."""
SPILLED_KEPT = 1000
"""The spilled offsets that a query keeps of its own; Spark asks for the last hundred at most."""
SPILLED_FORMAT = StoredFormat("A spilled offset", version=1, remedy="Start with a new checkpoint.")
"""The format of the value that names the file. The file is named after its SHA-256."""


class OffsetStore:
    """Turns offsets into the values that Spark stores, and back."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._last: tuple[dict[str, Any], StreamOffset] | None = None
        self._owner = uuid.uuid4().hex
        self._spilled: deque[str] | None = None

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
        path = value.get("spilled")
        if path is None:
            return StreamOffset.from_json_value(value)
        SPILLED_FORMAT.check_version(value.get("version"))
        data = read_hashed(self._root.store, str(path), "it has an offset")
        self._owner = str(path).rpartition("/")[2].partition("-")[0]
        return _offset(data, str(path))

    def release(self, committed: dict[str, Any]) -> None:
        """Spark has committed that offset: delete spilled ones that nobody asks for any more."""
        spilled = self._spilled or deque()
        while len(spilled) > SPILLED_KEPT and spilled[0] != committed.get("spilled"):
            self._root.store.delete(spilled.popleft())

    def _spill(self, offset: StreamOffset, data: bytes) -> dict[str, Any]:
        topic = TopicName.parse(next(iter(offset.items()))[0].topic)
        folder = join(topic.storage_path, "offsets")
        prefix = join(folder, f"{self._owner}-")
        path = hashed_path(prefix, data)
        stored = readable(lambda: data, _offset, path)
        if self._spilled is None:  # those of earlier runs of this query, oldest first
            files = sorted(self._root.store.files(folder), key=lambda each: each.modified_ms)
            self._spilled = deque(each.path for each in files if each.path.startswith(prefix))
        self._root.store.put_if_absent(path, stored)
        if path not in self._spilled:
            self._spilled.append(path)
        return {"spilled": path, "version": SPILLED_FORMAT.version}


def write_hashed(store: ObjectStore, prefix: str, data: bytes) -> str:
    """The path of a new file, which is durable."""
    path = hashed_path(prefix, data)
    store.put_if_absent(path, data)
    return path


def hashed_path(prefix: str, data: bytes) -> str:
    """The prefix, and the SHA-256 of the data."""
    return f"{prefix}{hashlib.sha256(data).hexdigest()}.json"


def read_hashed(store: ObjectStore, path: str, says: str) -> bytes:
    """Read `write_hashed`. CorruptFileError if it is gone, or not what its name says."""
    data = store.get(path)
    if data is None or not path.endswith(f"{hashlib.sha256(data).hexdigest()}.json"):
        state = "missing" if data is None else "damaged"
        raise CorruptFileError(
            f"File {path}, which the checkpoint names, is {state}: {says}. Restore it from a copy, "
            "or start with a new checkpoint."
        )
    return data


def _offset(data: bytes, path: str) -> StreamOffset:
    try:
        value = parse_json(data)
    except ValueError as error:
        raise SPILLED_FORMAT.damaged(path, error) from error
    return StreamOffset.from_json_value(value)
