"""A producer without Spark: what it gathers, refuses, and may publish."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pulsar_spark import Admin
from pulsar_spark.connector.client.message_producer import (
    MOST_WAITING,
    MessageProducer,
)
from pulsar_spark.connector.runtime.topics.backlog_quota import mark
from pulsar_spark.connector.storage.data_files.ledger_file import DATA_FOLDER
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import (
    InvalidMessageError,
    InvalidOptionError,
    ProducerBlockedQuotaExceededError,
    ProducerBusyError,
    ProducerFencedError,
    ProducerHeldError,
    StorageError,
)
from pulsar_spark.log.producing.hashing import java_string_hash, murmur3_32_hash
from pulsar_spark.testing import ManualClock
from tests.connector.reading import entries, messages
from tests.scenarios.host import Host

UNBATCHED = {"batchingEnabled": "false"}
LINE_IS_DEAD = StorageError("the line is dead")
DISK_IS_FULL = StorageError("the disk is full")


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


def producer(host: Host, name: str = "p", delay_ms: int = 0, **options: str) -> MessageProducer:
    given = {"topic": "t", "producerName": name, **options}
    return host.producer(given, publish_delay_ms=delay_ms)


def published(host: Host) -> list[str]:
    return [each["value"].decode() for each in messages(host.root.service_url)]


def sizes(host: Host) -> list[int]:
    """Messages in each entry."""
    return entries(host.root.service_url)


def test_messages_wait_for_the_delay_and_share_an_entry(host: Host) -> None:
    mine = producer(host, delay_ms=10)
    mine.send(b"a")
    host.advance(5)
    mine.send(b"b")
    host.advance(4)
    assert sizes(host) == []
    host.advance(1)
    assert sizes(host) == [2]
    assert published(host) == ["a", "b"]


def test_entries_are_full_by_count_by_bytes_and_by_delivery_time(host: Host) -> None:
    few = producer(host, delay_ms=1, batchingMaxMessages="2", batchingMaxBytes="4")
    ids: list[Any] = []
    for value in (b"a", b"b", b"c", b"ddd", b"ee"):
        few.send(value, done=ids.append)
    few.send(b"later", deliver_after=timedelta(seconds=5), done=ids.append)
    few.flush()
    assert sizes(host) == [2, 2, 1, 1]
    assert [(each.entry_id, each.batch_index) for each in ids] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, -1), (3, -1)
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
def test_a_key_goes_to_the_partition_of_its_hash(host: Host, scheme: str) -> None:
    mine = producer(host, delay_ms=1, numPartitions="4", hashingScheme=scheme, **UNBATCHED)
    hashed = java_string_hash if scheme == "JavaStringHash" else murmur3_32_hash
    for key in ("a", "b", "c", "N12345"):
        ids: list[Any] = []
        mine.send(key.encode(), key=key, done=ids.append)
        mine.flush()
        assert [each.partition for each in ids] == [hashed(key) % 4]


def test_all_that_is_said_of_a_message_is_stored(host: Host) -> None:
    mine = producer(host)
    when = datetime(2026, 1, 2, tzinfo=timezone.utc)
    mine.send(
        b"a", key="k", ordering_key=b"o", properties={"x": "1"}, sequence_id=7, event_time=when
    )
    (found,) = messages(host.root.service_url)
    assert (found["key"], found["ordering_key"], found["properties"]) == ("k", b"o", [("x", "1")])
    assert (found["producer_name"], found["sequence_id"], found["event_time"]) == ("p", 7, when)


def test_a_message_that_can_not_be_is_refused_and_loses_no_other(host: Host) -> None:
    mine = producer(host, delay_ms=1, maxMessageSize="4")
    mine.send(b"0123")
    with pytest.raises(InvalidMessageError, match="has 5 bytes, and maxMessageSize is 4"):
        mine.send(b"01234")
    with pytest.raises(InvalidMessageError, match="both deliver_at and deliver_after"):
        mine.send(b"0", deliver_at=datetime.now(timezone.utc), deliver_after=timedelta(1))
    with pytest.raises(InvalidMessageError, match="deliver_after below zero"):
        mine.send(b"0", deliver_after=timedelta(microseconds=-1))
    with pytest.raises(InvalidMessageError, match="ends beyond all times"):
        mine.send(b"0", deliver_after=timedelta(days=106_751_991, hours=4))
    assert mine.send(b"1") == 1  # no sequence id was used up
    mine.flush()
    assert published(host) == ["0123", "1"]


def test_behind_the_last_sequence_id_nothing_goes_and_nothing_else_is_lost(host: Host) -> None:
    mine = producer(host, delay_ms=1)
    mine.send(b"before")
    assert mine.send(b"last", sequence_id=(1 << 63) - 1) == (1 << 63) - 1
    with pytest.raises(InvalidMessageError, match="has used the last sequence id"):
        mine.send(b"behind")
    mine.send(b"lower", sequence_id=7)
    mine.flush()
    assert published(host) == ["before", "last", "lower"]


@pytest.mark.parametrize(
    "said",
    [
        {"sequence_id": 1 << 63}, {"sequence_id": "a"}, {"key": 5}, {"key": "\ud800"},
        {"properties": {"a": 1}}, {"properties": {None: "a"}}, {"properties": {"a": "\udc80"}},
        {"event_time": "now"}, {"ordering_key": 5}, {"value": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_out_of_its_type_or_bounds_is_refused_by_name(
    host: Host, said: dict[str, Any]
) -> None:
    mine = producer(host, delay_ms=1)
    with pytest.raises(InvalidMessageError, match=r"Some part of the message can't be stored"):
        mine.send(**{"value": b"x", **said})
    mine.send(b"y")
    mine.flush()
    assert published(host) == ["y"]


def test_what_could_not_be_published_waits_and_is_published_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = producer(host, delay_ms=10)
    mine.send(b"a")
    with monkeypatch.context() as broken:

        def create(_self: MemoryStore, _path: str, _data: bytes) -> bool:
            raise StorageError("the disk is full")

        broken.setattr(MemoryStore, "create", create)
        host.clock.advance(25)
        mine.send(b"b")
        with pytest.raises(StorageError):
            mine.flush()
        with pytest.raises(StorageError):
            mine.close()
    assert sizes(host) == []
    host.clock.advance(10)
    assert published(host) == ["a", "b"]
    mine.close()


@contextmanager
def losing_answers(error: BaseException) -> Iterator[None]:
    """Meanwhile commits take effect, and that is all that is heard."""
    create = MemoryStore.create

    def created(store: MemoryStore, path: str, data: bytes) -> bool:
        made = create(store, path, data)
        if "/_log/" in path:
            raise error
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "create", created)
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    def created(_store: MemoryStore, _path: str, _data: bytes) -> bool:
        raise DISK_IS_FULL

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "create", created)
        yield


def test_what_was_published_and_not_confirmed_is_not_published_again(host: Host) -> None:
    mine = producer(host, delay_ms=10)
    answers: list[Any] = []
    mine.send(b"a", done=answers.append)
    with losing_answers(LINE_IS_DEAD), pytest.raises(StorageError):
        mine.flush()
    mine.send(b"b", done=answers.append)
    assert not answers
    mine.flush()
    assert published(host) == ["a", "b"]
    assert [(each.ledger_id, each.entry_id) for each in answers] == [(0, 0), (1, 0)]
    mine.close()


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_what_was_published_before_a_quota_was_exceeded_is_not_published_again(
    host: Host, policy: str
) -> None:
    mine = producer(host, delay_ms=10)
    policies = Admin(host.root.service_url).policies("t")
    policies.set(backlog_quota_limit=6, backlog_quota_policy=policy)
    answers: list[Any] = []
    mine.send(b"a", done=answers.append)
    with losing_answers(LINE_IS_DEAD), pytest.raises(StorageError):
        mine.flush()
    ledger = host.root.open(mine.topic)
    mark(ledger, {0: [9, 6, True]})
    with suppress(ProducerHeldError, ProducerBlockedQuotaExceededError):
        mine.flush()
    mark(ledger, {0: None})
    mine.close()
    assert published(host) == ["a"]
    assert [(each.ledger_id, each.entry_id) for each in answers] == [(0, 0)]


def test_messages_that_wait_for_room_are_written_once(host: Host) -> None:
    mine = producer(host, delay_ms=10)
    Admin(host.root.service_url).policies("t").set(backlog_quota_limit=6)
    ledger = host.root.open(mine.topic)
    mark(ledger, {0: [9, 6, True]})
    for value in (b"a", b"b", b"c"):
        mine.send(value)
        with pytest.raises(ProducerHeldError):
            mine.flush()
    folder = f"{mine.topic.storage_path}/{DATA_FOLDER}"
    assert len([*host.root.store.files(folder)]) == 1
    mark(ledger, {0: None})
    mine.close()
    assert published(host) == ["a", "b", "c"]


def test_a_message_whose_time_is_up_does_not_have_those_beside_it_published_again(
    host: Host,
) -> None:
    given = {"topic": "t", "producerName": "p"}
    mine = host.producer(given, publish_delay_ms=60_000, send_timeout_ms=30_000)
    answers: list[Any] = []
    mine.send(b"a", done=answers.append)
    with full_disk():
        host.clock.advance(15_000)
        mine.send(b"b", done=answers.append)
        with pytest.raises(StorageError):
            mine.flush()
    host.clock.advance(15_000)
    with losing_answers(LINE_IS_DEAD), pytest.raises(StorageError):
        mine.flush()
    assert answers == [LINE_IS_DEAD]
    mine.close()
    assert published(host) == ["a", "b"]
    assert (len(answers), answers[1].entry_id, answers[1].batch_index) == (2, 0, 1)


def test_who_is_interrupted_while_he_publishes_does_not_publish_again_when_he_closes(
    host: Host,
) -> None:
    mine = producer(host, delay_ms=10)
    mine.send(b"a")
    with losing_answers(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        mine.flush()
    mine.close()
    assert published(host) == ["a"]


def test_one_who_gives_up_does_not_have_the_messages_of_others_published_again(host: Host) -> None:
    mine = producer(host)
    answers: list[Any] = []
    mine.enqueue(mine.row(b"a"), answers.append, at_once=True)  # another thread, which flushes next
    with losing_answers(LINE_IS_DEAD), pytest.raises(StorageError):
        mine.send(b"b")
    mine.flush()
    assert published(host) == ["a", "b"]
    assert [(each.entry_id, each.batch_index) for each in answers] == [(0, 0)]


@pytest.mark.parametrize("size", [60, 600])
def test_no_more_waits_than_there_is_room_for_even_while_nothing_can_be_published(
    host: Host, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The bytes of a batch have a bound, above which Arrow has no such batch at all."""
    given = {"topic": "t", "producerName": "p"}
    mine = host.producer(given, publish_delay_ms=10, memory_limit_bytes=500)
    value, sent = b"x" * size, 0
    with monkeypatch.context() as broken:

        def create(_self: MemoryStore, _path: str, _data: bytes) -> bool:
            raise StorageError("the disk is full")

        broken.setattr(MemoryStore, "create", create)
        with suppress(StorageError):
            while sent < 100:
                mine.send(value)
                sent += 1
        with pytest.raises(StorageError):
            mine.send(value)
    assert 1 <= sent * size <= max(500, size)
    assert mine.send(value) == sent
    mine.close()
    assert len(published(host)) == sent + 1


class Racing(ManualClock):
    """Whenever a repetition is stopped, its action has just begun, as a thread's may have."""

    stuck = False

    def repeat(
        self, every_s: float, action: Callable[[], None], name: str, *, coalesce: bool = False
    ) -> Callable[[], None]:
        end = super().repeat(every_s, action, name, coalesce=coalesce)

        def stop() -> None:
            thread = threading.Thread(target=action, daemon=True)
            end()
            thread.start()
            thread.join(5)
            self.stuck |= thread.is_alive()

        return stop


def test_who_fills_up_what_waits_while_its_time_is_over_does_not_wait_for_himself() -> None:
    clock = Racing(1_000_000)
    store = MemoryStore.named("racing", clock)
    options = {"serviceUrl": store.root, "topic": "t", "producerName": "p"}
    mine = MessageProducer(options, publish_delay_ms=10)
    for _ in range(MOST_WAITING):
        mine.send(b"x")
    mine.close()
    assert not clock.stuck
    assert len(messages(store.root)) == MOST_WAITING
    MemoryStore.forget("racing")


def test_a_sequence_id_that_was_published_is_dropped_and_a_new_run_goes_on_behind(
    host: Host,
) -> None:
    mine = producer(host, enableDeduplication="true")
    for number, value in ((0, b"a"), (1, b"b"), (1, b"b"), (0, b"a"), (2, b"c")):
        mine.send(value, sequence_id=number)
    again = producer(host, enableDeduplication="true")
    assert again.send(b"d") == 3
    assert published(host) == ["a", "b", "c", "d"]


def test_an_exclusive_producer_keeps_others_out_until_it_closes(host: Host) -> None:
    mine = producer(host, "mine", accessMode="Exclusive")
    with pytest.raises(ProducerBusyError, match="existing exclusive producer: mine"):
        producer(host, "other", accessMode="Shared")
    mine.send(b"a")
    mine.close()
    with pytest.raises(ProducerBusyError, match="is closed"):
        mine.send(b"b")
    with producer(host, "waits", accessMode="WaitForExclusive") as waits:
        waits.send(b"c")
    assert published(host) == ["a", "c"]


def test_who_waits_for_the_topic_has_it_when_its_producers_lease_is_over(host: Host) -> None:
    producer(host, "gone", accessMode="Exclusive", producerLease="1m").send(b"a")
    before_ms = host.now_ms
    producer(host, "waits", accessMode="WaitForExclusive").send(b"b")
    assert 60_000 <= host.now_ms - before_ms < 61_000


def test_who_is_fenced_out_publishes_nothing_any_more(host: Host) -> None:
    old = producer(host, "old", accessMode="Exclusive")
    producer(host, "new", accessMode="ExclusiveWithFencing")
    with pytest.raises(ProducerFencedError, match="Nothing was published"):
        old.send(b"x")
    assert published(host) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batchingMaxMesages": "1"}, "Did you mean batchingMaxMessages?"),
        ({"chunkingEnabled": "true"}, "can't be enabled together"),
    ],
)
def test_an_option_that_can_not_be_is_refused(
    host: Host, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        host.producer({"topic": "t", **options})
