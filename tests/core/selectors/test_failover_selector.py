"""Who is active, whoever came and went."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.broker.selectors.failover_selector import FIRST_COME, FailoverSelector
from pulsar_spark.errors import ConsumerBusyError, ConsumerNotConnectedError
from tests.core.partition import repeatable

TOPIC = "persistent://public/default/orders"
joins = st.lists(
    st.tuples(st.sampled_from(["a", "b", "B", "é", "\uffff", "\U0001f600"]), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


@repeatable
@given(joins, st.integers(-1, 7), st.booleans(), st.data())
def test_the_active_consumer_is_of_the_lowest_level_whatever_came_and_went(
    requested: Sequence[tuple[str, int]], partition: int, ring: bool, data: st.DataObject
) -> None:
    selector = FailoverSelector(TOPIC, partition, consistent_hashing=ring)
    levels = {}
    for number, (name, level) in enumerate(requested):
        selector = selector.add(str(number), name, level)
        levels[str(number)] = level
        selector.check()
        assert selector.active is not None
        assert levels[selector.active] == min(levels.values())
    read = FailoverSelector.from_json_value(json.loads(json.dumps(selector.to_json_value())))
    assert read == selector
    for who in data.draw(st.permutations(sorted(levels))):
        before = selector
        selector = selector.remove(who)
        selector.check()
        if ring and who != before.active and len({name for name, _ in requested}) == len(requested):
            assert selector.active == before.active, "on a ring others' leaving changes nothing"
    assert selector.active is None


def test_partitions_go_round_the_consumers_by_name_as_java_orders_it() -> None:
    # U+1F600 is written with surrogates, which Java puts below U+FFFF.
    names = ["b", "\uffff", "\U0001f600"]
    active = []
    for partition in range(4):
        selector = FailoverSelector(TOPIC, partition)
        for name in names:
            selector = selector.add(name, name)
        active.append(selector.active)
    assert active == ["b", "\U0001f600", "\uffff", "b"]


def test_who_joined_first_is_active_until_it_goes_or_one_of_a_lower_level_comes() -> None:
    selector = FailoverSelector(TOPIC, FIRST_COME).add("z", "z").add("a", "a")
    assert selector.active == "z"
    assert selector.add("b", "b", -1).active == "b"
    assert selector.add("b", "b", 1).active == "z"
    assert selector.remove("z").add("z", "z").active == "a"
    selector.check()


def test_an_exclusive_subscription_has_one_consumer_that_may_unsubscribe() -> None:
    selector = FailoverSelector(TOPIC, exclusive=True).add("c1", "c1")
    with pytest.raises(ConsumerBusyError, match="Exclusive consumer is already connected"):
        selector.add("c2", "c2")
    assert selector.can_unsubscribe("c1")
    assert not selector.can_unsubscribe("c2")
    assert selector.remove("c1").add("c2", "c2").active == "c2"


def test_of_several_none_may_unsubscribe() -> None:
    selector = FailoverSelector(TOPIC).add("c1", "c1").add("c2", "c2")
    assert not selector.can_unsubscribe("c1")
    assert not selector.can_unsubscribe("c2")


def test_a_consumer_joins_once_and_leaves_once() -> None:
    selector = FailoverSelector(TOPIC).add("c1", "c1")
    with pytest.raises(ValueError, match="ids must differ"):
        selector.add("c1", "other")
    with pytest.raises(ConsumerNotConnectedError, match="Consumer was not connected"):
        selector.remove("c2")
