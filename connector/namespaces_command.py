"""`pulsarlite namespaces ...`, and the switches that a topic and its namespace both have.

Invariant: no Spark; a switch says what holds from now on, and for which topics. Follows
pulsar-admin's `CmdNamespaces` and `CmdTopicPolicies`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from pulsar_spark.connector.namespace_policies import read_policies, set_deduplication
from pulsar_spark.connector.topics import Root
from pulsar_spark.topic_name import NamespaceName, TopicName, check_user_topic

_WORDS = {True: "on", False: "off", None: "unsaid"}


def run(root: Root, arguments: Namespace) -> Iterator[str]:
    """The lines that a command prints. PulsarliteError if it can't be done."""
    namespace = NamespaceName.parse(arguments.namespace)
    if arguments.command == "set-deduplication":
        policies = set_deduplication(root.store, namespace, arguments.deduplication)
    else:
        policies = read_policies(root.store, namespace)
    said = _WORDS[policies.deduplication]
    yield f"{namespace}: deduplication {said}, for topics that don't say themselves"


def set_topic_deduplication(root: Root, arguments: Namespace) -> Iterator[str]:
    """`topics set-deduplication`."""
    ledger = root.open(check_user_topic(TopicName.parse(arguments.name), "deduplicated"))
    ledger.change_settings({"deduplication": arguments.deduplication})
    said = _WORDS[arguments.deduplication]
    if arguments.deduplication is None:
        said += ": its namespace's policy holds"
    yield f"{ledger.topic}: deduplication {said}"
