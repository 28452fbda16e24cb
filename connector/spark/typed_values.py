"""A source's values by their schema: bytes of the files become a typed column.

Invariants: the type is settled when the DataFrame is made, and a task finds the reader's schema
from that type alone, so that a batch reads the same however the topic goes on; each message is
decoded by the schema of its own version; a value that does not fit ends the query, is null with its
reason, or goes to the dead letters, as `onSchemaMismatch` says. Follows Pulsar's
`AutoConsumeSchema`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import tell
from pulsar_spark.connector.runtime.reading.input_partition import MessageInputPartition
from pulsar_spark.connector.runtime.reading.message_reader import read_messages
from pulsar_spark.connector.runtime.schema.schema_codec import Reasons, decoder, nothing_fits
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.message_columns import IDS, READ_COLUMNS
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import check_read_schema
from pulsar_spark.connector.spark.process.worker_process import spare_the_garbage_collector
from pulsar_spark.connector.spark.schema_types import spark_type
from pulsar_spark.errors import InvalidOptionError, InvalidSchemaDataError, SchemaMismatchError
from pulsar_spark.model.schema.schema_info import SchemaInfo
from pulsar_spark.options.options import Options

_NEEDED: Final = ("value", "schema_version", *IDS, "attempt")
Decoder = Callable[[pa.Array], tuple[pa.Array, Reasons]]
_FIELDS: Final = {column.name: column.field for column in READ_COLUMNS}


@dataclass(slots=True)
class TypedValues:
    """The typed values of a source with `valueSchema`; a task decodes with a copy of its own."""

    schema: StructType
    on_mismatch: str
    root: Root
    subscription: str | None = None
    _decoders: dict[tuple[str, int | None], Decoder] = field(default_factory=dict)

    @staticmethod
    def of(options: Options, root: Root, schema: StructType) -> TypedValues | None:
        """None if values are bytes."""
        if not options["valueSchema"] or not {"value", "schema_error"} & set(schema.fieldNames()):
            return None
        return TypedValues(schema, options["onSchemaMismatch"], root, options["subscriptionName"])

    @property
    def stored(self) -> pa.Schema:
        """The columns to read: the schema's as the files have them, and those for decoding."""
        names = dict.fromkeys([*self.schema.fieldNames(), *_NEEDED])
        return pa.schema([_FIELDS[name] for name in names if name != "schema_error"])

    def decode(self, batch: pa.RecordBatch, topic: str, ledger: ManagedLedger) -> pa.RecordBatch:
        """The batch with typed values, and the columns that Spark has asked for.

        With onSchemaMismatch fail, SchemaMismatchError names the first message that does not fit.
        """
        column, reasons = self._values(batch, topic, ledger)
        if reasons and self.on_mismatch == "fail":
            raise _mismatch(batch, topic, reasons)
        errors = pa.nulls(batch.num_rows, pa.string())
        if reasons:
            errors = pa.array([reasons.get(row) for row in range(batch.num_rows)], pa.string())
        arrays = [
            column if name == "value" else errors if name == "schema_error" else batch.column(name)
            for name in self.schema.fieldNames()
        ]
        schema = to_arrow_schema(self.schema, timezone="UTC")
        made = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if reasons and self.on_mismatch == "deadLetter":
            bad = pc.is_valid(errors)
            self._dead_letter(batch.append_column("error", errors).filter(bad), topic)
            made = made.filter(pc.invert(bad))
        return made

    def _dead_letter(self, batch: pa.RecordBatch, topic: str) -> None:
        """Report these as dead letters, before the messages behind them are delivered.

        A repeated task reports them again, which changes nothing: a message is buried once.
        """
        columns = {name: batch.column(name) for name in (*IDS, "attempt", "error")}
        columns["topic"] = pa.repeat(topic, batch.num_rows)
        columns["ack_type"] = pa.repeat("DeadLetter", batch.num_rows)
        folded = fold([pa.RecordBatch.from_pydict(columns)], self.root, None)
        assert self.subscription is not None
        tell(self.root, self.subscription, [folded], None)

    def _values(
        self, batch: pa.RecordBatch, topic: str, ledger: ManagedLedger
    ) -> tuple[pa.Array, Reasons]:
        values = batch.column("value")
        versions = batch.column("schema_version")
        distinct = versions.unique().to_pylist() or [None]
        if len(distinct) == 1:
            return self._decoder(topic, ledger, distinct[0])(values)
        parts, places, reasons = [], [], {}
        for version in distinct:
            mask = pc.is_null(versions) if version is None else pc.equal(versions, version)
            rows = pc.indices_nonzero(mask)
            part, why = self._decoder(topic, ledger, version)(values.take(rows))
            parts.append(part)
            places.append(rows.to_numpy())
            reasons.update({rows[row].as_py(): text for row, text in why.items()})
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order)), dict(sorted(reasons.items()))

    def _decoder(self, topic: str, ledger: ManagedLedger, version: int | None) -> Decoder:
        """The decoder of a schema version; without a version, of the reader's schema itself."""
        if (topic, version) not in self._decoders:
            registry, schema = ledger.state.schemas, self.schema
            requested = schema["value"].dataType if "value" in schema.fieldNames() else None
            typed = ((_spark_type(each), each) for each in reversed(registry.schemas))
            fitting = (each for kind, each in typed if kind and requested in (None, kind))
            reader = next(fitting, None)  # the newest of the settled type, or of any
            writer = reader if version is None else registry.get(version)
            if requested is None:
                requested = _FIELDS["value"].dataType if reader is None else spark_type(reader)
            kind = to_arrow_type(requested, timezone="UTC")
            if reader is None:
                made: Decoder = partial(
                    nothing_fits, kind, "the topic has no schema that gives this type"
                )
            elif writer is None:
                why = f"the topic has no schema of version {version}"
                made = partial(nothing_fits, kind, why)
            else:
                made = _decoder_of(reader, writer, kind)
            self._decoders[topic, version] = made
        return self._decoders[topic, version]


def _decoder_of(reader: SchemaInfo, writer: SchemaInfo, kind: pa.DataType) -> Decoder:
    """The decoder of values of that writer; one that decodes nothing if Spark lacks the type."""
    try:
        spark_type(writer)  # a definition that contains itself would never end
    except InvalidSchemaDataError as error:
        return partial(nothing_fits, kind, str(error))
    return decoder(reader, writer, kind)


def read_values(
    partition: MessageInputPartition, schema: StructType, values: TypedValues | None
) -> Iterator[pa.RecordBatch]:
    """`read_messages`, with typed values if they have a schema."""
    if values is None:
        yield from read_messages(partition, to_arrow_schema(schema, timezone="UTC"))
    else:
        for topic in partition.topics:
            ledger = ManagedLedger.open(partition.root.store, topic.folder, topic=topic.topic)
            for batch in read_messages(replace(partition, topics=(topic,)), values.stored):
                yield values.decode(batch, topic.topic, ledger)
    spare_the_garbage_collector()


def check_typed_schema(
    options: Options, schema: StructType, ledgers: Iterable[ManagedLedger]
) -> None:
    """InvalidOptionError if the schema has columns that these options don't give.

    A value's type has to be that of one of the topic's schemas.
    """
    typed = bool(options["valueSchema"])
    errors = typed and options["onSchemaMismatch"] == "null"
    check_read_schema(schema, typed=typed, schema_errors=errors)
    if not typed or "value" not in schema.fieldNames():
        return
    requested = schema["value"].dataType
    for ledger in ledgers:
        if not (
            ledger.state.schemas.schemas or any(map(ledger.ledgers, range(ledger.state.partitions)))
        ):
            continue  # whatever is published to it decides
        types = [_spark_type(info) for info in ledger.state.schemas.schemas]
        if requested not in types:
            known = ", ".join(sorted({each.simpleString() for each in types if each}))
            raise InvalidOptionError(
                f"The schema's column value is {requested.simpleString()}, and by the schemas of "
                f"{ledger.topic} values are {known or 'bytes: it has none'}. Take one of these, or "
                "give no schema."
            )


def value_type(ledgers: Iterable[ManagedLedger]) -> DataType:
    """The type of the values of all these topics, by the newest schema of each.

    InvalidOptionError if a topic has no schema, or two differ.
    """
    found: dict[str, DataType] = {}
    for ledger in sorted(ledgers, key=lambda each: each.topic):
        if (newest := ledger.state.schemas.newest) is None:
            raise InvalidOptionError(
                f"Option valueSchema: topic {ledger.topic} has no schema. Publish to it with "
                "schemaType, or leave the option out to read bytes."
            )
        found[ledger.topic] = spark_type(newest)
    if not found:
        raise InvalidOptionError("Option valueSchema: there is no topic yet whose schema to take.")
    (first, kind), *others = found.items()
    for topic, other in others:
        if other != kind:
            raise InvalidOptionError(
                f"Option valueSchema: values of {first} are {kind.simpleString()}, and those of "
                f"{topic} {other.simpleString()}. Read them apart, or without the option."
            )
    return kind


def _spark_type(info: SchemaInfo) -> DataType | None:
    try:
        return spark_type(info)
    except InvalidSchemaDataError:
        return None


def _mismatch(batch: pa.RecordBatch, topic: str, reasons: Reasons) -> SchemaMismatchError:
    row = min(reasons)
    message_id = ":".join(str(batch.column(name)[row]) for name in IDS)
    version = batch.column("schema_version")[row].as_py()
    whose = "none" if version is None else version
    return SchemaMismatchError(
        f"Message {message_id} of {topic} (schema version {whose}) does not fit the topic's "
        f"schema: {reasons[row]}. Set onSchemaMismatch to null to have it as null with its reason, "
        "to deadLetter to have it in a subscription's dead letter topic, or read without "
        "valueSchema."
    )
