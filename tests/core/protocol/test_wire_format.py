"""What travels in the system topics: read back equal, for ever."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    LedgersTrimmed,
    LogIdentified,
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
from pulsar_spark.broker.protocol.policies import (
    BacklogQuotaPolicy,
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    TopicPolicies,
)
from pulsar_spark.broker.protocol.ready import (
    Acknowledged,
    BacklogQuotaExceeded,
    EpochBegan,
    Grant,
    OpenGrant,
    Ready,
    Reply,
    Republication,
    Revoke,
    Stepped,
    reported,
)
from pulsar_spark.errors import CorruptFileError, FutureVersionError, ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet

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
        rejected=(
            Rejection(None, SOME, 500, (("ERROR", "x: y"),), to_dead_letter=True),
            Rejection(1, SOME),
        ),
        reconsume_later=(ReconsumeLater(None, SOME, 10, 2, (("a", "b"),)),),
    ),
    SkipMessages("s", 3, Position(1, 1), 1_000, 5, 17),
    TopicDeleted(),
    TopicMade(17),
    LogIdentified("0f" * 16),
)  # fmt: skip
REPUBLICATION = Republication(
    "t-s-DLQ", "s", SOME, (("REAL_TOPIC", "t"), ("why", "é")), 1_000, "first"
)
"""On its way from a step to whoever hosts it: no topic has it."""


@pytest.mark.parametrize("item", [*ITEMS, REPUBLICATION], ids=lambda item: type(item).__name__)
def test_an_item_is_read_back_equal(item: Any) -> None:
    assert wire_format.decode(wire_format.encode(item)) == item


def test_every_kind_is_among_the_samples_with_a_value_in_every_field() -> None:
    held = {type(each).__name__ for each in (*ITEMS, REPUBLICATION)}
    inner = {"Rejection", "ReconsumeLater", "KeySharedPolicy", "DeadLetterPolicy"}
    inner |= {"ConsumerOptions", "TopicPolicies", "MultiplierRedeliveryBackoff"}
    assert held | inner == set(wire_format._CLASSES)
    report = next(each for each in ITEMS if isinstance(each, Report))
    assert all(getattr(report, each.name) not in (None, 0, ()) for each in fields(report))


def test_a_future_version_is_refused_by_name() -> None:
    future = replace(wire_format.WIRE_FORMAT, version=2)
    fields = wire_format.WIRE_FORMAT.decode(wire_format.encode(ITEMS[1]))
    with pytest.raises(FutureVersionError, match="version 2; this Pulsarlite knows up to 1"):
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
    assert [item for _, item in reported(ready)] == [welcome, revoke, grant, receipt, quota]
