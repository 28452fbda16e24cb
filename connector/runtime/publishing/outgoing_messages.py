"""Rows of a DataFrame as messages: columns and types of the data files, checked.

Invariants: a message is checked before anything of its batch is kept; options fill in what a row
leaves open; the publish time is taken once for each batch of rows, and a delay counts from it; a
value is measured once on its way to disk.
Follows Pulsar's `TypedMessageBuilderImpl` and `ProducerImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.schema.schema_codec import check_texts
from pulsar_spark.connector.storage.data_files.ledger_file import MESSAGE_SCHEMA, compressed_size
from pulsar_spark.errors import (
    DeliveryDelayTooLongError,
    InvalidMessageError,
    MessageTooBigError,
)
from pulsar_spark.log.producing.hashing import murmur3_32_hash_many
from pulsar_spark.options.options import Options

PAYLOAD_SIZE: Final = "payload_size"
"""A column beside a message's own, which is not stored: the bytes of its value."""
_TIME = MESSAGE_SCHEMA.field("publish_time").type
_DELAY = pa.duration("us")
_PROPERTIES: Final = MESSAGE_SCHEMA.field("properties").type
_PAIRS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_TEXTS = ("topic", "key", "properties", "producer_name")


class Numbering(NamedTuple):
    """The producer name of one task of one write, and the sequence id of its first row."""

    producer: str
    first: int

    def filled(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches; rows that name neither producer nor sequence id have these.

        A row that names one of them stays as it is: with a producer's name, ids of ours could be
        taken for some that it has used before.
        """
        first = self.first
        for batch in batches:
            ids = pa.array(np.arange(first, first + batch.num_rows))
            first += batch.num_rows
            yield self._filled(batch, ids)

    def _filled(self, batch: pa.RecordBatch, ids: pa.Array) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in batch.schema.names}
        names = columns.pop("producer_name", pa.nulls(batch.num_rows, pa.string()))
        known = columns.pop("sequence_id", pa.nulls(batch.num_rows, pa.int64()))
        if (count := pc.and_(pc.is_null(names), pc.is_null(known)).true_count) == 0:
            return batch
        mine = pa.repeat(pa.scalar(self.producer, names.type), batch.num_rows)
        known = known.cast(pa.int64())
        if count < batch.num_rows:
            bare = pc.and_(pc.is_null(names), pc.is_null(known))
            mine, ids = pc.if_else(bare, mine, names), pc.if_else(bare, ids, known)
        return pa.RecordBatch.from_pydict({**columns, "producer_name": mine, "sequence_id": ids})


def with_properties(
    batches: Iterable[pa.RecordBatch], added: Mapping[str, str], unless: str
) -> Iterator[pa.RecordBatch]:
    """The batches; rows that don't have the property `unless` have those that are added."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        known = columns.get("properties", pa.nulls(batch.num_rows, _PROPERTIES))
        columns["properties"] = _with_pairs(known.cast(_PROPERTIES), added, unless)
        yield pa.RecordBatch.from_pydict(columns)


def _with_pairs(known: pa.MapArray, added: Mapping[str, str], unless: str) -> pa.MapArray:
    lists, more = known.cast(_PAIRS), len(added)
    counts, pairs = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(), lists.flatten()
    new = (pa.array([*added]), pa.array([*added.values()]))
    if not len(pairs):
        ends = np.arange(0, len(known) * more + 1, more, dtype=np.int32)
        every = pa.array(np.tile(np.arange(more), len(known)))
        return pa.MapArray.from_arrays(pa.array(ends), *(each.take(every) for each in new))
    bare = np.ones(len(known), bool)
    reported = pc.equal(pairs.field(0), unless).to_numpy(zero_copy_only=False)
    bare[np.repeat(np.arange(len(known)), counts)[reported]] = False
    places = np.repeat(np.cumsum(counts)[bare], more)
    numbers = np.tile(np.arange(more) + len(pairs), len(places) // more)
    order = pa.array(np.insert(np.arange(len(pairs)), places, numbers))
    ends = np.concatenate([[0], np.cumsum(counts + bare * more)]).astype(np.int32)
    held = (pa.concat_arrays([pairs.field(place), each]) for place, each in enumerate(new))
    return pa.MapArray.from_arrays(pa.array(ends), *(each.take(order) for each in held))


def as_messages(rows: pa.RecordBatch, options: Options, topic: str, now_ms: int) -> pa.Table:
    """The rows with the columns and types of the data files, and PAYLOAD_SIZE.

    `rows` have a sink's columns without `topic`, whose argument is the name in errors. They are
    published at `now_ms`. InvalidMessageError names a row that can't be a message.
    """
    columns: dict[str, pa.Array] = {}
    for name in rows.schema.names:
        if name != "deliver_after":
            columns[name] = _cast(rows.column(name), MESSAGE_SCHEMA.field(name).type, name, topic)
    sizes = payload_sizes(columns["value"])
    if not options["chunkingEnabled"]:
        _check_sizes(columns["value"], sizes, options, topic)
    columns["publish_time"] = pa.repeat(_moment(now_ms), rows.num_rows)
    if options["producerName"]:
        names = columns.get("producer_name", pa.nulls(rows.num_rows, pa.string()))
        columns["producer_name"] = pc.fill_null(names, options["producerName"])
    deliver_at = _delivery_times(rows, columns.get("deliver_at"), options, topic, now_ms)
    if deliver_at is not None:
        columns["deliver_at"] = deliver_at
    keys = _sticky_keys(columns.get("ordering_key"), columns.get("key"))
    if keys is not None:
        columns["sticky_key_hash"] = _sticky_key_hashes(keys)
    columns[PAYLOAD_SIZE] = pa.array(sizes)
    return pa.table(columns)


def check_delays(messages: pa.Table, most_ms: int, topic: str) -> None:
    """DeliveryDelayTooLongError if one comes later after its publication than that; 0: none does.

    `messages` are those of `as_messages`.
    """
    if not most_ms or "deliver_at" not in messages.column_names:
        return
    latest = pc.add(messages["publish_time"], pa.scalar(most_ms * 1000, _DELAY))
    if pc.any(pc.greater(messages["deliver_at"], latest)).as_py():
        raise DeliveryDelayTooLongError(
            f"A message for {topic} is to be delivered more than {most_ms:,} ms after it is "
            "published, and the topic allows no more: deliver it sooner, or allow more with "
            "pulsarlite topics set-delayed-delivery --maxDelay."
        )


def check_rows(rows: pa.RecordBatch) -> None:
    """InvalidMessageError if a text is no UTF-8: whoever reads it as a text would fail."""
    for name in _TEXTS:
        if name in rows.schema.names:
            column = rows.column(name)
            check_texts(
                column.view(pa.string()) if pa.types.is_binary(column.type) else column, name
            )


def payload_sizes(values: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Bytes of each value, shape (rows,); 0 for a null."""
    lengths: NDArray[np.int32] = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    return lengths.astype(np.int64)


def _check_sizes(values: pa.Array, sizes: NDArray[np.int64], options: Options, topic: str) -> None:
    """MessageTooBigError if a value, compressed, is larger than a message may be, as in Pulsar."""
    most, compression = options["maxMessageSize"], options["compressionType"]
    for row in np.flatnonzero(sizes > most).tolist():
        stored = compressed_size(values[row].as_buffer(), compression)
        if stored > most:
            still = "" if compression == "NONE" else f" ({compression} leaves {stored})"
            raise MessageTooBigError(
                f"A message for {topic} has {sizes[row]} bytes, and maxMessageSize is "
                f"{most}{still}. Make it smaller, raise maxMessageSize, choose a compressionType, "
                "or set chunkingEnabled to true and batchingEnabled to false."
            )


def _delivery_times(
    rows: pa.RecordBatch, deliver_at: pa.Array | None, options: Options, topic: str, now_ms: int
) -> pa.Array | None:
    """Each message's delivery time, from its row, else from the options; None if no row has one.

    InvalidMessageError if a row gives it in two ways, or a delay below zero.
    """
    if "deliver_after" in rows.schema.names:
        after = _after(rows.column("deliver_after"), now_ms, topic)
        if deliver_at is not None:
            if pc.any(pc.and_(pc.is_valid(deliver_at), pc.is_valid(after))).as_py():
                raise InvalidMessageError(
                    f"A message for {topic} has both deliver_at and deliver_after: fill one of "
                    "them, and leave the other null."
                )
            after = pc.coalesce(deliver_at, after)
        deliver_at = after
    default_ms = options["deliverAt"]
    if options.has("deliverAfter"):
        default_ms = now_ms + options["deliverAfter"]
    if default_ms is None:
        return deliver_at
    if deliver_at is None:
        return pa.repeat(_moment(default_ms), rows.num_rows)
    return pc.fill_null(deliver_at, _moment(default_ms))


def _moment(time_ms: int) -> pa.Scalar:
    return pa.scalar(time_ms * 1000, _TIME)


def _after(delays: pa.Array, now_ms: int, topic: str) -> pa.Array:
    """The moments at which durations, or whole milliseconds, are over."""
    whole = pa.types.is_integer(delays.type)
    delays = _cast(delays, pa.int64() if whole else _DELAY, "deliver_after", topic)
    if (pc.min(delays.cast(pa.int64())).as_py() or 0) < 0:
        raise InvalidMessageError(
            f"A message for {topic} has a deliver_after below zero: a delay is 0 or more; for a "
            "moment in the past use deliver_at."
        )
    try:
        if whole:
            delays = delays.cast(pa.duration("ms")).cast(_DELAY)
        return pc.add_checked(delays, _moment(now_ms))
    except pa.ArrowException as error:
        raise InvalidMessageError(
            f"A message for {topic} has a deliver_after that ends beyond all times: make it "
            "shorter."
        ) from error


def _sticky_keys(ordering_key: pa.Array | None, key: pa.Array | None) -> pa.Array | None:
    """The keys that Key_Shared hashes: ordering key, else key; None without such columns."""
    if key is None:
        return ordering_key
    if ordering_key is None or ordering_key.null_count == len(ordering_key):
        return key
    return pc.coalesce(ordering_key, key.cast(pa.binary()))


def _sticky_key_hashes(keys: pa.Array) -> pa.Array:
    """31 bits of each key; null for a null."""
    if keys.null_count == len(keys):
        return pa.nulls(len(keys), pa.int32())
    hashes = murmur3_32_hash_many(keys).astype(np.int32)
    missing = pc.is_null(keys).to_numpy(zero_copy_only=False) if keys.null_count else None
    return pa.array(hashes, pa.int32(), mask=missing)


def _cast(array: pa.Array, requested: pa.DataType, name: str, topic: str) -> pa.Array:
    if array.type == requested:
        return array
    try:
        return array.cast(requested)
    except pa.ArrowException as error:
        raise InvalidMessageError(
            f"Column {name} of a message for {topic} can't be {requested}: {error}"
        ) from error
