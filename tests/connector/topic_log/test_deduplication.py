"""A message that its producer has published before is never seen twice."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.sequence_ids import sequence_ranges, sequences_of
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.publication import AlreadyCommitted
from pulsar_spark.log.sequence_ranges import PublishedSequences, SequenceRange
from pulsar_spark.model.positions.cursor import Cursor
from tests.connector.topic_log.stores import FOLDER, HookedStore, messages, values_of, write


@pytest.fixture
def topic(tmp_path: Path) -> ManagedLedger:
    store = HookedStore(open_store(str(tmp_path)))
    return ManagedLedger.create(store, FOLDER, 2, {"deduplication": True})


def other(topic: ManagedLedger) -> ManagedLedger:
    return ManagedLedger.open_anew(topic.store, FOLDER)


def hooks(topic: ManagedLedger) -> HookedStore:
    assert isinstance(topic.store, HookedStore)
    return topic.store


def send(
    topic: ManagedLedger, first: int, last: int, producer: str = "p", partition: int = 0,
    batch: int = 1000, **how: Any,
) -> Any:  # fmt: skip
    """Publish the sequence ids first to last, each with a value of the same name."""
    values = [f"{producer}{number}" for number in range(first, last + 1)]
    return topic.append(write(topic, {partition: messages(values, producer, first)}, batch), **how)


def names(first: int, last: int, producer: str = "p") -> list[str]:
    return [f"{producer}{number}" for number in range(first, last + 1)]


def test_a_new_message_costs_no_look_at_the_file(topic: ManagedLedger) -> None:
    send(topic, 0, 9)
    send(topic, 10, 19)
    assert not any(call == "open_input" for call, _ in hooks(topic).calls)
    assert values_of(topic) == names(0, 19)
    assert topic.state.highest_sequence_id(0, "p") == 19


def test_what_was_published_before_is_hidden_and_the_rest_is_seen(topic: ManagedLedger) -> None:
    send(topic, 0, 9)
    commit = send(topic, 5, 14, batch=4)
    assert isinstance(commit, Commit)
    assert values_of(topic) == values_of(other(topic)) == names(0, 14)
    assert commit.hidden[0]["individually_deleted"] == {"1": "0 1/4[0]"}


def test_an_all_duplicate_publication_is_already_committed(topic: ManagedLedger) -> None:
    send(topic, 0, 9)
    assert isinstance(send(topic, 3, 7), AlreadyCommitted)
    assert len(topic.ledgers(0)) == 1


def test_an_all_duplicate_application_version_is_still_recorded(topic: ManagedLedger) -> None:
    send(topic, 0, 9)
    commit = send(topic, 3, 7, application=("query", 4))
    assert isinstance(commit, Commit)
    assert commit.ledgers == ()
    assert isinstance(send(topic, 10, 11, application=("query", 4)), AlreadyCommitted)
    assert values_of(other(topic)) == names(0, 9)


def test_duplicates_are_looked_for_again_after_a_lost_race(topic: ManagedLedger) -> None:
    rival = other(topic)
    hooks(topic).before("put_if_absent", ".json", lambda: send(rival, 0, 4))
    commit = send(topic, 3, 8)
    assert isinstance(commit, Commit)
    assert commit.ledgers[0].ledger_id == 1
    assert values_of(other(topic)) == names(0, 8)


def test_a_race_lost_to_the_same_messages_publishes_nothing(topic: ManagedLedger) -> None:
    rival = other(topic)
    hooks(topic).before("put_if_absent", ".json", lambda: send(rival, 0, 4))
    assert isinstance(send(topic, 0, 4), AlreadyCommitted)
    assert values_of(other(topic)) == names(0, 4)


def test_a_repeated_sequence_id_within_one_commit_is_seen_once(topic: ManagedLedger) -> None:
    twice = pa.concat_tables([messages(names(0, 4), "p", 0), messages(names(2, 6), "p", 2)])
    topic.append(write(topic, {0: twice}, batch=3))
    assert values_of(topic) == names(0, 6)


def test_a_repetition_in_two_files_of_one_commit_is_seen_once(topic: ManagedLedger) -> None:
    first = write(topic, {0: messages(names(0, 4), "p", 0)})
    second = write(topic, {0: messages(names(3, 9), "p", 3)})
    topic.append([*first, *second])
    assert values_of(other(topic)) == names(0, 9)


def test_within_a_commit_the_order_of_sequence_ids_is_free(topic: ManagedLedger) -> None:
    second = write(topic, {0: messages(names(5, 9), "p", 5)})
    first = write(topic, {0: messages(names(0, 4), "p", 0)})
    topic.append([*second, *first])
    assert sorted(values_of(topic)) == names(0, 9)


def test_producers_and_partitions_count_on_their_own(topic: ManagedLedger) -> None:
    send(topic, 0, 4)
    send(topic, 0, 4, producer="q")
    send(topic, 0, 4, partition=1)
    assert values_of(topic) == [*names(0, 4), *names(0, 4, "q")]
    assert values_of(topic, 1) == names(0, 4)


def test_two_producers_in_one_ledger_are_told_apart(topic: ManagedLedger) -> None:
    send(topic, 0, 4)
    mixed = pa.concat_tables([messages(names(3, 6), "p", 3), messages(names(0, 2, "q"), "q", 0)])
    topic.append(write(topic, {0: mixed}))
    assert values_of(topic) == [*names(0, 6), *names(0, 2, "q")]


def test_messages_without_a_sequence_id_are_never_duplicates(topic: ManagedLedger) -> None:
    for _ in range(2):
        topic.append(write(topic, {0: messages(["same"])}))
    assert values_of(topic) == ["same", "same"]


def test_without_the_setting_nothing_is_looked_at(tmp_path: Path) -> None:
    topic = ManagedLedger.create(open_store(str(tmp_path)), FOLDER, 1)
    send(topic, 0, 4)
    send(topic, 0, 4)
    assert values_of(topic) == names(0, 4) * 2
    assert isinstance(send(topic, 0, 4, deduplicate=True), Commit)
    assert isinstance(send(topic, 0, 4, deduplicate=True), AlreadyCommitted)


def test_what_is_hidden_survives_a_snapshot_and_goes_with_its_ledger(topic: ManagedLedger) -> None:
    from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore

    send(topic, 0, 9)
    send(topic, 5, 14)
    topic.write_snapshot()
    assert values_of(other(topic)) == names(0, 14)
    LedgerStore(topic).trim({0: 2})
    topic.write_snapshot()
    assert not other(topic).state.partition(0).hidden.since(0)


def test_ranges_tell_whether_an_id_occurs_twice() -> None:
    rows = pa.table({"producer_name": ["p", "q", "p", None, "q"], "sequence_id": [3, 7, 1, 5, 7]})
    assert sequence_ranges(rows) == {
        "p": SequenceRange(1, 3),
        "q": SequenceRange(7, 7, False, True),
    }
    assert {k: v[0].tolist() for k, v in sequences_of(rows).items()} == {"p": [0, 2], "q": [1, 4]}
    assert sequences_of(rows.slice(0, 0)) == {}
    assert sequences_of(pa.table({"value": [b""]})) == {}


def test_a_duplicate_in_each_commit_costs_the_last_no_more_than_the_first(
    topic: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = other(topic)
    parsed: list[Any] = []
    real = Cursor.from_json_value

    def counted(value: Any) -> Any:
        parsed.append(value)
        return real(value)

    monkeypatch.setattr(Cursor, "from_json_value", staticmethod(counted))
    costs = []
    for new in range(1, 60):
        send_ids(topic, [new, new // 2])
        hooks(topic).calls.clear()
        parsed.clear()
        reader.refresh()
        hidden = reader.state.partition(0).hidden.of([reader.state.next_ledger_id - 1])
        send_ids(topic, [new // 3])
        opened = len([call for call, _ in hooks(topic).calls if call == "open_input"])
        costs.append((len(parsed), opened, len(hidden.ledger_ids)))
    assert costs[-1] == costs[2] == (1, 1, 1), "its own cursor, and its own file"
    assert sorted(values_of(other(topic))) == sorted(names(0, 59))


def test_what_is_known_of_published_ids_is_right_whatever_was_trimmed() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(200):
        known, ids, floor = PublishedSequences(), dict[int, set[int]](), -1
        for ledger_id in range(draw.randrange(12)):
            start = draw.choice((draw.randrange(60), 5 * ledger_id))
            ids[ledger_id] = {draw.randrange(start, start + 8) for _ in range(draw.randrange(1, 6))}
            known.add(ledger_id, {"p": SequenceRange.of(np.array(sorted(ids[ledger_id])))})
            if draw.random() < 0.3:
                gone = draw.choice(list(ids))
                known.trim(gone)
                floor = max(floor, *ids.pop(gone))
            if draw.random() < 0.2:
                known = PublishedSequences.from_json_value(known.to_json_value())
            asked = np.array([draw.randrange(80) for _ in range(draw.randrange(6))], np.int64)

            def stored(of: int, held: dict[int, set[int]] = ids) -> Any:
                return {"p": (None, np.array(sorted(held[of])))}

            every = set().union(*ids.values())
            expected = [number <= floor or number in every for number in asked.tolist()]
            assert known.published("p", asked, stored).tolist() == expected
            assert not known.published("q", asked, stored).any()


# -- sinks that don't drop duplicates, and one that does ---------------------------------------


def test_a_sink_that_drops_duplicates_sees_what_others_published_since_it_began(
    tmp_path: Path,
) -> None:
    topic = ManagedLedger.create(open_store(str(tmp_path)), FOLDER, 1)
    send(topic, 0, 1, deduplicate=True)
    send(topic, 2, 5, deduplicate=False)
    send(topic, 4, 4, deduplicate=False)
    send(topic, 3, 7, deduplicate=True)
    assert values_of(other(topic)) == [*names(0, 5), "p4", "p6", "p7"]


def test_what_no_task_has_looked_at_is_looked_at_by_the_commit(topic: ManagedLedger) -> None:
    late = [replace(each, sequences=None) for each in write(topic, {0: messages(["p3"], "p", 3)})]
    topic.append(late, deduplicate=False)
    assert isinstance(send(topic, 3, 3), AlreadyCommitted)


# -- ids that don't rise -----------------------------------------------------------------------


def send_ids(topic: ManagedLedger, ids: list[int], **how: Any) -> Any:
    """Publish messages with these sequence ids, each with a value of the same name."""
    parts = [messages([f"p{number}"], "p", number) for number in ids]
    return topic.append(write(topic, {0: pa.concat_tables(parts)}, 3), **how)


def test_a_message_that_comes_after_a_higher_id_is_no_duplicate(topic: ManagedLedger) -> None:
    send_ids(topic, [5, 9, 2])
    send_ids(topic, [3, 9, 4, 5, 1])
    assert isinstance(send_ids(topic, [2, 4, 9, 1]), AlreadyCommitted)
    assert sorted(values_of(other(topic))) == sorted(f"p{n}" for n in (5, 9, 2, 3, 4, 1))


def test_only_ledgers_with_holes_that_may_have_the_id_are_looked_into(topic: ManagedLedger) -> None:
    send(topic, 0, 9)  # without a hole
    send_ids(topic, [20, 30])
    send_ids(topic, [40, 50])
    hooks(topic).calls.clear()
    assert isinstance(send(topic, 3, 7), AlreadyCommitted)
    own = [path for call, path in hooks(topic).calls if call == "open_input"]
    assert len(own) == 1, "its own file, for which of its rows they are"
    hooks(topic).calls.clear()
    send_ids(topic, [25, 30])
    assert len([call for call, _ in hooks(topic).calls if call == "open_input"]) == 2
    assert values_of(topic)[-1] == "p25"


def test_what_was_trimmed_counts_up_to_its_highest_id(topic: ManagedLedger) -> None:
    from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore

    send_ids(topic, [5, 9])
    send_ids(topic, [20, 12])
    LedgerStore(topic).trim({0: 1})
    for _ in range(2):
        topic.write_snapshot()
        topic = other(topic)
        send_ids(topic, [7, 9, 11, 12, 13])
        assert values_of(topic) == ["p20", "p12", "p11", "p13"]


def test_merged_files_are_looked_into_where_they_lie_now(topic: ManagedLedger) -> None:
    from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore

    send_ids(topic, [5, 9])
    send_ids(topic, [20, 12])
    keeper = LedgerStore(topic, grace_ms=0)
    keeper.merge_small_files()
    keeper.sweep()
    send_ids(topic, [5, 6, 12, 13])
    assert values_of(topic) == ["p5", "p9", "p20", "p12", "p6", "p13"]


def test_a_topic_of_before_there_were_ranges_goes_by_the_highest_id(topic: ManagedLedger) -> None:
    topic.commit(lambda _, new: replace(new, sequence_ids={0: {"p": 9}}))
    send_ids(topic, [3, 12])
    send_ids(topic, [9, 10])
    topic.write_snapshot()
    send_ids(other(topic), [8, 11])
    assert values_of(other(topic)) == ["p12", "p10", "p11"]
