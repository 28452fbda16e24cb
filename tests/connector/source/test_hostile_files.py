"""Files that were made to do harm: an error that names what is wrong, within bounds of memory."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_spark.broker.hosting.shards import ShardReader, ShardWriter
from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.connector.runtime.system_topics.broker_offset import BrokerOffset
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.log_pointer import POINTER_FILE
from pulsar_spark.connector.runtime.topics.policies import policies_of
from pulsar_spark.connector.runtime.topics.transaction_decisions import Decision
from pulsar_spark.errors import CorruptFileError, PulsarliteError
from pulsar_spark.log.ledger_commit import COMMIT_FORMAT, Commit, log_file
from pulsar_spark.model.records import base85
from pulsar_spark.model.records.stored_data import MOST_INFLATED_BYTES, inflate
from tests.connector.ledger_files.test_value_pages import pages, values_of, written
from tests.connector.reading import Run
from tests.connector.topics import send

pytestmark = pytest.mark.usefixtures("impatient")

TOPIC = "persistent/public/default/t"
DEPTHS = [100, 400, *range(940, 1000, 12), 100_000]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def bomb() -> bytes:
    """Few bytes that stand for twice as many as may be."""
    engine = zlib.compressobj(1)
    zeros = bytes(1 << 20)
    parts = [engine.compress(zeros) for _ in range(2 * MOST_INFLATED_BYTES >> 20)]
    return b"".join([*parts, engine.flush()])


@pytest.fixture
def root(root: Path) -> Path:
    """A root with a topic that no process has seen yet."""
    send(root, "t", ["a", "b"])
    managed_ledger._cache.clear()
    return root


def change(root: Path, **fields: Any) -> None:
    """Fields of the topic's newest commit, the rest of which stays as it is."""
    path = root / TOPIC / log_file(1)
    path.write_bytes(COMMIT_FORMAT.encode(COMMIT_FORMAT.decode(path.read_bytes()) | fields))


# -- zlib ------------------------------------------------------------------------------------------


def test_hidden_messages_that_would_fill_the_memory_are_refused(root: Path) -> None:
    packed = "~" + base85.encoded(bomb())
    hidden = {"version": 1, "mark_delete_position": "-1:-1", "individually_deleted": {"0": packed}}
    change(root, hidden={"0": hidden})
    del packed, hidden
    tracemalloc.start()
    with pytest.raises(CorruptFileError, match=f"stand for more than {MOST_INFLATED_BYTES}"):
        Run(root, topic="t", startingOffsets="earliest").all()
    assert tracemalloc.get_traced_memory()[1] < 2.2 * MOST_INFLATED_BYTES
    tracemalloc.stop()


def test_what_is_inflated_is_what_was_made_smaller_or_an_error() -> None:
    data = bytes(1000)
    assert inflate(zlib.compress(data), 1000) == data
    for damaged in (zlib.compress(data)[:-1], zlib.compress(data) + b"x", b"", b"no zlib"):
        with pytest.raises(ValueError, match="compressed bytes"):
            inflate(damaged, 1000)
    with pytest.raises(ValueError, match="more than 999"):
        inflate(zlib.compress(data), 999)


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_log_that_is_nested_too_deeply_is_named(root: Path, depth: int) -> None:
    file = root / TOPIC / log_file(1)
    whole = file.read_text()
    fields = ["ledgers", "hidden", "application", "trimmed", "number", "schemas", "compacted"]
    for name in fields:
        for value in (nested(depth), f'{{"0":{nested(depth)}}}'):
            file.write_text(f'{whole.rstrip()[:-1]},"{name}":{value}}}')
            managed_ledger._cache.clear()
            with pytest.raises(PulsarliteError):
                Run(root, topic="t", startingOffsets="earliest").all()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_pointer_that_is_nested_too_deeply_is_named(root: Path, depth: int) -> None:
    for text in (
        nested(depth),
        f'{{"version":1,"removed":1,"marks":[],"snapshot":{nested(depth)}}}',
    ):
        (root / TOPIC / POINTER_FILE).write_text(text)
        managed_ledger._cache.clear()
        with pytest.raises(CorruptFileError, match=r"pointer\.json"):
            Run(root, topic="t", startingOffsets="earliest").all()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_spilled_offset_that_is_nested_too_deeply_is_named(root: Path, depth: int) -> None:
    for text in (nested(depth), f'{{"version":1,"topics":{{"t":{{"0":{nested(depth)}}}}}}}'):
        data = text.encode()
        path = f"{TOPIC}/offsets/me-{hashlib.sha256(data).hexdigest()}.json"
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(data)
        with pytest.raises(CorruptFileError):
            Run(root, topic="t", start={"spilled": path, "version": 1}).next()


def state_of(data: bytes) -> Any:
    """What a broker's state in its shards has, a value of which is these bytes."""
    writer = ShardWriter()
    writer.put_bytes("topic", data)
    return ShardReader(writer.shards).value("topic")


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b"no zlib"])
def test_a_broker_s_state_that_is_no_value_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="the broker's state topic is damaged"):
        state_of(data)


READERS: dict[str, Callable[[bytes], Any]] = {
    "commit": lambda data: Commit.from_json(data, "file"),
    "policies": lambda data: policies_of(data, "file"),
    "decision": lambda data: Decision.from_json(data, "file"),
    "broker's offset": BrokerOffset.from_json,
    "message of a system topic": wire_format.decode,
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_nested_too_deeply_is_no_such_record(name: str, depth: int) -> None:
    form = '{"version":1,"number":0,"status":%s,"$position":%s,"mark_delete_position":%s}'
    for text in (nested(depth), form.replace("%s", nested(depth)), '{"a":' * depth + "1"):
        with pytest.raises(PulsarliteError):
            READERS[name](text.encode())


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_lease_that_is_nested_too_deeply_is_none(depth: int) -> None:
    assert Lease.from_json(nested(depth).encode()) is None


# -- pages -----------------------------------------------------------------------------------------


def signed(number: int) -> bytes:
    """Thrift's form of a whole number."""
    rest, out = number << 1 if number >= 0 else ~(number << 1), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def checksum(data: bytes) -> bytes:
    """As a page's header has it."""
    crc = zlib.crc32(data)
    return signed(crc - (1 << 32) if crc >= 1 << 31 else crc)


def with_page(file: bytes, place: int, changed: bytes) -> bytes | None:
    """The file, a page of whose bytes are others from a place on, with the right checksum.

    None if that checksum takes another number of bytes.
    """
    chunk = pq.read_metadata(pa.BufferReader(file)).row_group(0).column(0)
    end = chunk.data_page_offset + chunk.total_compressed_size
    first = next(
        at for at in range(chunk.data_page_offset, end) if checksum(file[at:end]) in file[:at]
    )
    page = file[first:end]
    page = page[:place] + changed + page[place + len(changed) :]
    before, after = checksum(file[first:end]), checksum(page)
    head = file[:first].replace(before, after)
    return head + page + file[end:] if len(before) == len(after) else None


VALUES = values_of([10, 0, 30, 5, 5_000])
FILE = written(VALUES)


def test_a_page_of_blocks_without_parts_is_left_to_arrow() -> None:
    for changed in (b"\x80\x01\x00", b"\x00\x00\x04", b"\xff\xff\x7f"):
        found = [with_page(FILE, place, changed) for place in range(4, 12)]
        assert any(found)
        for file in filter(None, found):
            for page in pages(file):
                page.validate(full=True)


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 40), changed=st.binary(min_size=1, max_size=12))
def test_a_page_of_any_bytes_is_an_array_or_left_to_arrow(place: int, changed: bytes) -> None:
    file = with_page(FILE, place, changed)
    if file is not None:
        for page in pages(file):
            page.validate(full=True)
            assert len(page) == len(VALUES)
