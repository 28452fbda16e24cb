"""Who publishes obeys a backlog quota: by an error, a wait, or not at all, where the rest goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_spark import Admin
from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client import Client
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one
from pulsar_spark.connector.runtime.topics.backlog_quota import EXCEEDED
from pulsar_spark.connector.runtime.topics.policies import POLICIES_EVERY_S
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.errors import (
    ProducerBlockedQuotaExceededError,
    ProducerHeldError,
    UnreadableFileError,
)
from pulsar_spark.options.options import Scope
from tests.connector.reading import messages
from tests.connector.topics import ledger_of, options_of, send, written
from tests.scenarios.host import Host

REFUSED = "The backlog of persistent://public/default/t, partition 0, was 6 bytes when the broker"


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


class Place:
    """A topic `t` whose subscription `s` has three messages of two bytes to receive."""

    def __init__(self, host: Host, **quota: Any) -> None:
        self.host, self.url = host, host.root.service_url
        self.policies = Admin(self.url).policies("public/default")
        self.policies.set(**quota)
        send(self.url, "t", ["a1"])
        given = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
        self.consumer: MessageConsumer = host.subscribe(given)
        send(self.url, "t", ["a2", "a3"])
        host.run()

    def acknowledge(self) -> None:
        """The consumer receives and acknowledges all that there is."""
        while (message := self.consumer.receive()) is not None:
            self.consumer.acknowledge(message)
        self.consumer.poll()
        self.host.run()

    def values(self) -> list[str]:
        return [each["value"].decode() for each in messages(self.url)]

    @property
    def is_marked(self) -> bool:
        return EXCEEDED in ledger_of(self.url, "t").state.settings


def test_producer_exception_refuses_a_sink_until_its_backlog_is_acknowledged(host: Host) -> None:
    place = Place(host, backlog_quota_limit=6, backlog_quota_policy="producer_exception")
    with pytest.raises(ProducerBlockedQuotaExceededError, match=REFUSED):
        send(place.url, "t", ["b"], application=("query", 1))
    with pytest.raises(ProducerBlockedQuotaExceededError, match="set-backlog-quota"):
        host.producer({"topic": "t"})
    assert place.values() == ["a1", "a2", "a3"]
    place.acknowledge()
    send(place.url, "t", ["b"], application=("query", 1))
    assert "b" in place.values()


def test_a_batch_that_was_published_is_not_refused_when_it_is_repeated(host: Host) -> None:
    place = Place(host, backlog_quota_limit=7, backlog_quota_policy="producer_exception")
    for _ in range(2):
        send(place.url, "t", ["b"], application=("query", 1))
        host.run()
        assert place.is_marked


def test_producer_request_hold_has_a_sink_wait_until_there_is_room(host: Host) -> None:
    place = Place(host, backlog_quota_limit=6)
    began_ms = host.now_ms
    over = host.clock.repeat(30.0, place.acknowledge, "consumer")
    send(place.url, "t", ["b"])
    over()
    assert host.now_ms - began_ms >= 30_000
    assert "b" in place.values()


def test_a_transaction_waits_for_room_as_long_as_it_may_take(host: Host) -> None:
    place = Place(host, backlog_quota_limit=6)
    parts = written(options_of(place.url, Scope.WRITE, {"topic": "t"}), ["b"])
    began_ms = host.now_ms
    with pytest.raises(ProducerHeldError, match="producer_request_hold"):
        commit_as_one(host.root, parts, [], None, 10_000)
    assert host.now_ms - began_ms >= 10_000
    place.acknowledge()
    commit_as_one(host.root, parts, [], None, 10_000)
    assert "b" in place.values()


def test_what_a_client_sends_waits_for_its_time_and_no_longer(host: Host) -> None:
    place = Place(host, backlog_quota_limit=6)
    place.consumer.close()
    host.run()
    host.broker.close()
    with Client(place.url) as client:
        producer = client.create_producer("t", send_timeout_millis=5_000)
        with pytest.raises(client_errors.Timeout, match="producer_request_hold"):
            producer.send(b"b")
        consumer = client.subscribe("t", "s")
        for _ in range(3):
            consumer.acknowledge(consumer.receive())
        producer.send(b"c")
        assert place.values()[-1:] == ["c"]
        place.policies.set(backlog_quota_policy="producer_exception", backlog_quota_limit=1)
        host.clock.sleep(POLICIES_EVERY_S)
        with pytest.raises(client_errors.ProducerBlockedQuotaExceededException):
            producer.send(b"d")


def test_consumer_backlog_eviction_makes_room_and_nobody_waits(host: Host) -> None:
    place = Place(host, backlog_quota_limit=6, backlog_quota_policy="consumer_backlog_eviction")
    assert not place.is_marked
    send(place.url, "t", ["b1"])
    host.run()
    received = [each.value for each in iter(place.consumer.receive, None)]
    assert b"a1" not in received
    assert received[-1] == b"b1"


def test_a_quota_of_time_is_exceeded_by_waiting_alone(host: Host) -> None:
    place = Place(host, backlog_quota_limit_time="1m", backlog_quota_policy="producer_exception")
    send(place.url, "t", ["b"])
    host.advance(61_000)
    with pytest.raises(ProducerBlockedQuotaExceededError, match=r"was 6[01],\d{3} ms"):
        send(place.url, "t", ["c"])
    place.acknowledge()
    send(place.url, "t", ["c"])


def test_a_mark_is_taken_back_though_the_log_could_not_be_read_for_a_moment(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(host, backlog_quota_limit=6)
    send(place.url, "u", ["b"])
    named = {"subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
    other = host.subscribe({"topic": "u", "subscriptionType": "Shared", **named})
    host.run()
    while (message := place.consumer.receive()) is not None:
        place.consumer.acknowledge(message)
    place.consumer.poll()
    log, get = ledger_of(place.url, "t"), host.root.store.get
    last = join(log.log_folder, f"{log.state.number:020}.json")
    with monkeypatch.context() as patch:

        def refused(path: str) -> bytes | None:
            if path == last:
                raise UnreadableFileError(f"{path} can't be read.")
            return get(path)

        patch.setattr(host.root.store, "get", refused)
        host.run()
        send(place.url, "u", ["c"])
        host.run()
        assert [m.value for m in iter(other.receive, None)] == [b"b", b"c"], "others go on"
    assert place.is_marked
    host.advance(2_000)
    assert not place.is_marked


def test_a_quota_that_is_taken_back_or_raised_lets_everybody_go_on(host: Host) -> None:
    place = Place(host, backlog_quota_limit=6, backlog_quota_policy="producer_exception")
    place.policies.remove("backlog_quota_limit")
    send(place.url, "t", ["b"])
    place.policies.set(backlog_quota_limit=6)
    with pytest.raises(ProducerBlockedQuotaExceededError):
        send(place.url, "t", ["c"])
    Admin(place.url).policies("t").set(backlog_quota_limit="1K")
    host.run()
    send(place.url, "t", ["c"])
    place.policies.set(backlog_quota_policy="producer_request_hold")
    host.advance(int(POLICIES_EVERY_S * 1000))
    assert not place.is_marked


def test_only_partitions_that_are_behind_are_closed(host: Host) -> None:
    Admin(host.root.service_url).policies("public/default").set(
        backlog_quota_limit=4, backlog_quota_policy="producer_exception"
    )
    url = host.root.service_url
    send(url, "t", ["a"], columns={"topic": ["t-partition-0"]}, numPartitions=2)
    host.subscribe(
        {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
    )
    send(url, "t", ["bbbbb"], columns={"topic": ["t-partition-0"]})
    host.run()
    send(url, "t", ["c"], columns={"topic": ["t-partition-1"]})
    with pytest.raises(ProducerBlockedQuotaExceededError, match="partition 0"):
        send(url, "t", ["d"], columns={"topic": ["t-partition-0"]})
