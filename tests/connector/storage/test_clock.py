"""Time is told by the store's clock, and a clock that stands moves only when somebody moves it."""

from __future__ import annotations

import threading

import pytest

from pulsar_spark.connector.storage.clock import ManualClock, SystemClock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import StorageError


def test_a_clock_that_stands_is_moved_by_its_owner_and_by_who_sleeps() -> None:
    clock = ManualClock(1_000)
    clock.advance(500)
    clock.sleep(0.25)
    assert (clock.wall_ms(), clock.monotonic_s()) == (1_750, 1.75)


def test_who_waits_the_least_bit_gets_on() -> None:
    for wait in (ManualClock.sleep, lambda clock, s: clock.pause(0.0, s, remote=False)):
        clock = ManualClock(1_700_000_000_000)
        before_s = clock.monotonic_s()
        for _ in range(10):
            wait(clock, 1e-14)
        assert clock.monotonic_s() > before_s


def test_what_is_repeated_happens_at_its_instants_and_in_their_order() -> None:
    clock, seen = ManualClock(), list[tuple[str, int]]()
    end_slow = clock.repeat(3.0, lambda: seen.append(("slow", clock.wall_ms())), "slow")
    clock.repeat(2.0, lambda: seen.append(("quick", clock.wall_ms())), "quick")
    clock.advance(5_000)
    end_slow()
    clock.advance(2_000)
    assert seen == [("quick", 2_000), ("slow", 3_000), ("quick", 4_000), ("quick", 6_000)]


def test_the_machines_clock_repeats_in_a_thread_until_it_is_stopped() -> None:
    seen = threading.Semaphore(0)
    end = SystemClock().repeat(0.001, seen.release, "test")
    assert all(seen.acquire(timeout=30) for _ in range(3))
    end()
    end()


def test_who_waits_his_own_way_is_not_waited_for_at_the_end_and_looks_no_more() -> None:
    activity, looked, over = threading.Semaphore(0), threading.Event(), threading.Event()
    late: list[bool] = []

    def wait(_: float) -> None:
        assert activity.acquire(timeout=30)

    def look() -> float:
        late.append(over.is_set())
        looked.set()
        return 0.0

    end = SystemClock().follow(look, "test", remote=False, wait=wait)
    activity.release()
    assert looked.wait(30)
    end()  # it waits
    over.set()
    activity.release()
    assert not any(late)


def test_a_wait_that_fails_is_no_reason_to_look_all_the_time() -> None:
    looked, waited = threading.Event(), list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        raise StorageError("the disk is gone")

    def look() -> float:
        looked.set()
        return 0.0

    end = SystemClock().follow(look, "test", remote=False, wait=wait)
    assert looked.wait(30)
    end()
    assert min(waited) > 0


def test_a_file_in_memory_is_as_old_as_the_stores_clock_says() -> None:
    clock = ManualClock(7_000)
    store = MemoryStore("memory://t", clock)
    store.put_if_absent("a/b", b"1")
    clock.advance(1_000)
    store.touch("a/c", b"2")
    assert sorted((each.path, each.modified_ms) for each in store.files("a")) == [
        ("a/b", 7_000), ("a/c", 8_000)
    ]  # fmt: skip


def test_a_named_store_is_one_a_process_and_keeps_its_clock() -> None:
    clock = ManualClock()
    store = MemoryStore.named("test-clock", clock)
    try:
        assert MemoryStore.named("test-clock") is store
        with pytest.raises(StorageError, match="has a clock already"):
            MemoryStore.named("test-clock", ManualClock())
    finally:
        MemoryStore.forget("test-clock")


def test_an_action_that_fails_in_any_way_is_called_again() -> None:
    calls = []

    def act() -> None:
        calls.append(1)
        raise ValueError("some fault")

    clock = ManualClock()
    clock.repeat(1.0, act, "faulty")
    clock.advance(3_000)
    assert len(calls) == 3
