"""`verify` of sound roots: the accounts come out, and nothing is found that is not wrong."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pulsar_spark
from pulsar_spark import pulsar
from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.inspect.verification import verify as verifying
from pulsar_spark.connector.inspect.verification.file_check import check_contents
from pulsar_spark.connector.inspect.verification.verified import Check, VerifiedTopic
from pulsar_spark.connector.inspect.verification.verify import chosen_topics, verify_topics
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.errors import InvalidOptionError, TopicNotFoundError
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.client.clients import all_of, shared, subscribe
from tests.connector.topic_log.test_transactions import begin, left_open, send_both
from tests.connector.topics import ledger_of, numbers, send
from tests.connector.views.test_views import publish, quiet
from tests.torture import world as torture
from tests.torture.place import ADMIN
from tests.torture.world import World

SCHEDULES = 6
NAME = "persistent://public/default/t"


def check(root: Path | str, **given: object) -> list[VerifiedTopic]:
    """Verified without and with the files: nothing differs."""
    found: list[VerifiedTopic] = []
    for deep in (False, True):
        found = pulsar_spark.verify(str(root), deep=deep, **given)  # type: ignore[arg-type]
        assert [each.differences for each in found if not each.ok] == []
        for topic in found:
            for part in topic.partitions:
                for held in part.subscriptions:
                    assert part.published == held.acknowledged + held.backlog + held.removed
    return found


class FailingDisk(io.RawIOBase):
    """A file on a disk that can't read its first half."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._half = path.stat().st_size // 2

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        if self._file.tell() < self._half:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()
        super().close()


def test_a_read_error_in_a_data_file_is_told_and_the_other_topics_are_verified(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("t", "u"):
        send(str(root), topic, [f"{number:09}" * 1000 for number in range(400)])
    (failing,) = ledger_of(root, "t").ledgers(0)
    real = LocalStore.open_input

    def open_input(self: LocalStore, path: str) -> Any:
        if path.endswith(failing.file):
            return pa.PythonFile(FailingDisk(Path(self.root, path)), mode="r")
        return real(self, path)

    monkeypatch.setattr(LocalStore, "open_input", open_input)
    first, second = pulsar_spark.verify(str(root), topics=["t", "u"], deep=True)
    assert [(each.check, each.file) for each in first.unverified] == [(Check.UNREAD, failing.file)]
    assert not first.differences
    assert second.ok


def account(url: str, topic: str = "t") -> dict[str, tuple[int, int, int]]:
    """Of the first partition, by subscription."""
    (found,) = check(url, topic=topic)
    return {
        each.subscription: (each.acknowledged, each.backlog, each.removed)
        for each in found.partitions[0].subscriptions
    }


def test_each_subscription_s_account_comes_out(url: str, client: pulsar.Client) -> None:
    many = shared(client, consumer_name="c", receiver_queue_size=5)
    one = subscribe(client, name="e")
    publish(client, *"abcdefgh")
    messages = [many.receive(1000) for _ in range(5)]
    for each in messages[1:4]:
        many.acknowledge(each)
    one.acknowledge_cumulative(all_of(one)[4])
    quiet(client, many)
    quiet(client, one)
    assert account(url) == {"s": (3, 5, 0), "e": (5, 3, 0)}
    LedgerStore(ledger_of(url, "t")).trim({0: 2})
    assert account(url) == {"s": (2, 4, 2), "e": (3, 3, 2)}, "the broker has not heard of it"
    quiet(client, one)
    assert account(url) == {"s": (2, 4, 2), "e": (3, 3, 2)}


def test_who_reads_compacted_still_has_what_compaction_kept_of_what_was_trimmed(
    url: str, client: pulsar.Client
) -> None:
    consumer = client.subscribe(
        "t", "c", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest
    )
    other = subscribe(client, name="o")
    for key in "aab":
        publish(client, key, partition_key=key)
    ledger = ledger_of(url, "t")
    compact(ledger)
    LedgerStore(ledger).trim({0: 2})
    quiet(client, consumer)
    quiet(client, other)
    assert account(url) == {"c": (0, 2, 1), "o": (0, 1, 2)}


def test_topics_are_chosen_by_name_by_pattern_by_partition_or_all(tmp_path: Path) -> None:
    send(tmp_path, "orders", numbers(0, 9), numPartitions=3)
    send(tmp_path, "flights", ["a"])
    EmbeddedBroker(Root(str(tmp_path), {})).until_quiet()

    def chosen(**given: object) -> list[str]:
        return [each.topic.rpartition("/")[2] for each in check(tmp_path, **given)]

    assert chosen(topic="orders") == ["orders"]
    assert chosen(topics=["flights", "orders"]) == ["flights", "orders"]
    assert chosen(topics_pattern="f.*") == ["flights"]
    assert chosen(topics_pattern="none") == []
    assert set(chosen()) >= {"flights", "orders"}
    (part,) = check(tmp_path, topic="orders-partition-1")[0].partitions
    assert part.partition == 1
    with pytest.raises(TopicNotFoundError, match="Did you mean"):
        check(tmp_path, topic="order")
    with pytest.raises(TopicNotFoundError, match="no partition 7"):
        check(tmp_path, topic="orders-partition-7")
    with pytest.raises(InvalidOptionError, match="non-persistent"):
        check(tmp_path, topic="non-persistent://public/default/n")


def test_a_topic_to_which_everything_was_done_is_verified(tmp_path: Path) -> None:
    """Partitions, duplicates, chunks, a compaction, a trim and a merge."""
    columns = {"key": ["a", "b", "c", "a"], "sequence_id": [1, 2, 2, 3]}
    for _ in range(3):
        send(
            tmp_path, "t", ["1", "2", "3", "4"], columns=columns, numPartitions=3,
            enableDeduplication=True, producerName="p",
        )  # fmt: skip
    send(
        tmp_path, "t", ["x" * 100], columns={"key": ["a"]}, chunkingEnabled=True,
        batchingEnabled=False, maxMessageSize=30,
    )  # fmt: skip
    ledger = ledger_of(tmp_path, "t")
    compact(ledger)
    LedgerStore(ledger).trim(dict.fromkeys(range(3), 4))
    LedgerStore(ledger).merge_small_files()
    ledger.write_snapshot()
    send(tmp_path, "t", ["", "5"], columns={"key": ["a", "b"]})
    (topic,) = check(tmp_path, topic="t")
    assert sum(part.removed for part in topic.partitions) > 0


def test_an_open_transaction_is_no_difference(tmp_path: Path) -> None:
    send_both(tmp_path, 0, begin(0))
    left_open(tmp_path, begin(1), 1, 1)
    assert [each.partitions[0].published for each in check(tmp_path)] == [1, 1]


def test_nothing_differs_at_any_moment_while_all_others_are_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publishers, consumers of each kind, brokers and trims, with and without troubles."""
    for seed in range(SCHEDULES):
        with torture.prepared(seed) as make:
            world = make()
            note = world.note

            def noted(text: str, world: World = world, note: Callable[[str], None] = note) -> None:
                note(text)
                if len(world.history) % 7 == 0 and not world._turning:
                    look(world)

            monkeypatch.setattr(world, "note", noted)
            world.run(torture.EVENTS)
            assert look(world, deep=True), f"seed {seed} has topics"


def look(world: World, *, deep: bool = False) -> int:
    """How many topics were verified; by somebody whom the schedule does not trouble."""
    with world.clock.acting(ADMIN):
        found = [*verify_topics(world.root, chosen_topics(world.root, ()), deep=deep)]
    wrong = [f"{each.topic}: {one}" for each in found for one in each.differences]
    assert not wrong, "\n".join([str(world.setting), *wrong, *world.history[-20:]])
    return len(found)


def test_a_file_that_was_merged_away_since_it_was_listed_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        send(tmp_path, "t", [f"{number}"])

    def tidied(ledger: ManagedLedger, *given: Any) -> Any:
        """Somebody is quicker, without any grace."""
        store = LedgerStore(ManagedLedger.open_anew(ledger.store, ledger.folder), grace_ms=0)
        store.merge_small_files()
        store.sweep()
        return check_contents(ledger, *given)

    monkeypatch.setattr(verifying, "check_contents", tidied)
    (topic,) = pulsar_spark.verify(str(tmp_path), "t", deep=True)
    assert topic.ok, topic.differences
    assert len(ledger_of(tmp_path, "t").state.files) == 1


def test_a_topic_that_was_deleted_is_none_and_one_made_again_is_another(tmp_path: Path) -> None:
    root = Root(str(tmp_path), {})
    send(tmp_path, "t", "abc", batchingEnabled=False)
    send(tmp_path, "other", "a")
    SystemTopic(root, COMMANDS).append(
        [Record.of(TopicPartition(NAME, 0), "s", CreateSubscription("s"))]
    )
    with EmbeddedBroker(root, "_broker/checkpoint") as broker:
        broker.until_quiet()
        assert account(str(tmp_path)) == {"s": (0, 3, 0)}
        Admin(str(tmp_path)).topics.delete("t", force=True)
        assert NAME not in {each.topic for each in check(tmp_path)}
        with pytest.raises(TopicNotFoundError):
            check(tmp_path, topic="t")
        for value in "xy":
            send(tmp_path, "t", [value])
        assert account(str(tmp_path)) == {}, "the broker knows the old one yet"
        broker.until_quiet()
        assert account(str(tmp_path)) == {}
        ledger_of(tmp_path, "t").write_snapshot()
        (again,) = check(tmp_path, topic="t")
        assert again.partitions[0].published == 2


def test_what_can_be_read_and_makes_no_sense_is_a_difference_of_each_topic(tmp_path: Path) -> None:
    """Records of `__dispatch` that nobody could have written, in a sound file."""
    send(tmp_path, "t", ["a"])
    root = Root(str(tmp_path), {})
    dispatch = SystemTopic(root, DISPATCH)
    dispatch.append([Record(TopicPartition(NAME, 0), "\x00offset", b"{")])
    (topic,) = pulsar_spark.verify(str(tmp_path), "t")
    (difference,) = topic.differences
    assert difference.text.startswith("what the broker knows can't be read")
