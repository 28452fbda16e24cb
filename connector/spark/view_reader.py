"""`spark.read` of a view, as Spark calls it: a shell around `queue_view`.

Invariants: the driver plans once, on one batch of the broker; tasks read messages' files, and the
driver none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from pulsar_spark.connector.inspect.views.queue_view import QueueView, read
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.options import Options


def view_schema(options: Options, root: Root) -> StructType:
    """The columns of a view for which the user gave no schema; checks that it can be had."""
    view = QueueView(options, root)
    view.check()
    schema: StructType = from_arrow_schema(view.shown)
    return schema


class ViewReader(DataSourceReader):
    """Reads a view."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        """InvalidOptionError if a user's schema names what the view does not have."""
        self._schema = schema
        self._view = QueueView(options, root)
        view = self._view.view
        view.check(schema.fieldNames())
        for field in schema.fields:
            kind = from_arrow_type(view.schema.field(field.name).type)
            if field.dataType != kind:
                raise InvalidOptionError(
                    f"Column {field.name} of view {view.name} is {kind.simpleString()}, and the "
                    f"schema has {field.dataType.simpleString()}: cast it after reading."
                )

    def partitions(self) -> list[InputPartition]:
        return list(map(InputPartition, self._view.tasks()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition.value, to_arrow_schema(self._schema, timezone="UTC"))
