"""Threads of one process share a topic's ledger: none sees a commit in part, nor loses one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pulsar_spark.connector.runtime.broker.broker_input import _whole_state
from pulsar_spark.connector.runtime.reading.chunk_reading import PartitionChunks
from pulsar_spark.connector.runtime.topics.log_snapshot import decode_snapshot, encode_snapshot
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.log.chunked_messages import ChunkRun
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.position_set import PositionSet
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import (
    FOLDER,
    HookedStore,
    messages,
    publish,
    values_of,
    write,
)

ROUNDS = 12
"""What each producer publishes: a round repeats the one before, and adds two messages."""
LEDGERS_BEFORE = 40


def names(producer: str, first: int, last: int) -> list[str]:
    return [f"{producer}{number}" for number in range(first, last + 1)]


def send(ledger: ManagedLedger, producer: str, number: int) -> None:
    """The round of that number: the messages of the one before come again, and are hidden."""
    first, last = max(2 * number - 2, 0), 2 * number + 1
    rows = messages(names(producer, first, last), producer, first)
    ledger.append(write(ledger, {0: rows}, batch=1))


def seen(ledger: ManagedLedger) -> dict[str, list[str]]:
    """The values in order, by producer; AssertionError unless each is there once."""
    values = values_of(ledger)
    found = {
        producer: [value for value in values if value[0] == producer]
        for producer in sorted({value[0] for value in values})
    }
    for producer, its in found.items():
        assert its == names(producer, 0, len(its) - 1)
    return found


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that take turns a thousand times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_threads_that_ask_first_for_a_snapshots_ledgers_get_them(tmp_path: Path) -> None:
    ledger = ManagedLedger.create(open_store(str(tmp_path)), FOLDER, 200)
    ledger.append(write(ledger, {partition: messages(["a"]) for partition in range(200)}))
    number, data = ledger.state.number, encode_snapshot(ledger.state)
    for _ in range(20):
        state, start = decode_snapshot(data, "t", "name", number), Barrier(4)

        def ask(partition: int, state: TopicState = state, start: Barrier = start) -> int:
            start.wait()
            return state.ledgers(partition)[0].ledger_id

        with ThreadPoolExecutor(4) as threads:
            assert [*threads.map(ask, [7, 0, 199, 7])] == [7, 0, 199, 7]


def test_the_broker_is_not_told_ahead_of_what_another_thread_adds_meanwhile(
    tmp_path: Path,
) -> None:
    store = HookedStore(open_store(str(tmp_path)))
    ledger = ManagedLedger.create(store, FOLDER, 1)
    publish(ledger, "a")
    last = ledger.state.number
    publish(ledger, "b")
    store.before("get", log_file(last + 1), lambda: publish(ledger, "c"))
    whole = _whole_state(ledger, 0, last, observed=False)
    assert len(ledger.ledgers(0)) == 3
    assert [each.ledger_id for each in whole.ledgers] == [0]


def test_chunks_that_another_thread_tells_before_their_ledger_wait_for_it(tmp_path: Path) -> None:
    ledger = ManagedLedger.create(open_store(str(tmp_path)), FOLDER, 1)
    run = ChunkRun(0, "x", 0, 1, 2, 10)
    known = PartitionChunks(ledger, 0)
    ledger.state.partition(0).chunks[0] = (run,)  # as in the midst of a commit
    chunks = known.known()
    assert chunks is not None
    assert not chunks.chunks
    publish(ledger, "a")
    again = known.known()
    assert again is not None
    assert again.chunks == PositionSet.of([(0, 0)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("switching")
def test_threads_that_share_a_topic_see_each_message_once(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    store = open_store(str(tmp_path))
    first = ManagedLedger.create(store, FOLDER, 1, {"deduplication": True})
    for number in range(LEDGERS_BEFORE):
        send(first, "a", number)
    first.write_snapshot()
    ManagedLedger.open_anew(store, FOLDER)  # its snapshot can be read

    ledger = ManagedLedger.open(store, FOLDER)  # nobody has asked for its ledgers yet
    assert ManagedLedger.open(store, FOLDER) is ledger
    start = Barrier(5)

    def producing(producer: str) -> None:
        start.wait()
        for number in range(ROUNDS):
            send(ManagedLedger.open(store, FOLDER), producer, number)

    def reading(draw: random.Random) -> None:
        before: dict[str, list[str]] = {}
        looks: list[Callable[[], object]] = [
            ledger.refresh,
            ledger.write_snapshot,
            lambda: ManagedLedger.open(store, FOLDER),
            lambda: ledger.state.partition(0).hidden.since(draw.randrange(LEDGERS_BEFORE)),
        ]
        start.wait()
        for _ in range(ROUNDS):
            draw.choice(looks)()
            now = seen(ledger)
            assert all(len(now[each]) >= len(its) for each, its in before.items())
            before = now

    with ThreadPoolExecutor(5) as threads:
        tasks = [threads.submit(producing, producer) for producer in "pq"]
        tasks += [threads.submit(reading, random.Random(seed + n)) for n in (0, 100, 200)]
        for task in tasks:
            task.result()

    check_state(ledger.state)
    ledger.write_snapshot()
    counts = {"a": 2 * LEDGERS_BEFORE, "p": 2 * ROUNDS, "q": 2 * ROUNDS}
    for each in (ledger, ManagedLedger.open_anew(store, FOLDER)):
        assert {name: len(its) for name, its in seen(each).items()} == counts
    assert first.refresh()
    assert seen(first) == seen(ledger)
    again = ManagedLedger.open_anew(store, FOLDER).state
    assert again.partition(0).hidden.since(0) == ledger.state.partition(0).hidden.since(0)
