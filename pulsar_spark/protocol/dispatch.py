"""The records that the broker writes for all: items of `Ready`, in order, and `Stepped`.

Invariants: revokes stand before grants, and the answer to a request behind all its effects, so a
consumer that has read its answer has read them too; a step ends with its `Stepped`. Letters, trims
and the like are done by the host, and are not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pulsar_spark.positions.position import Position
from pulsar_spark.protocol.ready import Ready


@dataclass(frozen=True, slots=True)
class Stepped:
    """The broker's place on a topic partition, behind all other records of the step.

    `last_position` is the last entry that the log had told it of; `next_due_ms` the latest instant
    of its next step; `backlogs` are messages before `last_position`, by subscription, and those in
    `durable` stay without a consumer. `consumers` are all that are subscribed, each as
    (subscription, name, incarnation).
    """

    now_ms: int
    last_position: Position
    next_due_ms: int | None = None
    backlogs: tuple[tuple[str, int], ...] = ()
    durable: tuple[str, ...] = ()
    consumers: tuple[tuple[str, str, int], ...] = ()


def told(ready: Ready) -> Iterator[tuple[str, Any]]:
    """(subscription, or "" for all, item), in the order in which they are written and read.

    A Subscribe is answered before its grants, since the answer names the epoch that they belong
    to; every other request behind all else.
    """
    groups: tuple[tuple[Any, ...], ...] = (
        ready.epochs,
        tuple(reply for reply in ready.replies if reply.origin is not None),
        ready.revokes,
        ready.acknowledged,
        ready.grants,
        ready.open_grants,
        tuple(reply for reply in ready.replies if reply.origin is None),
    )
    for group in groups:
        for item in group:
            yield item.subscription, item
    if ready.backlog_quota is not None:
        yield "", ready.backlog_quota
