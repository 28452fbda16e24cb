"""`pulsarlite schemas ...`: what the values of a topic are.

Invariant: no Spark. Follows pulsar-admin's `CmdSchemas`.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.admin.schemas import schema_of
from pulsar_spark.connector.tools.command_line.admin_commands import (
    AdminCommand,
    Answer,
    full,
    register_calls,
)
from pulsar_spark.connector.tools.command_line.noun import TOPIC, Noun, argument
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.schema.schema_info import SchemaInfo

SCHEMAS: Final = Noun(
    "Look at the schemas of a topic, and add one. `topics schemas` lists them for people to read."
)
add_to = SCHEMAS.add_to
_FILE: Final = argument(
    "-f", "--filename", required=True, metavar="FILE",
    help='JSON as of pulsar-admin: {"type": "AVRO", "schema": "{...}"}',
)  # fmt: skip


def _get(admin: Admin, given: Namespace) -> Answer:
    if given.all_version:
        found = list(enumerate(admin.schemas.list(given.name)))
        return [_value(*each) for each in found], [_lines(*each) for each in found]
    version, schema = admin.schemas.get(given.name, given.version)
    return _value(version, schema), _lines(version, schema)


def _upload(admin: Admin, given: Namespace) -> Answer:
    version = admin.schemas.upload(given.name, _read(given))
    return {"version": version}, f"{full(given.name)} has it as version {version}."


def _compatibility(admin: Admin, given: Namespace) -> Answer:
    fits, strategy, why = admin.schemas.compatibility(given.name, _read(given))
    answer = {"isCompatibility": fits, "schemaCompatibilityStrategy": strategy}
    return answer, f"{'It fits' if fits else 'It does not fit'}, by strategy {strategy}. {why}"


def _read(given: Namespace) -> SchemaInfo:
    try:
        return schema_of(Path(given.filename).read_bytes())
    except OSError as error:
        raise InvalidOptionError(f"--filename {given.filename}: {error.strerror}.") from None


def _value(version: int, schema: SchemaInfo) -> dict[str, Any]:
    return {"version": version, "schemaInfo": schema.to_json_value()}


def _lines(version: int, schema: SchemaInfo) -> str:
    return f"version {version}: {schema.type.value} {schema.definition}".rstrip()


register_calls(
    SCHEMAS,
    (
        AdminCommand(
            "get", "Print the newest schema, or another version. Pulsar: get, metadata.",
            (
                argument("-v", "--version", type=int, metavar="N", help="that one"),
                argument("-a", "--all-version", action="store_true", help="all of them"),
            ),
            _get,
        ),
        AdminCommand("upload", "Add a schema to a topic. Pulsar: upload.", (_FILE,), _upload),
        AdminCommand(
            "compatibility", "Say whether a schema may follow those of a topic. Pulsar: "
            "compatibility.",
            (_FILE,), _compatibility,
        ),
    ),
    TOPIC,
)  # fmt: skip
