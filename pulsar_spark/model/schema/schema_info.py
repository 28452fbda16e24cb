"""A schema of a topic's values: its type, and its definition where the type has one.

Invariants: immutable; two are equal where they mean the same, however their definitions are
written; what can't be a schema is refused when it is made. Follows Pulsar's `SchemaInfo` and
`SchemaType`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pulsar_spark.errors import InvalidSchemaDataError
from pulsar_spark.model.records.stored_data import parse_json
from pulsar_spark.model.schema.avro_schema import AvroType, normal_form, parse_avro


class SchemaType(Enum):
    """Pulsar's name for how a value is encoded."""

    BYTES = "BYTES"
    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    JSON = "JSON"
    AVRO = "AVRO"
    PROTOBUF_NATIVE = "PROTOBUF_NATIVE"

    @property
    def has_definition(self) -> bool:
        """True if it is a record, defined in Avro's way."""
        return self in (SchemaType.JSON, SchemaType.AVRO)


SCHEMA_TYPES: Final = tuple(
    each.value for each in SchemaType if each is not SchemaType.PROTOBUF_NATIVE
)
"""The types by which a sink writes; values of PROTOBUF_NATIVE are bytes to it."""
PROTOBUF_FIELDS: Final = frozenset(
    {"fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName"}
)
"""The fields of a PROTOBUF_NATIVE definition, all texts (Pulsar's `ProtobufNativeSchemaData`)."""


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema, with a `definition` where its type has one.

    It is Avro's JSON of a record for JSON and AVRO, and Pulsar's of a message for PROTOBUF_NATIVE.
    """

    type: SchemaType
    definition: str = field(default="", compare=False)
    normal: str = field(init=False, default="", repr=False)
    """The part that equal schemas have in common."""

    def __post_init__(self) -> None:
        if self.type.has_definition:
            avro = self.avro()
            if avro.kind != "record":
                raise InvalidSchemaDataError(
                    f"A schema of type {self.type.value} is of a record, and the definition is of "
                    f"{avro.kind}: put the value into a record's field."
                )
            normal = json.dumps(normal_form(avro), sort_keys=True)
            object.__setattr__(self, "normal", normal)
        elif self.type is SchemaType.PROTOBUF_NATIVE:
            normal = json.dumps(self.protobuf(), sort_keys=True)
            object.__setattr__(self, "normal", normal)
        elif self.definition:
            raise InvalidSchemaDataError(
                f"A schema of type {self.type.value} has no definition: leave it out."
            )

    def avro(self) -> AvroType:
        """The definition, read; of JSON and AVRO only."""
        return parse_avro(self.definition)

    def protobuf(self) -> dict[str, str]:
        """The definition, read; of PROTOBUF_NATIVE only. InvalidSchemaDataError if it is none."""
        try:
            found = parse_json(self.definition)
        except ValueError:
            found = None
        is_mapping = isinstance(found, Mapping) and found.keys() == PROTOBUF_FIELDS
        if not is_mapping or not all(isinstance(each, str) for each in found.values()):
            raise InvalidSchemaDataError(
                "A schema of type PROTOBUF_NATIVE has a definition with the texts "
                f"{', '.join(sorted(PROTOBUF_FIELDS))}, as ProtobufNativeSchema makes it."
            )
        return dict(found)

    def to_json_value(self) -> dict[str, Any]:
        record = {"type": self.type.value}
        return record | {"schema": self.definition} if self.definition else record

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> SchemaInfo:
        """KeyError, TypeError or ValueError if it is none."""
        if unknown := set(value) - {"type", "schema"}:
            raise ValueError(f"a schema has the unknown fields {sorted(unknown)}")
        definition = value.get("schema", "")
        if not isinstance(definition, str):
            raise TypeError(f"{definition!r} is no definition")
        return SchemaInfo(SchemaType(value["type"]), definition)
