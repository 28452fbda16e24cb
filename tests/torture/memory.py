"""What never changes is kept as it is for all processes of a schedule; most of its time went there.

Invariants: a file is made and asked of the store as often as without this, so it can be missing,
slow or fail; a commit is verified and decoded by the code under test, the first time that it is
asked for. A data file's rows are kept as a table in place of Parquet, but in one schedule of
`PARQUET_EVERY`, in which the code under test writes, verifies and decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest import mock

import pyarrow as pa

from pulsar_spark.connector.ledger_files.ledger_file import LedgerFileReader, LedgerFileWriter
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.positions.ledger_info import FileSeal, LedgerInfo
from pulsar_spark.topic_log.ledger_commit import Commit

PARQUET_EVERY = 8


class Rows(Protocol):
    num_rows: int

    def rows(
        self, schema: pa.Schema, start: int, count: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]: ...


class KeptTable:
    """The rows of a file that is none."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self.num_rows = table.num_rows

    def rows(
        self, schema: pa.Schema, start: int, count: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        part = self._table.slice(start, count)
        columns = [
            part[each.name] if each.name in part.column_names else pa.nulls(count, each.type)
            for each in schema
        ]
        return iter(pa.table(columns, schema=schema).to_batches(batch_rows))


class RememberedRows:
    """An open file, which remembers the rows that it gave."""

    def __init__(self, file: Rows) -> None:
        self.file = file
        self.num_rows = file.num_rows
        self._given: dict[Any, list[pa.RecordBatch]] = {}

    def rows(
        self, schema: pa.Schema, start: int, count: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        asked = (*schema.names, start, count, batch_rows)
        if asked not in self._given:
            self._given[asked] = list(self.file.rows(schema, start, count, batch_rows))
        return iter(self._given[asked])

    def close(self) -> None:
        """Others read on."""


@contextmanager
def decoding_once(*, parquet: bool) -> Iterator[None]:
    """Meanwhile data files and commits are decoded once; without `parquet`, files never."""
    files: dict[Any, RememberedRows] = {}
    commits: dict[tuple[bytes, str, int | None], Commit] = {}
    open_file, from_json = LedgerFileReader._open, Commit.from_json

    def opened(self: LedgerFileReader, ledger: LedgerInfo) -> Any:
        path = join(self._folder, ledger.file)
        key, mine = (path, ledger.seal), (ledger.file, ledger.seal)
        if mine in self._files:
            return open_file(self, ledger)
        if key in files:
            self._store.open_input(path)
        else:
            files[key] = RememberedRows(open_file(self, ledger))
        file: Any = files[key]
        self._files[mine] = file
        while len(self._files) > self._keep_open:
            self._files.popitem(last=False)
        return file

    def closed(self: LedgerFileWriter) -> FileSeal:
        assert self.rows
        name = self._output.path.encode()
        seal = FileSeal(len(name), 0)
        files[self._output.path, seal] = RememberedRows(KeptTable(pa.concat_tables(self._waiting)))
        self._output.sink.write(name)
        self._output.close()
        return seal

    def commit_of(data: bytes, name: str, number: int | None = None) -> Commit:
        key = data, name, number
        if key not in commits:
            commits[key] = from_json(data, name, number)
        return commits[key]

    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(LedgerFileReader, "_open", opened))
        enter(mock.patch.object(Commit, "from_json", staticmethod(commit_of)))
        if not parquet:
            enter(mock.patch.object(LedgerFileWriter, "_flush", return_value=None))
            enter(mock.patch.object(LedgerFileWriter, "close", closed))
        yield
