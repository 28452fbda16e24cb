"""The broker hears what is said of topics and namespaces while it runs, by precedence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark import Admin
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.connector.runtime.topics.policies import POLICIES_EVERY_S, Policies
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.model.topic_name import TopicPartition
from tests.scenarios.host import Host

ORDERS = TopicPartition("persistent://public/default/orders", 0)
LOOK_MS = int(POLICIES_EVERY_S * 1000)


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        with host.producer({"topic": "orders"}) as producer:
            producer.send(b"a")
        host.subscribe({"topic": "orders", "subscriptionName": "s"})
        yield host


def policies(host: Host, name: str) -> Policies:
    return Admin(host.root.service_url).policies(name)


def obeyed(host: Host) -> TopicPolicies:
    host.run()
    return host.state(ORDERS).policies


def test_a_topic_s_word_is_heard_at_once_and_a_namespace_s_at_the_next_look(host: Host) -> None:
    of_topic, of_namespace = policies(host, "orders"), policies(host, "public/default")
    of_topic.set(message_ttl="5m")
    assert obeyed(host).message_ttl_ms == 300_000
    of_namespace.set(message_ttl="7m", max_consumers=3)
    host.advance(LOOK_MS)
    assert (obeyed(host).message_ttl_ms, obeyed(host).max_consumers_per_topic) == (300_000, 3)
    of_topic.remove("message_ttl")
    assert obeyed(host).message_ttl_ms == 420_000
    of_topic.set(max_consumers=4)
    assert obeyed(host).max_consumers_per_topic == 4
    of_namespace.remove("message_ttl", "max_consumers")
    host.advance(LOOK_MS)
    assert (obeyed(host).message_ttl_ms, obeyed(host).max_consumers_per_topic) == (0, 4)


def test_a_namespace_s_time_to_live_expires_what_waits_in_its_topics(host: Host) -> None:
    policies(host, "public/default").set(message_ttl="1m")
    assert host.state(ORDERS).subscriptions["s"].cursor.backlog(host.state(ORDERS).ledgers) == 0
    policies(host, "public/other").set(message_ttl="1s")
    with host.producer({"topic": "orders"}) as producer:
        producer.send(b"b")
    host.advance(LOOK_MS + 50_000)
    state = host.state(ORDERS)
    assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 1
    host.advance(10_000)
    state = host.state(ORDERS)
    assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 0


def test_a_broker_that_begins_anew_knows_what_was_said_and_hears_what_was_said_meanwhile(
    host: Host,
) -> None:
    policies(host, "public/default").set(message_ttl="7m")
    host.advance(LOOK_MS)
    policies(host, "public/default").set(message_ttl="8m")
    host.broker.close()
    host.broker = type(host.broker)(host.root)
    host.advance(LOOK_MS)
    assert obeyed(host).message_ttl_ms == 480_000


def test_policies_that_can_t_be_read_stay_as_they_were(host: Host) -> None:
    policies(host, "public/default").set(message_ttl="7m")
    host.advance(LOOK_MS)
    open_store(host.root.service_url).touch("persistent/public/default/~policies.json", b"{")
    host.advance(LOOK_MS)
    policies(host, "orders").set(max_consumers=2)
    assert (obeyed(host).message_ttl_ms, obeyed(host).max_consumers_per_topic) == (420_000, 2)


def test_a_topic_that_is_first_seen_obeys_its_namespace_at_once(host: Host) -> None:
    policies(host, "acme/eu").set(message_ttl="3m")
    with host.producer({"topic": "acme/eu/new"}) as producer:
        producer.send(b"a")
    host.subscribe({"topic": "acme/eu/new", "subscriptionName": "s"})
    new = TopicPartition("persistent://acme/eu/new", 0)
    assert host.state(new).policies.message_ttl_ms == 180_000
