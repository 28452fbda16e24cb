"""`pulsarlite namespaces ...`, and the policies that a topic and its namespace both have.

Invariant: no Spark; a policy says what holds from now on, and for which topics. Follows
pulsar-admin's `CmdNamespaces` and `CmdTopicPolicies`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pulsar_spark.connector.command_line.noun import (
    TOPIC,
    Argument,
    Noun,
    argument,
    one_of,
    opened,
    switch,
)
from pulsar_spark.connector.topic_log.namespace_policies import (
    NamespacePolicies,
    read_policies,
    set_policy,
)
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.schema.schema_registry import STRATEGIES
from pulsar_spark.topic_name import NamespaceName


@dataclass(frozen=True)
class Policy:
    """A policy that a topic and its namespace both have, and the command that sets it."""

    command: str
    name: str
    """Where it is stored."""
    called: str
    choice: Argument
    text: str

    def given(self, arguments: Namespace) -> str | bool | None:
        """What the command line says; None removes it."""
        value: str | bool | None = (
            arguments.compatibility if "compatibility" in arguments else arguments.enabled
        )
        return value

    @staticmethod
    def words(value: str | bool | None) -> str:
        return (
            value if isinstance(value, str) else {True: "on", False: "off", None: "unsaid"}[value]
        )


NAMESPACES: Final = Noun("What holds for all topics of a namespace that say nothing themselves.")
add_to = NAMESPACES.add_to
_NAMESPACE: Final = argument("namespace", metavar="TENANT/NAMESPACE")
_STRATEGY: Final = one_of(
    argument(
        "-c", "--compatibility", choices=STRATEGIES, metavar="STRATEGY",
        help=f"one of {', '.join(STRATEGIES)}; FULL where nobody says",
    ),
    argument("--remove", action="store_true", help="have it unsaid"),
)  # fmt: skip
POLICIES: Final = (
    Policy(
        "set-deduplication", "deduplication", "deduplication", switch(),
        "Drop messages whose producer name and sequence id were used before. Pulsar: "
        "set-deduplication.",
    ),
    Policy(
        "set-is-allow-auto-update-schema", "is_allow_auto_update_schema", "schema auto update",
        switch(),
        "Say whether producers may add schemas. Pulsar: set-is-allow-auto-update-schema.",
    ),
    Policy(
        "set-schema-validation-enforce", "schema_validation_enforced", "schema validation",
        switch(),
        "Refuse producers without a schema for topics that have one. Pulsar: "
        "set-schema-validation-enforce.",
    ),
    Policy(
        "set-schema-compatibility-strategy", "schema_compatibility_strategy",
        "schema compatibility strategy", _STRATEGY,
        "Say which schema may follow those of a topic. Pulsar: set-schema-compatibility-strategy.",
    ),
)  # fmt: skip


@NAMESPACES.command("policies", "Print the policies of a namespace. Pulsar: policies.", _NAMESPACE)
def _policies(root: Root, arguments: Namespace) -> Iterator[str]:
    namespace = NamespaceName.parse(arguments.namespace)
    policies = read_policies(root.store, namespace)
    for policy in POLICIES:
        yield _said(namespace, policies, policy)


def _register(policy: Policy) -> None:
    @NAMESPACES.command(policy.command, policy.text, _NAMESPACE, policy.choice)
    def _set(root: Root, arguments: Namespace) -> Iterator[str]:
        namespace = NamespaceName.parse(arguments.namespace)
        policies = set_policy(root.store, namespace, **{policy.name: policy.given(arguments)})
        yield _said(namespace, policies, policy)


def register_topic_policies(topics: Noun) -> None:
    """The same commands for one topic."""
    for policy in POLICIES:
        _register_for_topic(topics, policy)


def _register_for_topic(topics: Noun, policy: Policy) -> None:
    @topics.command(policy.command, policy.text, TOPIC, policy.choice)
    def _set(root: Root, arguments: Namespace) -> Iterator[str]:
        ledger = opened(root, arguments, "changed")
        value = policy.given(arguments)
        ledger.change_settings({policy.name: value})
        unsaid = ": its namespace's policy holds" if value is None else ""
        yield f"{ledger.topic}: {policy.called} {policy.words(value)}{unsaid}"


def _said(namespace: NamespaceName, policies: NamespacePolicies, policy: Policy) -> str:
    words = policy.words(getattr(policies, policy.name))
    return f"{namespace}: {policy.called} {words}, for topics that don't say themselves"


for _each in POLICIES:
    _register(_each)
