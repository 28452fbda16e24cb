"""The setting of a schedule, drawn once: topics, subscription, programs and troubles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.simulation.lots import Lots

KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")
STYLES = ("receive", "receive", "batch", "listener", "asyncio", "threads")
DOINGS = (
    "idle", "close", "settle", "redeliver", "busy", "transaction", "seek", "seek_and_settle",
    "pause",
)  # fmt: skip
TROUBLES = ("kill", "kill", "stop", "stop", "host", "store", "slow", "grow", "time")


@dataclass(frozen=True)
class Setting:
    """The setting of one schedule."""

    kind: str
    topics: tuple[str, ...]
    by_pattern: bool
    partitions: int
    messages: int
    """The number of messages that are published."""
    publishers: int
    styles: tuple[str, ...]
    """The way in which each consumer's program receives."""
    queue: tuple[int, ...]
    verdicts: tuple[str, ...]
    """The outcomes of a message, of which one is drawn for each."""
    doings: tuple[str, ...]
    """The other calls that a program makes now and then."""
    doing_one_in: int
    """The share of messages after which it makes one: one in so many."""
    named: bool
    """Consumers that begin again have the same name."""
    receipts: bool
    group_ms: int
    nack_ms: int
    ack_timeout_ms: int
    max_redeliver_count: int | None
    retry: bool
    batch: tuple[int, int]
    """The bounds of a batch: messages, and the time that it waits in ms."""
    lease_ms: int
    hosts: int
    """Processes that serve the root, or wait to; the first has a consumer too if that is drawn."""
    embedded: bool
    """Consumers live in the process that serves."""
    together: bool
    """All consumers live in one process."""
    poison: bool
    """True if one message ends each process to which it is handed."""
    readers: int
    views: int
    troubles: tuple[str, ...]
    trouble_one_in: int
    events: int
    busy_at_end: bool
    """Failover: at the end one consumer neither receives nor leaves, and a nearer one comes."""
    by_command: bool
    """`pulsarlite standalone --embedded` serves the root."""
    ignores_conditions: bool
    priorities: bool
    switch_one_in: int
    remote: bool
    """The store is one over a network: nobody is woken by a new file, and polls are few."""

    @property
    def options(self) -> dict[str, Any]:
        return {"leaseTimeout": f"{self.lease_ms}ms"}


def drawn_setting(lots: Lots) -> Setting:
    """A setting as the lots draw it."""
    kind = lots.draw_from(KINDS)
    is_shared = kind in ("Shared", "Key_Shared")
    consumers = 1 if kind == "Exclusive" else lots.draw(1, 3)
    styles = tuple(lots.draw_from(STYLES) for _ in range(consumers))
    dead_letters = is_shared and lots.one_in(3)
    verdicts = ["ack"] * 3
    verdicts += ["nack"] if lots.one_in(2) else []
    verdicts += ["forget"] if lots.one_in(2) else []
    verdicts += ["cumulative"] * 2 if not is_shared and lots.one_in(2) else []
    verdicts += ["later"] if dead_letters and lots.one_in(2) else []
    doings = tuple(each for each in DOINGS if lots.one_in(2)) or ("idle",)
    doings += ("unsubscribe",) if lots.one_in(4) else ()
    is_remade, is_much = lots.one_in(6), lots.one_in(12)
    troubles = TROUBLES + ("remake",) * 2 if is_remade else TROUBLES if lots.one_in(2) else ()
    return Setting(
        kind=kind,
        topics=("t", "u") if lots.one_in(3) else ("t",),
        by_pattern=lots.one_in(6),
        partitions=lots.draw_from((1, 1, 2, 3)),
        messages=lots.draw(100, 300) if is_much else lots.draw(10, 60),
        publishers=lots.draw_from((1, 1, 2)),
        styles=styles,
        queue=lots.draw_from(((1,), (3,), (10,), (1_000,), (1, 5, 1_000))),
        verdicts=tuple(verdicts),
        doings=doings,
        doing_one_in=lots.draw_from((5, 15)),
        named=lots.one_in(2),
        receipts=lots.one_in(2),
        group_ms=lots.draw_from((0, 100, 1_000)),
        nack_ms=lots.draw_from((0, 1_000, 60_000)),
        ack_timeout_ms=lots.draw_from((0, 0, 0, 10_000)),
        max_redeliver_count=lots.draw(1, 3) if dead_letters else None,
        retry="later" in verdicts,
        batch=(lots.draw_from((-1, 1, 5, 100)), lots.draw_from((10, 100, 1_000))),
        lease_ms=lots.draw_from((5_000, 10_000)),
        hosts=lots.draw_from((1, 1, 2)),
        embedded=lots.one_in(4),
        together=lots.one_in(3),
        poison=dead_letters and lots.one_in(2),
        readers=int(lots.one_in(4) and not is_remade),
        views=int(lots.one_in(6) and not is_remade),
        troubles=troubles,
        trouble_one_in=lots.draw_from((4, 10)),
        events=20,
        busy_at_end=(hands_over := kind == "Failover" and lots.one_in(3)),
        by_command=lots.one_in(4),
        ignores_conditions=False,
        priorities=hands_over,
        switch_one_in=16 if is_much else lots.draw_from((2, 4, 16)),
        remote=lots.one_in(5),
    )
