"""Schemas, their versions, and which may follow which."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from pulsar_spark.errors import IncompatibleSchemaError, InvalidSchemaDataError
from pulsar_spark.model.schema.avro_schema import parse_avro, why_unreadable
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.schema.schema_registry import SchemaCompatibilityStrategy, SchemaRegistry


def definition(*fields: Any, name: str = "order", **more: Any) -> str:
    """A record's; a field is (name, type) or (name, type, default)."""
    listed = [
        {"name": each[0], "type": each[1]} | ({"default": each[2]} if len(each) > 2 else {})
        for each in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": listed} | more)


def avro(*fields: Any, **more: Any) -> SchemaInfo:
    return SchemaInfo(SchemaType.AVRO, definition(*fields, **more))


ID = ("id", "long")
NOTE = ("note", ["null", "string"], None)
PLACE = ("place", "string")

FITS: dict[str, tuple[list[Any], list[Any], set[str]]] = {
    # the old fields, the new ones, and the strategies that let them follow
    "optional field": ([ID], [ID, NOTE], {"BACKWARD", "FORWARD", "FULL"}),
    "field added": ([ID], [ID, PLACE], {"FORWARD"}),
    "field removed": ([ID, PLACE], [ID], {"BACKWARD"}),
    "widened": ([("id", "int")], [ID], {"BACKWARD"}),
    "narrowed": ([ID], [("id", "int")], {"FORWARD"}),
    "another type": ([ID], [("id", "boolean")], set()),
    "nullable": ([ID], [("id", ["null", "long"])], {"BACKWARD"}),
}


@pytest.mark.parametrize("transitive", ["", "_TRANSITIVE"])
@pytest.mark.parametrize("strategy", ["BACKWARD", "FORWARD", "FULL"])
@pytest.mark.parametrize("case", FITS)
@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_a_strategy_lets_pass_what_its_name_says(
    kind: SchemaType, case: str, strategy: str, transitive: str
) -> None:
    old, new, fitting = FITS[case]
    registry, _ = SchemaRegistry().put_if_absent(SchemaInfo(kind, definition(*old)))
    chosen = SchemaCompatibilityStrategy(strategy + transitive)
    added = SchemaInfo(kind, definition(*new))
    if strategy in fitting:
        assert registry.put_if_absent(added, chosen)[1] == 1
    else:
        with pytest.raises(IncompatibleSchemaError, match=f"version 0.*{strategy}"):
            registry.put_if_absent(added, chosen)


def test_a_transitive_strategy_looks_at_all_versions() -> None:
    # 0 has no place, 1 a place with a default, 2 a place without: 2 reads 1, but not 0.
    registry = SchemaRegistry(
        (
            avro(ID),
            avro(ID, (*PLACE, "")),
        )
    )
    added = avro(ID, PLACE)
    assert registry.put_if_absent(added, SchemaCompatibilityStrategy.BACKWARD)[1] == 2
    with pytest.raises(IncompatibleSchemaError, match=r"version 0.*field place has no default"):
        registry.put_if_absent(added, SchemaCompatibilityStrategy.BACKWARD_TRANSITIVE)


def test_always_and_never() -> None:
    registry = SchemaRegistry((avro(ID),))
    other = SchemaInfo(SchemaType.STRING)
    always = SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE
    assert registry.put_if_absent(other, always)[1] == 1
    never = SchemaCompatibilityStrategy.ALWAYS_INCOMPATIBLE
    with pytest.raises(IncompatibleSchemaError, match="no other schema may follow"):
        registry.put_if_absent(avro(ID, NOTE), never)
    assert registry.put_if_absent(avro(ID), never) == (registry, 0)


def test_another_type_never_fits() -> None:
    registry = SchemaRegistry((SchemaInfo(SchemaType.INT32),))
    with pytest.raises(IncompatibleSchemaError, match="type INT32, new schema type INT64"):
        registry.put_if_absent(SchemaInfo(SchemaType.INT64))


def test_an_equal_schema_keeps_its_version_however_it_is_written() -> None:
    registry, first = SchemaRegistry().put_if_absent(avro(ID))
    registry, second = registry.put_if_absent(avro(ID, NOTE))
    assert (first, second) == (0, 1)
    again = json.dumps(json.loads(definition(ID)) | {"doc": "An order"}, indent=2)
    assert registry.put_if_absent(SchemaInfo(SchemaType.AVRO, again)) == (registry, 0)
    assert registry.put_if_absent(avro(ID), allow_auto_update=False) == (registry, 0)
    with pytest.raises(IncompatibleSchemaError, match="auto update is disabled"):
        registry.put_if_absent(avro(ID, NOTE, PLACE), allow_auto_update=False)


def test_a_registry_is_read_as_it_was_written() -> None:
    registry = SchemaRegistry((avro(ID), SchemaInfo(SchemaType.INT8)))
    assert SchemaRegistry.from_json_value(registry.to_json_value()) == registry
    assert pickle.loads(pickle.dumps(registry)) == registry
    assert registry.get(0) == avro(ID)
    assert registry.get(2) is None
    assert registry.get(-1) is None
    with pytest.raises(ValueError, match="unknown"):
        SchemaInfo.from_json_value({"type": "AVRO", "schema": definition(ID), "x": 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ('"nothing"', "no type 'nothing'"),
        ('{"type":"record","fields":[]}', "no name"),
        ('{"type":"record","name":"a b","fields":[]}', "no name"),
        ('{"type":"record","name":"a"}', "no list of fields"),
        (definition(("a", "string"), ("a", "int")), "twice"),
        (definition(("a", "strng")), "schema.a: there is no type 'strng'"),
        (definition(("a", ["int", "int"])), "can't be of int, int"),
        (definition(("a", [])), "of nothing"),
        (definition(("a", {"type": "array"})), "no items"),
        (definition(("a", {"type": "enum", "name": "e", "symbols": []})), "symbols"),
        (definition(("a", {"type": "fixed", "name": "f"})), "needs a size"),
        (definition(("a", {"type": "bytes", "logicalType": "decimal"})), "precision"),
        ('"long"', "of a record"),
    ],
)
def test_a_definition_that_is_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSchemaDataError, match=why):
        SchemaInfo(SchemaType.AVRO, text)


def test_a_type_without_definition_takes_none() -> None:
    with pytest.raises(InvalidSchemaDataError, match="STRING has no definition"):
        SchemaInfo(SchemaType.STRING, definition(ID))


TREE = json.dumps(
    {"type": "record", "name": "t.node", "fields": [
        {"name": "next", "type": ["null", "node"]}, {"name": "n", "type": "int"}]}
)  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        (TREE, TREE, None),
        (TREE.replace('"int"', '"long"'), TREE, None),
        (TREE, TREE.replace('"int"', '"long"'), "field n is long, not int"),
        ('["null","string"]', '["string","null"]', None),
        ('"string"', '["string","null"]', "null, not string"),
        ('"bytes"', '"string"', None),
        ('{"type":"array","items":"long"}', '{"type":"array","items":"int"}', None),
        ('{"type":"map","values":"int"}', '{"type":"map","values":"string"}', "string, not int"),
        ('{"type":"fixed","name":"f","size":4}', '{"type":"fixed","name":"f","size":5}', "5 bytes"),
        ('{"type":"fixed","name":"f","size":4}', '{"type":"fixed","name":"g","size":4}', "called"),
        (
            '{"type":"fixed","name":"f","size":4,"aliases":["g"]}',
            '{"type":"fixed","name":"g","size":4}',
            None,
        ),
        (
            '{"type":"enum","name":"e","symbols":["A"]}',
            '{"type":"enum","name":"e","symbols":["A","B"]}',
            "may be B",
        ),
        (
            '{"type":"enum","name":"e","symbols":["A"],"default":"A"}',
            '{"type":"enum","name":"e","symbols":["A","B"]}',
            None,
        ),
        (
            '{"type":"bytes","logicalType":"decimal","precision":5,"scale":1}',
            '{"type":"bytes","logicalType":"decimal","precision":5,"scale":2}',
            "scale 2",
        ),
    ],
)
def test_what_can_be_read_is_as_avro_says(reader: str, writer: str, why: str | None) -> None:
    found = why_unreadable(parse_avro(reader), parse_avro(writer))
    assert found is None if why is None else why in str(found)


def test_records_of_other_names_are_compared_by_their_fields() -> None:
    other = TREE.replace('"t.node"', '"other"').replace('"node"', '"other"')
    for reader, writer in ((TREE, other), (f'["null",{TREE}]', other), (TREE, f"[{other}]")):
        assert why_unreadable(parse_avro(reader), parse_avro(writer)) is None
    changed = other.replace('"int"', '"string"')
    why = why_unreadable(parse_avro(TREE), parse_avro(changed))
    assert why == "field n is string, not int"


def test_a_renamed_field_is_found_by_its_alias() -> None:
    renamed = json.loads(definition(("number", "long")))
    renamed["fields"][0]["aliases"] = ["id"]
    assert why_unreadable(parse_avro(json.dumps(renamed)), parse_avro(definition(ID))) is None
