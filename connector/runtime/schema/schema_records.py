"""Records as JSON and as Avro's binary form, and back: one function for a definition.

Invariants: a written value is read back equal; a value that does not fit is a ValueError that names
the place; a message is read by the definition it was written with, and resolved into the reader's,
by Avro's rules. In JSON a null field is left out, bytes are base64, dates and times are Avro's
numbers, decimals are text. Follows Pulsar's `JSONSchema` and `AvroSchema`.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, localcontext
from functools import partial
from typing import Any, Final

from pulsar_spark.errors import InvalidSchemaDataError, MissingPackageError
from pulsar_spark.model.schema.avro_schema import (
    PROMOTIONS,
    AvroType,
    records_of,
    why_unreadable,
    written_field,
)
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

_Convert = Callable[[Any], Any]

_BOUNDS: Final = {"int": 1 << 31, "long": 1 << 63}
NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation, Overflow])
"""Numbers of more digits, which would be lost, are ArithmeticErrors."""
_FLOAT_MAX: Final = 3.4028235677973366e38


def record_encoder(schema: SchemaInfo) -> Callable[[Any], bytes]:
    """A function from a dict (times and dates as Avro's numbers of micros and days) to a value."""
    convert = _writer(schema.avro(), "value", as_json=schema.type is SchemaType.JSON)
    if schema.type is SchemaType.JSON:
        return lambda record: json.dumps(
            convert(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    avro = fastavro()
    parsed = _parsed_definition(avro, schema)

    def encode(record: Any) -> bytes:
        out = io.BytesIO()
        avro.schemaless_writer(out, parsed, convert(record))
        return out.getvalue()

    return encode


def record_decoder(reader: SchemaInfo, writer: SchemaInfo) -> Callable[[bytes], Any]:
    """A function from a value that was written with `writer` to a dict of `reader`'s fields.

    Its errors say what does not fit; they may be any exceptions, as the bytes may be any.
    """
    if reader.type is SchemaType.JSON:
        resolve = _json_reader(reader.avro(), writer.avro(), "value")
        real = Decimal if '"decimal"' in reader.definition else float
        return lambda value: resolve(_parsed(value, real))
    return _avro_decoder(reader, writer)


def fastavro() -> Any:
    """The library `fastavro`. MissingPackageError if it is not installed."""
    try:
        import fastavro as library
    except ImportError as error:
        raise MissingPackageError(
            "A schema of type AVRO needs the package fastavro: pip install 'pulsarlite[avro]', on "
            "the driver and on the executors."
        ) from error
    return library


def reading_records_of(avro: Any, parsed: Any, reader: SchemaInfo, writer: SchemaInfo) -> Any:
    """The reader's definition, as `avro` parsed it, for values of a writer with other names.

    fastavro compares the names of records, which Pulsar's broker does not: each record of the
    reader gets as aliases the names of the writer's records that it can read.
    """
    known, written = records_of(reader.avro()), records_of(writer.avro())
    short = {name.rpartition(".")[2] for name in known}
    others = {
        name: each for name, each in written.items() if name.rpartition(".")[2] not in short
    } | {writer.avro().name: writer.avro()}
    aliases = {
        name: [each for each, wrote in others.items() if why_unreadable(record, wrote) is None]
        for name, record in known.items()
    }
    named = _with_aliases(parsed, aliases)
    return avro.parse_schema({key: each for key, each in named.items() if key[:2] != "__"})


def _with_aliases(value: Any, aliases: Mapping[str, list[str]]) -> Any:
    if isinstance(value, list):
        return [_with_aliases(each, aliases) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: _with_aliases(each, aliases) for key, each in value.items() if key != "default"}
    if "default" in value:
        made["default"] = value["default"]
    more = aliases.get(str(value.get("name"))) if value.get("type") in ("record", "error") else None
    if more:
        made["aliases"] = [*value.get("aliases", ()), *more]
    return made


def _parsed_definition(avro: Any, schema: SchemaInfo) -> Any:
    try:
        return avro.parse_schema(_without_logical_types(json.loads(schema.definition)))
    except avro.schema.SchemaParseException as error:
        raise InvalidSchemaDataError(f"The schema's definition is refused: {error}.") from error


def _without_logical_types(value: Any) -> Any:
    """The definition of the stored values: times and decimals are converted by this module."""
    if isinstance(value, list):
        return [_without_logical_types(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if name != "logicalType"}
    for name in kept.keys() & {"type", "items", "values", "fields"}:
        kept[name] = _without_logical_types(kept[name])
    return kept


class _Branches(list[Any]):
    """The branches of a union, none at an index below 0: fastavro would add the length to it."""

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise ValueError(f"a union has no branch {index}")
        return super().__getitem__(index)

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True


def with_bounded_indexes(parsed: Any) -> Any:
    """A parsed definition to read by: no enum has a symbol, and no union a branch, at index -1."""
    if isinstance(parsed, list):
        return _Branches(map(with_bounded_indexes, parsed))
    if not isinstance(parsed, dict):
        return parsed
    bounded = dict(parsed)
    for name in parsed.keys() & {"type", "items", "values"}:
        bounded[name] = with_bounded_indexes(parsed[name])
    if "fields" in parsed:
        bounded["fields"] = [*map(with_bounded_indexes, parsed["fields"])]
    if "__named_schemas" in parsed:
        held = parsed["__named_schemas"].items()
        bounded["__named_schemas"] = {name: with_bounded_indexes(each) for name, each in held}
    if parsed.get("type") == "enum":
        bounded["symbols"] = dict(enumerate(parsed["symbols"]))
    return bounded


def _default(avro: AvroType, value: Any, as_json: bool) -> Any:
    """A field's default as it is written; Avro's definitions give bytes as text of Latin-1."""
    if avro.kind == "union":
        return None if value is None else _default(avro.branches[0], value, as_json)
    if avro.kind == "record" and isinstance(value, dict):
        return {
            each.name: _default(each.type, value.get(each.name, each.default), as_json)
            for each in avro.fields
        }
    if avro.kind == "array" and isinstance(value, list):
        return [_default(avro.inner, each, as_json) for each in value]
    if avro.kind == "map" and isinstance(value, dict):
        return {name: _default(avro.inner, each, as_json) for name, each in value.items()}
    if avro.kind in ("bytes", "fixed") and isinstance(value, str):
        data = value.encode("latin-1")
        if as_json and avro.logical == "decimal":
            number = _scaled(data, precision=avro.precision, scale=avro.scale, where="default")
            return str(number)
        return base64.b64encode(data).decode() if as_json else data
    return value


def _but_null(union: AvroType) -> AvroType:
    """The other branch: Spark has a type for no other unions."""
    (one,) = (branch for branch in union.branches if branch.kind != "null")
    return one


# -- writing ---------------------------------------------------------------------------------------


def _writer(avro: AvroType, where: str, *, as_json: bool) -> _Convert:
    """A function from a value of an Arrow column to what json, or fastavro, writes."""
    if avro.kind == "union":
        inner = _writer(_but_null(avro), where, as_json=as_json)
        return lambda value: None if value is None else inner(value)
    convert = _complex_writer(avro, where, as_json) or _scalar_writer(avro, where, as_json)

    def write(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{where} is null, which its definition does not allow")
        return convert(value) if convert else value

    return write


def _complex_writer(avro: AvroType, where: str, as_json: bool) -> _Convert | None:
    if avro.kind == "array":
        item = _writer(avro.inner, f"{where}[]", as_json=as_json)
        return lambda value: [item(each) for each in value]
    if avro.kind == "map":
        item = _writer(avro.inner, f"{where}[]", as_json=as_json)
        return lambda value: {name: item(each) for name, each in value.items()}
    if avro.kind != "record":
        return None
    fields = [
        (each, _writer(each.type, f"{where}.{each.name}", as_json=as_json)) for each in avro.fields
    ]

    def record(value: Any) -> dict[str, Any]:
        written = {}
        for field, convert in fields:
            if field.name in value:
                one = convert(value[field.name])
                if one is not None or not as_json:
                    written[field.name] = one
            elif not field.has_default:
                raise ValueError(f"{where}.{field.name} has no default, and no column gives it")
            elif not as_json or field.default is not None:
                written[field.name] = _default(field.type, field.default, as_json)
        return written

    return record


def _scalar_writer(avro: AvroType, where: str, as_json: bool) -> _Convert | None:
    if avro.logical == "decimal":
        scale, size = avro.scale, avro.size if avro.kind == "fixed" else 0
        return str if as_json else partial(_unscaled, scale=scale, size=size)
    if avro.logical in ("timestamp-millis", "local-timestamp-millis"):
        return lambda micros: micros // 1000
    if avro.kind == "enum":
        return partial(_one_of, symbols=avro.symbols, where=where)
    if avro.kind == "fixed":
        return partial(_fixed, size=avro.size, where=where, as_json=as_json)
    if as_json and avro.kind == "bytes":
        return lambda value: base64.b64encode(value).decode()
    if as_json and avro.kind in ("float", "double"):
        return finite_or_text
    return None


def _unscaled(value: Decimal, *, scale: int, size: int) -> bytes:
    with localcontext(_EXACT):
        number = int(value.scaleb(scale))
    length = size or (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(length, "big", signed=True)


def _one_of(value: str, *, symbols: tuple[str, ...], where: str) -> str:
    if value not in symbols:
        raise ValueError(f"{where} is {value!r}, which is none of {', '.join(symbols)}")
    return value


def _fixed(value: bytes, *, size: int, where: str, as_json: bool) -> Any:
    if len(value) != size:
        raise ValueError(f"{where} has {len(value)} bytes, and the definition {size}")
    return base64.b64encode(value).decode() if as_json else value


def finite_or_text(value: float) -> Any:
    """As JSON has it, which has no such numbers; NOT_FINITE is the way back."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# -- reading Avro ----------------------------------------------------------------------------------


def _avro_decoder(reader: SchemaInfo, writer: SchemaInfo) -> Callable[[bytes], Any]:
    avro = fastavro()
    written = with_bounded_indexes(_parsed_definition(avro, writer))
    requested = None
    if reader != writer:
        requested = reading_records_of(avro, _parsed_definition(avro, reader), reader, writer)
    lift = _lifter(reader.avro(), "value")

    def decode(value: bytes) -> Any:
        data = io.BytesIO(value)
        try:
            record = avro.schemaless_reader(data, written, requested)
        except avro.read.SchemaResolutionError as error:
            raise ValueError(f"it can't be resolved into the newest schema: {error}") from error
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"its bytes are no such record: {error!r}") from error
        if data.tell() < len(value):
            raise ValueError(f"{len(value) - data.tell()} bytes are left behind the record")
        return lift(record) if lift else record

    return decode


def _lifter(avro: AvroType, where: str) -> _Convert | None:
    """A function from fastavro's value to Arrow's; None if they are the same."""
    if avro.kind == "union":
        inner = _lifter(_but_null(avro), where)
        return inner and (lambda value: None if value is None else inner(value))
    if avro.kind == "record":
        lifted = [(each.name, _lifter(each.type, f"{where}.{each.name}")) for each in avro.fields]
        some = [(name, lift) for name, lift in lifted if lift]

        def record(value: Any) -> Any:
            found = dict(value)  # a copy, as fastavro hands out one default again and again
            for name, lift in some:
                found[name] = lift(value[name])
            return found

        return record if some else None
    if avro.kind == "array":
        item = _lifter(avro.inner, f"{where}[]")
        return item and (lambda value: [item(each) for each in value])
    if avro.kind == "map":
        entry = _lifter(avro.inner, f"{where}[]") or (lambda value: value)
        return lambda value: [(key, entry(one)) for key, one in value.items()]
    return _scalar_lifter(avro, where)


def _scalar_lifter(avro: AvroType, where: str) -> _Convert | None:
    if avro.logical == "decimal":
        scaled = partial(_scaled, precision=avro.precision, scale=avro.scale, where=where)
        return lambda value: scaled(_data(value))
    if avro.kind in ("bytes", "fixed"):
        return _data
    if avro.logical in ("timestamp-millis", "local-timestamp-millis"):
        return partial(_micros, where=where)
    return None


def _data(value: bytes | str) -> bytes:
    """Bytes; a default comes from fastavro as the text in its definition."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _scaled(value: bytes, *, precision: int, scale: int, where: str) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    if abs(number) >= 10**precision:
        raise ValueError(f"{where} has more than {precision} digits")
    with localcontext(_EXACT):
        return Decimal(number).scaleb(-scale)


def _micros(millis: int, *, where: str) -> int:
    if not -(1 << 63) <= millis * 1000 < 1 << 63:
        raise ValueError(f"{where} is beyond all times: {millis} ms")
    return millis * 1000


# -- reading JSON ----------------------------------------------------------------------------------


def _parsed(value: bytes, real: Callable[[str], Any]) -> Any:
    """Parse JSON; `real` makes numbers with a fraction, so that a decimal loses no digit."""
    try:
        return json.loads(value.decode(), parse_float=real, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON's")


def _json_reader(reader: AvroType, writer: AvroType, where: str) -> _Convert:
    """A function from parsed JSON that `writer` wrote to Arrow's value for `reader`."""
    if writer.kind == "union":
        return _union_reader(reader, writer, where)
    if reader.kind == "union":
        return _json_reader(_but_null(reader), writer, where)
    if reader.kind != writer.kind and writer.kind not in PROMOTIONS.get(reader.kind, ()):
        return partial(_never, why=f"{where} is {writer.kind} by its own schema, not {reader.kind}")
    if reader.kind == "record":
        return _record_reader(reader, writer, where)
    if reader.kind == "array":
        item = _json_reader(reader.inner, writer.inner, f"{where}[]")
        return lambda node: [item(each) for each in _expect(node, list, where)]
    if reader.kind == "map":
        item = _json_reader(reader.inner, writer.inner, f"{where}[]")
        return lambda node: [(key, item(each)) for key, each in _expect(node, dict, where).items()]
    return _scalar_reader(reader, writer, where)


def _never(_: Any, *, why: str) -> Any:
    raise ValueError(why)


def _union_reader(reader: AvroType, writer: AvroType, where: str) -> _Convert:
    inner = _json_reader(reader, _but_null(writer), where)

    def read(node: Any) -> Any:
        if node is not None:
            return inner(node)
        if not reader.nullable:
            raise ValueError(f"{where} is null, which the newest schema does not allow")
        return None

    return read if writer.nullable else inner


def _record_reader(reader: AvroType, writer: AvroType, where: str) -> _Convert:
    plan: list[tuple[str, str | None, _Convert]] = []
    for each in reader.fields:
        place = f"{where}.{each.name}"
        written = written_field(each, writer)
        if written is not None:
            plan.append((each.name, written.name, _json_reader(each.type, written.type, place)))
        elif each.has_default:
            plan.append((each.name, None, _json_reader(each.type, each.type, place)))
        else:
            plan.append((each.name, None, partial(_never, why=f"{place} has no default")))
    defaults = {
        each.name: _default(each.type, each.default, as_json=True) for each in reader.fields
    }

    def read(node: Any) -> dict[str, Any]:
        fields = _expect(node, dict, where)
        return {
            name: convert(defaults[name] if source is None else fields.get(source))
            for name, source, convert in plan
        }

    return read


def _scalar_reader(reader: AvroType, writer: AvroType, where: str) -> _Convert:
    if reader.logical == "decimal":
        return partial(_decimal, precision=reader.precision, scale=reader.scale, where=where)
    if writer.kind in _BOUNDS:
        return _whole_reader(reader, writer, where)
    if writer.kind in ("float", "double"):
        return partial(_real, single=writer.kind == "float", where=where)
    if writer.kind == "boolean":
        return lambda node: _expect(node, bool, where)
    if writer.kind == "enum":
        return partial(_symbol, reader=reader, writer=writer, where=where)
    if writer.kind == "string":
        text = partial(_expect, kind=str, where=where)
        return (lambda node: text(node).encode()) if reader.kind == "bytes" else text
    data = partial(_bytes, size=writer.size if writer.kind == "fixed" else None, where=where)
    return (lambda node: data(node).decode()) if reader.kind == "string" else data


def _whole_reader(reader: AvroType, writer: AvroType, where: str) -> _Convert:
    read = partial(_whole, bound=_BOUNDS[writer.kind], where=where)
    if reader.logical in ("timestamp-millis", "local-timestamp-millis"):
        return lambda node: _micros(read(node), where=where)
    return read if reader.kind in _BOUNDS else lambda node: float(read(node))


def _expect(node: Any, kind: type, where: str) -> Any:
    if not isinstance(node, kind):
        names = {list: "a list", dict: "an object", bool: "true or false", str: "a text"}
        there = "not there, or null" if node is None else f"{str(node)[:50]!r}"
        raise ValueError(f"{where} is {there}, and has to be {names[kind]}")  # noqa: TRY004
    return node


def _whole(node: Any, *, bound: int, where: str) -> int:
    if type(node) is not int or not -bound <= node < bound:
        raise ValueError(f"{where} is {str(node)[:50]!r}, and no whole number below {bound}")
    return node


def _real(node: Any, *, single: bool, where: str) -> float:
    if isinstance(node, str) and node in NOT_FINITE:
        return NOT_FINITE[node]
    try:
        number = float(node) if type(node) in (int, float, Decimal) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (single and abs(number) > _FLOAT_MAX):
        raise ValueError(f"{where} is {str(node)[:50]!r}, and no such number")
    return number


def _decimal(node: Any, *, precision: int, scale: int, where: str) -> Decimal:
    with localcontext(_EXACT):
        try:
            number = Decimal(node) if type(node) in (int, Decimal, str) else Decimal("NaN")
            scaled = number.scaleb(scale)
            if abs(scaled) < 10**precision and scaled == scaled.to_integral_value():
                return number.quantize(Decimal(1).scaleb(-scale))
        except ArithmeticError:
            pass
    requested = f"decimal({precision},{scale})"
    raise ValueError(f"{where} is {str(node)[:50]!r}, and no {requested}")


def _symbol(node: Any, *, reader: AvroType, writer: AvroType, where: str) -> str:
    if node not in writer.symbols:
        raise ValueError(f"{where} is {str(node)[:50]!r}, and none of {', '.join(writer.symbols)}")
    if node in reader.symbols:
        return str(node)
    if reader.enum_default is None:
        raise ValueError(f"{where} is {node}, which the newest schema does not have")
    return reader.enum_default


def _bytes(node: Any, *, size: int | None, where: str) -> bytes:
    try:
        data = base64.b64decode(_expect(node, str, where), validate=True)
    except ValueError as error:
        raise ValueError(f"{where} is no base64: {error}") from None
    if size is not None and len(data) != size:
        raise ValueError(f"{where} has {len(data)} bytes, and has to have {size}")
    return data
