"""One broker a root: whoever hosts it shows life, and a second one sees that, or waits it out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker.broker_heartbeat import (
    DEAD_AFTER_MS,
    HEARTBEAT_FILE,
    HEARTBEAT_FORMAT,
    REMOTE_DEAD_AFTER_MS,
    BrokerHeartbeat,
)
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.lease import IDLE_AFTER_S
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import BrokerBusyError, BrokerFencedError, StorageUnavailableError
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.testing import ManualClock
from tests.connector.client.clients import python
from tests.connector.topic_log.stores import HookedStore

SIGN_VERSION_1 = replace(HEARTBEAT_FORMAT, version=1)


def tell(place: Root) -> None:
    topic_partition = TopicPartition("persistent://public/default/t", 0)
    SystemTopic(place, COMMANDS).append([Record.of(topic_partition, "s", CreateSubscription("s"))])


def signed(place: Root) -> bool:
    return place.store.get(HEARTBEAT_FILE) is not None


def test_an_embedded_broker_that_takes_turns_lets_no_other_begin(
    place: Root, clock: ManualClock
) -> None:
    first = EmbeddedBroker(place)

    def run_once() -> None:
        first.run_once()

    end_turns = clock.repeat(1.0, run_once, "turns")
    clock.ahead_ms = 86_400_000
    with pytest.raises(BrokerBusyError, match=f"serves {place.service_url} already: process"):
        EmbeddedBroker(place)
    with pytest.raises(BrokerBusyError):
        BrokerHeartbeat(place).begin()  # as `standalone` does
    tell(place)
    assert first.run_once(), "nobody has fenced it"
    end_turns()
    first.close()
    before_s = clock.monotonic_s()
    EmbeddedBroker(place)
    assert clock.monotonic_s() == before_s


@pytest.fixture
def remote_store(place: Root, monkeypatch: pytest.MonkeyPatch) -> HookedStore:
    """The place's store, as one over a network, in which a test can get between two requests."""
    monkeypatch.setattr(place.store, "remote", True)
    hooked = HookedStore(place.store)
    hooked.clock = place.store.clock
    monkeypatch.setattr(Root, "store", hooked)
    return hooked


def test_who_stands_still_as_it_renews_its_sign_takes_no_others_place(
    place: Root, clock: ManualClock, remote_store: HookedStore
) -> None:
    old, new = BrokerHeartbeat(place), BrokerHeartbeat(place)
    old.begin()
    clock.advance(REMOTE_DEAD_AFTER_MS / 2)
    remote_store.after("get_versioned", HEARTBEAT_FILE, new.begin)
    old.show(0.0)
    old.remove()
    assert signed(place), "the new one's"


def test_a_sign_that_could_not_be_renewed_for_a_rest_is_renewed_at_the_next_turn(
    place: Root, clock: ManualClock, remote_store: HookedStore
) -> None:
    def refuses() -> None:
        raise StorageUnavailableError("The network is away for a moment.")

    heartbeat = BrokerHeartbeat(place)
    heartbeat.begin()
    clock.advance(REMOTE_DEAD_AFTER_MS / 2)
    remote_store.before("compare_and_swap", HEARTBEAT_FILE, refuses)
    heartbeat.show(IDLE_AFTER_S)
    before = place.store.get(HEARTBEAT_FILE)
    heartbeat.show(IDLE_AFTER_S)
    assert place.store.get(HEARTBEAT_FILE) != before, (
        "until then it says that it lives for a minute"
    )


def test_a_broker_that_waits_to_begin_on_a_bucket_is_stopped_soon(
    place: Root, clock: ManualClock, remote_store: HookedStore
) -> None:
    first = BrokerHeartbeat(place)
    first.begin()
    first.keep()
    stopped_s = clock.monotonic_s() + 1
    with pytest.raises(BrokerBusyError):
        BrokerHeartbeat(place).begin(is_over=lambda: clock.monotonic_s() >= stopped_s)
    assert clock.monotonic_s() - stopped_s < 1


def test_an_embedded_broker_begins_beside_none_under_spark(place: Root, clock: ManualClock) -> None:
    sparks = BrokerHeartbeat(place)
    sparks.begin()
    sparks.keep()
    with pytest.raises(BrokerBusyError):
        EmbeddedBroker(place)
    sparks.remove()
    assert not signed(place)
    with EmbeddedBroker(place):
        assert signed(place)
    assert not signed(place)


@pytest.mark.parametrize(
    "left",
    [
        HEARTBEAT_FORMAT.encode({"host": "elsewhere", "id": "x", "process": 1, "holds_ms": 10_000}),
        SIGN_VERSION_1.encode({"host": "elsewhere", "id": "x", "process": 1}),
        b'{"version": 3}',
        b"no sign of any version",
    ],
)
def test_a_sign_that_was_left_behind_is_watched_for_ten_seconds(
    place: Root, clock: ManualClock, left: bytes
) -> None:
    place.store.touch(HEARTBEAT_FILE, left)
    before_s = clock.monotonic_s()
    EmbeddedBroker(place)
    assert 10 <= clock.monotonic_s() - before_s < 11


def test_a_broker_of_a_newer_version_is_respected(place: Root, clock: ManualClock) -> None:
    clock.repeat(2.5, lambda: place.store.touch(HEARTBEAT_FILE, b'{"version": 3}'), "a newer one")
    clock.advance(2_500)
    with pytest.raises(BrokerBusyError, match="already: a newer version"):
        EmbeddedBroker(place)


def test_the_sign_of_a_process_that_is_gone_is_not_watched(place: Root, clock: ManualClock) -> None:
    heartbeat = HEARTBEAT_FORMAT.decode(_sign_of(place))
    printed = python(
        "from pulsar_spark.connector.storage.process_identity import this_process; "
        "print(this_process())"
    )
    place.store.touch(
        HEARTBEAT_FILE, HEARTBEAT_FORMAT.encode({**heartbeat, "identity": printed.stdout.strip()})
    )
    before_s = clock.monotonic_s()
    EmbeddedBroker(place)
    assert clock.monotonic_s() == before_s


def _sign_of(place: Root) -> bytes:
    with EmbeddedBroker(place):
        return place.store.get(HEARTBEAT_FILE) or b""


def test_a_broker_that_stood_still_is_taken_over_and_finds_out(
    place: Root, clock: ManualClock
) -> None:
    first = EmbeddedBroker(place)
    first.until_quiet()
    before_s = clock.monotonic_s()
    second = EmbeddedBroker(place)
    assert clock.monotonic_s() - before_s >= DEAD_AFTER_MS / 1000
    second.until_quiet()
    tell(place)
    with pytest.raises(BrokerFencedError, match="has taken over"):
        first.until_quiet()
    first.close()
    assert signed(place), "that is the other's"


def test_of_those_that_stand_by_one_begins_when_the_broker_is_gone(
    place: Root, clock: ManualClock
) -> None:
    first = BrokerHeartbeat(place)
    first.begin()
    first.keep()
    looks = 0

    def waits() -> bool:
        nonlocal looks
        looks += 1
        if looks == 400:
            first.remove()
        return looks < 500

    before_s = clock.monotonic_s()
    BrokerHeartbeat(place).begin(waits)
    assert looks == 400
    assert clock.monotonic_s() - before_s > 90, "it waited for as long as the other lived"


def test_who_stands_by_may_stop_waiting(place: Root) -> None:
    first = BrokerHeartbeat(place)
    first.begin()
    first.keep()
    with pytest.raises(BrokerBusyError, match="stand by"):
        BrokerHeartbeat(place).begin(iter([True, True, False]).__next__)


def test_a_sign_that_another_has_taken_meanwhile_is_its(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.store.touch(HEARTBEAT_FILE, b"of who was killed elsewhere")
    quicker = BrokerHeartbeat(place)
    swap = place.store.compare_and_swap

    def lose(path: str, token: str | None, data: bytes) -> bool:
        monkeypatch.undo()
        quicker.begin()
        quicker.keep()
        return swap(path, token, data)

    monkeypatch.setattr(place.store, "compare_and_swap", lose)
    slower = BrokerHeartbeat(place)
    with pytest.raises(BrokerBusyError, match="serves"):
        slower.begin()
    slower.remove()
    assert signed(place), "that is the other's"
