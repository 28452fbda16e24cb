"""The table of policies: what is taken, what is stored, and which word counts."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from pulsar_spark.broker.protocol.policies import INFINITE, TopicPolicies
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.topic_policies import (
    POLICIES,
    SETTINGS,
    PolicyValues,
    applied,
    changed,
    checked,
    hosted_policies,
    is_stored,
    set_policies,
)

DAY_MS = 86_400_000
HOSTS_OWN = {"keep_acknowledged", "keep_without_subscription"}
"""What only the broker says, of its letter topics."""


def test_each_policy_of_the_broker_has_a_door_and_its_types_are_told() -> None:
    stored = {each.stored for each in SETTINGS.values()}
    assert {each.name for each in fields(TopicPolicies)} - stored == HOSTS_OWN
    assert set(get_type_hints(PolicyValues)) == set(SETTINGS)
    names = [name for policy in POLICIES for name in (policy.name, *policy.also)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_stored_is_given_back_and_stored_alike_again(name: str) -> None:
    unit = SETTINGS[name].unit
    default = SETTINGS[name].default
    assert unit.stored(unit.given(default)) == default
    assert unit.text(default)


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("retention_time", "5w", 35 * DAY_MS),
        ("retention_time", 90, 90_000),
        ("retention_time", timedelta(hours=2), 7_200_000),
        ("retention_time", -1, INFINITE),
        ("retention_time", "-1", INFINITE),
        ("retention_size", "16G", 16 << 30),
        ("retention_size", "3t", 3 << 40),
        ("retention_size", "4096", 4096),
        ("message_ttl", "100M", 6_000_000),
        ("delayed_delivery_tick", 0.5, 500),
        ("delayed_delivery_tick", "500ms", 500),
        ("backlog_quota_limit_time", 0, INFINITE),
        ("max_consumers", "7", 7),
        ("deduplication", "TRUE", True),
        ("schema_compatibility_strategy", "full", "FULL"),
    ],
)
def test_values_are_taken_as_pulsar_admin_takes_them(name: str, given: Any, stored: Any) -> None:
    assert checked({name: given}) == {SETTINGS[name].stored: stored}


@pytest.mark.parametrize(
    ("name", "given", "right"),
    [
        ("retention_time", "3 days", "30s, 100m, 3h, 2d or 5w"),
        ("retention_time", -2, "-1 for no limit"),
        ("retention_time", float("nan"), "a number alone is seconds"),
        ("retention_time", True, "a time"),
        ("retention_size", "10GB", "16G or 3T"),
        ("retention_size", 1 << 60, "a size"),
        ("message_ttl", -1, "a time"),
        ("max_producers", 1.5, "a whole number"),
        ("max_producers", -1, "0 for no limit"),
        ("max_producers", True, "a whole number"),
        ("deduplication", 1, "true or false"),
        ("deduplication", None, "true or false"),
        ("backlog_quota_policy", "hold", "producer_request_hold, producer_exception"),
        ("retention", "3d", "Did you mean retention_time"),
        ("messageTTL", "3d", "Did you mean message_ttl"),
        ("xyz", 1, "There are retention_time, "),
    ],
)
def test_what_is_wrong_is_answered_with_what_is_right(name: str, given: Any, right: str) -> None:
    with pytest.raises(InvalidOptionError, match=right):
        checked({name: given})


def test_a_setting_s_word_comes_from_the_topic_its_namespace_or_the_default() -> None:
    topic = changed({}, checked({"message_ttl": 0, "deduplication": False}))
    namespace = changed({}, checked({"message_ttl": 5, "deduplication": True, "max_consumers": 3}))
    counts = applied(topic, namespace)
    assert counts["message_ttl_ms"][1:] == (0, "topic")
    assert counts["deduplication"][1:] == (False, "topic")
    assert counts["max_consumers_per_topic"][1:] == (3, "namespace")
    assert counts["max_producers_per_topic"][1:] == (0, "default")
    hosted = hosted_policies(topic, namespace)
    assert (hosted.message_ttl_ms, hosted.max_consumers_per_topic) == (0, 3)


def test_what_is_taken_back_leaves_no_trace_and_other_settings_stay() -> None:
    before = {"other": 1, "policies": {"keep_without_subscription": True}}
    after = changed(before, checked({"message_ttl": 5, "deduplication": True}))
    assert set_policies(after) == {"message_ttl_ms": 5_000, "deduplication": True}
    assert changed(after, {"message_ttl_ms": None, "deduplication": None}) == before
    assert hosted_policies(before, {}).keep_without_subscription


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"retention_time": 0, "retention_size": 0}, True),
        ({"retention_time": "3d", "retention_size": -1}, True),
        ({"retention_time": "3d", "retention_size": 0}, False),
        ({"retention_time": 0, "retention_size": "1G"}, False),
        ({"retention_time": "3d"}, False),
    ],
)
def test_a_retention_of_which_one_half_undoes_the_other_is_refused(
    given: dict[str, Any], fits: bool
) -> None:
    if fits:
        changed({}, checked(given))
        return
    with pytest.raises(InvalidOptionError, match="go together"):
        changed({}, checked(given))


@pytest.mark.parametrize(
    "settings",
    [
        {"policies": 3},
        {"policies": {"message_ttl_ms": "5"}},
        {"policies": {"message_ttl_ms": -1}},
        {"policies": {"message_ttl_ms": 5.0}},
        {"policies": {"backlog_quota_policy": "perhaps"}},
        {"deduplication": "yes"},
    ],
)
def test_what_nobody_could_have_stored_is_known_as_such(settings: dict[str, Any]) -> None:
    assert not is_stored(settings)
