"""Topics that nobody uses are deleted by their broker, where a policy says so, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.testing import Place
from tests.connector.topics import ledger_of, send

NAMES = ("quiet", "busy", "held", "read")
CAUGHT_UP = "delete_when_subscriptions_caught_up"


@pytest.fixture
def place(pulsarlite: Place) -> Iterator[Place]:
    consumer = pulsarlite.client.subscribe("served", "s")  # so that a broker runs
    yield pulsarlite
    consumer.close()


def delete_inactive(place: Place, name: str = "public/default", **said: Any) -> None:
    given = {"delete_inactive_topics": True, "max_inactive_duration": "10m", **said}
    Admin(place.service_url).policies(name).set(**given)


def there(place: Place) -> list[str]:
    names = (TopicName.parse(each) for each in ("served", *NAMES))
    return [each.local_name for each in names if place.root.open_found(each) is not None]


def test_a_topic_goes_that_nobody_has_used_for_the_time_that_its_policy_says(place: Place) -> None:
    for name in NAMES:
        send(place.service_url, name, ["a"])
    delete_inactive(place)
    consumer = place.client.subscribe("held", "s")
    place.client.subscribe("read", "s").close()
    place.clock.advance(minutes=1)
    place.clock.advance(minutes=5)
    send(place.service_url, "busy", ["b"])
    place.clock.advance(minutes=5)
    assert there(place) == ["served", "busy", "held", "read"]
    assert not list(place.root.store.files("persistent/public/default/quiet/data"))
    place.clock.advance(minutes=10)
    assert there(place) == ["served", "held", "read"]
    delete_inactive(place, inactive_topic_delete_mode=CAUGHT_UP)
    place.clock.advance(minutes=11)
    assert there(place) == ["served", "held"], "a consumer is connected; of «read» nothing is left"
    consumer.close()
    send(place.service_url, "quiet", ["new"])
    assert [each.data() for each in place.messages("quiet")] == [b"new"]


def test_a_topic_with_a_backlog_or_within_its_retention_stays(place: Place) -> None:
    delete_inactive(place, inactive_topic_delete_mode=CAUGHT_UP)
    earliest = pulsar.InitialPosition.Earliest
    for name in ("read", "held"):
        send(place.service_url, name, ["a"])
    place.client.subscribe("read", "s", initial_position=earliest).close()
    Admin(place.service_url).policies("held").set(retention_time="1h", retention_size=-1)
    place.clock.advance(minutes=1)
    place.clock.advance(minutes=50)
    assert there(place) == ["served", "held", "read"]
    place.clock.advance(minutes=15)
    assert there(place) == ["served", "read"]


def test_nothing_is_deleted_where_nobody_says_so(place: Place) -> None:
    send(place.service_url, "quiet", ["a"])
    for _ in range(10):
        place.clock.advance(days=1)
    assert there(place) == ["served", "quiet"]
    delete_inactive(place)
    Admin(place.service_url).policies("quiet").set(delete_inactive_topics=False)
    place.clock.advance(minutes=1)
    place.clock.advance(days=1)
    assert there(place) == ["served", "quiet"]


def test_dead_letters_that_wait_for_a_subscription_stay(place: Place) -> None:
    client = place.client
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, dead_letter_topic="quiet")
    consumer = client.subscribe(
        "held", "s", pulsar.ConsumerType.Shared, dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=1_000,
    )  # fmt: skip
    send(place.service_url, "held", ["a"])
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(10_000))
    place.clock.advance(seconds=10)
    assert len(place.messages("quiet")) == 1
    delete_inactive(place)
    place.clock.advance(minutes=1)
    place.clock.advance(hours=1)
    assert "quiet" in there(place)
    consumer.close()


def test_one_message_at_the_last_moment_keeps_its_topic(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(place.service_url, "quiet", ["a"])
    delete_inactive(place)
    place.clock.advance(minutes=1)
    original = ManagedLedger.commit

    def beaten(ledger: ManagedLedger, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        send(place.service_url, "quiet", ["b"])
        return original(ledger, *given, **named)

    monkeypatch.setattr(ManagedLedger, "commit", beaten)
    place.clock.advance(minutes=11)
    assert there(place) == ["served", "quiet"]
    assert [each.data() for each in place.messages("quiet")] == [b"a", b"b"]


def test_what_a_killed_process_has_deleted_by_half_is_deleted(place: Place) -> None:
    send(place.service_url, "quiet", ["a"])
    ledger_of(place.service_url, "quiet").delete()
    files = "persistent/public/default/quiet/data"
    assert list(place.root.store.files(files))
    Housekeeper(Root(place.service_url, {})).run_once()
    assert not list(place.root.store.files(files))
    assert isinstance(place.root.store, MemoryStore)
