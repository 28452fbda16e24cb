"""A sink's schema, and its registration in the topic's log.

Invariants: registering is put-if-absent, on the state that its commit follows; no message is
written before its schema is registered; `look_ahead` changes nothing. Follows Pulsar's
`SchemaRegistryServiceImpl.putSchemaIfAbsent`, which a producer calls when it connects.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import (
    SchemaPolicies,
    enforces_schemas,
    schema_policies,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import IncompatibleSchemaError, TopicNotFoundError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.schema.schema_info import SchemaInfo
from pulsar_spark.model.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class SinkSchema:
    """The schema of a sink's values. Pickles.

    `policies` stand in for those of the topic; `encoded` values are bytes already.
    """

    info: SchemaInfo
    policies: SchemaPolicies | None = None
    encoded: bool = False


def register(ledger: ManagedLedger, topic: TopicName, schema: SinkSchema) -> int:
    """The schema's version in the topic; registered now if it has none.

    IncompatibleSchemaError if the topic does not let it follow its other schemas.
    """
    policies = schema.policies or schema_policies(ledger, topic)

    def build(state: TopicState, new: Commit) -> Commit | None:
        version = _put_if_absent(ledger, state, schema.info, policies)
        if state.schemas.get(version) is not None:
            return None
        return replace(new, schemas={version: schema.info})

    ledger.commit(build)
    version = ledger.state.schemas.version_of(schema.info)
    assert version is not None
    return version


def join(ledger: ManagedLedger, topic: TopicName, info: SchemaInfo) -> None:
    """Let somebody read by that schema; it is registered if the topic has none, and no messages.

    IncompatibleSchemaError if what there is can't be read by it. Follows Pulsar's
    `addSchemaIfIdleOrCheckCompatible`, which is called when a consumer connects.
    """
    state = ledger.state
    if state.schemas.newest is None:
        if any(len(state.ledgers(number)) for number in range(state.partitions)):
            raise IncompatibleSchemaError(
                f"Topic {ledger.topic} has messages without a schema: read them as bytes, or "
                f"publish with schema type {info.type.value} to a topic of its own."
            )
        register(ledger, topic, SinkSchema(info))
        return
    try:
        state.schemas.check_consumer(info, schema_policies(ledger, topic).strategy)
    except IncompatibleSchemaError as error:
        raise IncompatibleSchemaError(
            f"{error.message}. `pulsarlite topics schemas {ledger.topic}` lists its schemas; read "
            "by one that can read the newest, or as bytes."
        ) from error


def check_validation(ledger: ManagedLedger, topic: TopicName) -> None:
    """IncompatibleSchemaError if the topic takes no producer without a schema.

    Follows Pulsar's `schemaValidationEnforced`, which is checked when a producer connects.
    """
    newest = ledger.state.schemas.newest
    if newest and enforces_schemas(ledger, topic):
        raise IncompatibleSchemaError(
            f"Topic {ledger.topic} has a schema of type {newest.type.value}, and takes no messages "
            f"without one: give schemaType. Nothing was published. `pulsarlite topics schemas "
            f"{ledger.topic}` lists its schemas; who may go without is said by `pulsarlite topics "
            "set-schema-validation-enforce`."
        )


def look_ahead(root: Root, topic: TopicName, schema: SinkSchema | None) -> None:
    """IncompatibleSchemaError if the topic would now refuse the schema, or the lack of one."""
    with suppress(TopicNotFoundError):
        ledger = root.open(topic)
        if schema is None:
            check_validation(ledger, topic)
        else:
            _put_if_absent(ledger, ledger.state, schema.info, schema_policies(ledger, topic))


def _put_if_absent(
    ledger: ManagedLedger, state: TopicState, info: SchemaInfo, policies: SchemaPolicies
) -> int:
    """The version that the schema has in that state, or would have."""
    try:
        return state.schemas.put_if_absent(
            info, policies.strategy, allow_auto_update=policies.allow_auto_update
        )[1]
    except IncompatibleSchemaError as error:
        raise IncompatibleSchemaError(
            f"{error.message}. Nothing was published to {ledger.topic}. `pulsarlite topics schemas "
            f"{ledger.topic}` lists its schemas; publish by one of them, or have another strategy "
            "with `pulsarlite topics set-schema-compatibility-strategy`."
        ) from error
