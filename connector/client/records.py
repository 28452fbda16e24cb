"""Records of a schema, declared as a class with fields, and the schemas that go with them.

    class Flight(Record):
        carrier = String()
        delay = Integer(default=0)

Invariants: a record holds its declared fields only, each of its type; its definition is Avro's, as
Pulsar's own clients make it. Follows `pulsar.schema` of Pulsar's Python client 3.13.
"""

from __future__ import annotations

import base64
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pulsar_spark.connector.runtime.schema.schema_records import (
    NOT_FINITE,
    fastavro,
    finite_or_text,
    reading_records_of,
    with_bounded_indexes,
)
from pulsar_spark.errors import MissingPackageError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

__all__ = [
    "Array", "AvroSchema", "Boolean", "Bytes", "BytesSchema", "CustomEnum", "Double", "Field",
    "Float", "Integer", "JsonSchema", "Long", "Map", "Null", "ProtobufNativeSchema", "Record",
    "Schema", "String", "StringSchema",
]  # fmt: skip


class Field:
    """A field of a record: null where not `required`; `default` where not given."""

    avro: ClassVar[str] = ""
    python: ClassVar[tuple[type, ...]] = ()

    def __init__(
        self, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        self.required, self.required_default = required, required_default
        self._default = None
        if default is not None:
            self._default = self.checked("default", default)

    if TYPE_CHECKING:  # a record's attribute is the value, and not the field

        def __get__(self, record: Any, kind: Any) -> Any: ...

        def __set__(self, record: Any, value: Any) -> None: ...

    def default(self) -> Any:
        """The value that stands for None, and in the definition."""
        return self._default

    def initial(self) -> Any:
        """The value of a record that was made without one."""
        return self.default()

    def checked(self, name: str, value: Any) -> Any:
        """The value as the field holds it. TypeError if it is not of its type."""
        if value is None and not self.required:
            return self.default()
        if not isinstance(value, self.python):
            requested = " or ".join(each.__name__ for each in self.python)
            raise TypeError(f"Field {name} can't be {value!r}: it takes {requested}.")
        return value

    def validate_type(self, name: str, val: Any) -> Any:
        """The same, by Pulsar's name of it."""
        return self.checked(name, val)

    def definition(self, seen: set[str]) -> Any:  # noqa: ARG002
        """Avro's definition; names in `seen` are defined already."""
        return self.avro

    def plain(self, value: Any, *, text: bool) -> Any:
        """The value as JSON (`text`) or Avro has it, which is as a sink writes it."""
        del text
        return value

    def lifted(self, value: Any, *, text: bool) -> Any:  # noqa: ARG002
        """The value as the record holds it, of what `plain` made."""
        return value


class Null(Field):
    avro, python = "null", (type(None),)


class Boolean(Field):
    avro, python = "boolean", (bool,)

    def default(self) -> Any:
        return self._default or False


class Integer(Field):
    avro, python = "int", (int,)


class Long(Field):
    avro, python = "long", (int,)


class Float(Field):
    avro, python = "float", (float, int)

    def plain(self, value: Any, *, text: bool) -> Any:
        return finite_or_text(value) if text and isinstance(value, float) else value

    def lifted(self, value: Any, *, text: bool) -> Any:
        return NOT_FINITE.get(value, value) if text else value


class Double(Float):
    avro = "double"


class Bytes(Field):
    """In JSON base64."""

    avro, python = "bytes", (bytes, str)

    def checked(self, name: str, value: Any) -> Any:
        held = super().checked(name, value)
        return held.encode() if isinstance(held, str) else held

    def plain(self, value: Any, *, text: bool) -> Any:
        return base64.b64encode(value).decode() if text and value is not None else value

    def lifted(self, value: Any, *, text: bool) -> Any:
        if text and isinstance(value, str):
            with suppress(ValueError):  # else the text itself, as Pulsarlite wrote it once
                return base64.b64decode(value, validate=True)
        return value


class String(Field):
    avro, python = "string", (str, bytes)

    def checked(self, name: str, value: Any) -> Any:
        held = super().checked(name, value)
        return held.decode() if isinstance(held, bytes) else held


class CustomEnum(Field):
    """One of an `enum.Enum`, given by itself, its name or its number."""

    def __init__(self, enum_type: type[Enum], *args: Any, **kwargs: Any) -> None:
        self.enum_type = enum_type
        super().__init__(*args, **kwargs)

    def checked(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, self.enum_type):
            return value
        found = [each for each in self.enum_type if value in (each.name, each.value)]
        if not found:
            names = ", ".join(each.name for each in self.enum_type)
            raise TypeError(f"Field {name} can't be {value!r}: it takes one of {names}.")
        return found[0]

    def definition(self, seen: set[str]) -> Any:
        name = self.enum_type.__name__
        if name in seen:
            return name
        seen.add(name)
        symbols = [each.name for each in self.enum_type]
        return {"type": "enum", "name": name, "symbols": symbols}

    def plain(self, value: Any, *, text: bool) -> Any:
        if value is None:
            return None
        return value.value if text else value.name

    def lifted(self, value: Any, *, text: bool) -> Any:
        del text
        return self.checked("of the message", value)


class Array(Field):
    """A list of one kind of field, or of records."""

    python = (list,)

    def __init__(self, array_type: Any, *args: Any, **kwargs: Any) -> None:
        self.of = _field(array_type)
        super().__init__(*args, **kwargs)

    def checked(self, name: str, value: Any) -> Any:
        held = super().checked(name, value)
        return held and [self.of.checked(f"{name}[{n}]", each) for n, each in enumerate(held)]

    def definition(self, seen: set[str]) -> Any:
        return {"type": "array", "items": self.of.definition(seen)}

    def plain(self, value: Any, *, text: bool) -> Any:
        return None if value is None else [self.of.plain(each, text=text) for each in value]

    def lifted(self, value: Any, *, text: bool) -> Any:
        return None if value is None else [self.of.lifted(each, text=text) for each in value]


class Map(Field):
    """Texts to one kind of field, or to records."""

    python = (dict,)

    def __init__(self, value_type: Any, *args: Any, **kwargs: Any) -> None:
        self.of = _field(value_type)
        super().__init__(*args, **kwargs)

    def checked(self, name: str, value: Any) -> Any:
        held = super().checked(name, value)
        if held and not all(isinstance(key, str) for key in held):
            raise TypeError(f"Field {name} can't be {value!r}: its keys have to be texts.")
        return held and {key: self.of.checked(f"{name}[{key}]", each) for key, each in held.items()}

    def definition(self, seen: set[str]) -> Any:
        return {"type": "map", "values": self.of.definition(seen)}

    def plain(self, value: Any, *, text: bool) -> Any:
        if value is None:
            return None
        return {key: self.of.plain(each, text=text) for key, each in value.items()}

    def lifted(self, value: Any, *, text: bool) -> Any:
        if value is None:
            return None
        return {key: self.of.lifted(each, text=text) for key, each in value.items()}


class _Nested(Field):
    """A field that holds a record, declared by one: what it holds is the field's first value."""

    python = (object,)

    def __init__(
        self, declared: Record, default: Any, *, required: bool, required_default: bool
    ) -> None:
        self.declared = declared
        super().__init__(default, required, required_default)

    def initial(self) -> Any:
        return copy(self.declared)

    def checked(self, name: str, value: Any) -> Any:
        kind = type(self.declared)
        if isinstance(value, Mapping):
            return kind(**value)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"Field {name} can't be {value!r}: it takes a {kind.__name__}.")
        return super().checked(name, value)

    def definition(self, seen: set[str]) -> Any:
        return self.declared.schema_info(seen)

    def plain(self, value: Any, *, text: bool) -> Any:
        return None if value is None else _plain(value, text=text)

    def lifted(self, value: Any, *, text: bool) -> Any:
        return None if value is None else _lifted(type(self.declared), value, text=text)


class Record:
    """The base of a record's class. A field may be a Field, a Record or an Enum."""

    _fields: ClassVar[dict[str, Field]] = {}
    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {name: _field(value) for name, value in vars(cls).items() if _is_field(value)}
        cls._fields = {**cls._fields, **own}

    def __init__(
        self,
        default: Any = None,
        required_default: bool = False,
        required: bool = False,
        **values: Any,
    ) -> None:
        """`default` and those behind it say what the record means as a field of another."""
        object.__setattr__(self, "_as_field", (default, required, required_default))
        for name, field in self._fields.items():
            object.__setattr__(self, name, field.initial())
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            known = ", ".join(self._fields)
            raise AttributeError(f"{type(self).__name__} has no field {name}: it has {known}.")
        object.__setattr__(self, name, self._fields[name].checked(name, value))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(_values(self))

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """Avro's definition."""
        definition: dict[str, Any] = cls.schema_info(set())
        return definition

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        """Avro's definition, or the name if it is among those that were defined before."""
        full = f"{cls._avro_namespace}.{cls.__name__}" if cls._avro_namespace else cls.__name__
        if full in defined_names:
            return full
        defined_names.add(full)
        head = {"type": "record", "name": cls.__name__}
        if cls._avro_namespace:
            head["namespace"] = cls._avro_namespace
        fields = sorted(cls._fields.items()) if cls._sorted_fields else cls._fields.items()
        return head | {"fields": [_definition(name, each, defined_names) for name, each in fields]}


class Schema(ABC):
    """The conversion of values to bytes, and back."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info

    def schema_info(self) -> SchemaInfo:
        return self.info

    @abstractmethod
    def encode(self, obj: Any, /) -> bytes:
        """The bytes. TypeError if it is not of the schema's class."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value."""

    def decode_written(self, data: bytes, written_with: SchemaInfo | None) -> Any:  # noqa: ARG002
        """The value of bytes that were written with that schema, as far as it is known."""
        return self.decode(data)

    def __str__(self) -> str:
        return type(self).__name__


class BytesSchema(Schema):
    def __init__(self) -> None:
        super().__init__(SchemaInfo(SchemaType.BYTES))

    def encode(self, data: Any) -> bytes:
        return bytes(_of(data, bytes))

    def decode(self, data: bytes) -> bytes:
        return data


BYTES: Final = BytesSchema()


class StringSchema(Schema):
    def __init__(self) -> None:
        super().__init__(SchemaInfo(SchemaType.STRING))

    def encode(self, obj: Any) -> bytes:
        return str(_of(obj, str)).encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class JsonSchema(Schema):
    """Records as JSON."""

    def __init__(self, record_cls: type[Record]) -> None:
        self._record = record_cls
        super().__init__(SchemaInfo(SchemaType.JSON, json.dumps(record_cls.schema())))

    def encode(self, obj: Any) -> bytes:
        return json.dumps(_plain(_of(obj, self._record), text=True)).encode()

    def decode(self, data: bytes) -> Record:
        return _lifted(self._record, json.loads(data), text=True)


class AvroSchema(Schema):
    """Records, or dicts with a `schema_definition`, as Avro's bytes; needs pulsarlite[avro]."""

    def __init__(
        self, record_cls: type[Record] | None, schema_definition: dict[str, Any] | None = None
    ) -> None:
        if record_cls is None and schema_definition is None:
            raise AssertionError(
                "The param record_cls and schema_definition shouldn't be both None."
            )
        self._record = record_cls
        definition = schema_definition if record_cls is None else record_cls.schema()
        super().__init__(SchemaInfo(SchemaType.AVRO, json.dumps(definition)))
        self._avro = fastavro()
        self._parsed = self._avro.parse_schema(definition)
        self._read = with_bounded_indexes(self._parsed)
        self._resolved: dict[str, tuple[Any, Any]] = {}
        """The parsed definitions of writer and reader, by the writer's definition."""

    def encode(self, obj: Any) -> bytes:
        if self._record is None:
            value = _of(obj, dict)
        else:
            value = _plain(_of(obj, self._record), text=False)
        buffer = io.BytesIO()
        self._avro.schemaless_writer(buffer, self._parsed, value)
        return buffer.getvalue()

    def decode(self, data: bytes) -> Any:
        return self._decoded(data, self._read)

    def decode_written(self, data: bytes, written_with: SchemaInfo | None) -> Any:
        """The value. A writer's records may have other names, as in Pulsar's client."""
        if written_with is None or written_with == self.info:
            return self.decode(data)
        if (known := self._resolved.get(written_with.definition)) is None:
            parsed = self._avro.parse_schema(json.loads(written_with.definition))
            writer = with_bounded_indexes(parsed)
            reader = reading_records_of(self._avro, self._parsed, self.info, written_with)
            known = self._resolved[written_with.definition] = writer, reader
        return self._decoded(data, *known)

    def _decoded(self, data: bytes, writer: Any, reader: Any = None) -> Any:
        value = self._avro.schemaless_reader(io.BytesIO(data), writer, reader)
        return value if self._record is None else _lifted(self._record, value, text=False)


class ProtobufNativeSchema(Schema):
    """Messages of a class that protobuf's compiler made; needs the package protobuf."""

    def __init__(self, record_cls: Any) -> None:
        """TypeError if that is no class of protobuf messages."""
        try:
            from google.protobuf.message import Message
        except ImportError as error:
            raise MissingPackageError(
                "ProtobufNativeSchema needs the package protobuf: pip install protobuf"
            ) from error
        if not (isinstance(record_cls, type) and issubclass(record_cls, Message)):
            raise TypeError(f"record_cls must be a protobuf Message subclass, got {record_cls!r}")
        self._record: Any = record_cls
        definition = json.dumps(_protobuf_definition(record_cls))
        super().__init__(SchemaInfo(SchemaType.PROTOBUF_NATIVE, definition))

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, self._record):
            raise TypeError(
                f"Invalid record obj of type {type(obj)} - expected type is {self._record}"
            )
        return bytes(obj.SerializeToString())

    def decode(self, data: bytes) -> Any:
        return self._record.FromString(data)

    def __str__(self) -> str:
        return f"ProtobufNativeSchema({self._record.__name__})"


def _protobuf_definition(record_cls: Any) -> dict[str, str]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    descriptor = record_cls.DESCRIPTOR
    files = FileDescriptorSet()
    _add_file(files, descriptor.file, set())
    return {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": descriptor.full_name,
        "rootFileDescriptorName": descriptor.file.name,
    }


def _add_file(files: Any, file: Any, known: set[str]) -> None:
    """Add a file behind those that it needs."""
    if file.name in known:
        return
    known.add(file.name)
    for each in file.dependencies:
        _add_file(files, each, known)
    file.CopyToProto(files.file.add())


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        way = " Encode it, or make the producer with StringSchema()." if kind is bytes else ""
        raise TypeError(
            f"A value of type {type(value).__name__} was given for {kind.__name__}.{way}"
        )
    return value


def _values(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _fields_of(type(record))}


def _fields_of(kind: type[Record]) -> dict[str, Field]:
    return kind._fields


def _plain(record: Record, *, text: bool) -> dict[str, Any]:
    """The fields as JSON (`text`) or Avro has them."""
    fields = _fields_of(type(record))
    return {name: fields[name].plain(each, text=text) for name, each in _values(record).items()}


def _lifted(kind: type[Record], values: Mapping[str, Any], *, text: bool) -> Record:
    """A record of what `_plain` made; fields that it does not know are dropped."""
    known = {name: each for name, each in _fields_of(kind).items() if name in values}
    return kind(**{name: each.lifted(values[name], text=text) for name, each in known.items()})


def _is_field(value: Any) -> bool:
    classes = (Record, Enum)
    return isinstance(value, (Field, Record)) or (
        isinstance(value, type) and issubclass(value, classes)
    )


def _field(value: Any) -> Field:
    """A field of what stands in a record's class."""
    if isinstance(value, Field):
        return value
    if isinstance(value, type) and issubclass(value, Record):
        value = value()
    if isinstance(value, Record):
        default, required, required_default = vars(value)["_as_field"]
        return _Nested(value, default, required=required, required_default=required_default)
    if isinstance(value, type) and issubclass(value, Enum):
        return CustomEnum(value)
    raise TypeError(f"{value!r} is no field: give a Field, a Record or an Enum.")


def _definition(name: str, field: Field, seen: set[str]) -> dict[str, Any]:
    kind = field.definition(seen)
    held: dict[str, Any] = {"name": name}
    if field.required_default:
        held["default"] = field.plain(field.default(), text=False)
    return held | {"type": kind if field.required else ["null", kind]}
