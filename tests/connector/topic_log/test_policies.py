"""Deduplication by option, topic and namespace, and the file of a namespace's policies."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client import Client
from pulsar_spark.connector.runtime.topics.policies import (
    POLICIES_FORMAT,
    change_policies,
    read_policies,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.errors import (
    BrokerRefusedError,
    CorruptFileError,
    FutureVersionError,
    InvalidOptionError,
    ServerError,
    TopicNotFoundError,
)
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from pulsar_spark.options import topic_policies
from pulsar_spark.pulsar import InitialPosition, RegexSubscriptionMode
from tests.connector.reading import messages
from tests.connector.topics import ledger_of, options_of, send

pytestmark = pytest.mark.usefixtures("impatient")

DEFAULT = NamespaceName("public", "default")


def twice(root: Path, **given: bool) -> int:
    """How many messages a topic has after the same one was sent twice more."""
    columns = {"producer_name": ["p"], "sequence_id": pa.array([7], pa.int64())}
    before = len(messages(root)) if list(Root.of(options_of(root)).find()) else 0
    for _ in range(2):
        send(root, "t", ["a"], columns=columns, application=None, **given)
    return len(messages(root)) - before


def test_a_namespace_s_policy_holds_for_topics_that_don_t_say(root: Path) -> None:
    store = open_store(str(root))
    change_policies(store, DEFAULT, deduplication=True)
    assert twice(root) == 1
    change_policies(store, DEFAULT, deduplication=False)
    assert twice(root) == 2
    ledger_of(root, "t").change_settings(lambda known: {**known, "deduplication": True})
    assert twice(root) == 0
    assert twice(root, enableDeduplication=False) == 2
    ledger_of(root, "t").change_settings(lambda known: {**known, "deduplication": None})
    assert twice(root) == 2
    assert twice(root, enableDeduplication=True) == 0


def test_another_namespace_is_not_touched(root: Path) -> None:
    change_policies(open_store(str(root)), NamespaceName("acme", "eu"), deduplication=True)
    assert twice(root) == 2
    assert [str(topic) for topic in Root.of(options_of(root)).find()] == [
        "persistent://public/default/t"
    ]


def test_policies_are_read_as_they_were_written(root: Path) -> None:
    store = open_store(str(root))
    assert read_policies(store, DEFAULT) == {}
    for enabled in (True, False, None):
        said = {} if enabled is None else {"deduplication": enabled}
        assert change_policies(store, DEFAULT, deduplication=enabled) == said
        assert read_policies(store, DEFAULT) == said


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"version":2}', FutureVersionError),
        (POLICIES_FORMAT.encode({"retention": 5}), FutureVersionError),
        (POLICIES_FORMAT.encode({"deduplication": "yes"}), CorruptFileError),
        (b"{", CorruptFileError),
    ],
)
def test_policies_that_can_t_be_understood_stop_a_sink_before_it_stores_anything(
    root: Path, data: bytes, error: type[Exception]
) -> None:
    change_policies(open_store(str(root)), DEFAULT, deduplication=True)
    (file,) = root.rglob("~policies.json")
    file.write_bytes(data)
    with pytest.raises(error, match=r"~policies\.json"):
        send(root, "t", ["a"])
    assert not list(root.rglob("*.parquet"))


def test_a_namespace_says_whether_and_with_how_many_partitions_topics_are_made(root: Path) -> None:
    policies = Admin(str(root)).policies("public/default")
    policies.set(auto_topic_partitions=3)
    send(root, "t", ["a"])
    send(root, "u", ["a"], numPartitions=2)
    assert [ledger_of(root, name).state.partitions for name in ("t", "u")] == [3, 2]
    policies.set(auto_topic_creation=False)
    send(root, "t", ["b"])
    with pytest.raises(TopicNotFoundError, match=r"auto_topic_creation off.*topics create"):
        send(root, "new", ["a"])
    with (
        Client(str(root), broker="embedded") as client,
        pytest.raises(client_errors.TopicNotFound, match="auto_topic_creation off"),
    ):
        client.subscribe("new", "s")
    send(root, "acme/eu/new", ["a"])
    Root(str(root), {}).create(TopicName.parse("new"), 1)
    send(root, "new", ["a"])
    with pytest.raises(InvalidOptionError, match="said of a namespace: of public/default"):
        Admin(str(root)).policies("t").set(auto_topic_creation=True)


def test_a_root_s_policy_holds_where_no_namespace_says_otherwise(root: Path) -> None:
    everywhere = Admin(str(root)).policies("*")
    everywhere.set(deduplication=True, retention_time="3d", retention_size="1G")
    assert twice(root) == 1
    here = Admin(str(root)).policies("public/default")
    here.set(deduplication=False, message_ttl="1h")
    assert twice(root) == 2
    assert here.get() == {"message_ttl": 3600, "deduplication": False}, "what is said here"
    found = Admin(str(root)).policies("t").applied()
    names = ("deduplication", "message_ttl", "retention_time", "breaker_window")
    assert [found[name].source for name in names] == ["namespace", "namespace", "root", "default"]
    read = read_policies(open_store(str(root)), DEFAULT)
    hosted = topic_policies.hosted_policies({}, read)
    assert (hosted.message_ttl_ms, hosted.retention_size_bytes) == (3_600_000, 1 << 30)
    everywhere.remove("deduplication", "retention_time", "retention_size")
    assert everywhere.get() == {}


@pytest.mark.parametrize("place", ["*", "public/default"])
def test_a_switch_forbids_non_persistent_topics(root: Path, place: str) -> None:
    old, new = (f"non-persistent://public/default/{name}" for name in ("old", "new"))
    send(root, old, ["a"])
    send(root, "kept", ["a"])
    Admin(str(root)).policies(place).set(non_persistent_topics=False)
    for topic in (old, new):
        with pytest.raises(BrokerRefusedError, match="non_persistent_topics off") as refused:
            send(root, topic, ["b"])
        assert refused.value.error is ServerError.NOT_ALLOWED_ERROR
    with pytest.raises(BrokerRefusedError, match="non_persistent_topics off"):
        Admin(str(root)).topics.create(new)
    with Client(str(root), broker="embedded") as client:
        for topic in (old, new):
            with pytest.raises(client_errors.NotAllowedError):
                client.create_producer(topic)
            with pytest.raises(client_errors.NotAllowedError):
                client.subscribe(topic, "s")
        every = "persistent://public/default/.*"
        found = client.subscribe(
            re.compile(every), "s", regex_subscription_mode=RegexSubscriptionMode.AllTopics,
            initial_position=InitialPosition.Earliest,
        )  # fmt: skip
        assert found.receive(5000).topic_name() == "persistent://public/default/kept"
    Admin(str(root)).policies("public/default").set(non_persistent_topics=True)
    send(root, old, ["b"])
