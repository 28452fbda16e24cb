"""How many topics a namespace may have, what an owner writes on them, and ids by time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.topics.policies import POLICIES_FORMAT, policies_path
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import (
    BrokerRefusedError,
    CorruptFileError,
    InvalidOptionError,
    NamespaceNotFoundError,
    TooManyTopicsError,
    TopicNotFoundError,
)
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from pulsar_spark.options.topic_policies import MOST_PROPERTIES_BYTES
from pulsar_spark.testing import Place
from tests.connector.topics import send


@pytest.fixture
def place(pulsarlite: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", pulsarlite.service_url)
    return pulsarlite


@pytest.fixture
def admin(place: Place) -> Admin:
    return Admin(place.service_url)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(arguments)
    captured = capsys.readouterr()
    assert status == (1 if captured.err else 0)
    return captured.err or captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def test_topics_are_made_with_properties_and_listed_by_domain_and_with_those_of_the_system(
    place: Place, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "topics", "create", "a", "-m", "team=x", "--metadata", "since=2026")
    assert admin.topics.get_properties("a") == {"team": "x", "since": "2026"}
    assert "--metadata team: it takes NAME=VALUE" in said(
        capsys, "topics", "create", "b", "-m", "team"
    )
    admin.topics.create("non-persistent://public/default/n")
    names = {
        "persistent": ["persistent://public/default/a"],
        "non_persistent": ["non-persistent://public/default/n"],
    }
    for domain, found in names.items():
        assert answer(capsys, "topics", "list", "public/default", "-td", domain) == found
        assert answer(capsys, "namespaces", "topics", "public/default", "-m", domain) == found
    place.client.subscribe("a", "s").close()
    system = answer(capsys, "namespaces", "topics", "pulsar/system", "--include-system-topic")
    assert system == answer(capsys, "topics", "list", "pulsar/system", "--include-system-topic")
    assert answer(capsys, "namespaces", "topics", "pulsar/system") == []


def test_a_full_namespace_takes_no_more_topics_and_says_how_it_would(
    place: Place, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "namespaces", "set-max-topics-per-namespace", "public/default", "-t", "3")
    admin.topics.create("a", 2)
    send(place.service_url, "b", ["x"])
    for refused in (
        lambda: admin.topics.create("c"),
        lambda: admin.topics.update("a", 3),
        lambda: send(place.service_url, "c", ["x"]),
        lambda: send(place.service_url, "non-persistent://public/default/c", ["x"]),
    ):
        with pytest.raises(TooManyTopicsError, match=r"may have 3 topics and has 3, each partiti"):
            refused()
    with pytest.raises(pulsar.NotAllowedError, match="may have 3 topics"):
        place.client.subscribe("c", "s")
    assert "set-max-topics-per-namespace public/default -t 4" in said(
        capsys, "topics", "create", "c"
    )
    assert admin.topics.list() == [f"persistent://public/default/{each}" for each in "ab"]
    send(place.service_url, "other/one/c", ["x"])
    admin.topics.delete("b", force=True)
    admin.topics.create("c")
    said(capsys, "namespaces", "remove-max-topics-per-namespace", "public/default")
    admin.topics.update("c", 20)


def test_dead_letters_of_a_full_namespace_have_their_topic(place: Place) -> None:
    send(place.service_url, "jobs", ["poison"])
    Admin(place.service_url).policies("public/default").set(max_topics_per_namespace=1)
    consumer = place.client.subscribe(
        "jobs", "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1),
        negative_ack_redelivery_delay_ms=1_000,
    )  # fmt: skip
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(10_000))
    place.clock.advance(seconds=10)
    assert [each.data() for each in place.messages("jobs-s-DLQ")] == [b"poison"]
    consumer.close()


def test_only_the_types_that_are_enabled_may_subscribe(
    place: Place, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.topics.create("jobs")
    name = "subscription-types-enabled"
    assert "may be" not in said(
        capsys, "namespaces", f"set-{name}", "public/default", "-t", "Key_Shared,Shared"
    )
    assert answer(capsys, "topics", f"get-{name}", "jobs", "--applied") == {
        "subscription_types_enabled": {"value": ["Shared", "Key_Shared"], "source": "namespace"}
    }
    place.clock.advance(seconds=10)
    with pytest.raises(pulsar.NotAllowedError, match="doesn't support Exclusive sub type"):
        place.client.subscribe("jobs", "s")
    shared = place.client.subscribe("jobs", "s", pulsar.ConsumerType.Shared)
    said(capsys, "topics", f"set-{name}", "jobs", "--types", "Failover")
    place.client.subscribe("jobs", "f", pulsar.ConsumerType.Failover).close()
    send(place.service_url, "jobs", ["a"])
    assert shared.receive(10_000).data() == b"a", "who is connected stays"
    with pytest.raises(pulsar.NotAllowedError, match="doesn't support Shared sub type"):
        place.client.subscribe("jobs", "t", pulsar.ConsumerType.Shared)
    shared.close()
    said(capsys, "topics", f"remove-{name}", "jobs")
    said(capsys, "namespaces", f"remove-{name}", "public/default")
    place.clock.advance(seconds=10)
    place.client.subscribe("jobs", "s").close()
    with pytest.raises(InvalidOptionError, match=r"it takes one or more of Exclusive, Shared"):
        Admin(place.service_url).policies("jobs").set(subscription_types_enabled="Share")
    with pytest.raises(InvalidOptionError, match="one or more"):
        Admin(place.service_url).policies("jobs").set(subscription_types_enabled=[])


def test_an_id_is_found_by_time_where_a_reset_to_that_time_goes_on(
    place: Place, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = place.client.subscribe("t", "s")
    times = []
    for value in "abc":
        times.append(place.clock.wall_ms())
        send(place.service_url, "t", [value] * 2)
        place.clock.advance(minutes=1)
    consumer.close()
    Admin(place.service_url).policies("t").set(retention_time=-1, retention_size=-1)
    ledgers = [each.ledger_id for each in place.root.open(TopicName.parse("t")).ledgers(0)]
    for time_ms, number in ((times[0] - 1, 0), (times[0], 0), (times[0] + 1, 1), (times[2], 2)):
        (found,) = admin.topics.get_message_id("t", time_ms).values()
        assert found is not None
        assert found.ledger_id == ledgers[number]
        admin.subscriptions.reset_cursor("t", "s", timestamp_ms=time_ms)
        (first,) = admin.topics.peek("t", "s")
        assert (first.message_id.ledger_id, first.message_id.entry_id) == found.position
    assert admin.topics.get_message_id("t", times[2] + 1) == {0: None}
    late = answer(capsys, "topics", "get-message-id", "t", "-d", "2030-01-31T12:00:00Z")
    assert late["messageIds"] == {"0": None}
    assert "nothing was published then" in said(
        capsys, "topics", "get-message-id", "t", "-d", "2030-01-31T12:00:00Z"
    )
    assert "--datetime soon: it takes" in said(
        capsys, "topics", "get-message-id", "t", "-d", "soon"
    )


def test_a_topic_has_properties_that_stay_beside_its_policies(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.topics.create("t")
    assert answer(capsys, "topics", "get-properties", "t") == {}
    said(capsys, "topics", "set-message-ttl", "t", "-t", "5m")
    said(capsys, "topics", "update-properties", "t", "-p", "owner=eva", "-p", "cost=a=b")
    said(capsys, "topics", "update-properties", "t", "-p", "owner=ada")
    assert admin.topics.get_properties("t") == {"owner": "ada", "cost": "a=b"}
    said(capsys, "topics", "remove-message-ttl", "t")
    assert answer(capsys, "topics", "remove-properties", "t", "-k", "cost", "-k", "none") == {
        "owner": "ada"
    }
    assert "owner=ada" in said(capsys, "topics", "get-properties", "t")
    admin.topics.delete("t", force=True)
    admin.topics.create("t")
    assert admin.topics.get_properties("t") == {}, "another topic"
    with pytest.raises(TopicNotFoundError):
        admin.topics.update_properties("none", {"a": "b"})
    with pytest.raises(InvalidOptionError, match="put what is long elsewhere"):
        admin.topics.update_properties("t", {"a": "b" * MOST_PROPERTIES_BYTES})
    with pytest.raises(InvalidOptionError, match="Properties are texts"):
        admin.topics.update_properties("t", {"a": 1})  # type: ignore[dict-item]
    assert "--property a: it takes NAME=VALUE" in said(
        capsys, "topics", "update-properties", "t", "-p", "a"
    )


def test_a_namespace_has_properties_that_stay_beside_its_policies(
    place: Place, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NamespaceNotFoundError):
        admin.namespaces.get_properties("acme/eu")
    admin.namespaces.create("acme/eu")
    Admin(place.service_url).policies("acme/eu").set(message_ttl="5m")
    said(capsys, "namespaces", "set-properties", "acme/eu", "-p", "owner=eva,cost=7")
    said(capsys, "namespaces", "set-property", "acme/eu", "-k", "tier", "-v", "a=b,c")
    Admin(place.service_url).policies("acme/eu").remove("message_ttl")
    assert answer(capsys, "namespaces", "get-properties", "acme/eu") == {
        "owner": "eva", "cost": "7", "tier": "a=b,c",
    }  # fmt: skip
    assert answer(capsys, "namespaces", "get-property", "acme/eu", "-k", "cost") == "7"
    assert said(capsys, "namespaces", "remove-property", "acme/eu", "-k", "cost") == "7\n"
    assert answer(capsys, "namespaces", "remove-property", "acme/eu", "-k", "cost") is None
    assert answer(capsys, "namespaces", "clear-properties", "acme/eu") == {}
    path = policies_path(NamespaceName.parse("acme/eu"))
    damaged = POLICIES_FORMAT.encode({"properties": ["a"]})
    place.root.store.replace(path, lambda _: damaged)
    with pytest.raises(CorruptFileError, match="is damaged: it says"):
        admin.namespaces.get_properties("acme/eu")


def test_a_number_alone_is_seconds_ago_as_for_pulsar_admin(
    place: Place, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = place.client.subscribe("t", "s", pulsar.ConsumerType.Shared)
    for value in "ab":
        send(place.service_url, "t", [value])
        place.clock.advance(seconds=10)
    said(capsys, "topics", "reset-cursor", "t", "-s", "s", "-t", "15")
    assert [each.value for each in admin.topics.peek("t", "s", 9)] == [b"b"]
    said(capsys, "topics", "reset-cursor", "t", "-s", "s", "-m", "earliest")
    said(capsys, "topics", "expire-messages", "t", "-s", "s", "-t", "15")
    assert [each.value for each in admin.topics.peek("t", "s", 9)] == [b"b"]
    consumer.close()


def test_an_admin_s_subscription_has_no_type_to_be_refused(place: Place, admin: Admin) -> None:
    consumer = place.client.subscribe("t", "s", pulsar.ConsumerType.Shared)
    Admin(place.service_url).policies("t").set(subscription_types_enabled=["Shared"])
    admin.subscriptions.create("t", "made", "earliest")
    assert admin.subscriptions.list("t") == ["made", "s"]
    with pytest.raises(BrokerRefusedError):
        admin.subscriptions.skip("t", "none", 1)
    consumer.close()
