"""The broker query's source, brokers and sink in Spark's order, without Spark."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.broker.protocol.commands import (
    InitialPosition,
    Rejection,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy
from pulsar_spark.broker.protocol.ready import Grant, OpenGrant, Reply, Stepped
from pulsar_spark.connector.runtime.broker import broker_sink, broker_source, embedded_broker
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.broker_offset import BrokerOffset
from pulsar_spark.connector.runtime.system_topics.lease import Lease, LeaseKeeper
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.producer_connection import connect
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import Clock, ManualClock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import (
    BrokerFencedError,
    CorruptFileError,
    FutureVersionError,
    ServerError,
    StaleCheckpointError,
    StorageError,
)
from pulsar_spark.log.producer_registry import ProducerAccessMode, ProducerClaim
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.reading import Run
from tests.connector.topics import send

ABOUT = TopicPartition("persistent://public/default/t", 0)
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def place(root: Path, clock: ManualClock) -> Root:
    place = Root(str(root), {})
    place.store.clock = clock
    return place


def subscribe(name: str = "c", **given: Any) -> Subscribe:
    kind = given.pop("kind", SubscriptionType.SHARED)
    return Subscribe(
        "s", name, 1, kind, initial_position=InitialPosition.EARLIEST, permits=100, **given
    )


def tell(place: Root, *commands: Any) -> None:
    SystemTopic(place, COMMANDS).append([Record.of(ABOUT, "s", each) for each in commands])


def reported(place: Root, kind: type) -> list[Any]:
    """All that the broker has said of that kind, in order."""
    dispatch = SystemTopic(place, DISPATCH)
    stop = dispatch.refresh()
    found = dispatch.read(0, stop, keep=lambda _, name: not name.startswith("\x00"))
    return [item for each in found if isinstance(item := each.record.item(), kind)]


def messages(*entries: int, ledger_id: int = 0) -> PositionSet:
    return PositionSet.of((ledger_id, entry) for entry in entries)


def test_a_consumer_is_granted_what_is_published_before_and_after_it_came(place: Root) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    send(place.service_url, "t", "ab", batchingEnabled=False)
    tell(place, subscribe())
    loop.until_quiet()
    assert [each.messages for each in reported(place, Grant)] == [messages(0, 1)]
    send(place.service_url, "t", "c")
    loop.until_quiet()
    assert reported(place, Grant)[1].messages == messages(0, ledger_id=1)
    assert reported(place, Stepped)[-1].backlogs == (("s", 3),)


def test_an_idle_broker_makes_no_batch_and_a_due_instant_wakes_it(
    place: Root, clock: ManualClock
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    send(place.service_url, "t", "a")
    tell(place, subscribe(options=ConsumerOptions(negative_ack_redelivery_delay_ms=2_000)))
    loop.until_quiet()
    tell(place, Report("s", "c", 1, delivered={0: messages(0)}, permits=100,
                       rejected=(Rejection(0, messages(0)),)))  # fmt: skip
    loop.until_quiet()
    due_ms = reported(place, Stepped)[-1].next_due_ms
    assert not loop.run_once()
    clock.advance(due_ms - clock.wall_ms())
    assert loop.run_once()
    again = reported(place, Grant)[-1]
    assert (again.attempt, again.messages, again.redelivery_count) == (1, messages(0), 1)
    assert reported(place, Stepped)[-1].now_ms == due_ms


def test_a_lost_checkpoint_is_rebuilt_from_what_was_dispatched(place: Root) -> None:
    send(place.service_url, "t", "abc", batchingEnabled=False)
    tell(place, subscribe())
    first = EmbeddedBroker(place, "_broker/first")
    first.until_quiet()
    tell(place, Report("s", "c", 1, acknowledged=Cursor().acknowledge(messages(0)), permits=100))
    first.until_quiet()
    tell(place, Report("s", "c", 1, sequence=1, delivered={0: messages(1)}, permits=100,
                       rejected=(Rejection(0, messages(1), delay_ms=0),)))  # fmt: skip
    second = EmbeddedBroker(place, "_broker/second")
    second.until_quiet()
    assert [(each.attempt, each.messages) for each in reported(place, Grant)] == [
        (0, messages(0, 1, 2)), (1, messages(1)),
    ]  # fmt: skip
    assert reported(place, Stepped)[-1].backlogs == (("s", 2),)


def test_behind_a_snapshot_the_system_topics_are_trimmed_and_still_restore(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 6)
    monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", 2)
    loop = EmbeddedBroker(place, "_broker/first")
    tell(place, subscribe())
    for each in range(18):
        send(place.service_url, "t", [str(each)])
        loop.until_quiet()
    dispatch, commands = SystemTopic(place, DISPATCH), SystemTopic(place, COMMANDS)
    assert dispatch.refresh() == 18
    assert dispatch.first_ledger() > 3
    assert commands.refresh() == 1
    second = EmbeddedBroker(place, "_broker/second")
    second.until_quiet()
    send(place.service_url, "t", ["last"])
    second.until_quiet()
    assert reported(place, Grant)[-1].messages == messages(0, ledger_id=18)
    assert reported(place, Stepped)[-1].backlogs == (("s", 19),)


def test_a_consumer_whose_lease_lapsed_gives_way_to_another(
    place: Root, clock: ManualClock
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    send(place.service_url, "t", "a")
    keeper = LeaseKeeper(place.store)
    keeper.keep(Lease("s", "c", 1, 1_000))
    tell(place, subscribe(kind=SubscriptionType.FAILOVER))
    loop.until_quiet()
    tell(place, subscribe("d", kind=SubscriptionType.FAILOVER))
    loop.until_quiet()
    assert [each.consumer for each in reported(place, OpenGrant)] == ["c"]
    assert not loop.run_once()
    keeper.stop()
    for _ in range(4):
        clock.advance(500)
        loop.until_quiet()
    assert [each.consumer for each in reported(place, OpenGrant)] == ["c", "d"]
    replaced = [each for each in reported(place, Reply) if each.error is not None]
    assert [(each.consumer, each.error) for each in replaced] == [
        ("c", ServerError.CONSUMER_REPLACED)
    ]
    assert not list(place.store.files("_leases"))


def test_while_commands_wait_the_time_is_theirs(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "COMMANDS_AT_ONCE", 1)
    for number in range(3):
        tell(place, subscribe(f"c{number}"))
    sent = [each.publish_time_ms for each in _commands(place)]
    loop = EmbeddedBroker(place, "_broker/c")
    for wait_until in sent[1:]:
        loop.run_once()
        assert loop.offset.now_ms <= max(wait_until, reported(place, Stepped)[0].now_ms)
    assert loop.offset.commands[1] == 2


def _commands(place: Root) -> Iterator[Any]:
    commands = SystemTopic(place, COMMANDS)
    return commands.read(0, commands.refresh())


def test_a_batch_that_is_repeated_takes_in_no_more_than_it_did(place: Root) -> None:
    send(place.service_url, "t", "a")
    tell(place, subscribe())
    loop = EmbeddedBroker(place, "_broker/c")
    loop.run_once()
    loop.run_once()  # and is killed behind the sink
    send(place.service_url, "t", "b")
    EmbeddedBroker(place, "_broker/c").until_quiet()
    assert [each.messages for each in reported(place, Grant)] == [
        messages(0), messages(0, ledger_id=1),
    ]  # fmt: skip


def test_a_broker_whose_term_is_over_writes_nothing(place: Root) -> None:
    loop = EmbeddedBroker(place, "_broker/first")
    tell(place, subscribe())
    send(place.service_url, "t", "a")
    loop.until_quiet()
    newer = EmbeddedBroker(place, "_broker/second")
    newer.until_quiet()
    before = SystemTopic(place, DISPATCH).refresh()
    send(place.service_url, "t", "b")
    with pytest.raises(BrokerFencedError, match="has taken over"):
        loop.until_quiet()
    assert SystemTopic(place, DISPATCH).refresh() == before


@pytest.mark.parametrize("planned", [False, True])
def test_a_checkpoint_that_is_not_the_newest_is_refused_before_it_does_anything(
    place: Root, monkeypatch: pytest.MonkeyPatch, *, planned: bool
) -> None:
    first = EmbeddedBroker(place, "_broker/first")
    tell(place, subscribe())
    send(place.service_url, "t", "a")
    first.until_quiet()
    if planned:  # killed before its last batch did anything
        send(place.service_url, "t", "b")
        with monkeypatch.context() as patch:
            patch.setattr(embedded_broker, "write_rows", _killed)
            with pytest.raises(KeyboardInterrupt):
                first.run_once()
    EmbeddedBroker(place, "_broker/second").until_quiet()
    send(place.service_url, "t", "c")
    before = SystemTopic(place, DISPATCH).refresh()
    with pytest.raises(StaleCheckpointError, match="or with a new checkpoint folder"):
        EmbeddedBroker(place, "_broker/first").until_quiet()
    assert SystemTopic(place, DISPATCH).refresh() == before
    EmbeddedBroker(place, "_broker/second").until_quiet()
    last = messages(0, ledger_id=2 if planned else 1)
    assert reported(place, Grant)[-1].messages == last


def test_a_checkpoint_that_is_refused_ends_no_lease_of_a_consumer_that_came_back(
    place: Root,
) -> None:
    EmbeddedBroker(place).until_quiet()
    tell(place, subscribe())
    EmbeddedBroker(place).until_quiet()
    lease = Lease("s", "c", 1)
    LeaseKeeper(place.store).keep(lease)
    old = BrokerOffset(now_ms=1, lapsed=(lease,))
    with pytest.raises(StaleCheckpointError):
        broker_source.BrokerSource(place).look(old)
    assert place.store.get(lease.path) is not None


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_checkpoint_of_whose_writing_the_answer_was_lost_is_written_once_more(
    place: Root, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    broker = EmbeddedBroker(place, "_broker/c")
    tell(place, subscribe())
    send(place.service_url, "t", "a")
    swap = type(place.store).compare_and_swap
    lost: list[object] = []

    def compare_and_swap(store: Any, path: str, token: str | None, data: bytes) -> bool:
        if path != "_broker/c" or len(lost) > 1:
            return swap(store, path, token, data)
        lost.append(swap(store, path, token, data) if made else None)
        return False  # as S3 says of a request that was sent again, or that met another

    monkeypatch.setattr(type(place.store), "compare_and_swap", compare_and_swap)
    broker.until_quiet()
    assert lost
    assert reported(place, Grant)[-1].messages == messages(0)
    send(place.service_url, "t", "b")
    EmbeddedBroker(place, "_broker/c").until_quiet()
    assert reported(place, Grant)[-1].messages == messages(0, ledger_id=1)


def test_a_damaged_checkpoint_and_a_newer_one_are_refused(place: Root) -> None:
    for data, error in ((b"{}", CorruptFileError), (b'{"version": 2}', FutureVersionError)):
        place.store.delete("_broker/new")
        place.store.put_if_absent("_broker/new", data)
        with pytest.raises(error, match="_broker/new"):
            EmbeddedBroker(place, "_broker/new")


def _killed(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_a_checkpoint_of_another_root_is_refused(place: Root, tmp_path: Path) -> None:
    tell(place, subscribe())
    EmbeddedBroker(place, "_broker/c").until_quiet()
    tell(place, subscribe("d"))
    EmbeddedBroker(place, "_broker/c").until_quiet()
    other = Root(str(tmp_path / "other"), {})
    tell(other, subscribe())
    other.store.put_if_absent("_broker/c", place.store.get("_broker/c") or b"")
    with pytest.raises(StaleCheckpointError, match="of another root"):
        EmbeddedBroker(other, "_broker/c").until_quiet()


def test_of_two_brokers_that_begin_at_one_moment_each_has_a_term_of_its_own(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, terms = ManagedLedger.append, []

    def beaten(self: ManagedLedger, *given: Any, **options: Any) -> Any:
        monkeypatch.setattr(ManagedLedger, "append", append)
        terms.append(broker_sink.claim_term(place))
        return append(self, *given, **options)

    broker_sink.claim_term(place)
    monkeypatch.setattr(ManagedLedger, "append", beaten)
    terms.append(broker_sink.claim_term(place))
    assert terms == [2, 3]


def test_a_dead_letter_passes_by_an_exclusive_producer_of_its_topic(place: Root) -> None:
    claim = ProducerClaim("owner", ProducerAccessMode.EXCLUSIVE, "run", 60_000)
    connect(place.open_or_create(TopicName.parse("dead"), 1), claim)
    send(place.service_url, "t", "a")
    tell(place, subscribe(options=ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1, "dead"))))
    loop = EmbeddedBroker(place, "_broker/c")
    loop.until_quiet()
    hopeless = Rejection(0, messages(0), to_dead_letter=True)
    tell(place, Report("s", "c", 1, delivered={0: messages(0)}, rejected=(hopeless,)))
    loop.until_quiet()
    assert Run(place.service_url, topic="dead", startingOffsets="earliest").values() == ["a"]


def test_a_command_that_is_damaged_stops_nobody(place: Root) -> None:
    SystemTopic(place, COMMANDS).append([Record(ABOUT, "s", b"{}")])
    tell(place, subscribe())
    send(place.service_url, "t", "a")
    EmbeddedBroker(place, "_broker/c").until_quiet()
    assert [each.messages for each in reported(place, Grant)] == [messages(0)]


def test_a_topic_that_comes_later_is_found(place: Root, clock: ManualClock) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    tell(place, subscribe())
    loop.until_quiet()
    send(place.service_url, "t", "a")
    assert not loop.run_once()
    clock.advance(5_000)
    loop.until_quiet()
    assert [each.messages for each in reported(place, Grant)] == [messages(0)]


def test_a_broker_that_slept_through_a_clean_up_of_the_log_still_hears_of_all(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(place.service_url, "t", "a")
    tell(place, subscribe())
    EmbeddedBroker(place, "_broker/c").until_quiet()
    monkeypatch.setattr(
        "pulsar_spark.connector.runtime.topics.managed_ledger.ManagedLedger.commits",
        lambda *_: None,
    )
    for value in "bc":
        send(place.service_url, "t", value)
    topic = place.open(TopicName.parse("t"))
    LedgerStore(topic).trim({0: 1})
    EmbeddedBroker(place, "_broker/c").until_quiet()
    assert [each.messages for each in reported(place, Grant)][1] == messages(0, ledger_id=1).union(
        messages(0, ledger_id=2)
    )
    assert reported(place, Stepped)[-1].backlogs == (("s", 2),)


@pytest.mark.slow
def test_a_broker_killed_at_a_change_of_the_disk_does_everything_once(tmp_path: Path) -> None:
    # Every change takes minutes; each run of this test takes others, all do so in the end.
    every = 12
    first = random.randrange(every)
    command = ["tests.connector.killed_broker", str(tmp_path), str(every), str(first)]
    print("again: python -m", *command)
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "ok: killed the broker" in done.stdout


class OnceFailingStore(MemoryStore):
    """One of its changes fails, before it was made or after."""

    def __init__(self, root: str, clock: Clock) -> None:
        super().__init__(root, clock)
        self.fails_at, self.fails_after, self.changes = -1, False, 0

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._change(super().create, path, data))

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return bool(self._change(super().compare_and_swap, path, token, data))

    def touch(self, path: str, data: bytes) -> None:
        self._change(super().touch, path, data)

    def delete(self, path: str) -> None:
        self._change(super().delete, path)

    def _change(self, change: Callable[..., Any], *given: Any) -> Any:
        self.changes += 1
        if self.changes - 1 != self.fails_at:
            return change(*given)
        if self.fails_after:
            change(*given)
        raise StorageError("The store is away for a moment.")


def fails(store: OnceFailingStore, at: int, loop: EmbeddedBroker, *, fails_after: bool) -> bool:
    """Run until that change fails; whether there were so many."""
    store.fails_at, store.fails_after, store.changes = at, fails_after, 0
    with suppress(StorageError):
        loop.until_quiet()
    store.fails_at = -1
    return store.changes > at


@pytest.mark.parametrize("fails_after", [False, True], ids=["before", "after"])
def test_a_broker_goes_on_after_an_error_at_any_change_of_the_store(*, fails_after: bool) -> None:
    """The same object: what a batch that failed has told is told, and told once."""
    failed = 0
    for fails_at in itertools.count():
        before = failed
        clock = ManualClock(1_700_000_000_000)
        store = OnceFailingStore.named("once-failing", clock)
        assert isinstance(store, OnceFailingStore)
        place = Root(store.root, {})
        try:
            send(place.service_url, "t", "ab", batchingEnabled=False)
            send(place.service_url, "letters", ["first"])
            loop = EmbeddedBroker(place, "_broker/c")
            policy = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1, "letters"))
            tell(place, subscribe("c", options=policy))
            failed += fails(store, fails_at, loop, fails_after=fails_after)
            tell(place, subscribe("d", options=policy))
            loop.until_quiet()
            tell(
                place,
                Report(
                    "s", epoch=None, rejected=(Rejection(None, messages(0), to_dead_letter=True),)
                ),
            )
            failed += fails(store, fails_at, loop, fails_after=fails_after)
            loop.until_quiet()
            clock.advance(int(broker_source.LONGEST_RETRY_S * 1000))
            loop.until_quiet()
            replies = [(each.consumer, each.error) for each in reported(place, Reply)]
            assert sorted(replies) == [("c", None), ("d", None)], fails_at
            dead_letters = Run(place.service_url, topic="letters", startingOffsets="earliest")
            assert dead_letters.values() == ["first", "a"], fails_at
            EmbeddedBroker(place, "_broker/c").until_quiet()  # its checkpoint is the newest
        finally:
            MemoryStore.forget("once-failing")
        if failed == before:  # none has so many changes
            break
    assert failed >= 8
