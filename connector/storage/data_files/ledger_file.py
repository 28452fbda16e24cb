"""The data files: Parquet whose rows are messages, read by the row.

Invariants: a file is written once, and durable before a commit may name it; a ledger is a range
of its rows; every read byte is verified (`block_checksums`); all rows asked for are yielded, or an
error names the file; a column without a value in the whole file is not stored, and reads as nulls.
Message ids are not stored: the log has them.

Takes the place of Pulsar's BookKeeper ledgers and of its batch and compression framing.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsar_spark.connector.storage.data_files.block_checksums import CheckedInput, SummedOutput
from pulsar_spark.connector.storage.data_files.commit_files import HeldOutput
from pulsar_spark.connector.storage.data_files.row_groups import (
    CUT_ROW_GROUP_BYTES,
    FEW_ROWS,
    ROW_GROUP_BYTES,
    RowGroups,
)
from pulsar_spark.connector.storage.local_store import LACKING
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.errors import (
    CorruptFileError,
    InvalidMessageError,
    ObjectNotFoundError,
    PulsarliteError,
    StorageError,
    UnreadableFileError,
)
from pulsar_spark.log.ledger_commit import embedded_file, log_file
from pulsar_spark.log.producing.batch_message_container import BatchLimits
from pulsar_spark.model.positions.ledger_info import FileSeal, LedgerInfo
from pulsar_spark.model.records.stored_record import StoredFormat

FILE_FORMAT: Final = StoredFormat(
    "File",
    checked=True,
    remedy="Restore the file from a copy; the messages in it can't be read.",
)
VERSION_KEY = "pulsarlite.version"
COMPRESSION_KEY = "pulsarlite.compression"
BLOCKS_KEY = "pulsarlite.blocks"
DATA_FOLDER = "data"

ROW_GROUP_ROWS = 32_768
"""The most rows of a row group."""
BOUNDARY_ROWS = 4_096
"""A partition that adds as many rows begins a row group of its own."""
WAITING_BYTES = 2 * ROW_GROUP_BYTES
"""The bytes given to a writer at which it writes them, however few rows they are."""
BATCH_ROWS = 8_192
"""The most rows of a record batch that reading yields; a quarter of a full row group."""
SMALL_BYTES = 1 << 20
"""Over a network a file of no more is read whole: one request, where a part would take two."""
MOST_SMALL_FILES = 48
"""The number of these that a process caches: planning and stepping read them again."""
SAMPLE_ROWS = 1_024
SAMPLE_BYTES = 65_536
WORTH_COMPRESSING = 0.9
"""Values whose first bytes don't shrink to this share are stored as they are."""
_WITH_STATISTICS = ("sequence_id", "publish_time", "event_time", "deliver_at")
FEW_KEYS_SHARE = 4
"""Keys get a dictionary if there are at least as many rows to each distinct one."""

_TIME = pa.timestamp("us", tz="UTC")

MESSAGE_SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "ordering_key": pa.binary(),
        "value": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "producer_name": pa.string(),
        "sequence_id": pa.int64(),
        "publish_time": _TIME,
        "event_time": _TIME,
        "deliver_at": _TIME,
        "schema_version": pa.int64(),
        "sticky_key_hash": pa.int32(),
        "uuid": pa.string(),
        "chunk_id": pa.int32(),
        "num_chunks_from_msg": pa.int32(),
        "total_chunk_msg_size": pa.int64(),
    }
)
"""The columns of a message. A file has these, or some, in this order."""

# Pulsar's CompressionType -> Parquet's codec and its level.
_CODECS: dict[str, tuple[str, int | None]] = {
    "ZSTD": ("zstd", 1),
    "LZ4": ("lz4", None),
    "ZLIB": ("gzip", 1),
    "SNAPPY": ("snappy", None),
    "NONE": ("none", None),
}
COMPRESSION_TYPES = tuple(_CODECS)

# Lengths apart from bytes, and differences of numbers that mostly rise: less work both ways than
# Parquet's default, which leaves it all to the compression.
_ENCODINGS = {
    **dict.fromkeys(("key", "value"), "DELTA_LENGTH_BYTE_ARRAY"),
    **dict.fromkeys(_WITH_STATISTICS, "DELTA_BINARY_PACKED"),
}


def compressed_size(value: pa.Buffer | bytes, compression: str) -> int:
    """The bytes that a value takes, compressed by one of COMPRESSION_TYPES."""
    codec, level = _CODECS[compression]
    if codec == "none":
        return len(value)
    return len(pa.Codec(codec, compression_level=level).compress(value))


_small_files: dict[tuple[ObjectStore, str], bytes] = {}
"""The embedded files, and those of remote stores, that were read last."""


def cache_files(store: ObjectStore, folder: str, files: Mapping[str, bytes]) -> None:
    """Have the files that a commit of the topic in `folder` contains at hand for readers."""
    for file, data in files.items():
        _cache(_small_files, store, join(folder, file), data)


def _cache(
    files: dict[tuple[ObjectStore, str], bytes], store: ObjectStore, path: str, data: bytes
) -> None:
    files[store, path] = data
    for oldest in list(files)[:-MOST_SMALL_FILES]:
        files.pop(oldest, None)


class LedgerFileWriter:
    """Writes one data file. Rows keep the order in which they are given.

    Give the rows of one partition after those of another; each `write` tells from which row on
    its rows lie. Small partitions share a row group, large ones begin their own. Nothing is
    visible before `close`; `abort`, or leaving it open, leaves nothing behind. `path` is in the
    topic's folder.
    """

    def __init__(
        self, store: ObjectStore, folder: str, *, compression: str = "ZSTD", embedded_bytes: int = 0
    ) -> None:
        """`compression`: one of COMPRESSION_TYPES.

        A file of up to `embedded_bytes` is not stored: `embedded` has its bytes, for the commit.
        """
        self.path = f"{DATA_FOLDER}/{uuid.uuid4().hex}.parquet"
        self._compression = compression
        self._output = HeldOutput(
            lambda: store.open_output(join(folder, self.path)), embedded_bytes
        )
        self._summed = SummedOutput(self._output, self.path)
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._partition = -1
        self._schema: pa.Schema | None = None
        self.rows = 0

    def write(self, messages: pa.Table | pa.RecordBatch, partition: int = 0) -> int:
        """Append rows, whose columns are some of MESSAGE_SCHEMA's; the first one's row number.

        InvalidMessageError if a column is not a message's, or if not every write has the same.
        """
        if isinstance(messages, pa.RecordBatch):
            messages = pa.Table.from_batches([messages])
        messages = self._as_messages(messages)
        first_row = self.rows
        if partition != self._partition and self._waiting_rows >= BOUNDARY_ROWS:
            self._flush(self._waiting_rows)
        self._partition = partition
        self._waiting.append(messages)
        self._waiting_rows += messages.num_rows
        self.rows += messages.num_rows
        self._waiting_bytes += messages.nbytes
        while self._waiting_rows > ROW_GROUP_ROWS:
            self._flush(ROW_GROUP_ROWS)
        if self._waiting_bytes > WAITING_BYTES:
            self._flush(self._waiting_rows)
        return first_row

    def end_row_group(self) -> None:
        """Begin another row group: a reader of the next rows does not read those before."""
        if self._waiting_rows:
            self._flush(self._waiting_rows)

    def close(self) -> FileSeal:
        """Make the file durable and visible; its seal. ValueError if it would hold no row."""
        if not self.rows:
            self.abort()
            raise ValueError("a data file holds at least one message")
        writer = self._writer or self._open(pa.concat_tables(self._waiting), whole=True)
        self.end_row_group()
        writer.add_key_value_metadata({BLOCKS_KEY: self._summed.end_of_blocks()})
        writer.close()
        return self._summed.seal(self._output.close())

    @property
    def embedded(self) -> bytes | None:
        """The bytes of the closed file; None if it is stored."""
        return self._output.held

    def abort(self) -> None:
        """Give up what was written. Harmless after `close`."""
        if self._writer is not None:
            with suppress(pa.ArrowException, OSError, ValueError, PulsarliteError):
                self._writer.close()
        self._output.abort()

    def __enter__(self) -> LedgerFileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    def _as_messages(self, messages: pa.Table) -> pa.Table:
        if self._schema is None:
            names = set(messages.column_names)
            if unknown := sorted(names - set(MESSAGE_SCHEMA.names)):
                raise InvalidMessageError(
                    f"Columns {unknown} are none of a message's: {MESSAGE_SCHEMA.names}."
                )
            self._schema = pa.schema([field for field in MESSAGE_SCHEMA if field.name in names])
        if messages.schema.equals(self._schema):
            return messages
        if set(messages.column_names) != set(self._schema.names):
            raise InvalidMessageError(
                f"Columns {messages.column_names} are not those that the file began with: "
                f"{self._schema.names}."
            )
        try:
            return messages.select(self._schema.names).cast(self._schema)
        except pa.ArrowException as error:
            raise InvalidMessageError(
                f"Columns {messages.schema.names} don't fit those of a message: {error}"
            ) from error

    def _flush(self, rows: int) -> None:
        waiting = pa.concat_tables(self._waiting)
        writer = self._writer or self._open(waiting, whole=False)
        for part in _row_groups(waiting.slice(0, rows).select(writer.schema.names)):
            writer.write_table(part, row_group_size=ROW_GROUP_ROWS)
        self._waiting_rows -= rows
        self._waiting_bytes = self._waiting_bytes * self._waiting_rows // waiting.num_rows
        self._waiting = [waiting.slice(rows)] if self._waiting_rows else []

    def _open(self, sample: pa.Table, *, whole: bool) -> pq.ParquetWriter:
        """Begin the file; `sample` is its beginning, or the whole of it."""
        few = whole and sample.num_rows <= FEW_ROWS
        schema = sample.schema
        if whole:
            held = [each for each in schema if sample[each.name].null_count < sample.num_rows]
            schema = pa.schema(held or list(schema))
        codec, level = _CODECS[self._compression]
        leaves = (leaf for leaf in _LEAVES if leaf.partition(".")[0] in schema.names)
        codecs = dict.fromkeys(leaves, codec)
        if "value" in codecs and not _gets_smaller(sample["value"], codec, level):
            codecs["value"] = "none"
        dictionaries = [] if few else _columns_of_few_values(sample, schema)
        encodings = {
            name: encoding
            for name, encoding in _ENCODINGS.items()
            if name in schema.names and name not in dictionaries
        }
        useful = ("publish_time",) if few else _WITH_STATISTICS
        levels = {name: level for name in codecs if level is not None and codecs[name] != "none"}
        writer = self._writer = pq.ParquetWriter(
            pa.PythonFile(self._summed, "w"),
            schema,
            compression=codecs,
            compression_level=levels,
            use_dictionary=dictionaries,
            column_encoding=encodings,
            write_statistics=[name for name in useful if name in schema.names],
            store_schema=False,
            write_page_checksum=True,
        )
        writer.add_key_value_metadata(
            {VERSION_KEY: str(FILE_FORMAT.version), COMPRESSION_KEY: self._compression}
        )
        return writer


class LedgerFileReader:
    """Reads messages of one topic's ledgers; keeps the last few files open.

    Not for several threads at once.
    """

    def __init__(
        self, store: ObjectStore, folder: str, topic: str, *,
        keep_open: int = 4, holds_small: bool = False,
        embedded: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`holds_small`: files of a remote store that others of this process read again soon.

        `embedded` are files of ledgers that have no commit yet.
        """
        self._embedded = embedded
        self._store, self._folder, self.topic = store, folder, topic
        self._keep_open = keep_open
        self._small = _small_files if holds_small else {}
        self._files: OrderedDict[tuple[str, FileSeal | None], RowGroups] = OrderedDict()

    def fetch(self, ledgers: Iterable[LedgerInfo]) -> None:
        """Ask for the small files of these at once, where each costs a request; for `read`."""
        paths = {
            join(self._folder, each.file)
            for each in ledgers
            if self._is_small(each) and each.embedded_in is None
        }
        new = [path for path in paths if (self._store, path) not in self._small]
        for path, data in zip(new, self._store.answers(self._store.get, new), strict=True):
            self._keep(path, data)

    def read(
        self,
        ledger: LedgerInfo,
        columns: Sequence[str],
        first_row: int = 0,
        n_rows: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The ledger's rows from its `first_row`-th on, in order, as batches of `columns`.

        Only the row groups and columns needed are read. ObjectNotFoundError if the file is gone
        (refresh the log: it was merged, or trimmed); CorruptFileError if it is damaged;
        FutureVersionError if a newer version wrote it.
        """
        count = ledger.messages - first_row if n_rows is None else n_rows
        if first_row < 0 or count < 0 or first_row + count > ledger.messages:
            raise IndexError(
                f"rows {first_row} to {first_row + count} of a ledger of {ledger.messages}"
            )
        schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
        with self._damage_named(ledger):
            file = self._open(ledger)
            start = ledger.first_row + first_row
            if start + count > file.num_rows:
                raise self._damaged(
                    ledger,
                    f"it has {file.num_rows} rows, and the log says that ledger "
                    f"{ledger.ledger_id} ends at row {start + count}",
                )
            done = 0
            for batch in file.rows(schema, start, count, BATCH_ROWS):
                done += batch.num_rows
                yield batch
            if done != count:
                raise self._damaged(ledger, f"{done} of {count} rows could be read")

    def read_table(
        self,
        ledger: LedgerInfo,
        columns: Sequence[str],
        first_row: int = 0,
        n_rows: int | None = None,
    ) -> pa.Table:
        """The same in one piece; by default all rows of the ledger."""
        schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
        return pa.Table.from_batches(self.read(ledger, columns, first_row, n_rows), schema)

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def _open(self, ledger: LedgerInfo) -> RowGroups:
        key = ledger.file, ledger.seal
        if key in self._files:
            self._files.move_to_end(key)
            return self._files[key]
        source = self._source(ledger)
        try:
            checked = CheckedInput(source, ledger.seal)
            footer = self._footer(checked, ledger)
        except BaseException:
            source.close()
            raise
        file = self._files[key] = RowGroups(checked, footer, remote=self._store.remote)
        while len(self._files) > self._keep_open:
            self._files.popitem(last=False)[1].close()
        return file

    def _is_small(self, ledger: LedgerInfo) -> bool:
        seal = ledger.seal
        return self._store.remote and seal is not None and seal.size_bytes <= SMALL_BYTES

    def _source(self, ledger: LedgerInfo) -> pa.NativeFile:
        path = join(self._folder, ledger.file)
        if ledger.embedded_in is not None or ledger.file in self._embedded:
            data = self._embedded_file(ledger, path, ledger.embedded_in)
        elif not self._is_small(ledger):
            return self._store.open_input(path)
        else:
            data = self._small.get((self._store, path))
            if data is None:
                data = self._keep(path, self._store.get(path))
        if data is None:
            raise ObjectNotFoundError(f"File {path} is not there (any more).")
        return pa.BufferReader(data)

    def _embedded_file(self, ledger: LedgerInfo, path: str, number: int | None) -> bytes | None:
        """The file out of its commit; None if the log was cleaned up."""
        data = self._embedded.get(ledger.file) or _small_files.get((self._store, path))
        if data is None and number is not None:
            name = join(self._folder, log_file(number))
            stored = self._store.get(name)
            if stored is not None and (data := embedded_file(stored, name, ledger.file)):
                cache_files(self._store, self._folder, {ledger.file: data})
        return data

    def _keep(self, path: str, data: bytes | None) -> bytes | None:
        """Hold a small file for who reads it next: it never changes."""
        if data is not None:
            _cache(self._small, self._store, path, data)
        return data

    def _footer(self, checked: CheckedInput, ledger: LedgerInfo) -> pq.FileMetaData:
        """The file's footer. Blocks are verified by its checksums from then on."""
        footer = pq.read_metadata(pa.BufferReader(checked.footer))
        metadata: dict[bytes, bytes] = footer.metadata or {}
        text = metadata.get(VERSION_KEY.encode(), b"").decode(errors="replace")
        named = self._named(ledger)
        FILE_FORMAT.check_version(int(text) if text.isdecimal() else None, named)
        FILE_FORMAT.check_fields(set(_leaves(footer).values()), _KNOWN_COLUMNS, named)
        checked.check_blocks(metadata.get(BLOCKS_KEY.encode(), b""))
        return footer

    def _named(self, ledger: LedgerInfo) -> str:
        return f"{ledger.file} of topic {self.topic}"

    def _damaged(self, ledger: LedgerInfo, why: object) -> CorruptFileError:
        return FILE_FORMAT.damaged(self._named(ledger), why)

    @contextmanager
    def _damage_named(self, ledger: LedgerInfo) -> Iterator[None]:
        """Turn Arrow's errors about a file into ours, which name it."""
        try:
            yield
        except ObjectNotFoundError as error:
            text = f"File {self._named(ledger)} is not there (any more)."
            raise ObjectNotFoundError(text) from error
        except PulsarliteError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            self._files.pop((ledger.file, ledger.seal), None)
            if isinstance(error, OSError) and error.errno:
                is_its_own = error.errno not in LACKING
                raise (UnreadableFileError if is_its_own else StorageError)(
                    f"Could not read file {self._named(ledger)}: {error}. Check the disk."
                ) from error
            raise self._damaged(ledger, error) from error


def _row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows; if their payloads have more than ROW_GROUP_BYTES, in smaller parts."""
    if "value" not in rows.schema.names or rows.nbytes <= ROW_GROUP_BYTES:
        yield rows
        return
    sizes = pc.fill_null(pc.binary_length(rows["value"]), 0).to_numpy()
    first = 0
    for count in BatchLimits(0, CUT_ROW_GROUP_BYTES).cut(sizes).tolist():
        yield rows.slice(first, count)
        first += count


def _leaves(footer: pq.FileMetaData) -> dict[str, str]:
    """Path of a leaf column -> path and Parquet's type; a map has two leaves."""
    columns = (footer.schema.column(number) for number in range(footer.num_columns))
    return {each.path: f"{each.path} ({each.physical_type})" for each in columns}


def _leaves_of_messages() -> dict[str, str]:
    stored = pa.BufferOutputStream()
    pq.ParquetWriter(stored, MESSAGE_SCHEMA).close()
    return _leaves(pq.read_metadata(pa.BufferReader(stored.getvalue())))


_LEAVES: Final = _leaves_of_messages()
_KNOWN_COLUMNS: Final = frozenset(_LEAVES.values())


def _gets_smaller(values: pa.ChunkedArray, codec: str, level: int | None) -> bool:
    """True if compressing pays, judged by the first bytes of the values."""
    if codec == "none":
        return True
    sample = b"".join(value or b"" for value in values.slice(0, SAMPLE_ROWS).to_pylist())
    sample = sample[:SAMPLE_BYTES]
    if len(sample) < SAMPLE_BYTES // 16:
        return True
    small = pa.Codec(codec, level).compress(sample, asbytes=True)
    return len(small) < WORTH_COMPRESSING * len(sample)


def _columns_of_few_values(sample: pa.Table, schema: pa.Schema) -> list[str]:
    few = [name for name in ("producer_name", "schema_version", "uuid") if name in schema.names]
    if "key" in schema.names:
        head = sample["key"].slice(0, ROW_GROUP_ROWS)
        if pc.count_distinct(head).as_py() * FEW_KEYS_SHARE <= len(head):
            few.append("key")
    return few
