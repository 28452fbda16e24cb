"""A consumer whose topic is deleted and made again reads the new one, from its first message."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.tools.admin.topics import Topics
from pulsar_spark.testing import Place
from tests.connector.client.clients import all_of, received

PATTERN = re.compile("persistent://public/default/t.*")


@pytest.mark.parametrize("topic", [PATTERN, "t", ["t", "u"]], ids=["pattern", "named", "several"])
@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive])
def test_a_topic_that_is_deleted_and_made_again_is_read_on(
    pulsarlite: Place, topic: Any, looked: bool, kind: pulsar.ConsumerType
) -> None:
    client, topics = pulsarlite.client, Topics(pulsarlite.root)
    for name in ("t", "u"):
        client.create_producer(name).send(b"old")
    consumer = client.subscribe(
        topic, "s", kind, initial_position=pulsar.InitialPosition.Earliest,
        pattern_auto_discovery_period=1,
    )  # fmt: skip
    first = [each for each in all_of(consumer) if each.topic_name().endswith("/t")]
    assert [each.data() for each in first] == [b"old"]
    topics.delete("t", force=True)
    if looked:
        try:
            assert received(consumer, 5_000) == []
        except pulsar.TopicNotFound:
            assert topic == "t"
    producer = client.create_producer("t")
    producer.send(b"new")
    consumer.acknowledge(first)
    new = all_of(consumer, 5_000)
    assert [each.data() for each in new] == [b"new"]
    producer.send(b"newer")
    new += all_of(consumer, 5_000)
    assert [each.data() for each in new] == [b"new", b"newer"]
    assert pulsarlite.backlog("t", "s") == 2
    consumer.acknowledge(new)
    consumer.close()
    assert pulsarlite.backlog("t", "s") == 0
