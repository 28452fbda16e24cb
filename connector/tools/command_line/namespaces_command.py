"""`pulsarlite namespaces ...`: namespaces, and what holds for all topics of one.

Invariant: no Spark. Follows pulsar-admin's `CmdNamespaces`.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from pulsar_spark.connector.runtime.topics.policies import EVERY_NAMESPACE, Policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.command_line.admin_commands import (
    FORCE,
    SYSTEM_TOO,
    AdminCommand,
    Answer,
    domains_of,
    register_calls,
    shown_properties,
)
from pulsar_spark.connector.tools.command_line.noun import Noun, argument, pairs
from pulsar_spark.connector.tools.command_line.topic_policies_command import EACH, register_policies
from pulsar_spark.model.topic_name import NamespaceName

NAMESPACES: Final = Noun(
    EACH.format("What holds for all topics of a namespace that say nothing themselves.")
)
add_to = NAMESPACES.add_to
_NAMESPACE: Final = argument("namespace", metavar="TENANT/NAMESPACE")
_NAMESPACE_OR_ALL: Final = argument(
    "namespace", metavar="TENANT/NAMESPACE", help="or '*': every namespace that says nothing itself"
)


def _policies(root: Root, arguments: Namespace) -> Policies:
    name = arguments.namespace
    namespace = name if name == EVERY_NAMESPACE else str(NamespaceName.parse(name))
    return Policies(root, namespace)


def _list(admin: Admin, given: Namespace) -> Answer:
    found = list(admin.namespaces.list(given.tenant))
    return found, found or "There are no namespaces: a topic makes one."


def _topics(admin: Admin, given: Namespace) -> Answer:
    domains = domains_of(given.mode)
    found = list(
        admin.namespaces.topics(
            given.namespace, system=given.include_system_topics, domains=domains
        )
    )
    return found, found or f"{given.namespace} has no topics."


def _create(admin: Admin, given: Namespace) -> Answer:
    admin.namespaces.create(given.namespace)
    return {"namespace": given.namespace}, f"Created {given.namespace}"


def _delete(admin: Admin, given: Namespace) -> Answer:
    gone = list(admin.namespaces.delete(given.namespace, force=given.force))
    answer = {"namespace": given.namespace, "topics": gone}
    return answer, f"Deleted {given.namespace}" + (f", with {', '.join(gone)}" if gone else "")


def _clear_backlog(admin: Admin, given: Namespace) -> Answer:
    found = list(admin.namespaces.clear_backlog(given.namespace, given.sub, force=given.force))
    who = given.sub or "every subscription"
    answer = {"namespace": given.namespace, "topics": found}
    return answer, f"Cleared the backlog of {who} on {', '.join(found) or 'no topic'}."


def _unsubscribe(admin: Admin, given: Namespace) -> Answer:
    gone = list(admin.namespaces.unsubscribe(given.namespace, given.sub, force=given.force))
    answer = {"namespace": given.namespace, "topics": gone}
    return answer, f"Deleted {given.sub} on {', '.join(gone) or 'no topic'}."


def _properties(admin: Admin, given: Namespace) -> Answer:
    return shown_properties(admin.namespaces.get_properties(given.namespace), given.namespace)


def _set_properties(admin: Admin, given: Namespace) -> Answer:
    words = [each for text in given.properties for each in text.split(",")]
    admin.namespaces.set_properties(given.namespace, pairs("--properties", words))
    return _properties(admin, given)


def _set_property(admin: Admin, given: Namespace) -> Answer:
    admin.namespaces.set_properties(given.namespace, {given.key: given.value})
    return _properties(admin, given)


def _get_property(admin: Admin, given: Namespace) -> Answer:
    found = admin.namespaces.get_properties(given.namespace).get(given.key)
    return found, f"{given.namespace} has no property {given.key}." if found is None else found


def _remove_property(admin: Admin, given: Namespace) -> Answer:
    gone = admin.namespaces.remove_property(given.namespace, given.key)
    return gone, f"{given.namespace} has no property {given.key}." if gone is None else gone


def _clear_properties(admin: Admin, given: Namespace) -> Answer:
    admin.namespaces.clear_properties(given.namespace)
    return _properties(admin, given)


_KEY: Final = argument("-k", "--key", required=True, metavar="NAME", help="its name")

register_calls(
    NAMESPACES,
    (AdminCommand(
        "list", "Name the namespaces of a tenant, or all. Pulsar: list.",
        (argument("tenant", nargs="?", metavar="TENANT", help="only its namespaces"),), _list,
    ),),
    None,
)  # fmt: skip
register_calls(
    NAMESPACES,
    (
        AdminCommand(
            "topics", "Name its topics. Pulsar: topics.",
            (
                SYSTEM_TOO,
                argument(
                    "-m", "--mode", type=str.upper, default="ALL", metavar="MODE",
                    choices=("PERSISTENT", "NON_PERSISTENT", "ALL"),
                    help="only PERSISTENT or only NON_PERSISTENT ones (default: %(default)s)",
                ),
            ),
            _topics,
        ),
        AdminCommand("create", "Create a namespace. Pulsar: create.", (), _create),
        AdminCommand(
            "delete", "Delete a namespace with its policies. Pulsar: delete.",
            (FORCE(help="also if it has topics, which are deleted with their subscriptions"),),
            _delete,
        ),
        AdminCommand(
            "clear-backlog", "Acknowledge all messages of all topics. Pulsar: clear-backlog.",
            (
                argument("-s", "--sub", metavar="NAME", help="for this subscription; else for all"),
                argument(
                    "-f", "--force", "-force", action="store_true",
                    help="also if one of them has a backlog",
                ),
            ),
            _clear_backlog,
        ),
        AdminCommand(
            "unsubscribe", "Delete a subscription of all topics. Pulsar: unsubscribe.",
            (
                argument("-s", "--sub", required=True, metavar="NAME", help="its name"),
                FORCE(help="also if consumers are connected, which are thrown out"),
            ),
            _unsubscribe,
        ),
        AdminCommand(
            "get-properties", "Print its properties. Pulsar: get-properties.", (), _properties
        ),
        AdminCommand(
            "get-property", "Print one of them. Pulsar: get-property.", (_KEY,), _get_property
        ),
        AdminCommand(
            "set-properties",
            "Give it properties beside those that it has. Pulsar: set-properties.",
            (
                argument(
                    "-p", "--properties", action="append", required=True,
                    metavar="NAME=VALUE,...", help="split at commas; as often as you like",
                ),
            ),
            _set_properties,
        ),
        AdminCommand(
            "set-property", "Give it one property. Pulsar: set-property.",
            (_KEY, argument("-v", "--value", required=True, metavar="TEXT", help="its text")),
            _set_property,
        ),
        AdminCommand(
            "remove-property",
            "Take one from it, and print what it was. Pulsar: remove-property.",
            (_KEY,), _remove_property,
        ),
        AdminCommand(
            "clear-properties", "Take all from it. Pulsar: clear-properties.", (),
            _clear_properties,
        ),
    ),
    _NAMESPACE,
)  # fmt: skip
register_policies(NAMESPACES, _NAMESPACE_OR_ALL, _policies, of_topics=False)
