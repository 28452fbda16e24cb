"""A view as a pyarrow dataset: for pyarrow, DuckDB, Polars and pandas, without Spark and Java.

    backlog = pulsar_spark.dataset("/data/queue", view="backlog", topic="flights")
    backlog.to_table(columns=["ledger_id", "entry_id", "value"])
    duckdb.sql("SELECT subscription, count(*) FROM backlog GROUP BY 1")

Invariants: the view is planned when the dataset is made, so all that is read of it later is of one
batch of the broker; columns that nobody asks for are not read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from pulsar_spark.connector.inspect.views.queue_view import QueueView, ViewTask, read, view_options
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.options.options import Scope

BATCH_ROWS: Final = 131_072
"""The number of rows in a batch of pyarrow's own scanners."""


NO_FILES: Final = "this is no set of files - read it by to_table, to_batches, head or scanner"
"""The name of the file that pyarrow's own scans look for: not to find it is their error."""


class QueueDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """The reading half of `pyarrow.dataset.Dataset`.

    pyarrow has no dataset for others to derive from. What it does without asking this class ends
    with an error, since it finds the one file of the dataset below missing.
    """

    def __init__(self, view: QueueView, tasks: Iterable[ViewTask]) -> None:
        """A dataset of a planned view."""
        form, files = ds.ParquetFileFormat(), fs.LocalFileSystem()
        super().__init__([form.make_fragment(NO_FILES, files)], view.view.schema, form, files)
        self._view, self._tasks = view, [*tasks]

    @property
    def schema(self) -> pa.Schema:
        """All of the view's columns, payload and properties too: only what is asked for is read."""
        return self._view.view.schema

    def scanner(
        self,
        columns: Iterable[str] | dict[str, ds.Expression] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002 - pyarrow's name
        batch_size: int = BATCH_ROWS,
        **_scanning: Any,
    ) -> ds.Scanner:
        """A scanner of pyarrow; its settings (threads, readahead, memory) are ignored here."""
        needed = self._needed(columns, filter)
        batches = (batch for task in self._tasks for batch in read(task, needed))
        return _scanner(batches, needed, columns, filter, batch_size)

    def to_table(self, columns: Any = None, filter: Any = None, **given: Any) -> pa.Table:  # noqa: A002
        return self.scanner(columns, filter, **given).to_table()

    def to_batches(
        self,
        columns: Any = None,
        filter: Any = None,  # noqa: A002
        **given: Any,
    ) -> Iterator[pa.RecordBatch]:
        yield from self.scanner(columns, filter, **given).to_batches()

    def head(
        self,
        num_rows: int,
        columns: Any = None,
        filter: Any = None,  # noqa: A002
        **_scanning: Any,
    ) -> pa.Table:
        """Reads no further than it has to: a scanner that is left alone would read ahead."""
        needed, found, left = self._needed(columns, filter), list[pa.Table](), num_rows
        for batch in (batch for task in self._tasks for batch in read(task, needed)):
            found.append(_scanner([batch], needed, columns, filter).to_table().slice(0, left))
            left -= found[-1].num_rows
            if left <= 0:
                break
        return pa.concat_tables([*found, _scanner([], needed, columns, filter).to_table()])

    def count_rows(self, filter: Any = None, **given: Any) -> int:  # noqa: A002
        return int(self.scanner([], filter, **given).count_rows())

    def filter(self, expression: ds.Expression) -> ds.Dataset:
        """The rows that pass it, read now."""
        return ds.InMemoryDataset(self.to_table(filter=expression))

    def sort_by(self, sorting: Any, **given: Any) -> ds.Dataset:
        """All rows, read now, in that order."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting, **given))

    def __reduce__(self) -> Any:
        return QueueDataset, (self._view, self._tasks)

    def _needed(self, columns: Any, chosen: Any) -> pa.Schema:
        """The columns to read: those that are asked for, or named in an expression."""
        schema = self.schema
        if columns is None:
            return schema
        texts = [str(chosen)] if chosen is not None else []
        names = set() if isinstance(columns, dict) else set(columns)
        if isinstance(columns, dict):
            texts += map(str, columns.values())
        self._view.view.check(sorted(names))
        named = [n for n in schema.names if n in names or any(n in text for text in texts)]
        return pa.schema([schema.field(name) for name in named or schema.names[:1]])


def _scanner(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Any,
    chosen: Any,
    batch_size: int = BATCH_ROWS,
) -> ds.Scanner:
    """A scanner of batches that have this schema."""
    names = columns if columns is None or isinstance(columns, dict) else [*columns]
    return ds.Scanner.from_batches(
        iter(batches), schema=schema, columns=names, filter=chosen, batch_size=batch_size
    )


def dataset(
    service_url: str | None = None,
    topic: str | None = None,
    *,
    view: str = "messages",
    topics: Iterable[str] | None = None,
    topics_pattern: str | None = None,
    as_of: str | int | dt.datetime | None = None,
    storage: Mapping[str, str] | None = None,
) -> QueueDataset:
    """A view of a queue as a pyarrow dataset, planned now: docs/views.md has the views.

    Without a topic it is of all persistent topics; without `service_url`, of the environment's
    root. `as_of` is a time, or the number of a batch of the broker; `storage` has the options of an
    object store. InvalidOptionError or TopicNotFoundError if there is no such view, moment or
    topic.
    """
    texts = view_options(view, service_url, topic, topics, topics_pattern, as_of, storage)
    options = options_of(texts, Scope.BATCH_READ)
    made = QueueView(options, Root.of(options))
    return QueueDataset(made, made.tasks())
