"""Subscriptions that nobody comes for are deleted by their broker, where a policy says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.system_topics.system_topics import SystemTopic
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.testing import Place
from tests.connector.topics import send


@pytest.fixture
def place(pulsarlite: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", pulsarlite.service_url)
    Admin(pulsarlite.service_url).topics.create("jobs", 2)
    consumer = pulsarlite.client.subscribe("jobs", "held")  # so that a broker runs
    yield pulsarlite
    consumer.close()


def there(place: Place) -> list[str]:
    return Admin(place.service_url).subscriptions.list("jobs")


def left(place: Place, name: str) -> None:
    place.client.subscribe("jobs", name).close()


def test_a_subscription_goes_to_which_nobody_was_connected_for_so_long(place: Place) -> None:
    assert main(["namespaces", "set-subscription-expiration-time", "public/default", "-t", "30"])\
        == 0  # fmt: skip
    left(place, "left")
    left(place, "again")
    place.clock.advance(minutes=1)
    place.clock.advance(minutes=20)
    assert there(place) == ["again", "held", "left"], "the number alone is minutes"
    left(place, "again")
    place.clock.advance(minutes=12)
    assert there(place) == ["again", "held"]
    place.clock.advance(minutes=31)
    assert there(place) == ["held"], "somebody is connected to it"


def test_a_subscription_with_a_backlog_goes_too_and_its_messages_with_it(place: Place) -> None:
    Admin(place.service_url).policies("jobs").set(subscription_expiration_time="1h")
    left(place, "left")
    send(place.service_url, "jobs", ["a", "b"])
    place.clock.advance(minutes=1)
    place.clock.advance(minutes=58)
    assert there(place) == ["held", "left"]
    place.clock.advance(minutes=5)
    assert there(place) == ["held"]


def test_a_cursor_that_an_admin_moves_is_in_use(place: Place) -> None:
    Admin(place.service_url).policies("jobs").set(subscription_expiration_time="1h")
    left(place, "left")
    place.clock.advance(minutes=1)
    for _ in range(3):
        place.clock.advance(minutes=40)
        Admin(place.service_url).subscriptions.reset_cursor("jobs", "left", "earliest")
        place.clock.advance(minutes=1)
    assert there(place) == ["held", "left"]


def test_nothing_expires_where_nobody_says_so_or_who_said_so_takes_it_back(place: Place) -> None:
    policies = Admin(place.service_url).policies("jobs")
    left(place, "left")
    place.clock.advance(days=30)
    policies.set(subscription_expiration_time="1h")
    place.clock.advance(minutes=50)
    policies.remove("subscription_expiration_time")
    place.clock.advance(minutes=5)
    policies.set(subscription_expiration_time="1h")
    place.clock.advance(minutes=50)
    assert there(place) == ["held", "left"], "what was seen before does not count"


def test_who_comes_at_the_last_moment_keeps_his_subscription(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    Admin(place.service_url).policies("jobs").set(subscription_expiration_time="1h")
    send(place.service_url, "jobs", ["a"])
    earliest = pulsar.InitialPosition.Earliest
    place.client.subscribe("jobs", "left", initial_position=earliest).close()
    place.clock.advance(minutes=1)
    original, came = SystemTopic.append, []

    def late(topic: SystemTopic, records: list, **given: object) -> object:  # type: ignore[type-arg]
        held = list(records)
        if any(b"Unsubscribe" in each.data for each in held):
            monkeypatch.undo()
            came.append(place.client.subscribe("jobs", "left"))
        return original(topic, held, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(SystemTopic, "append", late)
    place.clock.advance(minutes=62)
    (consumer,) = came
    assert there(place) == ["held", "left"]
    assert consumer.receive(10_000).data() == b"a"
    consumer.close()
