"""`delayedDelivery`: Exclusive and Failover consumers wait for delivery times too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.consuming import consumer_run
from pulsar_spark.connector.runtime.topics import ledger_columns
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock, Place
from tests.connector.reading import Run
from tests.connector.topics import ledger_of, numbers, options_of, send

DAY_MS = 86_400_000
START_MS = 1_900_000_000_000
GIVEN: dict[str, Any] = {
    "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
    "delayedDelivery": True, "leaseTimeout": "1000h",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def pulsarlite() -> Iterator[Place]:
    with Place(now=datetime.fromtimestamp(START_MS / 1000, timezone.utc)) as place:
        yield place


@pytest.fixture
def root(pulsarlite: Place) -> str:
    return pulsarlite.service_url


@pytest.fixture
def loop(root: str) -> EmbeddedBroker:
    return EmbeddedBroker(Root(root, {}))


def publish(root: str, *rows: tuple[str, int | None]) -> None:
    """Messages that are to be delivered so many milliseconds after the start."""
    micros = [None if after is None else (START_MS + after) * 1000 for _, after in rows]
    columns = {"deliver_at": pa.array(micros, pa.timestamp("us", "UTC"))}
    send(root, "t", [value for value, _ in rows], columns=columns)


def run_of(root: str, start: Any = None, **given: Any) -> Run:
    return Run(root, start=start, **{**GIVEN, **given})


def delivered(run: Run, loop: EmbeddedBroker) -> list[str]:
    """All that there is now, with a broker that answers."""
    found = []
    for _ in range(6):
        found += run.values()
        loop.until_quiet()
    return found


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_what_is_delayed_waits_and_what_comes_after_it_does_not(
    root: str, clock: ManualClock, loop: EmbeddedBroker, kind: str, mode: str
) -> None:
    publish(root, ("a", None), ("later", 5_000), ("b", None), ("much later", DAY_MS), ("c", -1))
    run = run_of(root, subscriptionType=kind, ackMode=mode)
    assert delivered(run, loop) == ["a", "b", "c"]
    publish(root, ("d", None), ("sooner", 2_000))
    assert delivered(run, loop) == ["d"]
    clock.ahead_ms = 1_999
    assert delivered(run, loop) == []
    clock.ahead_ms = 6_000
    assert delivered(run, loop) == ["later", "sooner"]
    clock.ahead_ms = DAY_MS + 1_000
    assert delivered(run, loop) == ["much later"]
    assert delivered(run, loop) == []


def test_without_the_option_nothing_waits_as_in_pulsar(
    root: str, clock: ManualClock, loop: EmbeddedBroker
) -> None:
    publish(root, ("a", None), ("later", 5_000), ("b", None))
    assert delivered(run_of(root, delayedDelivery=False), loop) == ["a", "later", "b"]


def test_a_topic_without_delayed_delivery_delays_nothing(
    root: str, clock: ManualClock, loop: EmbeddedBroker
) -> None:
    publish(root, ("a", 5_000))
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "policies": {"delayed_delivery": False}}
    )
    assert delivered(run_of(root), loop) == ["a"]


def test_a_restart_waits_on_and_repeats_what_it_had(
    root: str, clock: ManualClock, loop: EmbeddedBroker
) -> None:
    publish(root, ("a", None), ("later", 5_000), ("b", None))
    run = run_of(root)
    assert delivered(run, loop) == ["a", "b"]
    clock.ahead_ms = 6_000
    planned = run.planned()
    assert planned is not None
    assert [each["value"] for each in run.read(planned)] == [b"later"]
    clock.ahead_ms = 0  # what was planned is in the offset, whatever the clock says
    again = run_of(root, planned.start)
    assert [each["value"] for each in again.read(planned)] == [b"later"]
    again.commit(planned)
    clock.ahead_ms = 6_000
    assert delivered(again, loop) == []


def test_of_many_delayed_messages_times_are_read_once(
    root: str, clock: ManualClock, loop: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20_000
    publish(root, *((number, DAY_MS + int(number)) for number in numbers(0, count)))
    publish(root, ("now", None))
    reads = []
    real: Callable[..., Any] = ledger_columns.delivery_times_of

    def counted(*given: Any) -> Any:
        reads.append(given[1].ledger_id)
        return real(*given)

    monkeypatch.setattr(consumer_run, "delivery_times_of", counted)
    run = run_of(root)
    assert delivered(run, loop) == ["now"]
    assert len(str(run.offset)) < 10_000
    clock.ahead_ms = DAY_MS + count + 1_000
    assert delivered(run, loop) == numbers(0, count)
    assert reads == [0]


def test_where_messages_wait_anyway_the_option_is_refused(root: str) -> None:
    for kind in ("Shared", "Key_Shared"):
        given = {**GIVEN, "subscriptionType": kind}
        with pytest.raises(InvalidOptionError, match="delayedDelivery needs subscriptionType"):
            options_of(root, Scope.STREAM_READ, given)
    with pytest.raises(InvalidOptionError, match="delayedDelivery is a consumer's"):
        options_of(root, Scope.STREAM_READ, {"topic": "t", "delayedDelivery": True})
