"""What is drawn once for a schedule: who there is, with which options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.simulation.lots import Lots

VERDICTS: tuple[tuple[str, ...], ...] = (
    ("Individual",),
    ("Individual", "Individual", "Negative"),
    ("Individual", "Individual", "Individual", "forget"),
    ("Individual", "Negative", "forget"),
    ("Individual", "ReconsumeLater"),
    ("Individual", "Individual", "Negative", "ReconsumeLater", "forget"),
)
TYPES = ("Exclusive", "Failover", "Shared", "Key_Shared")


@dataclass(frozen=True)
class Setting:
    """Of one schedule."""

    kind: str
    topics: tuple[str, ...]
    partitions: int
    consumers: int
    has_witness: bool
    calm: bool
    """Nothing goes wrong by which a key's messages may come in another order."""
    manual: bool
    verdicts: tuple[str, ...]
    """What a sink says of a message, drawn for each."""
    with_attempts: bool
    options: dict[str, Any]
    policies: dict[str, Any]
    lease_ms: int
    delays: bool
    chunks: bool
    rivals: bool
    """A broker may have a rival, or an old copy of its checkpoint."""
    grows_unseen: bool
    """Consumers subscribe at Latest, then topics grow, then the broker looks for the first time."""
    starts_anew: bool
    """They lose their checkpoints in between, and something is published."""
    poison: bool
    """Some messages end every query that reads them, until they are dead letters."""
    sticky: bool
    """Key_Shared, where no order is looked for: each consumer names its keys."""
    clients: tuple[bool, ...]
    """Which of the consumers are no queries, but processes with the Python client."""

    def consumer_options(self, number: int) -> dict[str, Any]:
        """`number` tells them apart."""
        own: dict[str, Any] = {}
        if self.sticky:
            first, stop = (65_536 * n // self.consumers for n in (number, number + 1))
            own = {"keySharedMode": "STICKY", "keySharedRanges": f"{first}-{stop - 1}"}
        return self.options | own | {
            "subscriptionType": self.kind, "priorityLevel": number % 2,
            "subscriptionInitialPosition": self.initial_position,
        }  # fmt: skip

    def has_client(self, name: str) -> bool:
        return name.startswith("c") and self.clients[int(name[1:])]

    @property
    def initial_position(self) -> str:
        return "Latest" if self.grows_unseen else "Earliest"

    def witness_options(self) -> dict[str, Any]:
        return {
            "subscriptionType": "Failover", "leaseTimeout": self.lease_ms,
            "maxMessagesPerTrigger": 7, "subscriptionInitialPosition": self.initial_position,
        }  # fmt: skip

    def publisher_options(self, lots: Lots) -> dict[str, Any]:
        if self.chunks and lots.one_in(2):
            return {"batchingEnabled": "false", "chunkingEnabled": "true", "maxMessageSize": 25}
        return {"batchingMaxMessages": lots.draw_from((1, 2, 3, 1000))}


def drawn_setting(lots: Lots) -> Setting:
    kind, calm = lots.draw_from(TYPES), lots.one_in(3)
    manual = not calm and lots.one_in(2)
    lease_ms = lots.draw_from((5_000, 10_000, 30_000))
    options: dict[str, Any] = {
        "leaseTimeout": lease_ms,
        "drainTimeout": 5_000,
    }
    verdicts: tuple[str, ...] = ("Individual",)
    if manual:
        options["ackMode"] = "manual"
        options["negativeAckRedeliveryDelay"] = lots.draw_from((0, 1_000))
        verdicts = lots.draw_from(VERDICTS)
        if kind in ("Exclusive", "Failover") and lots.one_in(3):
            verdicts += ("Cumulative",)
        if lots.one_in(4):
            options["ackTimeout"] = lots.draw_from((1_000, 6_000))
    if "ReconsumeLater" in verdicts or (not calm and lots.one_in(2 if manual else 4)):
        options |= _letter_options(lots)
    if "enableRetry" in options:  # where all up to a message is others' work too
        verdicts = tuple(each for each in verdicts if each != "Cumulative")
    chunks = lots.one_in(4)  # each counts, so many have to be granted at once
    if chunks:
        options["maxMessagesPerTrigger"] = 20
    elif lots.one_in(2):
        options["maxMessagesPerTrigger"] = lots.draw_from((1, 3, 8))
    if not chunks and lots.one_in(4):
        options["receiverQueueSize"] = lots.draw_from((2, 5, 20))
    if kind == "Key_Shared" and lots.one_in(6):
        options["allowOutOfOrderDelivery"] = "true"
    grows_unseen, starts_anew = lots.one_in(4), lots.one_in(2)
    poison = "maxRedeliverCount" in options and lots.one_in(2)
    return Setting(
        kind, ("t", "u") if lots.one_in(3) else ("t",), lots.draw_from((1, 1, 2, 3)),
        1 if kind == "Exclusive" and not lots.one_in(3) else lots.draw(1, 3),
        lots.one_in(3), calm, manual, verdicts, lots.one_in(2), options,
        _policies(lots, chunks), lease_ms, lots.one_in(2), chunks, lots.one_in(4),
        grows_unseen, starts_anew, poison,
        manual and kind == "Key_Shared" and lots.one_in(3),
        tuple(manual and lots.one_in(3) for _ in range(3)),
    )  # fmt: skip


def _letter_options(lots: Lots) -> dict[str, Any]:
    options: dict[str, Any] = {"maxRedeliverCount": lots.draw(1, 3)}
    if lots.one_in(2):
        options["enableRetry"] = "true"
    if lots.one_in(3):
        options["maxBatchAttempts"] = lots.draw(1, 2)
    return options


def _policies(lots: Lots, chunks: bool) -> dict[str, Any]:
    policies: dict[str, Any] = {}
    if lots.one_in(3):
        policies["retention_time_ms"] = lots.draw_from((-1, 5_000))
        policies["retention_size_bytes"] = -1
    if not chunks and lots.one_in(5):
        policies["max_unacked_messages_per_consumer"] = 4
    if lots.one_in(4):
        policies["key_shared_consistent_hashing"] = False
    return policies
