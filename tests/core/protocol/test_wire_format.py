"""What travels in the system topics: read back equal, for ever."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.errors import CorruptFileError, FutureVersionError, ServerError
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.protocol import wire_format
from pulsar_spark.protocol.commands import (
    CloseConsumer,
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    LedgersTrimmed,
    ReconsumeLater,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Report,
    Seek,
    SetPolicies,
    SkipMessages,
    Subscribe,
    SubscriptionType,
    TopicDeleted,
    TopicMade,
    Unsubscribe,
)
from pulsar_spark.protocol.policies import (
    BacklogQuotaPolicy,
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    TopicPolicies,
)
from pulsar_spark.protocol.ready import (
    Acknowledged,
    BacklogQuotaExceeded,
    EpochBegan,
    Grant,
    Letter,
    OpenGrant,
    Ready,
    Reply,
    Revoke,
    Stepped,
    told,
)

GOLDEN = Path(__file__).parents[2] / "golden"
SOME = PositionSet.of([(1, 2), (1, 4), (3, 0)]).union(PositionSet.of_batch((5, 0), 10, 0b1010))
CURSOR = Cursor(Position(0, 7)).acknowledge(SOME)
ITEMS: tuple[Any, ...] = (
    Subscribe(
        "s", "c", 7, SubscriptionType.KEY_SHARED, durable=False,
        initial_position=InitialPosition.EARLIEST, start_message_id=(Position(1, 2), 3),
        start_message_id_inclusive=True, priority_level=2,
        key_shared_policy=KeySharedPolicy(KeySharedMode.STICKY, True, ((0, 9), (20, 29))),
        options=ConsumerOptions(
            1, MultiplierRedeliveryBackoff(1, 9, 1.5), 2_000, MultiplierRedeliveryBackoff(),
            DeadLetterPolicy(3, "d", "r", "i"), 100,
        ),
        permits=5, read_compacted=True, resumes=True, request_id=9, begins_behind=CURSOR,
        partitions=4, topic_incarnation=17,
    ),
    CreateSubscription("s", InitialPosition.LATEST, 1, 17),
    CloseConsumer("s", "c", 1, 2),
    LeaseLapsed("s", "c", 3),
    Unsubscribe("s", "c", 1, 4, 17),
    Seek("s", Position(1, 1), 2, None, 5, 17),
    Seek("s", LATEST),
    Report(
        "s", "c", 1, 2, 3, CURSOR, {0: SOME, 4: PositionSet.of([(9, 9)])},
        (Rejection(1, SOME, 500), Rejection(2, SOME)),
        (ReconsumeLater(1, SOME, 10, 2, (("a", "b"),)),), 100, 6, LATEST, 7,
        {3: Cursor().acknowledge(SOME)},
    ),
    RedeliverUnacknowledgedMessages("s", "c", 1, 2, 3, {1: SOME}),
    SetPolicies(TopicPolicies(backlog_quota_policy=BacklogQuotaPolicy.PRODUCER_EXCEPTION)),
    LedgersTrimmed((1, 2, 3)),
    Reply("c", "s", 1, 2, ServerError.CONSUMER_BUSY, "busy", 3, CURSOR, 11),
    EpochBegan("s", 2, CURSOR),
    Revoke("s", "c", 1, 2, 3, SOME),
    Grant("s", "c", 1, 2, 3, SOME, 4, True),
    OpenGrant("s", "c", 1, 2, 3, CURSOR, {2: SOME}, True),
    Acknowledged("s", 1, Position(4, 4)),
    BacklogQuotaExceeded(BacklogQuotaPolicy.CONSUMER_BACKLOG_EVICTION, 10, 5, False),
    Stepped(1_000, EARLIEST, 2_000, (("s", 12),)),
    Report(
        "s", epoch=None, acknowledged=CURSOR,
        rejected=(Rejection(None, SOME, 500, (("ERROR", "x: y"),), bury=True), Rejection(1, SOME)),
        reconsume_later=(ReconsumeLater(None, SOME, 10, 2, (("a", "b"),)),),
    ),
    SkipMessages("s", 3, Position(1, 1), 1_000, 5, 17),
    TopicDeleted(),
    TopicMade(17),
)  # fmt: skip
SINCE_4 = (SkipMessages, TopicDeleted, TopicMade)
OPTIONS_OF_3 = replace(ITEMS[0].options, ack_timeout_tick_ms=0)
NOT_IN_3: dict[type, dict[str, Any]] = {
    Subscribe: {"topic_incarnation": 0, "options": OPTIONS_OF_3},
    **{each: {"topic_incarnation": None} for each in (CreateSubscription, Unsubscribe, Seek)},
}

LETTER = Letter("t-s-DLQ", "s", SOME, (("REAL_TOPIC", "t"), ("why", "é")), 1_000, "first")
"""On its way from a step to whoever hosts it: no topic has it."""


@pytest.mark.parametrize("item", [*ITEMS, LETTER], ids=lambda item: type(item).__name__)
def test_an_item_is_read_back_equal(item: Any) -> None:
    assert wire_format.decode(wire_format.encode(item)) == item


def test_every_kind_is_among_the_samples_with_a_value_in_every_field() -> None:
    held = {type(each).__name__ for each in (*ITEMS, LETTER)}
    inner = {"Rejection", "ReconsumeLater", "KeySharedPolicy", "DeadLetterPolicy"}
    inner |= {"ConsumerOptions", "TopicPolicies", "MultiplierRedeliveryBackoff"}
    assert held | inner == set(wire_format._CLASSES)
    report = next(each for each in ITEMS if isinstance(each, Report))
    assert all(getattr(report, each.name) not in (None, 0, ()) for each in fields(report))


def test_what_was_written_once_is_still_read() -> None:
    lines = (GOLDEN / "wire-v4.jsonl").read_bytes().splitlines()
    assert [wire_format.decode(line) for line in lines] == list(ITEMS)
    stored = [(i, each) for i, each in enumerate(ITEMS) if not isinstance(each, SetPolicies)]
    assert [wire_format.encode(each) for _, each in stored] == [lines[i] for i, _ in stored]


def test_what_version_3_wrote_lacks_only_what_it_could_not_say() -> None:
    lines = (GOLDEN / "wire-v3.jsonl").read_bytes().splitlines()
    known = [replace(item, **NOT_IN_3.get(type(item), {})) for item in ITEMS]
    known = [item for item in known if not isinstance(item, SINCE_4)]
    assert [wire_format.decode(line) for line in lines] == known


def test_a_step_that_named_its_consumers_is_still_read() -> None:
    step = Stepped(1_000, EARLIEST, 2_000, (("s", 12), ("n", 0)), ("s",), (("s", "c", 7),))
    data = (GOLDEN / "wire-v2-stepped.json").read_bytes()
    assert wire_format.decode(data) == step
    assert wire_format.decode(wire_format.encode(step)) == step


def known_to(new: dict[type, dict[str, Any]], acknowledge: Report) -> list[Any]:
    """The samples without what is new since; before reports carried it, one more: its command."""
    lacks = {kind: NOT_IN_3.get(kind, {}) | new.get(kind, {}) for kind in {*NOT_IN_3, *new}}
    before_4 = (item for item in ITEMS if not isinstance(item, SINCE_4))
    known = [replace(item, **lacks.get(type(item), {})) for item in before_4]
    place = next(i for i, item in enumerate(known) if isinstance(item, Report))
    return [*known[: place + 1], acknowledge, *known[place + 1 :]]


def test_what_version_2_wrote_lacks_only_what_it_could_not_say() -> None:
    lines = (GOLDEN / "wire-v2.jsonl").read_bytes().splitlines()
    up_to = {4: Cursor(Position(5, -1))}
    acknowledge = Report("s", epoch=1, acknowledged_attempts=up_to, request_id=8)
    known = known_to({Subscribe: {"partitions": None}}, acknowledge)
    assert [wire_format.decode(line) for line in lines] == known


@pytest.mark.parametrize(
    ("ack_set", "cursor"),
    [
        ("null", Cursor(Position(7, 3))),
        ("[]", Cursor(Position(7, 3))),
        ("[896]", Cursor().acknowledge_cumulative(Position(7, 3), 6, 10)),
        ("[0,1]", Cursor().acknowledge_cumulative(Position(7, 3), 63, 65)),
    ],
)
def test_a_cumulative_acknowledgement_of_an_older_sink_is_still_read(
    ack_set: str, cursor: Cursor
) -> None:
    data = (
        f'{{"$":"Acknowledge","ack_set":{ack_set},"ack_sets":[],"ack_type":{{"$enum":["AckType",'
        '"Cumulative"]},"consumer":"","epoch":null,"messages":{"$messages":"UExDVQEAAA=="},"position":'
        '{"$position":"7:3"},"request_id":null,"subscription":"s","version":1}'
    )
    assert wire_format.decode(data.encode()) == Report("s", epoch=None, acknowledged=cursor)


def test_what_version_1_wrote_lacks_only_what_it_could_not_say() -> None:
    lines = (GOLDEN / "wire-v1.jsonl").read_bytes().splitlines()
    new: dict[type, dict[str, Any]] = {
        Subscribe: {"begins_behind": None, "partitions": None},
        Report: {"acknowledged_attempts": {}},
        Reply: {"newest": -1},
    }
    up_to = Cursor(Position(5, -1))
    known = known_to(new, Report("s", epoch=1, acknowledged=up_to, request_id=8))
    # No host ever stored a producer's commands: access modes are the log's.
    producers = [line for line in lines if b'Producer","' in line[:30]]
    assert [wire_format.decode(line) for line in lines if line not in producers] == known
    assert len(producers) == 2
    for line in producers:
        with pytest.raises(CorruptFileError, match="Producer"):
            wire_format.decode(line)


def test_a_future_version_is_refused_by_name() -> None:
    future = replace(wire_format.WIRE_FORMAT, version=5)
    fields = wire_format.WIRE_FORMAT.decode(wire_format.encode(ITEMS[1]))
    with pytest.raises(FutureVersionError, match="version 5; this Pulsarlite knows up to 4"):
        wire_format.decode(future.encode(fields))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"version":1}', b'{"version":1,"$":"Unknown"}',
        b'{"version":1,"$":"Grant"}', b'{"version":1,"$":"CloseConsumer","consumer":{"$x":1}}',
        b'{"version":1,"$":"CloseConsumer","consumer":{"a":1,"b":2}}',
        (b'{"version":1,"$":"Acknowledged","subscription":"s","epoch":0,'
        b'"mark_delete_position":{"$messages":"not base64"}}'),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="is damaged"):
        wire_format.decode(data)


def test_what_is_no_item_does_not_travel() -> None:
    with pytest.raises(TypeError, match="Ready does not travel"):
        wire_format.encode(Ready())
    with pytest.raises(TypeError, match="object does not travel"):
        wire_format.encode(Reply("c", message=object()))  # type: ignore[arg-type]


def test_a_subscribe_is_answered_before_its_grants_and_other_requests_behind() -> None:
    welcome, receipt = Reply("c", "s", origin=CURSOR), Reply("c", "s", request_id=1)
    grant, revoke = Grant("s", "c", 1, 0, 0, SOME), Revoke("s", "c", 1, 0, 1)
    quota = BacklogQuotaExceeded(BacklogQuotaPolicy.PRODUCER_EXCEPTION, 2, 1)
    ready = Ready(replies=[receipt, welcome], revokes=[revoke], grants=[grant], backlog_quota=quota)
    assert [item for _, item in told(ready)] == [welcome, revoke, grant, receipt, quota]
