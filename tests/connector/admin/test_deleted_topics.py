"""A deleted topic, and one made again under its name, are two."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pulsar_spark
from pulsar_spark import pulsar
from pulsar_spark.broker.protocol.commands import (
    CreateSubscription,
    Report,
    Seek,
    Subscribe,
    Unsubscribe,
)
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.system_topics.hosted_topics import last_shards
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import (
    InvalidTopicNameError,
    TopicDeletedError,
    TopicInUseError,
    TopicNotFoundError,
)
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Scope
from tests.connector.reading import Run
from tests.connector.topics import ledger_of, options_of, send, written

NAME = "persistent://public/default/t"
ABOUT = TopicPartition(NAME, 0)


@pytest.fixture
def admin(root: Path) -> Admin:
    send(root, "t", "abc", batchingEnabled=False)
    return Admin(str(root))


def broker_of(root: Path) -> EmbeddedBroker:
    return EmbeddedBroker(Root(str(root), {}), "_broker/checkpoint")


def say(root: Path, *commands: Any) -> None:
    SystemTopic(Root(str(root), {}), COMMANDS).append(
        Record.of(ABOUT, each.subscription, each) for each in commands
    )


def made_again(admin: Admin, root: Path, values: str = "xyz") -> None:
    admin.topics.delete("t", force=True)
    send(root, "t", values, batchingEnabled=False)


def data_files(root: Path) -> list[str]:
    return sorted(each.name for each in (root / "persistent/public/default/t/data").glob("*"))


def test_a_deleted_topic_is_gone_and_so_are_its_files(admin: Admin, root: Path) -> None:
    assert admin.topics.delete("t") == 1
    assert admin.topics.list() == []
    assert Root(str(root), {}).matching("t") == [TopicName.parse("t")]  # its folder, ...
    assert Run(root, topicsPattern=".*", startingOffsets="earliest").next() is not None  # no error
    assert data_files(root) == []
    with pytest.raises(TopicDeletedError, match=r"was deleted.*new checkpoint"):
        ledger_of(root, "t")
    with pytest.raises(TopicDeletedError):
        admin.topics.delete("t")
    with pytest.raises(TopicNotFoundError):
        admin.topics.delete("never")
    with pytest.raises(InvalidTopicNameError):
        admin.topics.delete("persistent://pulsar/system/__commands")


def test_no_message_id_comes_again(admin: Admin, root: Path) -> None:
    before = [each.ledger_id for each in ledger_of(root, "t").ledgers(0)]
    made_again(admin, root)
    state = ledger_of(root, "t").state
    after = [each.ledger_id for each in state.ledgers(0)]
    assert min(after) > max(before)
    assert state.incarnation > 0
    admin.topics.delete("t")
    admin.topics.create("t", 3)
    assert ledger_of(root, "t").state.partitions == 3
    assert ledger_of(root, "t").state.next_ledger_id > max(after)
    fresh = ManagedLedger.open_anew(Root(str(root), {}).store, "persistent/public/default/t")
    assert fresh.state.incarnation == ledger_of(root, "t").state.incarnation


def test_a_topic_that_grew_is_made_again_with_fewer_partitions(admin: Admin, root: Path) -> None:
    admin.topics.create("wide", 4)
    admin.topics.delete("wide")
    admin.topics.create("wide", 2)
    assert ledger_of(root, "wide").state.partitions == 2


def test_a_snapshot_remembers_that_a_topic_was_deleted_and_made_again(
    admin: Admin, root: Path
) -> None:
    store = Root(str(root), {}).store
    admin.topics.delete("t")  # it writes one
    with pytest.raises(TopicDeletedError):
        ManagedLedger.open_anew(store, "persistent/public/default/t")
    send(root, "t", "x")
    ledger_of(root, "t").write_snapshot()
    log = root / "persistent/public/default/t/_log"
    newest = ledger_of(root, "t").state.number
    for file in log.glob("*.json"):
        if file.stem.isdecimal() and int(file.stem) < newest:
            file.unlink()
    again = ManagedLedger.open_anew(store, "persistent/public/default/t")
    assert again.state.incarnation == ledger_of(root, "t").state.incarnation > 0
    assert not again.state.is_deleted


def test_a_query_on_a_deleted_topic_fails_and_says_what_to_do(admin: Admin, root: Path) -> None:
    run = Run(root, topic="t", startingOffsets="earliest")
    assert run.next() is not None
    admin.topics.delete("t")
    with pytest.raises(TopicDeletedError, match="new checkpoint"):
        run.next()


def test_of_several_topics_a_deleted_one_is_left_out_unless_a_loss_ends_the_query(
    admin: Admin, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(root, "u", "1")
    given: dict[str, Any] = {"topics": "t,u", "startingOffsets": "earliest"}
    strict, run = Run(root, **given), Run(root, failOnDataLoss=False, **given)
    for each in (strict, run):
        assert each.next() is not None
    admin.topics.delete("t")
    send(root, "u", "2")
    with pytest.raises(TopicDeletedError, match="new checkpoint"):
        strict.next()
    for value in "23":
        batch = run.next()
        assert batch is not None
        assert batch.values == [value]
        send(root, "u", str(int(value) + 1))
    run = Run(root, failOnDataLoss=False, start=run.offset, **given)
    batch = run.next()
    assert batch is not None
    assert batch.values == ["4"]
    assert run.next() is None
    assert caplog.text.count("Read no more") == 2
    admin.topics.delete("u")
    with pytest.raises(TopicDeletedError):
        run.next()


@pytest.mark.parametrize("said", [{}, {"subscriptionName": "s"}])
def test_a_query_that_goes_on_without_a_topic_does_so_when_it_is_made_again(
    admin: Admin, root: Path, said: dict[str, str]
) -> None:
    send(root, "u", "1")
    begin = "subscriptionInitialPosition" if said else "startingOffsets"
    given: dict[str, Any] = {"topics": "t,u", "failOnDataLoss": False, begin: "earliest", **said}
    with broker_of(root) as broker:

        def values(run: Run) -> list[str]:
            """All that comes, the broker heard in between."""
            found = run.values()
            broker.until_quiet()
            return sorted(found + run.values())

        run = Run(root, **given)
        assert values(run) == ["1", "a", "b", "c"]
        made_again(admin, root)
        for value in "23":
            send(root, "u", value)
            broker.until_quiet()
            assert values(run) == [value]
            run = Run(root, start=run.offset, **given)
        send(root, "u", "4")
        broker.until_quiet()
        assert values(run) == ["4"]
        admin.topics.delete("u", force=True)
        with pytest.raises(TopicDeletedError):
            run.next()


def test_an_old_checkpoint_is_refused_on_the_new_topic(admin: Admin, root: Path) -> None:
    run = Run(root, topic="t", startingOffsets="earliest")
    assert run.next() is not None
    made_again(admin, root)
    with pytest.raises(TopicDeletedError, match="new checkpoint"):
        run.next()
    with pytest.raises(TopicDeletedError, match="new checkpoint"):
        Run(root, topic="t", start=run.offset).next()
    new = Run(root, topic="t", startingOffsets="earliest")
    first = new.next()
    assert first is not None
    assert first.values == ["x", "y", "z"]
    send(root, "t", "w")
    second = Run(root, topic="t", start=new.offset).next()
    assert second is not None
    assert second.values == ["w"]


def test_a_planned_micro_batch_of_a_deleted_topic_is_not_read_from_the_new_one(
    admin: Admin, root: Path
) -> None:
    run = Run(root, topic="t", startingOffsets="earliest")
    batch = run.planned()
    assert batch is not None
    made_again(admin, root)
    with pytest.raises(TopicDeletedError):
        Run(root, topic="t", start=batch.start).read(batch)


def test_a_pattern_goes_on_without_a_deleted_topic_and_reads_the_new_one_from_its_beginning(
    admin: Admin, root: Path
) -> None:
    send(root, "t2", "1")
    given: dict[str, Any] = {"topicsPattern": "t.*", "topicDiscoveryInterval": "0ms"}
    run = Run(root, startingOffsets="earliest", **given)
    first = run.next()
    assert first is not None
    assert sorted(first.values) == ["1", "a", "b", "c"]
    admin.topics.delete("t")
    send(root, "t2", "2")
    second = run.next()
    assert second is not None
    assert second.values == ["2"]
    again = Run(root, start=run.offset, **given)
    assert again.next() is None
    send(root, "t", "xyz", batchingEnabled=False)
    third = again.next()
    assert third is not None
    assert third.values == ["x", "y", "z"]


def test_a_batch_reads_the_new_topic(admin: Admin, root: Path) -> None:
    made_again(admin, root)
    client = pulsar_spark.Client(str(root))
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert [reader.read_next(1000).data() for _ in range(3)] == [b"x", b"y", b"z"]
    client.close()


def test_a_producer_of_the_old_topic_publishes_nothing_to_the_new_one(
    admin: Admin, root: Path
) -> None:
    client = pulsar_spark.Client(str(root))
    producer = client.create_producer("t")
    producer.send(b"d")
    admin.topics.delete("t", force=True)
    with pytest.raises(pulsar.TopicNotFound, match="was deleted"):
        producer.send(b"e")
    assert admin.topics.list() == [], "it is not made again by who was of the old one"
    send(root, "t", "x")
    with pytest.raises(pulsar.TopicNotFound, match="was deleted"):
        producer.send(b"e")
    assert ledger_of(root, "t").state.partition(0).messages == 1
    client.close()


def test_a_client_consumer_of_the_old_topic_reads_the_new_one(admin: Admin, root: Path) -> None:
    client = pulsar_spark.Client(str(root), broker="embedded")
    consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    message = consumer.receive(10_000)
    made_again(admin, root)
    held: list[bytes] = []
    while held[-3:] != [b"x", b"y", b"z"]:
        held.append(consumer.receive(30_000).data())
    assert held[:-3] in ([], [b"b", b"c"])  # of the old one, what it had taken before
    assert message.data() == b"a"
    client.close()


def test_files_written_for_the_old_topic_are_not_published_in_the_new_one(
    admin: Admin, root: Path
) -> None:
    place = Root(str(root), {})
    files = written(options_of(root, Scope.STREAM_WRITE, {"topic": "t"}), ["d"])
    made_again(admin, root)
    with pytest.raises(TopicDeletedError):
        publish(place, files, None)
    assert ledger_of(root, "t").state.partition(0).messages == 3


def test_the_broker_forgets_a_deleted_topic_and_refuses_who_means_it(
    admin: Admin, root: Path
) -> None:
    with broker_of(root) as broker:
        say(root, CreateSubscription("s"))
        broker.until_quiet()
        assert [each.name for each in subscriptions(broker.root)] == ["s"]
        with pytest.raises(TopicInUseError, match=r"subscriptions s.*--force"):
            admin.topics.delete("t")
        admin.topics.delete("t", force=True)
        assert subscriptions(broker.root) == [], "at once, whatever the broker knows"
        broker.until_quiet()
        assert ABOUT not in broker.hosted.commits
        say(root, Subscribe("s", "late", 1), CreateSubscription("s", request_id=1))
        broker.until_quiet()
        assert ABOUT not in broker.hosted.commits
        assert broker.brokers[ABOUT].shards == {}
        send(root, "t", "xyz", batchingEnabled=False)
        number = ledger_of(root, "t").state.incarnation
        late = [Subscribe("s", "late", 2), Seek("s", EARLIEST, topic_incarnation=0)]
        late += [Report("s", epoch=None, acknowledged=Cursor(Position(0, 2)))]
        say(root, CreateSubscription("s", topic_incarnation=number), *late)
        say(root, Unsubscribe("s", topic_incarnation=0))
        broker.until_quiet()
        (found,) = subscriptions(broker.root, NAME)
        assert (found.backlog, found.consumers) == (3, ())


@pytest.mark.parametrize("restored", [False, True])
def test_a_topic_that_was_deleted_and_made_again_between_two_looks_has_no_old_subscription(
    admin: Admin, root: Path, restored: bool
) -> None:
    with broker_of(root) as broker:
        say(root, CreateSubscription("s"))
        broker.until_quiet()
    made_again(admin, root)
    if restored:
        (root / "_broker/checkpoint").unlink()
    with broker_of(root) as broker:
        number = ledger_of(root, "t").state.incarnation
        say(root, CreateSubscription("new", topic_incarnation=number))
        broker.until_quiet()
        (found,) = subscriptions(broker.root)
        assert (found.name, found.backlog) == ("new", 3)
        broker.brokers[ABOUT].state.check()  # type: ignore[union-attr]


def test_a_set_aside_topic_can_be_deleted(admin: Admin, root: Path) -> None:
    with broker_of(root) as broker:
        say(root, CreateSubscription("s"))
        for file in (root / "persistent/public/default/t/data").glob("*.parquet"):
            file.write_bytes(b"torn")
        broker.until_quiet()
        assert ABOUT in broker.hosted.quarantined
        admin.topics.delete("t", force=True)
        broker._source._tries.clear()  # its time has come
        broker.until_quiet()
        assert ABOUT not in {*broker.hosted.quarantined, *broker.hosted.commits}


def test_the_shards_are_gone_from_dispatch(admin: Admin, root: Path) -> None:
    with broker_of(root) as broker:
        say(root, CreateSubscription("s"))
        broker.until_quiet()
        admin.topics.delete("t", force=True)
        broker.until_quiet()
        dispatch = SystemTopic(broker.root, DISPATCH)
        assert last_shards(dispatch, dispatch.refresh())[1] == {}


STEPS = ["delete", "write_snapshot", "reclaim_orphans", "sweep", "again write_snapshot"]
KILLED = """
import os, signal, sys
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.runtime.topics import ledger_store, managed_ledger

step, is_after, url = sys.argv[1], sys.argv[2] == "after", sys.argv[3]
again, _, name = step.rpartition(" ")
of_log = name in ("delete", "write_snapshot")
kind = managed_ledger.ManagedLedger if of_log else ledger_store.LedgerStore
real, left = getattr(kind, name), [1 if again else 0]

def killed(*given, **named):
    if left[0]:
        left[0] -= 1
        return real(*given, **named)
    if is_after:
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(kind, name, killed)
Admin(url).topics.delete("t")
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_deletion_left_the_topic_there_or_goes_on(
    admin: Admin, root: Path, step: str, when: str
) -> None:
    orphan = root / "persistent/public/default/t/data/0000000000000000000000000000000f.parquet"
    orphan.write_bytes(b"written, and never named")
    done = subprocess.run([sys.executable, "-c", KILLED, step, when, str(root)], check=False)
    assert done.returncode == -signal.SIGKILL
    exists = (step, when) == ("delete", "before")
    assert admin.topics.list() == ([NAME] if exists else [])
    batch = Run(root, topicsPattern="t", startingOffsets="earliest").next()
    assert (batch.values if batch else []) == (["a", "b", "c"] if exists else [])
    if exists:
        admin.topics.delete("t")
    else:
        Housekeeper(Root(str(root), {})).run_once()
    assert data_files(root) == []
    send(root, "t", "x")
    assert Run(root, topic="t", startingOffsets="earliest").next() is not None


@pytest.mark.parametrize("broker_knows", [False, True])
@pytest.mark.parametrize("made_anew", [False, True])
def test_who_looks_at_all_topics_does_not_stumble_over_a_deleted_one(
    admin: Admin, root: Path, broker_knows: bool, made_anew: bool
) -> None:
    send(root, "other", "1")
    with broker_of(root) as broker:
        say(root, CreateSubscription("s"))
        broker.until_quiet()
        admin.topics.delete("t", force=True)
        if made_anew:
            admin.topics.create("t", 2)
        if broker_knows:
            broker.until_quiet()
    given = ("--service-url", str(root))
    for command in (
        ("topics", "list"), ("topics", "verify"), ("topics", "verify", "--deep"), ("metrics",),
        ("namespaces", "list"), ("tenants", "list"), ("subscriptions", "list", "other"),
        ("topics", "tidy", "other"),
    ):  # fmt: skip
        assert main([*command, *given]) == 0, command
    there = [NAME] if made_anew else []
    for view in ("subscriptions", "cursors", "backlog", "ledgers", "messages"):
        rows = pulsar_spark.dataset(str(root), view=view).to_table()
        assert {*rows["topic"].to_pylist()} <= {*there, "persistent://public/default/other"}, view
    if made_anew:
        assert main(["topics", "stats", "t", *given]) == 0


def test_what_is_published_to_the_new_topic_waits_for_its_first_subscription(
    admin: Admin, root: Path
) -> None:
    with broker_of(root) as broker:
        say(root, CreateSubscription("s"))
        broker.until_quiet()
        made_again(admin, root, "")
        for value in "xyz":
            send(root, "t", value)
        broker.until_quiet()
        say(root, CreateSubscription("s"))
        broker.until_quiet()
        assert [each.messages for each in ledger_of(root, "t").ledgers(0)] == [1, 1, 1]
        say(
            root,
            Report("s", epoch=None, acknowledged=Cursor(ledger_of(root, "t").ledgers(0)[1].last)),
        )
        broker.until_quiet()
        assert [each.messages for each in ledger_of(root, "t").ledgers(0)] == [1]
