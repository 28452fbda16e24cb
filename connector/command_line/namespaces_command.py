"""`pulsarlite namespaces ...`, and the policies that a topic and its namespace both have.

Invariant: no Spark; a policy says what holds from now on, and for which topics. Follows
pulsar-admin's `CmdNamespaces` and `CmdTopicPolicies`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from pulsar_spark.connector.topic_log.namespace_policies import (
    NamespacePolicies,
    read_policies,
    set_policy,
)
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.topic_name import NamespaceName, TopicName, check_user_topic

_WORDS: Final = {True: "on", False: "off", None: "unsaid"}
_POLICIES: Final = {
    "set-deduplication": ("deduplication", "deduplication"),
    "set-schema-compatibility-strategy": (
        "schema_compatibility_strategy",
        "schema compatibility strategy",
    ),
    "set-is-allow-auto-update-schema": ("is_allow_auto_update_schema", "schema auto update"),
    "set-schema-validation-enforce": ("schema_validation_enforced", "schema validation"),
}
"""Command -> the policy's name where it is stored, and what it is called."""


def run(root: Root, arguments: Namespace) -> Iterator[str]:
    """The lines that a command prints. PulsarliteError if it can't be done."""
    namespace = NamespaceName.parse(arguments.namespace)
    if arguments.command in _POLICIES:
        name, _ = _POLICIES[arguments.command]
        policies = set_policy(root.store, namespace, **{name: _given(arguments)})
        shown = [arguments.command]
    else:
        policies = read_policies(root.store, namespace)
        shown = list(_POLICIES)
    for command in shown:
        yield f"{namespace}: {_said(policies, command)}, for topics that don't say themselves"


def set_topic_policy(root: Root, arguments: Namespace) -> Iterator[str]:
    """`topics set-...`: the same for one topic."""
    ledger = root.open(check_user_topic(TopicName.parse(arguments.name), "changed"))
    name, called = _POLICIES[arguments.command]
    value = _given(arguments)
    ledger.change_settings({name: value})
    said = value if isinstance(value, str) else _WORDS[value]
    if value is None:
        said += ": its namespace's policy holds"
    yield f"{ledger.topic}: {called} {said}"


def _given(arguments: Namespace) -> str | bool | None:
    if arguments.command == "set-schema-compatibility-strategy":
        strategy: str | None = arguments.compatibility
        return strategy
    enabled: bool | None = arguments.enabled
    return enabled


def _said(policies: NamespacePolicies, command: str) -> str:
    name, called = _POLICIES[command]
    value = getattr(policies, name)
    return f"{called} {value if isinstance(value, str) else _WORDS[value]}"
