"""An Avro definition: read, checked, and whether what one wrote another can read.

Invariants: a definition that Avro would refuse is refused here, naming the place; a named type is
one object wherever it is referred to, so that types may contain themselves; records are compared
by their fields, whatever they are called, as Pulsar's broker does it. Follows Avro's specification
1.11 (schema resolution) and its `ValidateCanRead`, which compares the names of enums and fixed
types only; no library, as JSON schemas need it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_spark.errors import InvalidSchemaDataError
from pulsar_spark.model.records.stored_data import parse_json

PRIMITIVES: Final = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
)  # fmt: skip
PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Reader's type -> what writers' types it can read beside its own."""
DEEPEST_DEFINITION: Final = 100
"""A definition has no more types within types: whoever walks it calls itself for each."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(slots=True, eq=False)
class AvroType:
    """A type; which of the fields mean something follows from `kind`."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    enum_default: str | None = None
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()

    @property
    def nullable(self) -> bool:
        """True if null is among its values."""
        return self.kind == "null" or any(branch.kind == "null" for branch in self.branches)

    @property
    def inner(self) -> AvroType:
        """The type of an array's items, or of a map's values."""
        assert self.items is not None
        return self.items


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record; `default` is JSON, and means nothing without `has_default`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


def parse_avro(definition: str) -> AvroType:
    """The type that the text defines. InvalidSchemaDataError says what is wrong, and where."""
    try:
        value = parse_json(definition)
    except ValueError as error:
        raise InvalidSchemaDataError(f"The schema's definition is no JSON: {error}.") from None
    return _Parser().read(value, "", "schema")


def normal_form(avro: AvroType) -> Any:
    """JSON that is equal for definitions that mean the same: without docs, aliases and order."""
    return _normal(avro, set())


def why_unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """Why `reader` can't read all that `writer` wrote; None if it can."""
    return _problem(reader, writer, "", set())


@dataclass(slots=True)
class _Parser:
    named: dict[str, AvroType] = field(default_factory=dict)
    depth: int = 0

    def read(self, value: Any, namespace: str, where: str) -> AvroType:
        if self.depth == DEEPEST_DEFINITION:
            raise _bad(where, f"it has more than {DEEPEST_DEFINITION} types within types")
        self.depth += 1
        made = self._read(value, namespace, where)
        self.depth -= 1
        return made

    def _read(self, value: Any, namespace: str, where: str) -> AvroType:
        if isinstance(value, str):
            return self._reference(value, namespace, where)
        if isinstance(value, list):
            return self._union(value, namespace, where)
        if not isinstance(value, Mapping) or "type" not in value:
            raise _bad(where, f"{value!r} is no type")
        kind = value["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(value, namespace, where)
        if kind in ("array", "map"):
            member = "items" if kind == "array" else "values"
            if member not in value:
                raise _bad(where, f"the {kind} has no {member}")
            return AvroType(kind, items=self.read(value[member], namespace, f"{where}.{member}"))
        if not isinstance(kind, str):
            return self.read(kind, namespace, where)
        read = self._reference(kind, namespace, where)
        return _logical(read, value, where) if kind in PRIMITIVES else read

    def _reference(self, name: str, namespace: str, where: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        known = self.named.get(_full(name, namespace)) or self.named.get(name)
        if known is None:
            raise _bad(where, f"there is no type {name!r}")
        return known

    def _union(self, value: list[Any], namespace: str, where: str) -> AvroType:
        branches = tuple(
            self.read(branch, namespace, f"{where}[{place}]") for place, branch in enumerate(value)
        )
        kinds = [branch.name or branch.kind for branch in branches]
        if not branches or "union" in kinds or len(set(kinds)) < len(kinds):
            raise _bad(where, f"a union can't be of {', '.join(kinds) or 'nothing'}")
        return AvroType("union", branches=branches)

    def _named(self, value: Mapping[str, Any], outer: str, where: str) -> AvroType:
        name = value.get("name")
        given = value.get("namespace", outer)
        if not isinstance(name, str) or not isinstance(given, str):
            raise _bad(where, f"the {value['type']} has no name")
        full = _full(name, given)
        namespace = full.rpartition(".")[0]
        if not all(_NAME.fullmatch(part) for part in full.split(".")):
            raise _bad(where, f"{full!r} is no name")
        if full in self.named or full in PRIMITIVES:
            raise _bad(where, f"{full} is defined twice")
        aliases = tuple(_full(alias, namespace) for alias in _texts(value, "aliases", where))
        kind = "record" if value["type"] == "error" else value["type"]
        made = self.named[full] = AvroType(kind, full, aliases)
        if kind == "record":
            made.fields = self._fields(value, namespace, where)
        elif kind == "enum":
            made.symbols = _texts(value, "symbols", where)
            made.enum_default = value.get("default")
            fits = made.enum_default is None or made.enum_default in made.symbols
            if not made.symbols or len(set(made.symbols)) < len(made.symbols) or not fits:
                raise _bad(where, f"{full} needs distinct symbols, its default among them")
        else:
            made.size = value.get("size", -1)
            if type(made.size) is not int or made.size < 0:
                raise _bad(where, f"{full} needs a size")
            _logical(made, value, where)
        return made

    def _fields(
        self, value: Mapping[str, Any], namespace: str, where: str
    ) -> tuple[AvroField, ...]:
        given = value.get("fields")
        if not isinstance(given, list):
            raise _bad(where, "the record has no list of fields")
        fields: dict[str, AvroField] = {}
        for each in given:
            name = each.get("name") if isinstance(each, Mapping) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name) or "type" not in each:
                raise _bad(where, f"{each!r} is no field")
            if name in fields:
                raise _bad(where, f"field {name} is there twice")
            place = f"{where}.{name}"
            kind = self.read(each["type"], namespace, place)
            aliases = _texts(each, "aliases", place)
            fields[name] = AvroField(name, kind, aliases, "default" in each, each.get("default"))
        return tuple(fields.values())


def _logical(read: AvroType, value: Mapping[str, Any], where: str) -> AvroType:
    """With its logical type; as Avro has it, one that does not fit is overlooked."""
    logical = value.get("logicalType")
    fitting = {
        "int": ("date", "time-millis"),
        "long": ("timestamp-millis", "timestamp-micros", "local-timestamp-millis",
                 "local-timestamp-micros", "time-micros"),
        "bytes": ("decimal",),
        "fixed": ("decimal",),
        "string": ("uuid",),
    }  # fmt: skip
    if logical not in fitting.get(read.kind, ()):
        return read
    read.logical = logical
    if logical == "decimal":
        read.precision, read.scale = value.get("precision", 0), value.get("scale", 0)
        whole = type(read.precision) is int and type(read.scale) is int
        if not whole or not 0 <= read.scale <= read.precision or read.precision < 1:
            raise _bad(where, "a decimal needs a precision, and a scale up to it")
    return read


def _texts(value: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    texts = value.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _bad(where, f"{name} is no list of names")
    return tuple(texts)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _bad(where: str, why: str) -> InvalidSchemaDataError:
    return InvalidSchemaDataError(f"The schema's definition is no Avro schema: {where}: {why}.")


def _normal(avro: AvroType, seen: set[str]) -> Any:
    logical = [avro.logical, avro.precision, avro.scale] if avro.logical else []
    if avro.name and avro.name in seen:
        return avro.name
    seen.add(avro.name)
    if avro.kind == "record":
        fields = [
            [each.name, _normal(each.type, seen), *([each.default] if each.has_default else [])]
            for each in avro.fields
        ]
        return ["record", avro.name, fields]
    if avro.kind == "enum":
        return ["enum", avro.name, list(avro.symbols), avro.enum_default]
    if avro.kind == "fixed":
        return ["fixed", avro.name, avro.size, *logical]
    if avro.kind in ("array", "map"):
        return [avro.kind, _normal(avro.inner, seen)]
    if avro.kind == "union":
        return ["union", *(_normal(branch, seen) for branch in avro.branches)]
    return [avro.kind, *logical] if logical else avro.kind


def _problem(
    reader: AvroType, writer: AvroType, where: str, pairs: set[tuple[int, int]]
) -> str | None:
    """`pairs` of records being looked at count as fitting: types may contain themselves."""
    if writer.kind == "union":
        whys = (_problem(reader, branch, where, pairs) for branch in writer.branches)
        return next(filter(None, whys), None)
    if reader.kind == "union":
        whys = (_problem(branch, writer, where, pairs) for branch in reader.branches)
        return _differ(where, reader, writer) if all(whys) else None
    if reader.kind != writer.kind:
        promoted = writer.kind in PROMOTIONS.get(reader.kind, ())
        return None if promoted else _differ(where, reader, writer)
    if reader.kind in ("array", "map"):
        return _problem(reader.inner, writer.inner, f"{where}[]", pairs)
    pair = id(reader), id(writer)
    if pair in pairs:
        return None
    if why := _differ_alone(reader, writer):
        return f"{where or 'the value'} {why}"
    pairs.add(pair)
    for each in reader.fields:
        place = f"{where}.{each.name}" if where else f"field {each.name}"
        if why := _field_problem(each, writer, place, pairs):
            pairs.discard(pair)
            return why
    return None


def _field_problem(
    requested: AvroField, writer: AvroType, where: str, pairs: set[tuple[int, int]]
) -> str | None:
    written = written_field(requested, writer)
    if written is not None:
        return _problem(requested.type, written.type, where, pairs)
    return None if requested.has_default else f"{where} has no default, and is not always there"


def records_of(avro: AvroType) -> dict[str, AvroType]:
    """The records that a type contains, by full name, itself included."""
    found: dict[str, AvroType] = {}
    waiting = [avro]
    while waiting:
        each = waiting.pop()
        waiting += each.branches
        if each.items is not None:
            waiting.append(each.items)
        if each.kind == "record" and each.name not in found:
            found[each.name] = each
            waiting += (field.type for field in each.fields)
    return found


def written_field(requested: AvroField, writer: AvroType) -> AvroField | None:
    """The field of the writer's record that a reader's field takes, by name or alias."""
    by_name = {each.name: each for each in writer.fields}
    names = (requested.name, *requested.aliases)
    return next((by_name[name] for name in names if name in by_name), None)


def _differ_alone(reader: AvroType, writer: AvroType) -> str | None:
    """Why types of one kind differ, apart from what they contain."""
    if reader.logical == "decimal" == writer.logical and reader.scale != writer.scale:
        return f"has scale {writer.scale}, not {reader.scale}"
    last_names = {each.name.rpartition(".")[2] for each in (reader, writer)}
    is_other = len(last_names) > 1 and writer.name not in reader.aliases
    if is_other and reader.kind != "record":
        return f"is called {writer.name}, not {reader.name}"
    if reader.kind == "fixed" and reader.size != writer.size:
        return f"has {writer.size} bytes, not {reader.size}"
    if reader.kind == "enum" and reader.enum_default is None:
        missing = [each for each in writer.symbols if each not in reader.symbols]
        return f"may be {missing[0]}" if missing else None
    return None


def _differ(where: str, reader: AvroType, writer: AvroType) -> str:
    return f"{where or 'the value'} is {_text(writer)}, not {_text(reader)}"


def _text(avro: AvroType) -> str:
    if avro.kind == "union":
        return " or ".join(_text(branch) for branch in avro.branches)
    return avro.name or avro.kind
