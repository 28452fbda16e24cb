"""The place of an offset: in Spark's checkpoint if it is small, else in a file that it names.

Invariants: an offset in the checkpoint stays below 64 KB (Spark keeps a hundred of them, and
prints each three times in its progress); one of many partitions is a spilled one and what changed
since, so that it costs what changed; a spilled one is whole, and named after its owner and
contents, so writing it twice is harmless, and no query deletes a file that another checkpoint
names; the file is durable before the checkpoint names it. The owner is a checkpoint's, and is known
from its offsets.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import deque
from dataclasses import replace
from typing import Any, Final

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.records.stored_data import parse_json
from pulsar_spark.model.records.stored_record import StoredFormat, readable
from pulsar_spark.model.topic_name import TopicName

LARGEST_INLINE_BYTES = 48 * 1024
"""The longest text of an offset, or of what changed since a spilled one."""
WHOLE_PARTITIONS = 100
"""An offset of more partitions is written as what changed since a spilled one."""
SPILLED_KEPT = 1000
"""The spilled offsets that a query keeps of its own; Spark asks for the last hundred at most."""
SPILLED_FORMAT = StoredFormat("A spilled offset", remedy="Start with a new checkpoint.")
"""The format of the value that names the file. The file is named after its SHA-256."""
REMEMBERED: Final = 2
"""A micro-batch has two offsets."""


class OffsetStore:
    """Turns offsets into the values that Spark stores, and back."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: deque[tuple[dict[str, Any], StreamOffset]] = deque(maxlen=REMEMBERED)
        self._wholes: dict[str, StreamOffset] = {}
        """The spilled offsets that were used last, by path; the last is the one to go on from."""
        self._owner = uuid.uuid4().hex
        self._spilled: deque[str] | None = None

    def save(self, offset: StreamOffset) -> dict[str, Any]:
        """The JSON value for the checkpoint; that of an equal offset, if it was the last."""
        if self._known and _equal(self._known[-1][1], offset):
            return self._known[-1][0]
        value = None
        if len(offset.partitions or ()) <= WHOLE_PARTITIONS:
            value = _unless_large(offset.to_json_value())
        if value is None:
            value = _unless_large(self._changes(offset))
        if value is None:
            offset = offset.settled()
            value = self._spill(offset)
        self._known.append((value, offset))
        return value

    def load(self, value: dict[str, Any]) -> StreamOffset:
        """Read `save`. CorruptFileError or FutureVersionError if it can't be."""
        for known, offset in self._known:
            if known == value:
                return offset
        if "spilled" in value:
            offset = self._read_spilled(value)
        else:
            offset = StreamOffset.from_json_value(value)
        self._known.append((value, offset))
        return offset

    def release(self, committed: dict[str, Any]) -> None:
        """Spark has committed that offset: delete spilled ones that nobody asks for any more."""
        spilled = self._spilled or deque()
        while len(spilled) > SPILLED_KEPT and spilled[0] != committed.get("spilled"):
            self._root.store.delete(spilled.popleft())

    def _changes(self, offset: StreamOffset) -> dict[str, Any] | None:
        """The offset as what changed since the last spilled one; None if there is none."""
        if not self._wholes:
            return None
        path, whole = list(self._wholes.items())[-1]
        same = offset.incarnations == whole.incarnations
        changed = replace(
            offset,
            partitions=offset.changed_since(whole),
            incarnations={} if same else offset.incarnations,
        )
        changes = changed.to_json_value()
        if not same:
            changes.setdefault("incarnations", {})
        return {"changes": changes, "spilled": path, "version": SPILLED_FORMAT.version}

    def _read_spilled(self, value: dict[str, Any]) -> StreamOffset:
        SPILLED_FORMAT.check_version(value.get("version"))
        path = str(value["spilled"])
        if path not in self._wholes:
            data = read_hashed(self._root.store, path, "it has an offset")
            self._remember(path, _offset(data, path))
        whole = self._wholes[path]
        self._owner = path.rpartition("/")[2].partition("-")[0]
        if "changes" not in value:
            return whole
        changed = StreamOffset.from_json_value(value["changes"])
        if "incarnations" not in value["changes"]:
            changed = replace(changed, incarnations=whole.incarnations)
        partitions = whole.with_changes(changed.partitions or {}).partitions
        return replace(changed, partitions=partitions)

    def _remember(self, path: str, whole: StreamOffset) -> None:
        self._wholes[path] = whole
        if len(self._wholes) > REMEMBERED:
            del self._wholes[next(iter(self._wholes))]

    def _spill(self, offset: StreamOffset) -> dict[str, Any]:
        data = json.dumps(offset.to_json_value(), separators=(",", ":")).encode()
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
        self._remember(path, offset)
        return {"spilled": path, "version": SPILLED_FORMAT.version}


def _unless_large(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None or len(json.dumps(value, separators=(",", ":"))) > LARGEST_INLINE_BYTES:
        return None
    return value


def _equal(one: StreamOffset, other: StreamOffset) -> bool:
    """True if they are equal; costs what they do not share."""
    alike = replace(one, partitions=None) == replace(other, partitions=None)
    if not alike or one.is_symbolic != other.is_symbolic:
        return False
    return not one.changed_since(other) and not other.changed_since(one)


def write_hashed(store: ObjectStore, prefix: str, data: bytes) -> str:
    """The path of a new file, which is durable."""
    path = hashed_path(prefix, data)
    store.put_if_absent(path, data)
    return path


def hashed_path(prefix: str, data: bytes) -> str:
    """The prefix, and the SHA-256 of the data."""
    return f"{prefix}{hashlib.sha256(data).hexdigest()}.json"


def read_hashed(store: ObjectStore, path: str, why: str) -> bytes:
    """Read `write_hashed`. CorruptFileError if it is gone, or not what its name says."""
    data = store.get(path)
    if data is None or not path.endswith(f"{hashlib.sha256(data).hexdigest()}.json"):
        state = "missing" if data is None else "damaged"
        raise CorruptFileError(
            f"File {path}, which the checkpoint names, is {state}: {why}. Restore it from a copy, "
            "or start with a new checkpoint."
        )
    return data


def _offset(data: bytes, path: str) -> StreamOffset:
    try:
        value = parse_json(data)
    except ValueError as error:
        raise SPILLED_FORMAT.damaged(path, error) from error
    return StreamOffset.from_json_value(value)
