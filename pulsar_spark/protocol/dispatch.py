"""What the broker writes for all to read: the items of `Ready`, in their order, and `Stepped`.

Invariants: revokes stand before grants, and the answer to a request behind all that it brought
about, so that who reads up to its answer has read what follows from it; a step ends with its
`Stepped`. Letters, trims and the like are done by the host and are not told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pulsar_spark.positions.position import Position
from pulsar_spark.protocol.ready import Ready


@dataclass(frozen=True, slots=True)
class Stepped:
    """How far the broker is with a topic partition, behind all else that the step brought about.

    `last_position` is the last entry that the log had told it of; `next_due_ms` when it has to
    step again, at the latest; `backlogs` how many messages each subscription has before it, of
    which those in `durable` stay without a consumer. `consumers` are all that are subscribed, each
    as (subscription, name, incarnation).
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
