"""The schemas of a topic, version by version, and which may follow them.

Invariants: immutable; versions count from 0 without gaps and never change; a schema that is equal
to a registered one has its version; who may add one is decided on the registry that the commit
follows, so two producers that register at once are checked against each other.

Follows Pulsar's `SchemaRegistryServiceImpl`, `AvroSchemaBasedCompatibilityCheck` and
`ProtobufNativeSchemaCompatibilityCheck`, which compares the names of messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pulsar_spark.errors import IncompatibleSchemaError
from pulsar_spark.model.schema.avro_schema import why_unreadable
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType


class SchemaCompatibilityStrategy(Enum):
    """The rule for a schema that follows others.

    BACKWARD: the new one reads what the old one wrote.

    TRANSITIVE: all versions count, not only the newest.
    """

    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


DEFAULT_STRATEGY: Final = SchemaCompatibilityStrategy.FULL
STRATEGIES: Final = tuple(each.value for each in SchemaCompatibilityStrategy)


_NEWEST_IS_READ: Final = (
    SchemaCompatibilityStrategy.BACKWARD,
    SchemaCompatibilityStrategy.FORWARD,
    SchemaCompatibilityStrategy.FORWARD_TRANSITIVE,
    SchemaCompatibilityStrategy.FULL,
)


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A topic's schemas; the version of each is its place."""

    schemas: tuple[SchemaInfo, ...] = ()

    @property
    def newest(self) -> SchemaInfo | None:
        return self.schemas[-1] if self.schemas else None

    def version_of(self, schema: SchemaInfo) -> int | None:
        return self.schemas.index(schema) if schema in self.schemas else None

    def get(self, version: int) -> SchemaInfo | None:
        return self.schemas[version] if 0 <= version < len(self.schemas) else None

    def put_if_absent(
        self,
        schema: SchemaInfo,
        strategy: SchemaCompatibilityStrategy = DEFAULT_STRATEGY,
        *,
        allow_auto_update: bool = True,
    ) -> tuple[SchemaRegistry, int]:
        """(the registry with the schema, its version). IncompatibleSchemaError says why not."""
        version = self.version_of(schema)
        if version is not None:
            return self, version
        if not allow_auto_update:
            raise IncompatibleSchemaError(
                "The schema is not registered, and schema auto update is disabled"
            )
        self._check(schema, strategy, transitive=strategy.value.endswith("_TRANSITIVE"))
        return SchemaRegistry((*self.schemas, schema)), len(self.schemas)

    def check_consumer(self, schema: SchemaInfo, strategy: SchemaCompatibilityStrategy) -> None:
        """IncompatibleSchemaError if whoever reads by that schema can't read what there is.

        Follows Pulsar's `checkConsumerCompatibility`: where the strategy is about the newest
        version, or about old readers, only the newest has to be read.
        """
        if strategy in _NEWEST_IS_READ:
            self._check(schema, SchemaCompatibilityStrategy.BACKWARD, transitive=False)
        else:
            self._check(schema, strategy, transitive=True)

    def _check(
        self, schema: SchemaInfo, strategy: SchemaCompatibilityStrategy, *, transitive: bool
    ) -> None:
        """IncompatibleSchemaError if the schema may not stand beside the newest version, or all."""
        versions = list(enumerate(self.schemas))
        for version, old in reversed(versions if transitive else versions[-1:]):
            why = None if old == schema else _why_incompatible(old, schema, strategy)
            if why is not None:
                raise IncompatibleSchemaError(
                    f"The schema does not fit version {version} of the topic's, by strategy "
                    f"{strategy.value}: {why}"
                )

    def to_json_value(self) -> list[dict[str, Any]]:
        return [schema.to_json_value() for schema in self.schemas]

    @staticmethod
    def from_json_value(values: Iterable[Any]) -> SchemaRegistry:
        """KeyError, TypeError or ValueError if they are none."""
        return SchemaRegistry(tuple(SchemaInfo.from_json_value(value) for value in values))


def _why_incompatible(
    old: SchemaInfo, new: SchemaInfo, strategy: SchemaCompatibilityStrategy
) -> str | None:
    if strategy is SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE:
        return None
    if old.type is not new.type:
        return f"exists schema type {old.type.value}, new schema type {new.type.value}"
    if strategy is SchemaCompatibilityStrategy.ALWAYS_INCOMPATIBLE:
        return "no other schema may follow"
    if new.type is SchemaType.PROTOBUF_NATIVE:
        names = [each.protobuf()["rootMessageTypeName"] for each in (old, new)]
        is_same = names[0] == names[1]
        return None if is_same else f"the message was {names[0]}, and is {names[1]}"
    if not new.type.has_definition:
        return None
    older, newer = old.avro(), new.avro()
    direction = strategy.value.removesuffix("_TRANSITIVE")
    if direction != "FORWARD" and (why := why_unreadable(newer, older)):
        return f"the new schema can't read what the old one wrote: {why}"
    if direction != "BACKWARD" and (why := why_unreadable(older, newer)):
        return f"the old schema can't read what the new one writes: {why}"
    return None
