"""Which topics and partitions a source reads, and that new ones are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.reading import Run
from tests.connector.topics import ledger_of, send

pytestmark = pytest.mark.usefixtures("impatient")


def test_several_topics_and_a_partition_alone_are_read(root: Path) -> None:
    for topic in ("a", "b", "c"):
        send(root, f"{topic}-partition-0", [f"{topic}0"], numPartitions=2)
        send(root, f"{topic}-partition-1", [f"{topic}1"])
    earliest: dict[str, Any] = {"startingOffsets": "earliest"}
    assert Run(root, topics="a,c", **earliest).values() == ["a0", "a1", "c0", "c1"]
    assert Run(root, topic="b-partition-1", **earliest).values() == ["b1"]
    assert Run(root, topics="a-partition-1,b", **earliest).values() == ["a1", "b0", "b1"]
    assert Run(root, topics="a-partition-1,a", **earliest).values() == ["a0", "a1"]


def test_a_partition_that_is_not_there_is_refused(root: Path) -> None:
    send(root, "t", ["a"])
    with pytest.raises(TopicNotFoundError, match=r"has 1 partitions.*no partition 3"):
        Run(root, topic="t-partition-3").next()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("fl.*", ["flights", "floods"]),
        ("persistent://public/default/fl.*s", ["flights", "floods"]),
        ("flight", []),
        ("acme/eu/.*", ["orders"]),
        ("flights|other", ["flights", "other"]),
        ("persistent://.*/.*/.*o.*s", ["floods", "orders"]),
    ],
)
def test_a_pattern_reads_the_topics_whose_whole_name_matches(
    root: Path, pattern: str, found: list[str]
) -> None:
    for topic in ("flights", "floods", "other", "acme/eu/orders"):
        send(root, topic, [topic.rpartition("/")[2]])
    run = Run(root, topicsPattern=pattern, startingOffsets="earliest")
    assert sorted(run.values()) == found


@pytest.mark.parametrize(
    "folder",
    [
        "persistent/public/default/made/_log",
        "persistent/public/default/made/data",
        "persistent/public/default/no%zztopic",
        "persistent/public/default/a b",
        "persistent/public/default/-partition-3",
        "persistent/public/not a namespace/t",
        "persistent/lost+found/x/t",
    ],
)
def test_a_pattern_passes_over_a_folder_without_a_topic_until_there_is_one(
    root: Path, folder: str
) -> None:
    send(root, "first", ["a"])
    (root / folder).mkdir(parents=True)
    (root / folder / ".tmp-1").write_bytes(b"left by a creation that was killed")
    everything = Run(
        root, topicsPattern="persistent://.*", startingOffsets="earliest", topicDiscoveryInterval=0
    )
    assert everything.values() == ["a"]
    send(root, "made", ["b"])
    assert everything.values() == ["b"]


def test_a_pattern_never_matches_a_system_topic(root: Path) -> None:
    send(root, "flights", ["a"])
    topics = Root(str(root), {})
    SystemTopic(topics, COMMANDS).append([Record(TopicPartition("flights", 0), "s", b"secret")])
    everything = Run(root, topicsPattern="persistent://.*", startingOffsets="earliest")
    assert everything.values() == ["a"]
    by_name = Run(root, topic=str(COMMANDS), startingOffsets="earliest")
    assert by_name.values() == ["secret"]


def test_new_topics_that_match_are_read_from_their_first_message(root: Path) -> None:
    run = Run(root, topicsPattern="fl.*", topicDiscoveryInterval=0)
    assert run.values() == []
    send(root, "flights", ["a"])
    send(root, "other", ["x"])
    assert run.values() == ["a"]
    send(root, "floods", ["b"])
    assert run.values() == ["b"]


def test_new_partitions_are_read_from_their_first_message(root: Path) -> None:
    send(root, "t", ["a"])
    run = Run(root, topic="t")
    assert run.values() == []
    ledger_of(root, "t").grow(3)
    send(root, "t-partition-2", ["b"])
    assert run.values() == ["b"]


def test_a_topic_taken_out_of_the_options_stays_where_it_was(root: Path) -> None:
    send(root, "a", ["a0"])
    send(root, "b", ["b0"])
    run = Run(root, topics="a,b", startingOffsets="earliest")
    assert run.values() == ["a0", "b0"]
    send(root, "a", ["a1"])
    send(root, "b", ["b1"])
    fewer = Run(root, topic="b", start=run.offset)
    assert fewer.values() == ["b1"]
    assert Run(root, topics="a,b", start=fewer.offset).values() == ["a1"]
