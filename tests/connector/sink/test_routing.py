"""Which partition a message goes to, through the sink's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.stream_writer import MessageSink
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.log.producing.hashing import java_string_hash, murmur3_32_hash
from pulsar_spark.options.options import Scope
from tests.connector.reading import Run, entries, messages
from tests.connector.topics import files_below, ledger_of, options_of, send

pytestmark = pytest.mark.usefixtures("impatient")

VALUE = StructType().add("value", "string")


@pytest.mark.parametrize(
    ("scheme", "hash_of"),
    [("JavaStringHash", java_string_hash), ("Murmur3_32Hash", murmur3_32_hash)],
)
def test_a_key_goes_to_the_partition_of_its_hash_in_order(
    root: Path, scheme: str, hash_of: Any
) -> None:
    keys = ["", "a", "N14228", "ключ", "🛫", "Aa", "BB"] * 20
    columns = {"key": keys}
    send(
        root,
        "t",
        [str(n) for n in range(140)],
        columns=columns,
        numPartitions=5,
        hashingScheme=scheme,
    )
    found = messages(root)
    assert len(found) == 140
    for message in found:
        assert message["partition"] == hash_of(message["key"]) % 5
    for key in set(keys):
        mine = [int(message["value"]) for message in found if message["key"] == key]
        assert mine == [number for number, each in enumerate(keys) if each == key]


def test_without_a_key_round_robin_stays_for_an_entry_then_goes_on(root: Path) -> None:
    send(root, "t", [str(n) for n in range(100)], numPartitions=4, batchingMaxMessages=10)
    counts = [ledger_of(root, "t").state.partition(partition).messages for partition in range(4)]
    assert sorted(counts) == [20, 20, 30, 30]
    assert set(entries(root)) == {10}


def test_without_batching_round_robin_goes_on_with_each_message(root: Path) -> None:
    send(root, "t", [str(n) for n in range(8)], numPartitions=4, batchingEnabled=False)
    state = ledger_of(root, "t").state
    assert [state.partition(each).messages for each in range(4)] == [2] * 4
    assert entries(root) == [1] * 8


def test_round_robin_goes_on_when_an_entry_is_full_of_bytes(root: Path) -> None:
    for number in range(2):
        given: dict[str, Any] = {"numPartitions": 4, "batchingMaxBytes": 100}
        send(root, f"t{number}", ["x" * 40] * 16, **given)
        counts = [ledger_of(root, f"t{number}").state.partition(each).messages for each in range(4)]
        assert counts == [4] * 4
        assert set(entries(root, f"t{number}")) == {2}


def by_last_character(messages: pa.Table, partitions: int) -> list[int]:
    return [int(each["value"][-1:]) % partitions for each in messages.to_pylist()]


NOT_A_ROUTER = 5
ROUTER = f"{__name__}:by_last_character"
wrong_routers: dict[str, Any] = {
    "partition 7": lambda messages, _: [7] * len(messages),
    "partition -1": lambda messages, _: [-1] * len(messages),
    "shape (1,) for 4": lambda _messages, _partitions: [0],
    "float64 of shape": lambda messages, _: [0.5] * len(messages),
    "object of shape": lambda _messages, _partitions: None,
}


def test_a_router_of_the_user_s_own_decides_for_all_messages(root: Path) -> None:
    given: dict[str, Any] = {"numPartitions": 3, "messageRouter": ROUTER}
    columns = {"key": ["same"] * 20}
    send(root, "t", [str(n) for n in range(20)], columns=columns, **given)
    found = messages(root)
    assert len(found) == 20
    for message in found:
        assert message["partition"] == int(message["value"][-1:]) % 3


@pytest.mark.parametrize("said", wrong_routers)
def test_a_router_s_bad_answer_is_refused_and_nothing_is_published(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    send(root, "t", list("123"), numPartitions=3)
    before = files_below(root)
    monkeypatch.setitem(globals(), "by_last_character", wrong_routers[said])
    with pytest.raises(InvalidMessageError, match=r"messageRouter .*by_last_character gave") as e:
        send(root, "t", list("1234"), messageRouter=ROUTER)
    assert said in str(e.value)
    assert files_below(root) == before


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_package.module:route", "No module named 'no_such_package'"),
        ("json:no_such_function", "has no attribute 'no_such_function'"),
        (f"{__name__}:NOT_A_ROUTER", "is a int: it has to be a function"),
    ],
)
def test_a_router_that_is_not_there_is_refused_when_the_sink_is_made(
    root: Path, path: str, said: str
) -> None:
    options = options_of(root, Scope.WRITE, {"topic": "t", "messageRouter": path})
    with pytest.raises(InvalidOptionError, match=said):
        MessageSink(options, Root.of(options), VALUE)


def test_a_topic_that_grows_is_filled_and_read_in_its_new_partitions(root: Path) -> None:
    sent = [str(n) for n in range(40)]
    given: dict[str, Any] = {"numPartitions": 2, "batchingMaxMessages": 1}
    send(root, "t", sent, columns={"key": sent}, **given)
    run = Run(root, topic="t", startingOffsets="earliest", includeProperties=True)
    assert sorted(run.values()) == sorted(sent)
    ledger_of(root, "t").grow(5)
    send(root, "t", sent, columns={"key": sent}, **given)
    found = [message for batch in run.all() for message in batch.messages]
    assert sorted(message["value"].decode() for message in found) == sorted(sent)
    assert {m["partition"] for m in found} == {java_string_hash(key) % 5 for key in sent}


def test_a_single_partition_takes_all_without_a_key(root: Path) -> None:
    keys = [None] * 50 + ["a"]
    given: dict[str, Any] = {
        "numPartitions": 4,
        "messageRoutingMode": "SinglePartition",
        "batchingMaxMessages": 5,
    }
    send(
        root,
        "t",
        [str(n) for n in range(51)],
        columns={"key": pa.array(keys, pa.string())},
        **given,
    )
    found = messages(root)
    assert len({message["partition"] for message in found if message["key"] is None}) == 1
    (keyed,) = (message for message in found if message["key"])
    assert keyed["partition"] == java_string_hash("a") % 4


def test_messages_with_and_without_a_key_go_each_their_way(root: Path) -> None:
    keys = [None, "a"] * 50
    columns = {"key": pa.array(keys, pa.string())}
    send(
        root,
        "t",
        [str(n) for n in range(100)],
        columns=columns,
        numPartitions=4,
        batchingMaxMessages=5,
    )
    found = messages(root)
    assert sorted(int(message["value"]) for message in found) == list(range(100))
    assert {m["partition"] for m in found if m["key"]} == {java_string_hash("a") % 4}
    assert len({m["partition"] for m in found if not m["key"]}) == 4
