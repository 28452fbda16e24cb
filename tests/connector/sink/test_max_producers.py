"""A topic that says how many may publish: queries, batches and clients count alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark import Admin
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.policies import POLICIES_EVERY_S
from pulsar_spark.connector.runtime.topics.producer_connection import claim_of
from pulsar_spark.errors import ProducerBusyError
from pulsar_spark.log.producer_registry import DEFAULT_LEASE_MS
from pulsar_spark.options.options import Scope
from tests.connector.reading import messages
from tests.connector.topics import ledger_of, options_of, written
from tests.scenarios.host import Host


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


class Query:
    """A run of a streaming query that publishes to `t`."""

    def __init__(self, host: Host, name: str, run: int = 1, **given: object) -> None:
        self.host, self.name, self.batch = host, name, run * 100
        self.options = options_of(host.root.service_url, Scope.WRITE, {"topic": "t", **given})
        self.claim = claim_of(self.options, name, f"{name}-{run}")

    def publish(self, *, leaves: bool = False) -> None:
        self.batch += 1
        parts = written(self.options, [f"{self.name}{self.batch}"])
        publish(self.host.root, parts, (self.name, self.batch), self.claim, leaves=leaves)


def limit(host: Host, most: int, name: str = "public/default") -> None:
    Admin(host.root.service_url).policies(name).set(max_producers=most)


def test_one_query_more_is_refused_and_the_others_go_on(host: Host) -> None:
    limit(host, 2)
    first, second, third = (Query(host, name) for name in ("a", "b", "c"))
    first.publish()
    second.publish()
    with pytest.raises(
        ProducerBusyError, match=r"max producers limit.*allows 2.*set-max-producers"
    ):
        third.publish()
    first.publish()
    Query(host, "b", run=2).publish()
    assert len(messages(host.root.service_url)) == 4
    limit(host, 3, "t")
    third.publish()


def test_a_query_that_publishes_no_more_makes_room_and_may_come_again(host: Host) -> None:
    limit(host, 1)
    first, second = Query(host, "a"), Query(host, "b")
    first.publish()
    host.advance(DEFAULT_LEASE_MS)
    second.publish()
    with pytest.raises(ProducerBusyError):
        first.publish()
    host.advance(DEFAULT_LEASE_MS)
    first.publish()
    assert len(messages(host.root.service_url)) == 3


def test_a_query_that_shares_its_topic_and_was_quiet_for_long_goes_on(host: Host) -> None:
    first, second = (Query(host, name, accessMode="Shared") for name in ("a", "b"))
    first.publish()
    host.advance(DEFAULT_LEASE_MS)
    second.publish()
    first.publish()
    assert len(messages(host.root.service_url)) == 3


def test_a_batch_counts_while_it_publishes_and_a_client_until_it_closes(host: Host) -> None:
    limit(host, 1)
    for name in ("a", "b"):
        Query(host, name).publish(leaves=True)
    with host.producer({"topic": "t"}) as producer:
        producer.send(b"c")
        for refused in (lambda: host.producer({"topic": "t"}), Query(host, "d").publish):
            with pytest.raises(ProducerBusyError, match="max producers limit"):
                refused()
    Query(host, "d").publish()


def test_a_topic_without_a_limit_counts_nobody(host: Host) -> None:
    query = Query(host, "a")
    query.publish()
    assert ledger_of(host.root.service_url, "t").state.producers is None
    limit(host, 1)
    host.clock.advance(int(POLICIES_EVERY_S * 1000))
    query.publish()
    assert ledger_of(host.root.service_url, "t").state.producers is not None
