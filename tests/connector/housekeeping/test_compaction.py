"""Compaction, and Readers with `readCompacted`: what is kept, with which ids, whatever goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.housekeeping import compaction
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.publishing.message_writer import write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
from pulsar_spark.connector.spark.typed_values import read_values
from pulsar_spark.errors import CorruptFileError, DataLossError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock
from tests.connector.reading import Message, Run
from tests.connector.sink.test_chunked_messages import NOW_US, send_rows
from tests.connector.topic_log.state_check import check_state
from tests.connector.topics import ledger_of, options_of, send, trim

pytestmark = pytest.mark.usefixtures("impatient")


def put(root: Path | str, *pairs: str, **given: Any) -> None:
    """Publish `key=value` each; no key before the `=` is none, no value behind it a tombstone."""
    split = [pair.partition("=") for pair in pairs]
    keys = [key or None for key, _, _ in split]
    send(root, "t", [value for _, _, value in split], columns={"key": keys}, **given)


def run(root: Path | str, **given: Any) -> Run:
    where = {} if "startingTime" in given else {"startingOffsets": "earliest"}
    return Run(root, topic="t", **{**where, "readCompacted": True, **given})


def read(root: Path | str, **given: Any) -> list[str]:
    """`key=value` of what a Reader sees."""
    return [
        f"{message['key'] or ''}={message['value'].decode()}"
        for batch in run(root, **given).all()
        for message in batch.messages
    ]


def batch(root: Path | str, **given: Any) -> list[str]:
    options = options_of(root, Scope.BATCH_READ, {"topic": "t", "readCompacted": True, **given})
    schema: StructType = read_schema(include_properties=False, consumer=False)
    reader = PulsarliteReader(options, Root.of(options), schema)
    found: list[Message] = []
    for task in reader.partitions():
        for each in read_values(task.value, schema, None):
            found += each.to_pylist()
    return [f"{message['key'] or ''}={message['value'].decode()}" for message in found]


def test_the_latest_of_each_key_is_kept_and_an_empty_value_removes_it(root: Path) -> None:
    put(root, "a=1", "b=1", "c=1", "=x")
    put(root, "a=2", "c=", "d=1")
    before = run(root).all()[0].messages
    compact(ledger_of(root, "t"))
    assert read(root) == batch(root) == ["b=1", "a=2", "d=1"]
    assert read(root, readCompacted=False) == ["a=1", "b=1", "c=1", "=x", "a=2", "c=", "d=1"]
    after = [message for each in run(root).all() for message in each.messages]
    assert after == [before[1], before[4], before[6]]  # ids and all other columns too


def test_messages_without_a_key_are_kept_on_request(root: Path) -> None:
    put(root, "a=1", "=x", "a=2", "=y")
    compact(ledger_of(root, "t"), retain_null_key=True)
    assert read(root) == ["=x", "a=2", "=y"]


def test_what_was_published_since_is_read_as_it_is(root: Path) -> None:
    put(root, "a=1", "a=2")
    compact(ledger_of(root, "t"))
    put(root, "a=3", "a=4", "=x", "b=")
    assert read(root) == batch(root) == ["a=2", "a=3", "a=4", "=x", "b="]


def test_a_topic_that_was_never_compacted_is_read_whole(root: Path) -> None:
    put(root, "a=1", "a=2")
    assert read(root) == batch(root) == ["a=1", "a=2"]


def test_compacting_again_without_news_changes_nothing(root: Path) -> None:
    put(root, "a=1", "a=2")
    ledger = ledger_of(root, "t")
    assert [(each.read, each.kept) for each in compact(ledger)] == [(2, 1)]
    number = ledger.state.number
    assert compact(ledger) == []
    assert ledger.state.number == number


def test_a_tombstone_removes_what_an_earlier_compaction_kept(root: Path) -> None:
    put(root, "a=1", "b=1")
    compact(ledger_of(root, "t"))
    put(root, "a=", "b=")
    compact(ledger_of(root, "t"))
    assert read(root) == batch(root) == []
    put(root, "c=1")
    assert read(root) == ["c=1"]


def test_compacted_messages_outlive_what_they_were_made_of(root: Path) -> None:
    put(root, "a=1", "b=1")
    put(root, "b=2")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    assert read(root, readCompacted=False) == []
    assert read(root) == batch(root) == ["a=1", "b=2"]
    put(root, "c=1", "b=3")
    assert read(root) == ["a=1", "b=2", "c=1", "b=3"]
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    assert read(root) == batch(root) == ["a=1", "c=1", "b=3"]
    LedgerStore(ledger_of(root, "t"), grace_ms=0).reclaim_orphans(older_than_ms=0)
    LedgerStore(ledger_of(root, "t"), grace_ms=0).sweep()
    assert read(root) == ["a=1", "c=1", "b=3"]


def test_what_is_not_compacted_yet_is_not_trimmed(root: Path) -> None:
    put(root, "a=1")
    compact(ledger_of(root, "t"))
    put(root, "b=1")
    trim(root, "t", 99)
    assert read(root, readCompacted=False) == ["b=1"]
    assert read(root) == ["a=1", "b=1"]


def test_a_snapshot_remembers_the_compaction(root: Path) -> None:
    put(root, "a=1", "a=2")
    ledger = ledger_of(root, "t")
    compact(ledger)
    ledger.write_snapshot()
    again = ManagedLedger.open_anew(ledger.store, ledger.folder)
    check_state(again.state)
    assert again.state.files == ledger.state.files
    found, known = again.state.partition(0).compacted, ledger.state.partition(0).compacted
    assert found
    assert known
    assert found.to_json_value() == known.to_json_value()


def test_micro_batches_count_what_is_delivered(root: Path) -> None:
    put(root, *(f"k{number % 7}={number}" for number in range(100)), batchingMaxMessages=9)
    compact(ledger_of(root, "t"))
    put(root, "x=1", "x=2")
    batches = run(root, maxMessagesPerTrigger=3).all()
    assert [each.values for each in batches] == [
        ["93", "94", "95"], ["96", "97", "98"], ["99", "1", "2"],
    ]  # fmt: skip
    by_bytes = run(root, maxBytesPerTrigger=4).all()
    assert [value for each in by_bytes for value in each.values] == [
        *map(str, range(93, 100)), "1", "2",
    ]  # fmt: skip
    assert len(by_bytes) > 2


def test_a_reader_goes_on_across_compactions_and_a_restart(root: Path) -> None:
    put(root, "a=1", "b=1", "c=1", batchingMaxMessages=2)
    reader = run(root, maxMessagesPerTrigger=1)
    assert [reader.next().values for _ in range(2)] == [["1"], ["1"]]  # type: ignore[union-attr]
    put(root, "c=2", "a=2")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    assert run(root, start=reader.offset).values() == ["2", "2"]
    assert run(root, available_now=True).values() == ["1", "2", "2"]


def test_a_message_id_begins_in_the_compacted_part(root: Path) -> None:
    put(root, "a=1", "b=1", "c=1", "b=2")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    where = '{"t": {"0": "0:0:0:2"}}'
    assert read(root, startingOffsets=where) == batch(root, startingOffsets=where) == ["c=1", "b=2"]
    assert batch(root, endingOffsets=where) == ["a=1", "c=1"]


def test_a_hidden_duplicate_never_wins(root: Path) -> None:
    ids: dict[str, Any] = {"producer_name": ["p", "p"], "sequence_id": [1, 2]}
    given: dict[str, Any] = {"enableDeduplication": True}
    send(root, "t", ["1", "2"], columns={"key": ["a", "b"], **ids}, **given)
    ids["sequence_id"] = [1, 3]
    send(root, "t", ["old", "3"], columns={"key": ["a", "b"], **ids}, **given)
    compact(ledger_of(root, "t"))
    assert read(root) == ["a=1", "b=3"]


def test_a_chunked_message_is_kept_whole(root: Path) -> None:
    given = {"chunkingEnabled": True, "batchingEnabled": False, "maxMessageSize": 100}
    put(root, "a=" + "x" * 1000, "b=" + "y" * 1000, **given)
    put(root, "a=" + "z" * 999, **given)
    whole = [message for each in run(root).all() for message in each.messages]
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    assert [message for each in run(root).all() for message in each.messages] == whole[1:]
    assert batch(root) == ["b=" + "y" * 1000, "a=" + "z" * 999]


def chunks(root: str, *rows: tuple[str, int, int, str], key: str = "k") -> None:
    """Publish them now, by the root's own clock."""
    now_ms = Root(root, {}).clock.wall_ms()
    send_rows(root, *rows, at_ms=now_ms - NOW_US // 1000, key=key)


def test_a_horizon_does_not_cut_a_chunked_message(place: Root) -> None:
    root = place.service_url
    chunks(root, ("u", -1, 1, "old"))
    chunks(root, ("x", 0, 3, "1"), ("x", 1, 3, "2"))
    assert [each.horizon for each in compact(ledger_of(root, "t"))] == [Position(0, 0)]
    trim(root, "t", 99)
    assert read(root) == ["k=old"], "its first chunks were not trimmed"
    chunks(root, ("x", 2, 3, "3"))
    assert read(root) == batch(root) == ["k=old", "k=123"]
    assert [each.horizon for each in compact(ledger_of(root, "t"))] == [Position(2, 0)]
    trim(root, "t", 99)
    assert read(root) == batch(root) == ["k=123"]


def test_a_chunked_message_that_is_never_complete_does_not_hold_the_horizon(
    place: Root, clock: ManualClock
) -> None:
    root = place.service_url
    chunks(root, ("x", 0, 3, "1"))
    chunks(root, ("u", -1, 1, "new"))
    assert compact(ledger_of(root, "t")) == []
    clock.advance(compaction.CHUNKS_AWAITED_MS + 1)
    assert [each.horizon for each in compact(ledger_of(root, "t"))] == [Position(1, 0)]
    trim(root, "t", 99)
    assert read(root) == batch(root) == ["k=new"]


@pytest.mark.parametrize("compacted", range(4))
def test_of_two_chunked_messages_of_a_key_the_one_that_ends_later_is_kept(
    place: Root, compacted: int
) -> None:
    """One after the other or interleaved; compacted after any of the commits."""
    root = place.service_url
    commits = [
        [("x", 0, 3, "1"), ("x", 1, 3, "2"), ("x", 2, 3, "3")],
        [("y", 0, 3, "4"), ("w", 0, 2, "7"), ("y", 1, 3, "5")],
        [("w", 1, 2, "8"), ("y", 2, 3, "6")],
        [("u", -1, 1, "end")],
    ]
    for number, rows in enumerate(commits):
        chunks(root, *rows, key="k" if number < 3 else "other")
        if number == compacted:
            compact(ledger_of(root, "t"))
            trim(root, "t", 99)
    late = [] if compacted >= 2 else ["k=123", "k=78"]
    assert read(root) == batch(root) == [*late, "k=456", "other=end"]
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    assert read(root) == batch(root) == ["k=456", "other=end"]


def test_each_partition_is_compacted_for_itself(root: Path) -> None:
    for partition in (0, 1):
        columns = {"key": ["a", "a"]}
        values = [f"{partition}0", f"{partition}1"]
        send(root, f"t-partition-{partition}", values, columns=columns, numPartitions=2)
    assert [each.partition for each in compact(ledger_of(root, "t"))] == [0, 1]
    assert read(root) == ["a=01", "a=11"]


@pytest.mark.parametrize("meanwhile", ["publish", "compact", "trim", "merge"])
def test_others_at_work_meanwhile_do_no_harm(
    root: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    for number in range(6):  # more files than a reader keeps open
        put(root, f"a={number}", f"k{number}=x")
    other = ManagedLedger.open_anew(ledger_of(root, "t").store, ledger_of(root, "t").folder)
    keeper = LedgerStore(other, grace_ms=0)

    def merge() -> None:
        keeper.merge_small_files()
        keeper.sweep()

    def drop() -> None:
        keeper.trim({0: 2})
        keeper.sweep()

    act: dict[str, Callable[[], Any]] = {
        "publish": lambda: put(root, "a=9"),
        "compact": lambda: compact(other),
        "trim": drop,
        "merge": merge,
    }
    real, once = compaction._latest, [act[meanwhile]]

    def latest(*arguments: Any) -> Any:
        found = real(*arguments)
        if once:
            once.pop()()
        return found

    monkeypatch.setattr(compaction, "_latest", latest)
    compact(ledger_of(root, "t"))
    state = ledger_of(root, "t").state
    check_state(state)
    expected = ["k0=x", "k1=x", "k2=x", "k3=x", "k4=x", "a=5", "k5=x"]
    if meanwhile == "publish":
        expected.append("a=9")
    if meanwhile == "trim":
        expected = expected[2:]
    assert read(root) == expected


@pytest.mark.parametrize("seed", range(20))
def test_compacting_at_any_time_keeps_what_a_plain_fold_keeps(root: Path, seed: int) -> None:
    draw = random.Random(seed)
    published: list[tuple[str, str]] = []
    horizon = 0
    for step in range(8):
        keys = [draw.choice(["", *"abcdef"]) for _ in range(draw.randint(1, 12))]
        pairs = [f"{k}={'' if draw.random() < 0.2 else f'{step}.{n}'}" for n, k in enumerate(keys)]
        put(root, *pairs, batchingMaxMessages=draw.randint(1, 5))
        published += [(key, pair) for key, pair in zip(keys, pairs, strict=True)]
        if draw.random() < 0.4:
            compact(ledger_of(root, "t"))
            horizon = len(published)
        if horizon and draw.random() < 0.4:
            trim(root, "t", draw.randint(0, 99))
        last = {key: number for number, (key, _) in enumerate(published[:horizon])}
        kept = [p for n, (k, p) in enumerate(published[:horizon])
                if k and last[k] == n and not p.endswith("=")]  # fmt: skip
        expected = kept + [pair for _, pair in published[horizon:]]
        assert read(root, maxMessagesPerTrigger=draw.choice([1, 3, 100])) == expected
        assert batch(root) == expected


def test_a_time_begins_and_ends_in_the_compacted_part(place: Root, clock: ManualClock) -> None:
    root, begun_ms = place.service_url, clock.wall_ms()
    put(root, "z=1")
    clock.advance(1000)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, key in enumerate("abac", 1):
            clock.advance(1)
            yield pa.record_batch({"key": [key], "value": [str(number).encode()]})

    options = options_of(root, Scope.WRITE, {"topic": "t", "batchingMaxMessages": 1})
    files = write_messages(rows(), options, Root.of(options))
    publish(Root.of(options), files, None)
    assert len(ledger_of(root, "t").ledgers(0)) == 2
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    assert batch(root, startingTime=begun_ms) == ["z=1", "b=2", "a=3", "c=4"]
    assert batch(root, startingTime=begun_ms + 1001) == ["b=2", "a=3", "c=4"]
    assert batch(root, startingTime=begun_ms + 1003) == ["a=3", "c=4"]
    assert batch(root, endingTime=begun_ms + 1004) == ["z=1", "b=2", "a=3"]
    assert run(root, startingTime=begun_ms + 1004).values() == ["4"]
    assert run(root, startingTime=begun_ms + 1005).values() == []


def test_a_task_whose_compacted_files_are_gone_says_so(root: Path) -> None:
    put(root, "a=1", "b=1")
    compact(ledger_of(root, "t"))
    reader = run(root)
    planned = reader.planned()
    assert planned is not None
    tasks = reader.reader.partitions(planned.start, planned.end)
    put(root, "a=2")
    compact(ledger_of(root, "t"))
    LedgerStore(ledger_of(root, "t"), grace_ms=0).sweep()
    with pytest.raises(DataLossError, match="was compacted again while it was being read"):
        list(read_values(tasks[0].value, reader.schema, None))
    assert reader.read(planned)  # planned again, it reads what is left


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"horizon": "0:0"}, "its horizon is behind 1:0"),
        ({"horizon": "x"}, "what it compacts is malformed"),
        ({"ledgers": []}, "not those of which messages are kept"),
        ({}, "was published before"),
    ],
)
def test_a_commit_that_compacts_what_does_not_fit_is_refused(
    root: Path, change: dict[str, Any], said: str
) -> None:
    put(root, "a=1")
    put(root, "b=1")
    ledger = ledger_of(root, "t")
    compact(ledger)
    state = ledger.state
    known = state.partition(0).compacted
    assert known
    value = {**known.to_json_value(), **change}
    if change.get("horizon") == "0:0":
        value |= {"ledgers": [], "kept": Cursor().to_json_value()}
    before = state.number
    with pytest.raises(CorruptFileError, match=said):
        state.apply(Commit(before + 1, "x", 0, compacted={0: value}))
    assert state.number == before
    check_state(state)
