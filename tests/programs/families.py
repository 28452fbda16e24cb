"""The programs: families of seeded ones, which draw calls and arguments at random.

    programs()["shared-03"]     the steps of the fourth program of the family `shared`

Invariants: a program depends on its family and number alone. It is written so that a Pulsar does
the same each time: where several consumers share, what each of them gets is not asked for, and a
pause lies between steps that Pulsar may order otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.programs import arguments, consuming, publishing
from tests.programs.steps import Step

Family = Callable[[random.Random], list[Step]]


def programs() -> dict[str, list[Step]]:
    """All programs by name."""
    found = {}
    for family, (make, count) in FAMILIES.items():
        for number in range(count):
            name = f"{family}-{number:02}"
            found[name] = make(random.Random(name))
    return found | arguments.programs()


FAMILIES: dict[str, tuple[Family, int]] = {
    "exclusive": (consuming.exclusive, 18),
    "shared": (consuming.shared, 14),
    "key-shared": (consuming.key_shared, 14),
    "failover": (consuming.failover, 6),
    "dead-letters": (consuming.dead_letters, 10),
    "ack-timeouts": (consuming.ack_timeouts, 4),
    "seeks": (consuming.seeks, 14),
    "readers": (publishing.readers, 14),
    "table-views": (publishing.table_views, 8),
    "partitions": (publishing.partitions, 12),
    "several-topics": (consuming.several_topics, 10),
    "listeners": (consuming.listeners, 10),
    "batch-receives": (consuming.batch_receives, 10),
    "producing": (publishing.producing, 14),
    "delays": (consuming.delays, 5),
    "schemas": (publishing.schemas, 16),
    "access": (publishing.access, 8),
    "asynchronous": (publishing.asynchronous, 10),
}
