"""Who may publish: access modes, waiting, fencing, epochs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import ProducerBusyError, ProducerFencedError
from pulsar_spark.topic_log.producer_access import ProducerAccessMode, TopicProducers
from tests.core.partition import repeatable

SHARED = ProducerAccessMode.SHARED
EXCLUSIVE = ProducerAccessMode.EXCLUSIVE
FENCING = ProducerAccessMode.EXCLUSIVE_WITH_FENCING
WAITING = ProducerAccessMode.WAIT_FOR_EXCLUSIVE


def topic_of(*producers: tuple[str, ProducerAccessMode]) -> TopicProducers:
    topic = TopicProducers()
    for name, mode in producers:
        topic = topic.add(name, mode).topic
    return topic


def test_shared_producers_share() -> None:
    topic = topic_of(("a", SHARED), ("b", SHARED))
    assert list(topic.producers) == ["a", "b"]
    assert topic.topic_epoch is None
    assert topic.may_publish("a", None)
    assert topic.remove("a").topic.producers.keys() == {"b"}


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAITING, FENCING])
def test_an_exclusive_producer_keeps_others_out(mode: ProducerAccessMode) -> None:
    topic = topic_of(("a", mode))
    assert topic.exclusive_producer == "a"
    assert topic.topic_epoch == 0
    with pytest.raises(ProducerBusyError, match="Topic has an existing exclusive producer: a"):
        topic.add("b", SHARED)
    with pytest.raises(ProducerFencedError, match="Topic has an existing exclusive producer: a"):
        topic.add("b", EXCLUSIVE)


def test_an_exclusive_producer_does_not_come_where_others_share() -> None:
    with pytest.raises(ProducerFencedError, match="Topic has existing shared producers"):
        topic_of(("a", SHARED)).add("b", EXCLUSIVE)


def test_who_waits_is_let_in_in_order_of_coming_and_each_grant_has_its_epoch() -> None:
    topic = topic_of(("a", EXCLUSIVE), ("b", WAITING), ("c", WAITING))
    with pytest.raises(ProducerBusyError):
        topic.add("d", SHARED)
    admission = topic.remove("a")
    assert [(each.name, each.topic_epoch) for each in admission.granted] == [("b", 1)]
    assert not admission.topic.may_publish("a", 0)
    admission = admission.topic.remove("b")
    assert [(each.name, each.topic_epoch) for each in admission.granted] == [("c", 2)]
    assert admission.topic.remove("c").topic == TopicProducers(topic_epoch=2)


def test_who_waits_behind_shared_producers_is_let_in_when_the_last_of_them_leaves() -> None:
    topic = topic_of(("a", SHARED), ("b", SHARED), ("c", WAITING))
    with pytest.raises(ProducerFencedError):
        topic.add("d", EXCLUSIVE)
    admission = topic.remove("a")
    assert admission.granted == ()
    assert [each.name for each in admission.topic.remove("b").granted] == ["c"]


def test_who_waits_may_give_up() -> None:
    topic = topic_of(("a", EXCLUSIVE), ("b", WAITING))
    assert topic.remove("b").topic == topic_of(("a", EXCLUSIVE))


def test_fencing_closes_all_who_publish_and_all_who_wait() -> None:
    admission = topic_of(("a", EXCLUSIVE), ("b", WAITING)).add("c", FENCING)
    assert admission.fenced == ("a", "b")
    assert [(each.name, each.topic_epoch) for each in admission.granted] == [("c", 1)]
    assert list(admission.topic.producers) == ["c"]
    assert topic_of(("a", SHARED), ("b", SHARED)).add("c", FENCING).fenced == ("a", "b")


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAITING, FENCING])
def test_a_producer_that_comes_back_with_an_older_epoch_was_replaced(
    mode: ProducerAccessMode,
) -> None:
    topic = topic_of(("a", FENCING), ("b", FENCING)).remove("b").topic
    with pytest.raises(ProducerFencedError, match="Current epoch: 1, Producer epoch: 0"):
        topic.add("a", mode, topic_epoch=0)
    back = topic.add("b", mode, topic_epoch=1).topic
    assert back.topic_epoch == 1
    assert back.may_publish("b", 1)


def test_a_stale_producer_fences_nobody() -> None:
    topic = topic_of(("a", FENCING), ("b", FENCING))
    with pytest.raises(ProducerFencedError, match="already moved"):
        topic.add("a", FENCING, topic_epoch=0)


def test_a_stale_producer_that_waits_is_passed_over() -> None:
    topic = topic_of(("a", EXCLUSIVE), ("b", FENCING))
    topic = topic.add("a", WAITING, topic_epoch=0).topic.add("c", WAITING).topic
    admission = topic.remove("b")
    assert admission.fenced == ("a",)
    assert [each.name for each in admission.granted] == ["c"]
    only = topic_of(("a", EXCLUSIVE), ("b", FENCING)).add("a", WAITING, topic_epoch=0).topic
    assert only.remove("b").fenced == ("a",)
    assert only.remove("b").topic == TopicProducers(topic_epoch=1)


def test_a_name_is_taken_unless_it_is_the_same_producer_connected_again() -> None:
    topic = topic_of(("a", EXCLUSIVE), ("b", WAITING))
    for name, mode in (("a", EXCLUSIVE), ("b", WAITING), ("a", SHARED)):
        with pytest.raises(ProducerBusyError, match=f"name '{name}' is already connected"):
            topic.add(name, mode)
    with pytest.raises(ProducerBusyError):
        topic.add("a", SHARED, epoch=1)
    again = topic.add("a", EXCLUSIVE, epoch=1)
    assert again.topic.may_publish("a", 0)
    assert [each.epoch for each in again.granted] == [1]
    assert [each.epoch for each in topic.add("b", WAITING, epoch=4).topic.waiting] == [4]


@repeatable
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcde"), st.sampled_from([None, *ProducerAccessMode]), st.booleans()
        ),
        max_size=25,
    )
)
def test_whoever_comes_and_goes_one_owner_is_alone_and_epochs_grow(
    steps: Sequence[tuple[str, ProducerAccessMode | None, bool]],
) -> None:
    topic = TopicProducers()
    known: dict[str, int | None] = {}
    for name, mode, remembers in steps:
        before = topic
        try:
            if mode is None:
                admission = topic.remove(name)
            else:
                epoch = known.get(name) if remembers else None
                admission = topic.add(name, mode, topic_epoch=epoch)
        except (ProducerBusyError, ProducerFencedError):
            continue
        topic = admission.topic
        topic.check()
        assert (topic.topic_epoch or 0) >= (before.topic_epoch or 0)
        known |= {each.name: each.topic_epoch for each in admission.granted}
        assert not set(admission.fenced) & topic.producers.keys() - {name}
        value = json.loads(json.dumps(topic.to_json_value()))
        assert TopicProducers.from_json_value(value) == topic
