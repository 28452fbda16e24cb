"""The test kit: users' stories of days, told in milliseconds, without Java."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import unittest
from collections.abc import Awaitable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest

import pulsar_spark
from pulsar_spark import aio, pulsar
from pulsar_spark.errors import InvalidOptionError, StorageError
from pulsar_spark.testing import ManualClock, Place

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
DEAD_AFTER_3 = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=3)


def workers(place: Place, **given: Any) -> pulsar.Consumer:
    return place.client.subscribe(
        "jobs",
        "workers",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        **given,
    )


def send(place: Place, *values: str, **given: Any) -> None:
    producer = place.client.create_producer("jobs")
    for value in values:
        producer.send(value.encode(), **given)
    producer.close()


def there_now(consumer: pulsar.Consumer) -> list[str]:
    """What it can receive without waiting."""
    found = []
    while consumer.fetch() and (message := consumer.receive_now()) is not None:
        found.append(message.data().decode())
    return found


def test_thirty_days_of_retries_delays_leases_and_dead_letters() -> None:
    with Place(now=datetime(2026, 11, 1, tzinfo=timezone.utc)) as place:
        clock = place.clock
        first = workers(
            place, dead_letter_policy=DEAD_AFTER_3, retry_enable=True,
            negative_ack_redelivery_delay_ms=60 * 60_000,
        )  # fmt: skip
        send(place, "fine", "bad", "busy")
        send(place, "invoice", deliver_after=timedelta(days=20))

        # The first of November: one is done, one fails, one is put off for a week.
        fine, bad, busy = (first.receive(1_000) for _ in range(3))
        first.acknowledge(fine)
        first.negative_acknowledge(bad)
        first.reconsume_later(busy, delay_millis=7 * 86_400_000)
        with pytest.raises(pulsar.Timeout):
            first.receive(1_000)

        # It fails each hour, until it is given up.
        for hour in range(3):
            clock.advance(hours=1)
            again = first.receive(1_000)
            assert (again.data(), again.redelivery_count()) == (b"bad", hour + 1)
            first.negative_acknowledge(again)
        clock.advance(hours=1)
        assert there_now(first) == []
        assert [each.data() for each in place.messages("jobs-workers-DLQ")] == [b"bad"]

        # On the eighth what was put off is back; its consumer dies over it.
        clock.advance(days=7)
        assert first.receive(1_000).data() == b"busy"
        place.kill(first)
        second = workers(place, dead_letter_policy=DEAD_AFTER_3, retry_enable=True)
        clock.advance(seconds=15)
        assert there_now(second) == []
        clock.advance(seconds=25)
        assert there_now(second) == ["busy"]

        # The delayed message comes to whoever is there in time.
        message = second.receive()
        assert message.data() == b"invoice"
        assert place.now() == datetime(2026, 11, 21, tzinfo=timezone.utc)
        second.acknowledge(message)
        clock.advance(days=10)
        assert (there_now(second), place.backlog("jobs", "workers")) == ([], 0)
        assert place.now() == datetime(2026, 12, 1, tzinfo=timezone.utc)


def test_what_a_function_raises_comes_again_until_it_is_buried(pulsarlite: Place) -> None:
    """As `pulsar_spark.process` does it in Spark's workers."""
    seen: list[tuple[str, int]] = []

    def handle(message: pulsar_spark.Message) -> None:
        seen.append((message.value, message.redelivery_count))
        if message.value == "busy" and "RECONSUMETIMES" not in message.properties:
            raise pulsar_spark.RetryLater("30s", {"why": "busy"})
        if message.value == "flaky" and message.redelivery_count < 2:
            raise ValueError("not yet")
        if message.value == "broken":
            raise pulsar_spark.Reject("no such customer")

    consumer = workers(
        pulsarlite, dead_letter_policy=DEAD_AFTER_3, retry_enable=True,
        negative_ack_redelivery_delay_ms=60_000,
    )  # fmt: skip
    send(pulsarlite, "good", "busy", "flaky", "broken")
    good, busy, flaky, broken = pulsarlite.process(consumer, handle, value=bytes.decode)
    assert good["ack_type"] == "Individual"
    assert (busy["ack_type"], busy["delay_ms"]) == ("ReconsumeLater", 30_000)
    assert flaky["ack_type"] == "Negative"
    assert flaky["error"].startswith("ValueError: not yet (")
    assert (broken["ack_type"], broken["error"]) == ("DeadLetter", "no such customer")
    assert pulsarlite.process(consumer, handle) == []
    (letter,) = pulsarlite.messages("jobs-workers-DLQ")
    assert (letter.data(), letter.properties()["ERROR"]) == (b"broken", "no such customer")

    for _ in range(10):
        pulsarlite.clock.advance(seconds=30)
        pulsarlite.process(consumer, handle, value=bytes.decode)
    assert sorted(seen) == [
        ("broken", 0), ("busy", 0), ("busy", 0), ("flaky", 0), ("flaky", 1), ("flaky", 2),
        ("good", 0),
    ]  # fmt: skip
    assert pulsarlite.backlog("jobs", "workers") == 0


def test_a_function_that_takes_batches_is_halved_here_too(pulsarlite: Place) -> None:
    def handle(batch: Any) -> None:
        if b"bad" in batch.column("value").to_pylist():
            raise ValueError("bad")

    consumer = workers(pulsarlite)
    send(pulsarlite, "a", "bad", "b")
    found = pulsarlite.process(consumer, handle, batch=True)
    assert [each["ack_type"] for each in found] == ["Individual", "Negative", "Individual"]


def test_a_wait_takes_its_time_and_no_longer(pulsarlite: Place) -> None:
    consumer = workers(pulsarlite)
    send(pulsarlite, "soon", deliver_after=timedelta(seconds=20))
    assert consumer.receive(60_000).data() == b"soon"
    assert 20 <= pulsarlite.now().second <= 21
    begun = pulsarlite.now()
    with pytest.raises(pulsar.Timeout):
        consumer.receive(86_400_000)
    assert pulsarlite.now() - begun == timedelta(days=1)


def test_who_forgets_to_advance_is_told_what_is_pending_and_when(pulsarlite: Place) -> None:
    consumer = workers(
        pulsarlite, negative_ack_redelivery_delay_ms=60_000, unacked_messages_timeout_ms=3_600_000,
        consumer_name="c1",
    )  # fmt: skip
    send(pulsarlite, "a", "b")
    consumer.negative_acknowledge(consumer.receive(1_000))
    consumer.receive(1_000)
    send(pulsarlite, "c", deliver_after=timedelta(days=2))
    with pytest.raises(pulsar.Timeout) as raised:
        consumer.receive(timeout_millis=1_000)
    assert str(raised.value) == (
        "Pulsar error: TimeOut. The test's clock stands at 2026-01-01 00:00:01: advance it for "
        "what is still to happen:\n"
        "  in 0:00:59: redelivery to workers, persistent://public/default/jobs\n"
        "  in 0:59:59: the ack timeout of c1 of workers, persistent://public/default/jobs\n"
        "  in 1 day, 23:59:59: a delayed message, persistent://public/default/jobs"
    )


def test_who_would_wait_forever_is_told_so(pulsarlite: Place) -> None:
    consumer = workers(pulsarlite)
    with pytest.raises(pulsar.Timeout, match="still to happen"):
        consumer.receive()
    assert pulsarlite.clock.wall_ms() == Place().clock.wall_ms(), "no time was spent on it"


def test_a_listener_is_called_at_its_instants_in_the_thread_that_moves_the_clock(
    pulsarlite: Place,
) -> None:
    observed: list[tuple[int, bytes, bool]] = []
    clock, begun_ms = pulsarlite.clock, pulsarlite.clock.wall_ms()

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        here = threading.current_thread() is threading.main_thread()
        observed.append((clock.wall_ms() - begun_ms, message.data(), here))
        if message.redelivery_count() == 0:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)

    consumer = workers(pulsarlite, message_listener=listen, negative_ack_redelivery_delay_ms=5_000)
    producer = pulsarlite.client.create_producer("jobs")
    producer.send_async(b"a", None)
    assert observed == []
    clock.advance(minutes=1)
    assert observed == [(10, b"a", True), (5_010, b"a", True)]
    consumer.pause_message_listener()
    producer.send(b"b")
    clock.advance(minutes=1)
    consumer.resume_message_listener()
    clock.advance(minutes=1)
    assert [value for _, value, _ in observed[2:]] == [b"b", b"b"]


def test_a_table_view_follows_its_topic_as_the_clock_moves(pulsarlite: Place) -> None:
    producer = pulsarlite.client.create_producer("prices")
    producer.send(b"1", partition_key="a")
    view = pulsarlite.client.create_table_view("prices")
    producer.send(b"2", partition_key="a")
    pulsarlite.clock.advance()
    assert view.get("a") == b"2"


def test_another_thread_waits_until_the_test_has_moved_the_clock(pulsarlite: Place) -> None:
    consumer = workers(pulsarlite)
    send(pulsarlite, "a", deliver_after=timedelta(hours=1))
    found: list[bytes] = []
    worker = threading.Thread(target=lambda: found.append(consumer.receive(7_200_000).data()))
    worker.start()
    pulsarlite.clock.advance(hours=1, seconds=1)
    worker.join(60)
    assert found == [b"a"]
    assert pulsarlite.now().hour == 1


def test_what_is_awaited_comes_when_the_test_has_moved_the_clock(pulsarlite: Place) -> None:
    async def as_time_passes(coming: Awaitable[T]) -> T:
        """What is awaited, while a second passes each time that the loop has been round."""
        waiting = asyncio.ensure_future(coming)
        while not (await asyncio.wait([waiting], timeout=0.01))[0]:
            pulsarlite.clock.advance(seconds=1)
        return waiting.result()

    async def story() -> None:
        async with aio.Client(pulsarlite.service_url) as client:
            consumer = await client.subscribe("t", "s", pulsar.ConsumerType.Shared)
            producer = await client.create_producer("t")
            await as_time_passes(producer.send(b"a"))  # it waits for others to join it
            await consumer.negative_acknowledge(await consumer.receive())
            again = await as_time_passes(consumer.receive())
            assert (again.data(), again.redelivery_count()) == (b"a", 1)

    asyncio.run(story())


def test_the_examples_of_the_page_run() -> None:
    page = (REPOSITORY / "docs/testing.md").read_text(encoding="utf-8")
    ran = 0
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        names: dict[str, Any] = {
            "pulsar_spark": pulsar_spark, "pulsar": pulsar, "Place": Place, "json": json,
            "unittest": unittest, "overloaded": lambda: False, "charge": lambda _: None,
        }  # fmt: skip
        exec(example, names)
        for name, test in names.items():
            if name.startswith("test_"):
                with Place() as place:
                    test(place)
                ran += 1
    assert ran == 2


def test_code_that_names_its_place_gets_it_and_it_is_gone_afterwards() -> None:
    for _ in range(2):
        with Place("memory://orders") as place, pulsar_spark.Client("memory://orders") as client:
            client.create_producer("t").send(b"a")
            assert [each.data() for each in place.messages("t")] == [b"a"]
            assert place.messages("another") == []
            with pytest.raises(StorageError, match="has a clock already"):
                Place("memory://orders")
    with pytest.raises(InvalidOptionError, match="memory://NAME"):
        Place("/data/orders")


def test_a_clock_is_not_moved_back(pulsarlite_clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="ahead_ms"):
        pulsarlite_clock.advance(hours=-1)


class InUnittest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Place()
        self.addCleanup(self.place.close)

    def test_the_kit_needs_no_pytest(self) -> None:
        send(self.place, "a")
        assert there_now(workers(self.place)) == ["a"]


USERS_TEST = """
from datetime import timedelta

def test_delayed(pulsarlite):
    producer = pulsarlite.client.create_producer("t")
    consumer = pulsarlite.client.subscribe("t", "s")
    producer.send(b"a")
    assert consumer.receive(1000).data() == b"a"

def test_alone(pulsarlite, pulsarlite_clock):
    assert pulsarlite.messages("t") == []
    pulsarlite_clock.advance(days=1)
"""


def test_the_fixtures_work_in_a_users_project_and_in_several_processes(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    plugin = "pulsar_spark.connector.testing.pytest_plugin"
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-p",
        plugin,
    ]
    done = subprocess.run(
        [sys.executable, *command, "test_users.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
