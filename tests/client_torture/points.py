"""The faults that this net was made for: for each a kind of program by which it shows.

A point's setting is drawn as any other, and then bent so that programs do what its fault needs;
`rules` are those by which the oracle notices it. Other rules are left out meanwhile: a point must
show by its own. Code that is right passes all; a mutant brings a point's fault back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.client_torture.setting import Setting, drawn_setting
from tests.client_torture.world import World, run_schedule
from tests.simulation.lots import Lots

RULES = frozenset({
    "invented", "counted", "acknowledged", "doubled", "conflict", "twice", "letter", "lost", "late",
    "keys", "order", "handover", "error", "locked out", "ended", "raw", "unstored", "reader",
})  # fmt: skip

QUIET: Mapping[str, Any] = {
    "troubles": (), "poison": False, "max_redeliver_count": None, "retry": False,
    "ack_timeout_ms": 0, "nack_ms": 0, "hosts": 1, "embedded": False, "by_command": False,
    "busy_at_end": False, "priorities": False, "readers": 0, "views": 0, "by_pattern": False,
    "publishers": 1, "remote": False, "switch_one_in": 4,
}  # fmt: skip
"""Nothing goes wrong, and nobody does what a point does not need."""


@dataclass(frozen=True)
class Point:
    """A fault, and the schedules in which it shows."""

    name: str
    rules: str
    """The rules by which it shows, with + between them."""
    bent: Mapping[str, Any]
    shows_at: tuple[int, ...] = (0,)
    """Seeds at which the mutant of the point is noticed (PYTHONHASHSEED=0)."""

    def setting(self, seed: int) -> Setting:
        return replace(drawn_setting(Lots(seed)), **{**QUIET, **self.bent})

    def run(self, seed: int) -> World:
        return run_schedule(seed, self.setting(seed), RULES - {*self.rules.split("+")})


RECEIVING = ("receive", "receive", "receive")

POINTS: tuple[Point, ...] = (
    Point("failover_acknowledges_what_was_only_queued", "lost", {
        "kind": "Failover", "styles": RECEIVING, "queue": (1_000,),
        "verdicts": ("cumulative", "forget"), "doings": ("close", "idle"), "doing_one_in": 2,
        "partitions": 1, "topics": ("t",), "priorities": True, "messages": 60,
    }, shows_at=(0, 8)),
    Point("what_lay_beside_poison_becomes_a_dead_letter", "letter", {
        "kind": "Shared", "styles": RECEIVING[:1], "queue": (1_000,), "verdicts": ("ack",),
        "doings": ("idle",), "poison": True, "max_redeliver_count": 1,
    }, shows_at=(2,)),
    Point("a_queue_outlives_its_lease", "acknowledged", {
        "kind": "Shared", "styles": RECEIVING[:2], "queue": (1_000,), "verdicts": ("ack",),
        "receipts": True, "together": False, "doings": ("idle",), "doing_one_in": 1,
        "troubles": ("stop_consumer", "time"), "trouble_one_in": 2, "lease_ms": 5_000,
    }, shows_at=(1, 5)),
    Point("a_busy_program_hands_nothing_over", "handover", {
        "kind": "Failover", "styles": RECEIVING[:2], "queue": (1_000,), "verdicts": ("ack",),
        "doings": ("idle",), "doing_one_in": 1, "busy_at_end": True, "priorities": True,
        "messages": 60,
    }),
    Point("the_ack_timeout_runs_in_the_queue", "doubled", {
        "kind": "Shared", "styles": RECEIVING[:2], "queue": (1_000,), "verdicts": ("ack",),
        "doings": ("idle",), "doing_one_in": 1, "ack_timeout_ms": 10_000, "messages": 60,
    }),
    Point("a_restart_counts_what_was_only_queued", "counted", {
        "styles": RECEIVING[:1], "queue": (1_000,), "verdicts": ("ack",), "doings": ("close",),
        "doing_one_in": 3,
    }),
    Point("what_the_gone_had_rejected_waits_out_its_delay", "late", {
        "kind": "Shared", "styles": RECEIVING[:2], "verdicts": ("nack", "ack"),
        "doings": ("close",), "doing_one_in": 5, "nack_ms": 60_000,
    }),
    Point("a_seek_moves_other_topics", "doubled+raw", {
        "kind": "Exclusive", "styles": RECEIVING[:1], "topics": ("t", "u"), "verdicts": ("ack",),
        "doings": ("seek_id", "idle"), "doing_one_in": 2, "queue": (3,), "partitions": 1,
        "messages": 60,
    }),
    Point("a_cancelled_batch_is_lost", "lost", {
        "styles": ("asyncio",), "verdicts": ("ack",), "doings": ("idle",), "batch": (5, 1_000),
    }),
    Point("a_batch_that_failed_is_stranded", "lost", {
        "styles": ("batch",), "verdicts": ("ack",), "doings": ("idle",), "batch": (100, 1_000),
        "troubles": ("store", "store", "time"), "trouble_one_in": 2, "queue": (1, 3),
    }, shows_at=(7,)),
    Point("an_acknowledgement_undoes_a_seek", "lost", {
        "kind": "Exclusive", "styles": RECEIVING[:1], "verdicts": ("ack", "forget"),
        "doings": ("seek_and_settle", "idle"), "doing_one_in": 3, "topics": ("t",),
        "queue": (1,),
    }, shows_at=(2,)),
    Point("two_transactions_acknowledge_one_message", "conflict", {
        "styles": RECEIVING[:1], "verdicts": ("ack", "forget"), "doings": ("transaction",),
    }, shows_at=(1,)),
    Point("an_embedded_broker_that_slept_never_works_again", "error", {
        "kind": "Shared", "styles": RECEIVING[:2], "verdicts": ("ack",), "doings": ("idle",),
        "hosts": 2, "embedded": True, "troubles": ("sleep",), "trouble_one_in": 3,
    }),
    Point("who_was_killed_is_locked_out", "locked out", {
        "kind": "Exclusive", "styles": RECEIVING[:1], "verdicts": ("ack",), "doings": ("idle",),
        "named": False, "troubles": ("kill_consumer",), "trouble_one_in": 4, "lease_ms": 10_000,
    }, shows_at=(1,)),
    Point("a_topic_that_was_made_again_is_not_read", "lost", {
        "kind": "Shared", "styles": RECEIVING[:1], "verdicts": ("ack",), "doings": ("idle",),
        "topics": ("t", "u"), "troubles": ("remake",), "trouble_one_in": 6, "messages": 60,
    }),
    Point("a_store_that_ignores_conditions_loses", "unstored", {
        "ignores_conditions": True, "styles": (), "publishers": 4, "events": 5,
    }),
    Point("the_command_ends_with_the_store_away", "ended", {
        "styles": RECEIVING[:1], "verdicts": ("ack",), "doings": ("idle",), "by_command": True,
        "troubles": ("away",), "trouble_one_in": 4,
    }),
)  # fmt: skip

BY_NAME: Mapping[str, Point] = {each.name: each for each in POINTS}
