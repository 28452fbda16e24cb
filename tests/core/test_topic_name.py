"""Topic names are parsed as Pulsar does, and their folders never leave the root."""

from __future__ import annotations

import pickle
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidTopicNameError
from pulsar_spark.model.topic_name import (
    NamespaceName,
    TopicName,
    check_subscription_name,
    default_dead_letter_topic,
    default_retry_letter_topic,
)
from tests.core.partition import repeatable

entities = st.text("ab.-=:_", min_size=1, max_size=4)
local_names = st.text(max_size=12).filter(lambda name: "/" not in name and name.strip())


@repeatable
@given(entities, entities, local_names)
def test_a_name_is_what_its_text_says(tenant: str, namespace: str, local_name: str) -> None:
    try:
        name = TopicName("persistent", NamespaceName(tenant, namespace), local_name)
    except InvalidTopicNameError:  # what only Python, or only Java, takes for white space
        return
    assert TopicName.parse(str(name)) == name
    assert TopicName.from_persistence_naming(name.persistence_naming) == name


@repeatable
@given(st.lists(st.tuples(entities, entities, local_names), min_size=2, max_size=2))
def test_no_two_topics_share_a_folder_and_none_leaves_the_root(
    parts: list[tuple[str, str, str]],
) -> None:
    try:
        names = [TopicName("persistent", NamespaceName(t, n), local) for t, n, local in parts]
    except InvalidTopicNameError:  # as above
        return
    for name in names:
        path = PurePosixPath(name.storage_path)
        assert len(path.parts) == 4
        assert not {".", ".."} & set(path.parts)
        assert name.storage_path.isascii()
    same = names[0].partitioned_topic == names[1].partitioned_topic
    assert (names[0].storage_path == names[1].storage_path) == same


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("persistent://t/n/..", "persistent/t/n/%2E%2E"),
        ("persistent://../../.", "persistent/%2E%2E/%2E%2E/%2E"),
        ("persistent://../../%2E", "persistent/%2E%2E/%2E%2E/%252E"),
        ("persistent://t/n/...", "persistent/t/n/..."),
        ("a b%/~", None),
        ("x\\..\\y", "persistent/public/default/x%5C..%5Cy"),
        ("x\0y", "persistent/public/default/x%00y"),
        ("non-persistent://t/n/x-partition-3", "non-persistent/t/n/x"),
    ],
)
def test_names_that_look_like_paths_stay_in_their_folder(text: str, path: str | None) -> None:
    if path is None:
        with pytest.raises(InvalidTopicNameError):
            TopicName.parse(text)
    else:
        assert TopicName.parse(text).storage_path == path


def test_a_name_too_long_for_a_folder_is_refused_when_it_is_stored() -> None:
    assert TopicName.parse("x" * 255).storage_path.endswith("x" * 255)
    with pytest.raises(InvalidTopicNameError, match="takes 258 bytes"):
        assert TopicName.parse("é" * 43).storage_path


def test_partitions_have_names_of_their_own() -> None:
    topic = TopicName.parse("t")
    assert topic.partition(3) == TopicName.parse("t-partition-3")
    assert topic.partition(3).partition_index == 3
    assert topic.partition(3).partitioned_topic == topic
    assert topic.partition(-1) == topic
    assert topic.partition(3).partition(3) == topic.partition(3)
    with pytest.raises(InvalidTopicNameError, match="no partition -2"):
        topic.partition(-2)


@pytest.mark.parametrize("local_name", ["-partition-3", "  -partition-0"])
def test_a_partition_of_a_topic_without_a_name_is_refused(local_name: str) -> None:
    for text in (local_name, f"persistent://t/n/{local_name}", f"t/n/{local_name}"):
        with pytest.raises(InvalidTopicNameError, match="a topic without a name"):
            TopicName.parse(text)
    assert TopicName.parse("-partition-03").partition_index == -1


def test_only_canonical_ascii_numbers_name_a_partition() -> None:
    for text in ("01", "-1", "+1", "x", "", "2147483648", "٣", "1_0", " 1", "9" * 5000):
        assert TopicName.parse(f"t-partition-{text}").partition_index == -1
    assert TopicName.parse("t-partition-2147483647").is_partition


def test_what_can_not_be_written_as_utf_8_is_no_name() -> None:
    with pytest.raises(InvalidTopicNameError, match="surrogate"):
        TopicName.parse("x\ud800")


def test_a_local_name_is_encoded_as_java_encodes_it() -> None:
    assert TopicName.parse("a ~*é").encoded_local_name == "a+%7E*%C3%A9"


def test_a_foreign_domain_or_a_slash_makes_no_name() -> None:
    namespace = NamespaceName("t", "n")
    with pytest.raises(InvalidTopicNameError, match="domain: 'http'"):
        TopicName("http", namespace, "x")
    with pytest.raises(InvalidTopicNameError, match="local name"):
        TopicName("persistent", namespace, "x/y")
    with pytest.raises(InvalidTopicNameError, match="Invalid managedLedger name"):
        TopicName.from_persistence_naming("a/b/c")


@pytest.mark.parametrize("name", ["", " ", "\t", "pulsar.dedup", "pulsar.repl.x"])
def test_reserved_and_blank_subscription_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicNameError, match=r"[Ss]ubscription"):
        check_subscription_name(name)


def test_other_subscription_names_are_taken() -> None:
    for name in ("s", "a/b", "pulsar", "pulsar.dedup2", "日本", "."):
        check_subscription_name(name)


def test_dead_letters_and_retries_have_topics_of_their_own() -> None:
    topic = "persistent://t/n/x"
    assert default_dead_letter_topic(topic, "s") == "persistent://t/n/x-s-DLQ"
    assert default_retry_letter_topic(topic, "s") == "persistent://t/n/x-s-RETRY"


def test_names_are_values_that_travel() -> None:
    name = TopicName.parse("t-partition-2")
    assert pickle.loads(pickle.dumps(name)) == name
    assert hash(name) == hash(TopicName.parse("persistent://public/default/t-partition-2"))
    assert min(name, TopicName.parse("s")).local_name == "s"
