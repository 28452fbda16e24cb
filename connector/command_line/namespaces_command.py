"""`pulsarlite namespaces ...`: namespaces, and what holds for all topics of one.

Invariant: no Spark. Follows pulsar-admin's `CmdNamespaces`.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from pulsar_spark.connector.admin.admin import Admin
from pulsar_spark.connector.command_line.admin_commands import (
    FORCE,
    AdminCommand,
    Answer,
    register_calls,
)
from pulsar_spark.connector.command_line.noun import Noun, argument
from pulsar_spark.connector.command_line.topic_policies_command import EACH, register_policies
from pulsar_spark.connector.topic_log.policies import Policies
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.topic_name import NamespaceName

NAMESPACES: Final = Noun(
    EACH.format("What holds for all topics of a namespace that say nothing themselves.")
)
add_to = NAMESPACES.add_to
_NAMESPACE: Final = argument("namespace", metavar="TENANT/NAMESPACE")


def _policies(root: Root, arguments: Namespace) -> Policies:
    namespace = str(NamespaceName.parse(arguments.namespace))
    return Policies(namespace, service_url=root.service_url, storage=root.storage)


def _list(admin: Admin, given: Namespace) -> Answer:
    found = list(admin.namespaces.list(given.tenant))
    return found, found or "There are no namespaces: a topic makes one."


def _topics(admin: Admin, given: Namespace) -> Answer:
    found = list(admin.namespaces.topics(given.namespace))
    return found, found or f"{given.namespace} has no topics."


def _create(admin: Admin, given: Namespace) -> Answer:
    admin.namespaces.create(given.namespace)
    return {"namespace": given.namespace}, f"Created {given.namespace}"


def _delete(admin: Admin, given: Namespace) -> Answer:
    gone = list(admin.namespaces.delete(given.namespace, force=given.force))
    answer = {"namespace": given.namespace, "topics": gone}
    return answer, f"Deleted {given.namespace}" + (f", with {', '.join(gone)}" if gone else "")


def _clear_backlog(admin: Admin, given: Namespace) -> Answer:
    found = list(admin.namespaces.clear_backlog(given.namespace, given.sub))
    who = given.sub or "every subscription"
    answer = {"namespace": given.namespace, "topics": found}
    return answer, f"Cleared the backlog of {who} on {', '.join(found) or 'no topic'}."


def _unsubscribe(admin: Admin, given: Namespace) -> Answer:
    gone = list(admin.namespaces.unsubscribe(given.namespace, given.sub, force=given.force))
    answer = {"namespace": given.namespace, "topics": gone}
    return answer, f"Deleted {given.sub} on {', '.join(gone) or 'no topic'}."


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
        AdminCommand("topics", "Name its topics. Pulsar: topics.", (), _topics),
        AdminCommand("create", "Create a namespace. Pulsar: create.", (), _create),
        AdminCommand(
            "delete", "Delete a namespace with its policies. Pulsar: delete.",
            (FORCE(help="also if it has topics, which are deleted with their subscriptions"),),
            _delete,
        ),
        AdminCommand(
            "clear-backlog", "Acknowledge all messages of all topics. Pulsar: clear-backlog.",
            (argument("-s", "--sub", metavar="NAME", help="for this subscription; else for all"),),
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
    ),
    _NAMESPACE,
)  # fmt: skip
register_policies(NAMESPACES, _NAMESPACE, _policies, of_topics=False)
