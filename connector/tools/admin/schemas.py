"""The schemas of a topic, looked at and added.

Invariants: a version is never changed nor taken away, as messages name it; a schema is added only
if the topic's strategy lets it follow. Follows Pulsar's `Schemas`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.runtime.topics.policies import schema_policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import (
    IncompatibleSchemaError,
    InvalidSchemaDataError,
    MessageNotFoundError,
)
from pulsar_spark.model.schema.schema_info import SCHEMA_TYPES, SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import TopicName, check_user_topic


class Schemas:
    """The schemas of one root's topics."""

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self._root = root

    def list(self, topic: str) -> Sequence[SchemaInfo]:
        """All versions, from 0 on."""
        return self._root.open(TopicName.parse(topic)).state.schemas.schemas

    def get(self, topic: str, version: int | None = None) -> tuple[int, SchemaInfo]:
        """(version, schema): the newest, or that version. MessageNotFoundError if there is none."""
        known = self.list(topic)
        requested = len(known) - 1 if version is None else version
        if not 0 <= requested < len(known):
            which = "no schema" if version is None else f"no version {version} of its schema"
            raise MessageNotFoundError(f"{topic} has {which}: it has {len(known)} versions.")
        return requested, known[requested]

    def upload(self, topic: str, schema: SchemaInfo) -> int:
        """Add it, unless it is there; its version. IncompatibleSchemaError if it may not follow."""
        name = check_user_topic(TopicName.parse(topic), "given a schema")
        return register(self._root.open(name), name.partitioned_topic, SinkSchema(schema))

    def compatibility(self, topic: str, schema: SchemaInfo) -> tuple[bool, str, str]:
        """(whether it may follow, by which strategy, why not); nothing is changed."""
        name = TopicName.parse(topic)
        ledger = self._root.open(name)
        policies = schema_policies(ledger, name)
        try:
            ledger.state.schemas.put_if_absent(
                schema, policies.strategy, allow_auto_update=policies.allow_auto_update
            )
        except IncompatibleSchemaError as error:
            return False, policies.strategy.value, error.message
        return True, policies.strategy.value, ""


def schema_of(data: bytes) -> SchemaInfo:
    """A schema as pulsar-admin's files have it: `{"type": "AVRO", "schema": "{...}"}`.

    InvalidSchemaDataError if it is none. `properties`, which are nobody's here, are left out.
    """
    try:
        value: Mapping[str, Any] = json.loads(data)
        kind, definition = str(value["type"]).upper(), value.get("schema") or ""
        text = definition if isinstance(definition, str) else json.dumps(definition)
        return SchemaInfo(SchemaType(kind), text)
    except InvalidSchemaDataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSchemaDataError(
            'A schema\'s file has JSON such as {"type": "AVRO", "schema": "{...}"}, with a type of '
            f"{', '.join(SCHEMA_TYPES)}; this one has not: {error!r}."
        ) from error
