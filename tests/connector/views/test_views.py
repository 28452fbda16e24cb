"""The views of a queue, as a dataset has them: what a client and an embedded broker have done."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow.compute as pc
import pytest

import pulsar_spark
from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.inspect.views import topic_stats
from pulsar_spark.connector.inspect.views.view_columns import VIEWS
from pulsar_spark.connector.runtime.broker import broker_sink, broker_source
from pulsar_spark.connector.runtime.reading import micro_batch
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.errors import InvalidOptionError, TopicNotFoundError
from pulsar_spark.options.options import VIEWS as NAMES
from pulsar_spark.options.options import Options
from tests.connector.client.clients import all_of, shared, subscribe
from tests.connector.topics import numbers, send

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TOPIC = "persistent://public/default/t"


def rows(url: str, view: str, *columns: str, **given: Any) -> list[Any]:
    """The rows of a view, through pickles as Spark's tasks go; tuples, or values of one column."""
    made = pickle.loads(pickle.dumps(pulsar_spark.dataset(url, view=view, **given)))
    table = made.to_table(columns=list(columns))
    found = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    return [each[0] for each in found] if len(columns) == 1 else found


def one(url: str, view: str, **given: Any) -> Mapping[str, Any]:
    row: Mapping[str, Any]
    (row,) = pulsar_spark.dataset(url, view=view, **given).to_table().to_pylist()
    return row


def publish(client: pulsar.Client, *values: str, topic: str = "t", **said: Any) -> None:
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value.encode(), **said)
    producer.close()


def quiet(client: pulsar.Client, consumer: pulsar.Consumer) -> None:
    """Let everything that was said reach the broker."""
    advance(client, 1000)
    all_of(consumer, 100)


def advance(client: pulsar.Client, milliseconds: int) -> None:
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(milliseconds)


def instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def test_each_view_that_can_be_named_is_there_and_has_no_column_twice() -> None:
    assert tuple(VIEWS) == NAMES
    for view in VIEWS.values():
        assert len(set(view.schema.names)) == len(view.schema.names), view.name


def test_messages_are_all_that_the_log_has_with_their_ids(url: str, client: pulsar.Client) -> None:
    publish(client, "a", "b", partition_key="k", properties={"x": "1"})
    found = rows(url, "messages", "ledger_id", "entry_id", "key", "value", "properties")
    assert found == [(0, 0, "k", b"a", [("x", "1")]), (1, 0, "k", b"b", [("x", "1")])]
    assert pulsar_spark.dataset(url, "t").to_table(["value"])["value"].to_pylist() == [b"a", b"b"]


def test_the_backlog_says_where_each_message_is(url: str, client: pulsar.Client) -> None:
    consumer = shared(client, consumer_name="c", receiver_queue_size=3)
    publish(client, *"abcde")
    publish(client, "later", deliver_after=timedelta(hours=1))
    messages = [consumer.receive(1000) for _ in range(3)]
    consumer.negative_acknowledge(messages[0])
    consumer.acknowledge(messages[1])
    advance(client, 1000)
    with pytest.raises(pulsar.Timeout):
        shared(client, consumer_name="reads-nothing", receiver_queue_size=1).receive(0)
    where = dict(rows(url, "backlog", "value", "state"))
    assert b"b" not in where
    assert where[b"a"] == "waiting"
    assert where[b"c"] == "held"
    assert where[b"later"] == "delayed"
    assert dict(rows(url, "backlog", "value", "consumer_name"))[b"c"] == "c"
    counts = one(url, "subscriptions")
    assert counts["msg_backlog"] == len(where)
    assert (counts["msg_delayed"], counts["msg_waiting"]) == (1, 1)


def test_what_is_held_names_its_consumer_attempt_count_and_ends(
    url: str, client: pulsar.Client
) -> None:
    consumer = shared(
        client, consumer_name="c", unacked_messages_timeout_ms=20_000,
        negative_ack_redelivery_delay_ms=1000,
    )  # fmt: skip
    publish(client, "a", "b")
    now_ms = client.root.clock.wall_ms()
    first = [consumer.receive(1000) for _ in range(2)]
    consumer.negative_acknowledge(first[0])
    again = consumer.receive(5000)
    assert again.data() == b"a"
    quiet(client, consumer)
    names = ("value", "subscription", "consumer_name", "attempt", "redelivery_count")
    held = rows(url, "unacknowledged", *names, "is_delivered")
    assert sorted(held) == [(b"a", "s", "c", 1, 1, True), (b"b", "s", "c", 0, 0, True)]
    ends = dict(rows(url, "unacknowledged", "value", "ack_timeout_ends"))
    assert ends[b"b"] < ends[b"a"]
    assert ends[b"b"] >= instant(now_ms + 20_000)
    lease_ends = rows(url, "unacknowledged", "lease_ends")
    assert min(lease_ends) > instant(client.root.clock.wall_ms())


def test_of_who_reads_all_it_is_held_what_was_delivered(url: str, client: pulsar.Client) -> None:
    consumer = subscribe(client, consumer_name="c")
    publish(client, *"abc")
    consumer.acknowledge(all_of(consumer)[0])
    quiet(client, consumer)
    held = rows(url, "unacknowledged", "value", "consumer_name", "redelivery_count")
    assert held == [(b"b", "c", 0), (b"c", "c", 0)]
    assert one(url, "consumers")["is_active"]
    assert one(url, "subscriptions")["active_consumer_name"] == "c"


def test_delayed_messages_say_why_and_until_when(url: str, client: pulsar.Client) -> None:
    consumer = shared(client, negative_ack_redelivery_delay_ms=90_000)
    publish(client, "now")
    now_ms = client.root.clock.wall_ms()
    publish(client, "later", deliver_at=now_ms + 5_000_000)
    consumer.negative_acknowledge(consumer.receive(1000))
    quiet(client, consumer)
    found = {row[0]: row[1:] for row in rows(url, "delayed", "value", "reason", "due")}
    assert found[b"later"] == ("deliver_at", instant(now_ms + 5_000_000))
    reason, due = found[b"now"]
    assert reason == "redelivery"
    assert instant(now_ms + 90_000) <= due <= instant(client.root.clock.wall_ms() + 90_000)


def test_who_reads_alone_waits_for_no_delivery_time(url: str, client: pulsar.Client) -> None:
    subscribe(client)
    publish(client, "later", deliver_after=timedelta(hours=1))
    client.create_producer("other").send(b"")
    assert rows(url, "delayed", "value") == []


def test_dead_letters_say_where_they_come_from_and_why(url: str, client: pulsar.Client) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    consumer = shared(client, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=1000)
    publish(client, "bad", properties={"traceparent": TRACE, "tracestate": "a=1"})
    publish(client, "good")
    for message in all_of(consumer, 10_000):
        if message.data() == b"good":
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    for message in all_of(consumer, 10_000):
        consumer.negative_acknowledge(message, error=ValueError("no \udc80"))
    quiet(client, consumer)
    names = (
        "topic", "value", "origin_topic", "origin_message_id", "subscription", "reason", "error",
        "attempts", "consumer_name", "traceparent",
    )  # fmt: skip
    how = ("rejected", "ValueError: no \\udc80", 2, consumer.consumer_name(), TRACE)
    letter = (f"{TOPIC}-s-DLQ", b"bad", TOPIC, "0:0:0", "s", *how)
    assert rows(url, "dead-letters", *names) == [letter]
    assert rows(url, "dead-letters", *names, topic="t") == [letter]
    assert rows(url, "dead-letters", *names, topic="t-s-DLQ") == [letter]
    (properties,) = rows(url, "dead-letters", "properties")
    assert dict(properties)["tracestate"] == "a=1"
    publish(client, "x", topic="other")
    assert rows(url, "dead-letters", *names, topic="other") == []


def test_a_dead_letter_says_which_way_it_went(url: str, client: pulsar.Client) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    own = {"dead_letter_policy": policy, "negative_ack_redelivery_delay_ms": 1000}
    for name, how in (
        ("timeout", {"unacked_messages_timeout_ms": 10_000}),
        ("asked", {}),
        ("put-off", {}),
    ):
        consumer = shared(client, topic=name, retry_enable=name == "put-off", **own, **how)
        publish(client, name, topic=name)
        for _ in range(2):
            for message in all_of(consumer, 20_000):
                if name == "asked":
                    consumer.redeliver_unacknowledged_messages()
                elif name == "put-off":
                    consumer.reconsume_later(message, 1000, error="busy")
            advance(client, 20_000)
        quiet(client, consumer)
        consumer.close()
    found = {
        each[0]: each[1:]
        for each in rows(url, "dead-letters", "value", "reason", "error", "attempts")
    }
    assert found == {
        b"timeout": ("ack timeout", None, 2),
        b"asked": ("redelivery asked", None, 2),
        b"put-off": ("reconsumed", "busy", 2),
    }


def test_acknowledgements_say_who_and_when(url: str, client: pulsar.Client) -> None:
    consumer = shared(client, consumer_name="c")
    publish(client, *"abc")
    messages = [consumer.receive(1000) for _ in range(3)]
    consumer.acknowledge(messages[1])
    quiet(client, consumer)
    between_ms = client.root.clock.wall_ms()
    advance(client, 5000)
    consumer.acknowledge(messages[0])
    quiet(client, consumer)
    names = ("ledger_id", "subscription", "acknowledged_by", "consumer_name")
    found = sorted(rows(url, "acknowledgements", *names))
    assert found == [(0, "s", "consumer", "c"), (1, "s", "consumer", "c")]
    times = dict(rows(url, "acknowledgements", "ledger_id", "reported"))
    assert times[1] <= instant(between_ms) < times[0]
    assert rows(url, "acknowledgements", "ledger_id", as_of=instant(between_ms)) == [1]


def test_what_is_acknowledged_again_after_a_seek_counts_again(
    url: str, client: pulsar.Client
) -> None:
    consumer = shared(client)
    publish(client, "a")
    consumer.acknowledge(consumer.receive(1000))
    quiet(client, consumer)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.acknowledge(consumer.receive(1000))
    quiet(client, consumer)
    assert rows(url, "acknowledgements", "value") == [b"a", b"a"]


def test_a_cursor_shows_its_holes(url: str, client: pulsar.Client) -> None:
    consumer = shared(client)
    publish(client, *"abcdef")
    messages = [consumer.receive(1000) for _ in range(6)]
    for place in (0, 2, 4):
        consumer.acknowledge(messages[place])
    quiet(client, consumer)
    cursor = one(url, "cursors")
    assert cursor["mark_delete_position"] == "0:0"
    assert cursor["individually_deleted_messages"] == "2:0 4:0"
    assert cursor["total_non_contiguous_deleted_messages_range"] == 2
    assert cursor["holes"] == 2
    assert cursor["cursor_bytes"] > 0


def test_as_of_an_earlier_time_shows_what_was_there_then(url: str, client: pulsar.Client) -> None:
    Admin(url).policies("public/default").set(retention_time=0, retention_size=0)
    consumer = shared(client, negative_ack_redelivery_delay_ms=1000)
    publish(client, *"abc")
    messages = [consumer.receive(1000) for _ in range(3)]
    quiet(client, consumer)
    before = instant(client.root.clock.wall_ms())
    advance(client, 60_000)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    assert consumer.receive(5000).redelivery_count() == 1
    quiet(client, consumer)
    names = ("ledger_id", "redelivery_count")
    then = rows(url, "unacknowledged", *names, as_of=before)
    assert sorted(then) == [(0, 0), (1, 0), (2, 0)]
    assert sorted(rows(url, "unacknowledged", *names)) == [(1, 1), (2, 0)]
    publish(client, "d")
    assert sorted(rows(url, "messages", "ledger_id", as_of=before)) == [0, 1, 2]
    assert rows(url, "messages", "value") == [b"b", b"c", b"d"]


def test_as_of_a_batch_is_as_of_its_number(url: str, client: pulsar.Client) -> None:
    consumer = shared(client)
    publish(client, "a", "b")
    consumer.acknowledge(consumer.receive(1000))
    quiet(client, consumer)
    counts = {
        batch: rows(url, "subscriptions", "msg_backlog", as_of=batch)
        for batch in rows(url, "batches", "batch")
    }
    assert next(iter(counts.values())) == [0]
    assert [2] in counts.values()
    assert list(counts.values())[-1] == [1]
    times = rows(url, "batches", "written")
    assert times == sorted(times)


def test_a_message_that_was_trimmed_since_keeps_its_row(url: str, client: pulsar.Client) -> None:
    Admin(url).policies("public/default").set(retention_time=0, retention_size=0)
    consumer = shared(client, consumer_name="c")
    publish(client, "a", "b")
    first = consumer.receive(1000)
    quiet(client, consumer)
    before = instant(client.root.clock.wall_ms())
    advance(client, 60_000)
    consumer.acknowledge(first)
    quiet(client, consumer)
    names = ("ledger_id", "consumer_name", "value", "publish_time")
    held = rows(url, "unacknowledged", *names, as_of=before)
    assert [row[:3] for row in sorted(held)] == [(0, "c", None), (1, "c", b"b")]
    assert [row[3] is None for row in sorted(held)] == [True, False]
    assert rows(url, "messages", "ledger_id") == [1]
    assert rows(url, "acknowledgements", "ledger_id", "value") == [(0, None)]


def test_topics_are_chosen_by_name_pattern_and_partition(url: str, client: pulsar.Client) -> None:
    send(url, "t", ["1", "2"], numPartitions=2, batchingEnabled=False)
    send(url, "u", ["3"])
    send(url, "tenant/space/v", ["4"])
    assert sorted(rows(url, "messages", "value")) == [b"1", b"2", b"3", b"4"]
    assert rows(url, "messages", "value", topics=["u", "tenant/space/v"]) == [b"3", b"4"]
    assert rows(url, "messages", "value", topics_pattern="tenant/space/.*") == [b"4"]
    partitions = [rows(url, "messages", "value", topic=f"t-partition-{n}") for n in (0, 1)]
    assert sorted(partitions) == [[b"1"], [b"2"]]
    with pytest.raises(TopicNotFoundError, match="Did you mean"):
        pulsar_spark.dataset(url, "tt")
    assert client.root.service_url == url


def test_views_of_one_batch_can_be_joined(url: str, client: pulsar.Client) -> None:
    consumer = shared(client)
    publish(client, *"abc")
    consumer.acknowledge(all_of(consumer)[1])
    quiet(client, consumer)
    batch = max(rows(url, "batches", "batch"))
    keys = ["topic", "partition", "ledger_id", "entry_id", "batch_index"]
    messages = pulsar_spark.dataset(url, view="messages", as_of=batch)
    done = pulsar_spark.dataset(url, view="acknowledgements", as_of=batch)
    joined = messages.to_table([*keys, "value"]).join(done.to_table([*keys, "batch"]), keys)
    assert sorted(joined["batch"].is_null().to_pylist()) == [False, True, True]
    backlog = rows(url, "backlog", "value", as_of=batch)
    assert sorted(backlog) == sorted(
        joined.filter(pc.field("batch").is_null())["value"].to_pylist()
    )


def test_a_root_without_a_broker_has_messages_and_no_states(url: str) -> None:
    send(url, "t", numbers(0, 3))
    assert rows(url, "messages", "value") == [b"0", b"1", b"2"]
    for view in ("backlog", "subscriptions", "acknowledgements", "batches"):
        assert pulsar_spark.dataset(url, view=view).count_rows() == 0
    with pytest.raises(InvalidOptionError, match="no broker has served"):
        rows(url, "backlog", "topic", as_of=3)


def test_a_moment_that_is_not_kept_is_an_error_that_says_what_there_is(
    url: str, client: pulsar.Client
) -> None:
    shared(client)
    last = max(rows(url, "batches", "batch"))
    with pytest.raises(InvalidOptionError, match=rf"batches from 0 \(.*\) to {last} \("):
        rows(url, "backlog", "topic", as_of=last + 1)
    with pytest.raises(
        InvalidOptionError, match=r"can't be 1970-01-01T00:00:01.000Z: .* view batc"
    ):
        rows(url, "backlog", "topic", as_of="1970-01-01T00:00:01Z")
    with pytest.raises(InvalidOptionError, match="as they are now"):
        rows(url, "producers", "topic", as_of=last)


def test_as_of_goes_back_to_the_last_snapshot_but_one_and_as_far_as_retention_says(
    url: str, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 6)
    monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", 2)
    monkeypatch.setattr(broker_sink, "COMMANDS_KEPT", 2)
    consumer = shared(client, negative_ack_redelivery_delay_ms=1000)
    backlogs: dict[int, list[int]] = {}

    def work(rounds: int) -> None:
        for _ in range(rounds):
            publish(client, "a", "b")
            consumer.acknowledge(all_of(consumer, 100)[-1])
            quiet(client, consumer)
            newest = max(rows(url, "batches", "batch"))
            backlogs[newest] = rows(url, "subscriptions", "msg_backlog")

    work(8)
    kept = rows(url, "batches", "batch", "written_anew")
    assert kept[0][0] > 0
    assert sum(anew for _, anew in kept) in (2, 3)
    for batch in backlogs.keys() & {batch for batch, _ in kept}:
        assert rows(url, "subscriptions", "msg_backlog", as_of=batch) == backlogs[batch]
        (by,) = set(rows(url, "acknowledgements", "acknowledged_by", as_of=batch)) or {"consumer"}
        assert by == "consumer"
    system = Admin(url).policies("pulsar/system")
    system.set(retention_time="7d", retention_size=-1)
    before = rows(url, "batches", "batch")[0]
    work(8)
    assert rows(url, "batches", "batch")[0] == before
    for batch in (each for each in backlogs if each >= before):
        assert rows(url, "subscriptions", "msg_backlog", as_of=batch) == backlogs[batch]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"view": "backlogs"}, "it takes messages, backlog, unacknowledged,"),
        ({"view": "backlog", "asOf": "yesterday"}, "Option asOf can't be 'yesterday'"),
        ({"asOf": "3", "topic": "t"}, "Option asOf needs view"),
        ({"view": "backlog", "startingOffsets": "earliest"}, "startingOffsets has no meaning with"),
        ({"view": "backlog", "subscriptionName": "s"}, "subscriptionName has no meaning with view"),
    ],
)
def test_options_that_make_no_view_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOptionError, match=why):
        Options.parse({"serviceUrl": "memory://refused", **given})


def test_a_misspelt_column_is_an_error_that_offers_the_nearest(url: str) -> None:
    send(url, "t", ["a"])
    with pytest.raises(InvalidOptionError, match=r"none of view messages's. Did you mean value\?"):
        pulsar_spark.dataset(url).to_table(columns=["valeu"])


def test_a_filter_reads_its_columns_and_gives_none_of_them(url: str) -> None:
    send(url, "t", numbers(0, 100), columns={"key": [f"k{n % 5}" for n in range(100)]})
    found = pulsar_spark.dataset(url)
    chosen = found.to_table(columns=["value"], filter=pc.field("key") == "k1")
    assert chosen.schema.names == ["value"]
    assert chosen["value"].to_pylist() == [str(n).encode() for n in range(1, 100, 5)]
    assert found.count_rows(filter=pc.field("key") == "k1") == 20
    assert found.count_rows() == 100
    assert found.head(3)["value"].to_pylist() == [b"0", b"1", b"2"]
    renamed = found.to_table(columns={"number": pc.field("entry_id") + 1})
    assert renamed.schema.names == ["number"]


def test_producers_are_those_with_sequence_ids_or_an_access_mode(url: str) -> None:
    columns = {"sequence_id": [4, 7]}
    send(url, "t", ["a", "b"], columns=columns, producerName="p", enableDeduplication=True)
    assert rows(url, "producers", "topic", "partition", "producer_name", "last_sequence_id") == [
        (TOPIC, 0, "p", 7)
    ]


def test_statistics_have_pulsars_names(url: str, client: pulsar.Client) -> None:
    consumer = subscribe(
        client, consumer_type=pulsar.ConsumerType.KeyShared, consumer_name="c",
        negative_ack_redelivery_delay_ms=60_000,
    )  # fmt: skip
    publish(client, "aa", "bb", "cc", "dd", partition_key="k")
    publish(client, "later", deliver_after=timedelta(hours=1))
    consumer.acknowledge(all_of(consumer)[1])
    quiet(client, consumer)
    publish(client, "unread", topic="other")
    advance(client, 9000)
    quiet(client, consumer)
    one_, other = pulsar_spark.dataset(url, view="stats").to_table().to_pylist()[::-1]
    assert (one_["topic"], one_["partition"], one_["msgInCounter"]) == (TOPIC, 0, 5)
    assert one_["storageSize"] == 13
    assert one_["averageMsgSize"] == pytest.approx(2.6)
    assert one_["oldestBacklogMessageSubscriptionName"] == "s"
    assert one_["oldestBacklogMessageAgeSeconds"] >= 9
    assert one_["deduplicationStatus"] == "Disabled"
    ((name, said),) = one_["subscriptions"]
    assert (name, said["type"], said["keySharedMode"]) == ("s", "Key_Shared", "AUTO_SPLIT")
    assert (said["msgBacklog"], said["msgDelayed"], said["msgBacklogNoDelayed"]) == (4, 1, 3)
    assert (said["unackedMessages"], said["backlogSize"]) == (3, 11)
    assert said["nonContiguousDeletedMessagesRanges"] == 1
    (held,) = said["consumers"]
    assert (held["consumerName"], held["unackedMessages"]) == ("c", 3)
    assert held["keyHashRanges"]
    assert rows(url, "consumers", "key_hash_ranges") == [held["keyHashRanges"]]
    assert other["subscriptions"] == []
    assert other["earliestMsgPublishTimeInBacklogs"] is None
    batch = max(rows(url, "batches", "batch"))
    assert rows(url, "stats", "msgInCounter", topic="t", as_of=batch) == [None]
    assert rows(url, "stats", "storageSize", topic="t", as_of=batch) == [13]


def test_no_field_of_statistics_is_named_twice_or_without_a_reason() -> None:
    tables = (topic_stats.TOPIC, topic_stats.SUBSCRIPTION, topic_stats.CONSUMER)
    for fields in (*tables, topic_stats.PUBLISHER):
        names = [each.name for each in fields]
        assert len(set(names)) == len(names)
        assert all(each.meaning for each in fields)


def test_ledgers_are_ranges_of_rows_of_files(url: str) -> None:
    send(url, "t", numbers(0, 7), batchingMaxMessages=3)
    send(url, "t", numbers(7, 9))
    assert rows(url, "ledgers", "ledger_id", "entries", "messages") == [(0, 3, 7), (1, 1, 2)]


def test_a_thousand_files_are_read_by_several_tasks_and_only_the_columns_asked_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micro_batch, "ROWS_WORTH_SPLITTING", 10)
    send(url, "t", numbers(0, 50))
    send(url, "t", numbers(50, 100))
    read: list[Any] = []
    real = LedgerFileReader.read

    def spying(self: Any, ledger: Any, columns: Any, *rest: Any) -> Any:
        read.append(tuple(columns))
        return real(self, ledger, columns, *rest)

    monkeypatch.setattr(LedgerFileReader, "read", spying)
    found = pulsar_spark.dataset(url)
    assert not read
    assert len(found._tasks) > 1
    assert found.to_table(columns=["ledger_id", "key"]).num_rows == 100
    assert set(read) == {("key",)}
    assert found.to_table(columns=["entry_id"]).num_rows == 100
    assert set(read) == {("key",)}


def test_what_two_subscriptions_lack_is_in_the_backlog_of_each(
    url: str, client: pulsar.Client
) -> None:
    first = shared(client, name="one")
    subscribe(client, name="two")
    publish(client, "a", "b")
    first.acknowledge(first.receive(1000))
    quiet(client, first)
    assert sorted(rows(url, "backlog", "subscription", "value")) == [
        ("one", b"b"), ("two", b"a"), ("two", b"b"),
    ]  # fmt: skip
