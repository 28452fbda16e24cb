"""One topic's trouble: its broker is set aside, the others serve, and nothing of its is lost."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.broker.hosting import hosted_broker
from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    InitialPosition,
    Rejection,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy
from pulsar_spark.broker.protocol.ready import Grant, Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.broker import (
    broker_input,
    broker_sink,
    broker_source,
    embedded_broker,
)
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.hosted_topics import last_shards
from pulsar_spark.connector.runtime.system_topics.lease import Lease, LeaseKeeper
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import StorageError
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.state.broker_query import LASTING
from pulsar_spark.testing import ManualClock
from tests.connector.broker_query import BrokerQuery, QueryCheckpoint
from tests.connector.irregular_files import IRREGULAR
from tests.connector.reading import Run, messages
from tests.connector.topics import ledger_of, send
from tests.scenarios.host import Host

FULL = "persistent://public/default/"
GOOD, BAD = TopicPartition(f"{FULL}good", 0), TopicPartition(f"{FULL}bad", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def place(root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Root:
    place = Root(str(root), {})
    place.store.clock = clock
    for topic_partition in (GOOD, BAD):
        send(root, topic_partition.topic, ["a"], columns={"key": ["k"]})
    return place


class Trouble:
    """Makes the steps of one topic partition fail, while it is on."""

    def __init__(self, patch: pytest.MonkeyPatch, partition: int | None = None) -> None:
        self.on, self._partition = True, partition
        self._step = step
        patch.setattr(hosted_broker, "step", self)

    def __call__(
        self, state: BrokerState, commands: Sequence[Any], now_ms: int
    ) -> tuple[BrokerState, Ready]:
        meant = self._partition in (None, state.partition)
        if self.on and meant and state.topic == BAD.topic:
            raise ZeroDivisionError("what nobody thought of")
        return self._step(state, commands, now_ms)


def subscribe(place: Root, name: str = "c", **given: Any) -> None:
    earliest = InitialPosition.EARLIEST
    command = Subscribe(
        "s", name, 1, SubscriptionType.SHARED, initial_position=earliest, permits=9, **given
    )
    LeaseKeeper(place.store).keep(Lease("s", name, 1))
    commands = SystemTopic(place, COMMANDS)
    commands.append([Record.of(topic_partition, "s", command) for topic_partition in (GOOD, BAD)])


def grants(place: Root, topic_partition: TopicPartition) -> int:
    """How many messages were granted, all in all."""
    dispatch = SystemTopic(place, DISPATCH)
    found = dispatch.read(
        0,
        dispatch.refresh(),
        keep=lambda of, name: of == topic_partition and not name.startswith("\x00"),
    )
    items = [each.record.item() for each in found]
    return sum(len(list(each.messages.entries())) for each in items if isinstance(each, Grant))


def quarantined(loop: EmbeddedBroker) -> list[TopicPartition]:
    return sorted(loop.hosted.quarantined)


def tried_again(loop: EmbeddedBroker, clock: ManualClock) -> None:
    clock.advance(int(broker_source.LONGEST_RETRY_S * 1000))
    loop.until_quiet()


def test_a_step_that_fails_ends_nobody_elses_and_is_tried_again(
    place: Root, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place)
    loop.until_quiet()
    trouble = Trouble(monkeypatch)
    for value in "bc":
        for topic_partition in (GOOD, BAD):
            send(place.service_url, topic_partition.topic, [value])
        subscribe(place, f"c-{value}")
        loop.until_quiet()
        assert quarantined(loop) == [BAD]
    (held,) = loop.hosted.quarantined.values()
    assert held.error == "ZeroDivisionError: what nobody thought of"
    assert (grants(place, GOOD), grants(place, BAD)) == (3, 1)
    tried_again(loop, clock)
    assert quarantined(loop) == [BAD]
    trouble.on = False
    tried_again(loop, clock)
    assert grants(place, BAD) == 3
    brokers = last_shards(SystemTopic(place, DISPATCH), SystemTopic(place, DISPATCH).refresh())[1]
    assert brokers.keys() == {GOOD, BAD}


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_topic_without_a_readable_log_file_is_quarantined(
    place: Root, clock: ManualClock, kind: str
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place)
    loop.until_quiet()
    folder = Path(place.service_url, TopicName.parse(BAD.topic).storage_path)
    path = folder / log_file(ledger_of(place.service_url, BAD.topic).state.number + 1)
    IRREGULAR[kind](path)
    send(place.service_url, GOOD.topic, ["b"])
    loop.until_quiet()
    assert quarantined(loop) == [BAD]
    assert (grants(place, GOOD), grants(place, BAD)) == (2, 1)
    path.rmdir() if kind == "folder" else path.unlink()
    send(place.service_url, BAD.topic, ["b"])
    tried_again(loop, clock)
    assert (quarantined(loop), grants(place, BAD)) == ([], 2)


@pytest.mark.parametrize("messages_again", [1, 30])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_whose_folder_was_removed_by_hand_and_made_again_is_refused_by_name(
    place: Root, clock: ManualClock, restarted: bool, messages_again: int
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place)
    for value in "bcd":
        send(place.service_url, BAD.topic, [value], columns={"key": ["k"]})
        loop.until_quiet()
    if restarted:
        loop.close()
    folder = Path(place.service_url, TopicName.parse(BAD.topic).storage_path)
    copy = folder.with_name("copy")
    folder.rename(copy)
    for number in range(messages_again):
        send(place.service_url, BAD.topic, [str(number)], columns={"key": ["k"]})
    if restarted:
        loop = EmbeddedBroker(place, "_broker/c")
    send(place.service_url, GOOD.topic, ["b"])
    for _ in range(2):
        loop.until_quiet()
        assert quarantined(loop) == [BAD]
        assert "TOPIC_REPLACED" in loop.hosted.quarantined[BAD].error
        tried_again(loop, clock)
    assert (grants(place, GOOD), grants(place, BAD)) == (2, 4)
    folder.rename(folder.with_name("removed"))
    copy.rename(folder)
    tried_again(loop, clock)
    send(place.service_url, BAD.topic, ["e"])
    loop.until_quiet()
    assert (quarantined(loop), grants(place, BAD)) == ([], 5)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_what_is_set_aside_keeps_its_commands_over_a_restart(
    place: Root,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    lost: bool,
    first: bool,
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    if not first:
        subscribe(place)
        loop.until_quiet()
    trouble = Trouble(monkeypatch)
    subscribe(place, "b")
    send(place.service_url, BAD.topic, ["b"])
    loop.run_once()  # and is killed before it has heard of the trouble
    again = EmbeddedBroker(place, "_broker/d" if lost else "_broker/c")
    again.until_quiet()
    assert quarantined(again) == [BAD]
    assert grants(place, BAD) == (0 if first else 1)
    trouble.on = False
    third = EmbeddedBroker(place, "_broker/e")
    tried_again(third, clock)
    assert not quarantined(third)
    assert grants(place, BAD) == 2


def test_a_snapshot_keeps_what_is_set_aside(
    place: Root, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 6)
    monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", 2)
    monkeypatch.setattr(broker_sink, "COMMANDS_KEPT", 0)
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place)
    loop.until_quiet()
    trouble = Trouble(monkeypatch)
    subscribe(place, "b")
    for each in range(24):
        send(place.service_url, GOOD.topic, [str(each)])
        subscribe(place, str(each))
        loop.until_quiet()
    dispatch = SystemTopic(place, DISPATCH)
    dispatch.refresh()
    assert dispatch.first_ledger() > 3
    commands = SystemTopic(place, COMMANDS)
    commands.refresh()
    assert commands.first_ledger() == 1, "what it has not taken in is not trimmed"
    trouble.on = False
    send(place.service_url, BAD.topic, ["b"])
    fresh = EmbeddedBroker(place, "_broker/d")
    tried_again(fresh, clock)
    assert not quarantined(fresh)
    hosted, brokers = last_shards(dispatch, dispatch.refresh())
    assert hosted.quarantined == {}
    state = from_shards(brokers[BAD])
    assert len(state.subscriptions["s"].consumers) == 26
    assert len(list(state.subscriptions["s"].held.entries())) == 2


def test_a_log_that_is_damaged_sets_its_topic_aside_until_it_is_mended(
    place: Root, tmp_path: Path, clock: ManualClock
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place)
    loop.until_quiet()
    for topic_partition in (GOOD, BAD):
        send(place.service_url, topic_partition.topic, ["b"])
    folder = Path(place.service_url) / ledger_of(place.service_url, BAD.topic).folder
    newest = max((folder / "_log").glob("*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(b"{}")
    loop.until_quiet()
    assert quarantined(loop) == [BAD]
    assert (grants(place, GOOD), grants(place, BAD)) == (2, 1)
    again = EmbeddedBroker(place, "_broker/c")
    again.until_quiet()
    assert quarantined(again) == [BAD]
    newest.write_bytes(whole)
    tried_again(again, clock)
    assert not quarantined(again)
    assert grants(place, BAD) == 2


def test_a_data_file_that_is_damaged_sets_its_topic_aside(
    place: Root, tmp_path: Path, clock: ManualClock
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    folder = Path(place.service_url) / ledger_of(place.service_url, BAD.topic).folder
    (file,) = (folder / "data").glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    subscribe(place)
    loop.until_quiet()
    assert quarantined(loop) == [BAD]
    assert grants(place, GOOD) == 1
    file.write_bytes(whole)
    tried_again(loop, clock)
    assert not quarantined(loop)
    assert grants(place, BAD) == 1


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("damaged", ["the message", "the letter topic"])
def test_letters_that_cant_be_written_set_their_topic_aside_until_they_can(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, damaged: str, *,
    snapshot: bool,
) -> None:  # fmt: skip
    send(place.service_url, "letters", ["older"])
    policy = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1, "letters"))
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place, options=policy)
    loop.until_quiet()
    topic = ledger_of(place.service_url, BAD.topic if damaged == "the message" else "letters")
    folder = "data" if damaged == "the message" else "_log"
    file = max((Path(place.service_url) / topic.folder / folder).glob("*.*"))
    whole = file.read_bytes()
    file.write_bytes(b"")
    if snapshot:
        monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 1)
        monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", 1)
    read = PositionSet.of([(0, 0)])
    dead_lettered = Rejection(0, read, to_dead_letter=True)
    report = Report("s", "c", 1, delivered={0: read}, permits=9, rejected=(dead_lettered,))
    SystemTopic(place, COMMANDS).append([Record.of(BAD, "s", report)])
    for value in "bcd":
        send(place.service_url, GOOD.topic, [value])
        for _ in range(3):
            loop.run_once()
    assert quarantined(loop) == [BAD]
    granted = from_shards(loop.brokers[GOOD].shards).subscriptions["s"].held
    assert len(list(granted.entries())) == 4
    file.write_bytes(whole)
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 1_000)
    tried_again(loop, clock)
    assert not quarantined(loop)
    assert [each["value"] for each in messages(place.service_url, "letters")] == [b"older", b"a"]
    dispatch = SystemTopic(place, DISPATCH)
    brokers = last_shards(dispatch, dispatch.refresh())[1]
    assert brokers[BAD] == loop.brokers[BAD].shards
    assert from_shards(brokers[BAD]).subscriptions["s"].consumers


def test_a_letter_topic_damaged_before_the_commit_ends_no_broker_for_good(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(place.service_url, "letters", ["older"])
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place, options=ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1, "letters")))
    loop.until_quiet()
    folder = Path(place.service_url) / ledger_of(place.service_url, "letters").folder
    file = max((folder / "_log").glob("*.*"))
    whole = file.read_bytes()

    def commit_when_damaged(*given: Any) -> None:
        file.write_bytes(b"")
        broker_sink.commit_batch(*given)

    dead_lettered = Rejection(0, PositionSet.of([(0, 0)]), to_dead_letter=True)
    report = Report("s", "c", 1, delivered={0: dead_lettered.messages}, rejected=(dead_lettered,))
    SystemTopic(place, COMMANDS).append([Record.of(BAD, "s", report)])
    with monkeypatch.context() as patch:
        patch.setattr(embedded_broker, "commit_batch", commit_when_damaged)
        with pytest.raises(StorageError, match="letters, and not published") as caught:
            loop.until_quiet()
    trace = "".join(traceback.format_exception(caught.value))
    assert not any(f"[{each.condition}]" in trace for each in LASTING), "standalone restarts"
    send(place.service_url, GOOD.topic, ["b"])
    loop.until_quiet()
    assert quarantined(loop) == [BAD]
    assert grants(place, GOOD) == 2
    file.write_bytes(whole)
    tried_again(loop, clock)
    assert not quarantined(loop)
    assert [each["value"] for each in messages(place.service_url, "letters")] == [b"older", b"a"]


def test_a_repeated_batch_does_no_letter_again_whose_topic_it_had_set_aside(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place, options=ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1, "letters")))
    loop.until_quiet()
    dead_lettered = Rejection(0, PositionSet.of([(0, 0)]), to_dead_letter=True)
    report = Report("s", "c", 1, delivered={0: dead_lettered.messages}, rejected=(dead_lettered,))
    SystemTopic(place, COMMANDS).append([Record.of(BAD, "s", report)])

    def away(_root: Root, _about: TopicPartition, dead_letters: Sequence[Any]) -> list[Any]:
        if dead_letters:
            raise StorageError("The letters' topic is away for a moment.")
        return []

    def killed_behind(*given: Any) -> None:
        broker_sink.commit_batch(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broker_sink, "write_republications", away)
        patch.setattr(embedded_broker, "commit_batch", killed_behind)
        with pytest.raises(KeyboardInterrupt):
            loop.until_quiet()
    loop.close()
    again = EmbeddedBroker(place, "_broker/c")  # repeats the batch, and could write the letters
    again.until_quiet()
    tried_again(again, clock)
    assert not quarantined(again)
    assert [each["value"] for each in messages(place.service_url, "letters")] == [b"a"]


@pytest.mark.usefixtures("impatient")
def test_new_partitions_get_the_subscriptions_of_a_first_one_that_is_set_aside(
    place: Root, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EmbeddedBroker(place, "_broker/c")
    subscribe(place)
    loop.until_quiet()
    trouble = Trouble(monkeypatch, 0)
    subscribe(place, "other")
    loop.until_quiet()
    assert quarantined(loop) == [BAD]
    loop.close()
    again = EmbeddedBroker(place, "_broker/c")  # and has heard of no subscription there
    again.until_quiet()
    ledger_of(place.service_url, BAD.topic).grow(2)
    send(place.service_url, BAD.topic, "xyz", columns={"key": [*"klm"]}, batchingEnabled=False)
    topic_partition = BAD._replace(partition=1)
    there = Run(place.service_url, topic=f"{BAD.topic}-partition-1", startingOffsets="earliest")
    sent = len(there.values())
    assert sent
    latest = Subscribe("s", "new", 1, SubscriptionType.SHARED, permits=9, partitions=2)
    SystemTopic(place, COMMANDS).append([Record.of(topic_partition, "s", latest)])
    again.until_quiet()
    assert grants(place, topic_partition) == sent
    trouble.on = False
    tried_again(again, clock)
    assert not quarantined(again)


def test_a_batch_that_took_effect_before_it_failed_is_what_the_broker_goes_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its second try can't read a log for a moment; what the first one said stands."""
    with Host() as host:
        producer = host.producer({"topic": "t"})
        producer.send(b"m")
        commit, read, calls = broker_sink.commit_batch, broker_input._rows_reported, list[str]()

        def committed_and_failed(*given: Any) -> None:
            commit(*given)
            calls.append("commit")
            if len(calls) == 1:
                raise StorageError("What it trims could not be deleted.")

        def unreadable_once(*given: Any, **named: Any) -> Iterator[Any]:
            if calls == ["commit"]:
                raise StorageError("The log is away for a moment.")
            return read(*given, **named)

        monkeypatch.setattr(embedded_broker, "commit_batch", committed_and_failed)
        monkeypatch.setattr(broker_input, "_rows_reported", unreadable_once)
        options = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
        with pytest.raises(StorageError):
            host.subscribe(options)
        host.run()
        assert calls[:2] == ["commit", "commit"]
        producer.send(b"n")
        host.run()
        state = host.state(TopicPartition("persistent://public/default/t", 0))
        assert [each.messages for each in state.ledgers] == [1, 1]
        assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 2


def test_a_query_that_repeats_a_batch_has_the_states_that_were_said_when_it_happened(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed behind its sink's commit, and now it can't read a log for a moment."""
    kept = QueryCheckpoint("q")
    with BrokerQuery(place, kept) as query:
        subscribe(place)
        query.until_quiet()

    def killed() -> None:
        raise StorageError("Spark does not come to commit.")

    send(place.service_url, BAD.topic, ["b"])
    with BrokerQuery(place, kept, killed) as query, pytest.raises(StorageError):
        query.run_once()
    read = broker_input._rows_reported

    def unreadable(
        root: Root, topic_partition: TopicPartition, *given: Any, **named: Any
    ) -> Iterator[Any]:
        if topic_partition == BAD:
            raise StorageError("The log is away for a moment.")
        return read(root, topic_partition, *given, **named)

    with BrokerQuery(place, kept) as query:
        with monkeypatch.context() as patch:
            patch.setattr(broker_input, "_rows_reported", unreadable)
            assert query.run_once()
        send(place.service_url, BAD.topic, ["c"])
        query.until_quiet()
        state = query.brokers[BAD].state
    assert state is not None
    assert [each.messages for each in state.ledgers] == [1, 1, 1]
    assert grants(place, BAD) == 3
