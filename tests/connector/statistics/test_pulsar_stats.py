"""`topics stats` and its relatives: Pulsar's fields are here or said not to be, and add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.inspect.statistics import internal_stats
from pulsar_spark.connector.inspect.statistics.pulsar_stats import partitioned_stats, topic_stats
from pulsar_spark.connector.inspect.views import topic_stats as tables
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.testing import ManualClock
from tests.connector.client.clients import all_of, shared, subscribe
from tests.connector.topics import send

RECORDED = Path(__file__).parents[2] / "recorded" / "pulsar-stats.json"
TOPIC = "persistent://public/default/t"


@pytest.fixture
def recorded() -> Any:
    """The fields of Pulsar 4.2.4, as one that ran had them."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def root_of(url: str) -> Root:
    return Root.of(options_of({"serviceUrl": url}))


def stats_of(url: str, name: str = "t") -> dict[str, Any]:
    return topic_stats(root_of(url), TopicName.parse(name))


def advance(client: pulsar.Client, milliseconds: int) -> None:
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(milliseconds)


def unnamed(shape: Any, names: dict[str, set[str]], of: str = "") -> Iterator[str]:
    """The fields of what was recorded that no table has."""
    for field, held in shape.items():
        if field == "*":
            yield from unnamed(held, names, of)
            continue
        if field not in names[of]:
            yield f"{of}.{field}"
        inner = held[0] if isinstance(held, list) and held else held
        if isinstance(inner, dict) and field in names:
            yield from unnamed(inner, names, field)


def test_each_field_of_pulsars_statistics_is_here_or_said_not_to_be(recorded: Any) -> None:
    named = {
        "": tables.TOPIC, "subscriptions": tables.SUBSCRIPTION, "consumers": tables.CONSUMER,
        "publishers": tables.PUBLISHER,
    }  # fmt: skip
    names = {of: {each.name for each in fields} for of, fields in named.items()}
    assert [*unnamed(recorded["stats"], names)] == []
    names[""] |= {"metadata", "partitions"}
    assert [*unnamed(recorded["partitioned-stats"], names | {"partitions": names[""]})] == []


def test_each_field_of_pulsars_internal_statistics_is_here_or_said_not_to_be(
    recorded: Any,
) -> None:
    named = {
        "": internal_stats.TOPIC, "ledgers": internal_stats.LEDGER,
        "compactedLedger": internal_stats.LEDGER, "cursors": internal_stats.CURSOR,
    }  # fmt: skip
    names = {of: {each.name for each in fields} for of, fields in named.items()}
    assert [*unnamed(recorded["stats-internal"], names)] == []


def test_what_internal_statistics_print_is_what_their_tables_say(
    url: str, client: pulsar.Client
) -> None:
    consumer = shared(client)
    send(url, "t", ["a", "b", "c"], batchingMaxMessages=1)
    consumer.acknowledge(all_of(consumer)[1])
    advance(client, 1000)
    all_of(consumer, 100)
    found = internal_stats.internal_stats(root_of(url), TopicName.parse("t"))
    for said, fields in (
        (found, internal_stats.TOPIC),
        (found["ledgers"][0], internal_stats.LEDGER),
        (found["cursors"]["s"], internal_stats.CURSOR),
    ):
        assert set(said) == {each.name for each in fields if each.exists}
    assert (found["numberOfEntries"], found["lastConfirmedEntry"]) == (3, "0:2")
    cursor = found["cursors"]["s"]
    assert (cursor["individuallyDeletedMessages"], cursor["messagesConsumedCounter"]) == ("0:1", 1)
    assert (cursor["numberOfEntriesSinceFirstNotAckedMessage"], cursor["active"]) == (3, True)


def test_the_statistics_of_a_partitioned_topic_are_the_sum_of_its_partitions(
    url: str, client: pulsar.Client
) -> None:
    kind = pulsar.ConsumerType.Shared
    client.create_producer("t", options={"numPartitions": "2"}).close()
    consumer = subscribe(client, consumer_type=kind, consumer_name="c")
    send(url, "t-partition-0", ["aa", "bb"], numPartitions=2)
    advance(client, 2000)
    send(url, "t-partition-1", ["cccc"], numPartitions=2)
    all_of(consumer)
    advance(client, 5000)
    all_of(consumer, 100)
    whole = stats_of(url)
    parts = partitioned_stats(root_of(url), TopicName.parse("t"), per_partition=True)
    assert parts["metadata"] == {"partitions": 2, "deleted": False}
    assert sorted(parts["partitions"]) == [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
    assert {name: parts[name] for name in whole} == whole
    assert (whole["msgInCounter"], whole["storageSize"]) == (3, 8)
    assert whole["averageMsgSize"] == pytest.approx(8 / 3)
    assert whole["subscriptions"]["s"]["msgBacklog"] == 3
    (held,) = whole["subscriptions"]["s"]["consumers"]
    assert (held["consumerName"], held["unackedMessages"]) == ("c", 3)
    first, second = (stats_of(url, f"t-partition-{number}") for number in range(2))
    age = "oldestBacklogMessageAgeSeconds"
    assert whole[age] == max(first[age], second[age]) > min(first[age], second[age])
    assert whole["earliestMsgPublishTimeInBacklogs"] == first["earliestMsgPublishTimeInBacklogs"]


def test_a_backlog_grows_though_no_broker_hears_of_what_is_published(
    url: str, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared(client)
    send(url, "t", ["a"])
    advance(client, 1000)
    assert stats_of(url)["subscriptions"]["s"]["msgBacklog"] == 1
    monkeypatch.setattr(client._broker, "run_once", lambda **_: False)
    send(url, "t", ["bb", "cc"])
    advance(client, 1000)
    said = stats_of(url)["subscriptions"]["s"]
    assert (said["msgBacklog"], said["msgBacklogNoDelayed"], said["backlogSize"]) == (3, 3, 5)


def test_a_rate_is_that_of_the_last_minute(url: str, client: pulsar.Client) -> None:
    send(url, "t", ["aa"] * 60)
    assert (stats_of(url)["msgRateIn"], stats_of(url)["msgThroughputIn"]) == (1.0, 2.0)
    advance(client, 61_000)
    assert stats_of(url)["msgRateIn"] == 0


def test_what_was_delivered_and_acknowledged_has_rates_and_times(
    url: str, client: pulsar.Client
) -> None:
    consumer = shared(client)
    assert "lastAckedTimestamp" not in stats_of(url)["subscriptions"]["s"]
    send(url, "t", ["aa"] * 6, batchingMaxMessages=2)
    messages = all_of(consumer)
    advance(client, 2000)
    said = stats_of(url)["subscriptions"]["s"]
    assert (said["msgRateOut"], said["msgThroughputOut"]) == (0.1, 0.2)
    assert (said["messageAckRate"], "lastAckedTimestamp" in said) == (0, False)
    consumed_ms = said["lastConsumedTimestamp"]
    for message in messages[1:]:
        consumer.acknowledge(message)
    advance(client, 2000)
    said = stats_of(url)["subscriptions"]["s"]
    assert said["messageAckRate"] == pytest.approx(5 / 60)
    assert said["lastAckedTimestamp"] > consumed_ms
    assert "lastMarkDeleteAdvancedTimestamp" not in said
    consumer.acknowledge(messages[0])
    advance(client, 2000)
    whole = stats_of(url)
    last = whole["subscriptions"]["s"]
    assert last["messageAckRate"] == whole["msgRateOut"] == 0.1, "of a ledger that is trimmed, too"
    assert last["lastMarkDeleteAdvancedTimestamp"] == last["lastAckedTimestamp"]
    assert last["lastAckedTimestamp"] > said["lastAckedTimestamp"]
    advance(client, 61_000)
    later = stats_of(url)["subscriptions"]["s"]
    assert (later["msgRateOut"], later["messageAckRate"]) == (0, 0)
    assert later["lastAckedTimestamp"] == last["lastAckedTimestamp"]


def test_a_seek_is_no_acknowledgement(url: str, client: pulsar.Client) -> None:
    consumer = shared(client)
    send(url, "t", ["a", "b"])
    for message in all_of(consumer):
        consumer.acknowledge(message)
    advance(client, 1000)
    before = stats_of(url)["subscriptions"]["s"]
    consumer.seek(pulsar.MessageId.earliest)
    advance(client, 1000)
    said = stats_of(url)["subscriptions"]["s"]
    assert said["lastAckedTimestamp"] == before["lastAckedTimestamp"]
    assert said["messageAckRate"] == before["messageAckRate"]
    assert (before["msgOutCounter"], said["msgOutCounter"]) == (2, 4), "delivered anew"


def test_the_command_prints_pulsars_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        consumer = subscribe(client)
        client.create_producer("t", access_mode=pulsar.ProducerAccessMode.Exclusive).send(b"a")
        all_of(consumer, 2000)
        for command, flags in (
            ("stats", ("--json", "-gpb", "-ec")), ("partitioned-stats", ("--per-partition",)),
            ("stats-internal", ()), ("partitioned-stats-internal", ()),
        ):  # fmt: skip
            given = ["topics", command, "t", "--service-url", str(tmp_path), *flags]
            assert main(given) == 0
            found = json.loads(capsys.readouterr().out)
            if command == "stats":
                assert [each["accessMode"] for each in found["publishers"]] == ["Exclusive"]
                assert found["subscriptions"]["s"]["consumers"] == []
                assert found["subscriptions"]["s"]["type"] == "Exclusive"
