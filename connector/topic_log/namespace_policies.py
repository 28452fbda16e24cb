"""Settings for all topics of a namespace that have none of their own: one small file.

Invariants: the file is replaced by compare-and-swap only; one of a newer version is refused; a
sink's option comes before its topic's setting, and that before its namespace's policy. Follows
Pulsar's `Policies` and `TopicPolicies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.records.stored_record import StoredFormat, readable
from pulsar_spark.schema.schema_registry import (
    DEFAULT_STRATEGY,
    STRATEGIES,
    SchemaCompatibilityStrategy,
)
from pulsar_spark.topic_name import PERSISTENT, NamespaceName, TopicName

POLICIES_FILE = "~policies.json"
"""The file beside the namespace's topics, whose folders' names have no `~`."""


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """A namespace's policies; None is unset."""

    deduplication: bool | None = None
    schema_compatibility_strategy: str | None = None
    is_allow_auto_update_schema: bool | None = None
    schema_validation_enforced: bool | None = None

    def to_json(self) -> bytes:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return POLICIES_FORMAT.encode(given)

    @staticmethod
    def from_json(data: bytes | None, name: str) -> NamespacePolicies:
        """No file: none. CorruptFileError if damaged, FutureVersionError if too new."""
        if data is None:
            return NamespacePolicies()
        record = POLICIES_FORMAT.decode(data, name)
        for policy, value in record.items():
            if value not in _ALLOWED[policy]:
                raise POLICIES_FORMAT.damaged(name, f"{policy} is {value!r}")
        return NamespacePolicies(**record)


_ALLOWED: Final[Mapping[str, tuple[object, ...]]] = {
    "deduplication": (None, True, False),
    "schema_compatibility_strategy": (None, *STRATEGIES),
    "is_allow_auto_update_schema": (None, True, False),
    "schema_validation_enforced": (None, True, False),
}
POLICIES_FORMAT: Final = StoredFormat(
    "File",
    version=2,
    checked_since=2,
    fields=frozenset(_ALLOWED),
    remedy="Restore it from a copy, or delete it to be without policies.",
)


def read_policies(store: ObjectStore, namespace: NamespaceName) -> NamespacePolicies:
    """The namespace's policies as of now; none if it has no file."""
    path = _path(namespace)
    return NamespacePolicies.from_json(store.get(path), path)


def set_policy(
    store: ObjectStore, namespace: NamespaceName, **policy: str | bool | None
) -> NamespacePolicies:
    """Set a policy, or (None) unset it; the policies then."""
    path = _path(namespace)
    wanted = NamespacePolicies()

    def with_policy(data: bytes | None) -> bytes | None:
        nonlocal wanted
        known = NamespacePolicies.from_json(data, path)
        wanted = replace(known, **policy)  # type: ignore[arg-type]
        if wanted == known:
            return None
        return readable(wanted.to_json, NamespacePolicies.from_json, path)

    store.replace(path, with_policy)
    return wanted


def deduplicates(ledger: ManagedLedger, topic: TopicName, option: bool | None) -> bool:
    """Whether the topic deduplicates: the sink's option says, else topic, else namespace."""
    return bool(_policies(ledger, topic, "deduplication")[0] if option is None else option)


def enforces_schemas(ledger: ManagedLedger, topic: TopicName) -> bool:
    """Whether a producer without a schema is refused: the topic has one, and enforces it."""
    if not ledger.state.schemas.schemas:
        return False
    return bool(_policies(ledger, topic, "schema_validation_enforced")[0])


@dataclass(frozen=True, slots=True)
class SchemaPolicies:
    """A topic's demands on a new schema."""

    strategy: SchemaCompatibilityStrategy = DEFAULT_STRATEGY
    allow_auto_update: bool = True


def schema_policies(ledger: ManagedLedger, topic: TopicName) -> SchemaPolicies:
    """The topic's policies, else its namespace's, else Pulsar's defaults."""
    strategy, allowed = _policies(
        ledger, topic, "schema_compatibility_strategy", "is_allow_auto_update_schema"
    )
    strategy = SchemaCompatibilityStrategy(strategy or DEFAULT_STRATEGY)
    return SchemaPolicies(strategy, allowed is not False)


def _policies(ledger: ManagedLedger, topic: TopicName, *names: str) -> list[Any]:
    """The topic's settings of these names; where it has none, its namespace's policies."""
    found = [ledger.state.settings.get(name) for name in names]
    if None not in found:
        return found
    policies = read_policies(ledger.store, topic.namespace)
    pairs = zip(names, found, strict=True)
    return [getattr(policies, name) if value is None else value for name, value in pairs]


def _path(namespace: NamespaceName) -> str:
    folder, _, _ = TopicName(PERSISTENT, namespace, "any").storage_path.rpartition("/")
    return join(folder, POLICIES_FILE)
