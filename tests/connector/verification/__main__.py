"""Inject faults into roots: python -m tests.connector.verification [--schedules N] [--seed S]."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pulsar_spark
from pulsar_spark.connector.inspect.verification.verified import VerifiedTopic
from tests import schedules
from tests.connector.verification.faults import (
    OF_THE_LOG,
    QUICK,
    SLOW,
    SYSTEM,
    Fault,
    NoPlaceError,
    Scene,
)
from tests.connector.verification.roots import ROOTS, TOPICS, ids_drawn_from, write_root
from tests.simulation.lots import Lots

MANY, A_BLOCK = 1_000, 10
TRIES = 100
"""How often a fault is drawn anew, of which a root has no place."""
FAULTS = (*QUICK, *SLOW)


class MissedError(AssertionError):
    """A fault that was not found."""


def inject(seed: int, roots: int = ROOTS) -> Fault:
    """Write a root, change one thing in it, and find it. MissedError if it is not found.

    Faults take turns, so that so many seeds in a row have each.
    """
    lots, fault = Lots(seed), FAULTS[seed % len(FAULTS)]
    with tempfile.TemporaryDirectory() as place:
        for attempt in range(TRIES):
            folder = Path(place, str(attempt))
            topic = lots.draw_from(TOPICS)
            if fault in OF_THE_LOG and lots.one_in(4):
                topic = lots.draw_from(SYSTEM)
            write_root(lots.draw(0, roots - 1), folder)
            try:
                with ids_drawn_from(seed):
                    fault(Scene(folder, lots, topic))
            except NoPlaceError:
                continue
            _find(fault, topic, folder)
            return fault
    raise MissedError(f"{fault.__name__} has no place in {TRIES} topics")


def _find(fault: Fault, topic: str, folder: Path) -> None:
    deep = fault not in QUICK
    if not _differences(pulsar_spark.verify(str(folder), topic, deep=deep)):
        how = "with" if deep else "without"
        raise MissedError(f"{fault.__name__} of {topic} is not found {how} --deep")


def _differences(found: list[VerifiedTopic]) -> int:
    return sum(len(each.differences) for each in found)


def main(arguments: list[str] | None = None) -> int:
    return schedules.run(
        arguments, inject, module="tests.connector.verification", many=MANY, block=A_BLOCK
    )


if __name__ == "__main__":
    sys.exit(main())
