"""`pulsarlite namespaces ...`, and the policies that a topic and its namespace both have.

Invariant: no Spark; a policy says what holds from now on, and for which topics. Follows
pulsar-admin's `CmdNamespaces` and `CmdTopicPolicies`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from pulsar_spark.connector.command_line.noun import (
    Argument,
    Noun,
    argument,
    one_of,
    opened,
)
from pulsar_spark.connector.topic_log.namespace_policies import (
    NamespacePolicies,
    read_policies,
    set_policy,
)
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.schema.schema_registry import STRATEGIES
from pulsar_spark.topic_name import NamespaceName


def _constant(name: str, value: bool | None) -> Argument:
    return argument(f"--{name}", dest="value", action="store_const", const=value, help=f"{name} it")


_REMOVE: Final = _constant("remove", None)
_UNSAID: Final = "unsaid"
"""What argparse compares with to see whether a choice was made."""
_SWITCH: Final = one_of(
    _constant("enable", True), _constant("disable", False), _REMOVE, value=_UNSAID
)
_STRATEGY: Final = one_of(
    argument(
        "-c", "--compatibility", dest="value", choices=STRATEGIES, metavar="STRATEGY",
        help=f"one of {', '.join(STRATEGIES)}; FULL where nobody says",
    ),
    _REMOVE,
    value=_UNSAID,
)  # fmt: skip


class Policy(NamedTuple):
    """A policy that a topic and its namespace both have, and the command that sets it.

    It is stored under `name`; the command's value is None to remove it.
    """

    command: str
    name: str
    called: str
    text: str
    choice: Argument = _SWITCH

    def said(self, value: Any) -> str:
        words = {True: "on", False: "off", None: "unsaid"}.get(value, value)
        return f"{self.called} {words}"


NAMESPACES: Final = Noun("What holds for all topics of a namespace that say nothing themselves.")
add_to = NAMESPACES.add_to
_NAMESPACE: Final = argument("namespace", metavar="TENANT/NAMESPACE")
POLICIES: Final = (
    Policy(
        "set-deduplication", "deduplication", "deduplication",
        "Drop messages whose producer name and sequence id were used before.",
    ),
    Policy(
        "set-is-allow-auto-update-schema", "is_allow_auto_update_schema", "schema auto update",
        "Say whether producers may add schemas.",
    ),
    Policy(
        "set-schema-validation-enforce", "schema_validation_enforced", "schema validation",
        "Refuse producers without a schema for topics that have one.",
    ),
    Policy(
        "set-schema-compatibility-strategy", "schema_compatibility_strategy",
        "schema compatibility strategy", "Say which schema may follow those of a topic.", _STRATEGY,
    ),
)  # fmt: skip


@NAMESPACES.command("policies", "Print the policies of a namespace. Pulsar: policies.", _NAMESPACE)
def _policies(root: Root, arguments: Namespace) -> Iterator[str]:
    namespace = NamespaceName.parse(arguments.namespace)
    policies = read_policies(root.store, namespace)
    yield from (_said(namespace, policies, policy) for policy in POLICIES)


def _set(policy: Policy, root: Root, arguments: Namespace) -> Iterator[str]:
    namespace = NamespaceName.parse(arguments.namespace)
    policies = set_policy(root.store, namespace, **{policy.name: arguments.value})
    yield _said(namespace, policies, policy)


def _said(namespace: NamespaceName, policies: NamespacePolicies, policy: Policy) -> str:
    said = policy.said(getattr(policies, policy.name))
    return f"{namespace}: {said}, for topics that don't say themselves"


def set_of_topic(policy: Policy, root: Root, arguments: Namespace) -> Iterator[str]:
    ledger = opened(root, arguments, "changed")
    ledger.change_settings({policy.name: arguments.value})
    unsaid = ": its namespace's policy holds" if arguments.value is None else ""
    yield f"{ledger.topic}: {policy.said(arguments.value)}{unsaid}"


def register_policies(
    noun: Noun, about: Argument, done: Callable[[Policy, Root, Namespace], Any]
) -> None:
    for policy in POLICIES:
        text = f"{policy.text} Pulsar: {policy.command}."
        noun.command(policy.command, text, about, policy.choice)(partial(done, policy))


register_policies(NAMESPACES, _NAMESPACE, _set)
