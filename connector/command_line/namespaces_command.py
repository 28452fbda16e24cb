"""`pulsarlite namespaces ...`: what holds for all topics of a namespace.

Invariant: no Spark. Follows pulsar-admin's `CmdNamespaces`.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Final

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


register_policies(NAMESPACES, _NAMESPACE, _policies, of_topics=False)
