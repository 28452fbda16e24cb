"""What never changes is decoded once for all processes of a schedule; most of its time went there.

Invariants: a file is asked of the store as often as before, so it can be missing, slow or fail;
its rows are verified and decoded by the code under test, the first time that they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa

from pulsar_spark.connector.runtime.system_topics import system_topics
from pulsar_spark.connector.runtime.system_topics.system_topics import StoredRecord
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.storage.data_files.row_groups import RowGroups
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.topic_name import TopicPartition

RecordPredicate = Callable[[TopicPartition, str], bool] | None


class RememberedRows:
    """An open file, which remembers the rows that it gave."""

    def __init__(self, file: RowGroups) -> None:
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
def decoding_once() -> Iterator[None]:
    """Meanwhile data files, commits and records are decoded once."""
    files: dict[Any, RememberedRows] = {}
    commits: dict[tuple[bytes, str, int | None], Commit] = {}
    open_file, from_json = LedgerFileReader._open, Commit.from_json

    def opened(self: LedgerFileReader, ledger: LedgerInfo) -> Any:
        path = join(self._folder, ledger.file)
        key, mine = (path, ledger.seal), (ledger.file, ledger.seal)
        if mine in self._files:
            return open_file(self, ledger)
        if key in files:
            if ledger.embedded_in is None:
                self._store.open_input(path)
        else:
            files[key] = RememberedRows(open_file(self, ledger))
        file: Any = files[key]
        self._files[mine] = file
        while len(self._files) > self._keep_open:
            self._files.popitem(last=False)
        return file

    def commit_of(data: bytes, name: str, number: int | None = None) -> Commit:
        key = data, name, number
        if key not in commits:
            commits[key] = from_json(data, name, number)
        return commits[key]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(LedgerFileReader, "_open", opened))
        stack.enter_context(mock.patch.object(Commit, "from_json", staticmethod(commit_of)))
        stack.enter_context(mock.patch.object(system_topics, "_records", _records_of_all()))
        yield


def _records_of_all() -> Callable[
    [LedgerFileReader, LedgerInfo, RecordPredicate], Iterator[StoredRecord]
]:
    """As `_records`, but that each record of a ledger is made once, for whoever keeps it."""
    reported: dict[Any, list[StoredRecord]] = {}
    records_of = system_topics._records

    def records(
        reader: LedgerFileReader, ledger: LedgerInfo, keep: RecordPredicate
    ) -> Iterator[StoredRecord]:
        key = reader._folder, ledger
        if key in reported:
            reader._open(ledger)
        else:
            reported[key] = list(records_of(reader, ledger, None))
        for each in reported[key]:
            if keep is None or keep(each.record.topic_partition, each.record.subscription):
                yield each

    return records
