"""How long the broker's step takes, and how much its state is: `python -m benchmarks broker`.

Prints a table; times are medians of RUNS runs, in milliseconds, sizes in thousands of bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from pyroaring import BitMap

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.hosting.shards import changed
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    InitialPosition,
    LedgerAdded,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet

RUNS = 7
MILLION = 1_000_000
DAY_MS = 86_400_000
TOPIC = "persistent://public/default/orders"
LOTS = np.random.default_rng(7)
UNLIMITED = TopicPolicies(
    max_unacked_messages_per_consumer=0,
    max_unacked_messages_per_subscription=0,
    key_shared_look_ahead=2 * MILLION,
    key_shared_look_ahead_per_consumer=2 * MILLION,
)
Row = tuple[str, str, float]


def milliseconds(action: Callable[[], object], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times) * 1000


def ledger(
    ledger_id: int, entries: int, batch_size: int = 1, *, hashed: bool = False
) -> LedgerAdded:
    sizes = BatchSizes(((batch_size, entries),))
    info = LedgerInfo(ledger_id, 0, "f", 0, sizes, 100 * entries * batch_size, 0, 0)
    hashes = LOTS.permutation(2**31 - 1 >> 10)[: entries * batch_size] if hashed else None
    return LedgerAdded(info, 0, None if hashes is None else hashes.astype(np.int64) << 10)


def consumers(kind: SubscriptionType, count: int, permits: int) -> list[Command]:
    earliest = InitialPosition.EARLIEST
    return [
        Subscribe("s", f"c{n}", 1, kind, initial_position=earliest, permits=permits)
        for n in range(count)
    ]


def stored(state: BrokerState) -> float:
    """In thousands of bytes."""
    return sum(map(len, to_shards(state).values())) / 1000


def million_holes() -> list[Row]:
    """A random half of 2 million entries is acknowledged, and then one entry more."""
    state, _ = step(
        BrokerState(TOPIC),
        [ledger(0, 2 * MILLION), *consumers(SubscriptionType.SHARED, 2, 1_000)],
        0,
    )
    holes = BitMap(np.flatnonzero(LOTS.random(2 * MILLION) < 0.5).astype(np.uint32))
    acked = Cursor().acknowledge(PositionSet({0: holes}))
    state, _ = step(state, [Report("s", "c0", 1, acknowledged=acked, permits=1_000)], 1)
    one = next(n for n in range(MILLION, 2 * MILLION) if n not in holes)
    more = Cursor().acknowledge(PositionSet.of([(0, one)]))
    report = Report("s", "c1", 1, sequence=1, acknowledged=more, permits=1_000)
    after, _ = step(state, [report], 2)
    before, shards = to_shards(state), to_shards(after)
    written, _ = changed(before, shards)
    name = "a million holes"
    return [
        (name, "a step that acknowledges one more, ms", milliseconds(
            lambda: step(state, [report], 2))),
        (name, "an idle step, ms", milliseconds(lambda: step(state, [], 2))),
        (name, "stored, kB", stored(after)),
        (name, "written after that step, kB", sum(map(len, written.values())) / 1000),
        (name, "to shards, ms", milliseconds(lambda: to_shards(after))),
        (name, "from shards, ms", milliseconds(lambda: from_shards(shards))),
    ]  # fmt: skip


def million_to_ten_shared() -> list[Row]:
    """A million messages in entries of 1,000."""
    joined = consumers(SubscriptionType.SHARED, 10, 2 * MILLION)
    return _granted("a million messages, Shared", ledger(0, 1_000, 1_000), joined)


def million_keys() -> list[Row]:
    """A million messages, each an entry with a key of its own."""
    joined = consumers(SubscriptionType.KEY_SHARED, 10, 2 * MILLION)
    return _granted("a million keys, Key_Shared", ledger(0, MILLION, hashed=True), joined)


def _granted(name: str, added: LedgerAdded, joined: list[Command]) -> list[Row]:
    empty, _ = step(BrokerState(TOPIC, -1, UNLIMITED), joined, 0)
    state, ready = step(empty, [added], 1)
    granted = sum(grant.messages.count(state.ledgers) for grant in ready.grants)
    if granted != MILLION:
        raise AssertionError(f"{granted} messages were granted")
    shards = to_shards(state)
    return [
        (name, "granted to ten consumers, ms", milliseconds(lambda: step(empty, [added], 1))),
        (name, "an idle step, ms", milliseconds(lambda: step(state, [], 2))),
        (name, "stored, kB", stored(state)),
        (name, "to shards, ms", milliseconds(lambda: to_shards(state), 3)),
        (name, "from shards, ms", milliseconds(lambda: from_shards(shards), 3)),
    ]


def delayed_over_a_day(messages: int = 100_000) -> list[Row]:
    """Messages that are due at random instants of a day, in 100 commits of one entry each."""
    name = "100,000 delayed over a day"
    state, _ = step(BrokerState(TOPIC), consumers(SubscriptionType.SHARED, 2, MILLION), 0)
    batches = []
    for ledger_id in range(100):
        plain = ledger(ledger_id, messages // 100)
        times = LOTS.integers(1_000, DAY_MS, messages // 100)
        batches.append(LedgerAdded(plain.ledger, 0, None, times))
    took = []
    for added in batches:
        start = time.perf_counter()
        state, _ = step(state, [added], 1)
        took.append(time.perf_counter() - start)
    start = time.perf_counter()
    shards = to_shards(state)
    packed = time.perf_counter() - start
    due_ms = state.delayed.next_delivery_time_ms(1000) or 0
    later, _ = step(state, [], DAY_MS // 2)
    return [
        (name, "added, µs a message", sum(took) / messages * 1e6),
        (name, "a step before anything is due, ms", milliseconds(lambda: step(state, [], 2))),
        (name, "a step when the first are due, ms", milliseconds(lambda: step(state, [], due_ms))),
        (name, "a step when half are due, ms", milliseconds(
            lambda: step(state, [], DAY_MS // 2))),
        (name, "the step after it, ms", milliseconds(lambda: step(later, [], DAY_MS // 2))),
        (name, "groups", len(state.delayed.groups)),
        (name, "stored, kB", stored(state)),
        (name, "to shards for the first time, ms", packed * 1e3),
        (name, "to shards, ms", milliseconds(lambda: to_shards(state), 3)),
        (name, "from shards, ms", milliseconds(lambda: from_shards(shards), 3)),
    ]  # fmt: skip


CASES = (million_holes, million_to_ten_shared, million_keys, delayed_over_a_day)


def main() -> None:
    print("| state | what | figure |\n| --- | --- | --- |")
    for case in CASES:
        for name, what, figure in case():
            print(f"| {name} | {what} | {figure:,.{0 if figure >= 100 else 1}f} |", flush=True)


if __name__ == "__main__":
    main()
