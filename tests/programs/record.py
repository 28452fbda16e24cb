"""Records programs on a real Pulsar: their steps, their traces, and what they reach.

    python -m benchmarks.peers record-programs [--all]

starts a Pulsar and runs this module with Pulsar's own client, which needs nothing of this
repository but this folder. New and changed programs are recorded, with `--all` every one. Each runs
three times; one whose traces differ is named, and not recorded.

Invariant: `programs.jsonl.gz` has a line for the versions, and one for each program.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import multiprocessing
import os
import platform
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from tests.programs import families
from tests.programs.interpreter import Interpreter

RECORDED = Path(__file__).resolve().parent / "programs.jsonl.gz"
ROUNDS = 3
PROCESSES = 10
STUCK_S = 180
_TOPICS = "admin/v2/persistent/public/default"
Recorded = dict[str, Any]


class PulsarHost:
    """A real Pulsar, and the client that is installed as `pulsar`."""

    def __init__(self, url: str, web: str) -> None:
        self.url, self._web = url, web
        self.pulsar = importlib.import_module("pulsar")
        self.asyncio = importlib.import_module("pulsar.asyncio")
        self.schema = importlib.import_module("pulsar.schema")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def create_partitioned(self, topic: str, partitions: int) -> None:
        self._admin("PUT", f"{topic}/partitions", partitions)

    def update_partitions(self, topic: str, partitions: int) -> None:
        self._admin("POST", f"{topic}/partitions", partitions)

    def terminate(self, topic: str) -> None:
        self._admin("POST", f"{topic}/terminate")

    def delete(self, topic: str) -> None:
        self._admin("DELETE", f"{topic}?force=true")

    def backlog(self, topic: str, subscription: str) -> int:
        time.sleep(0.3)  # acknowledgements go grouped
        stats = self._admin("GET", f"{topic}/stats?getPreciseBacklog=true")
        return int(stats["subscriptions"][subscription]["msgBacklog"])

    def compact(self, topic: str) -> None:
        self._admin("PUT", f"{topic}/compaction")
        while self._admin("GET", f"{topic}/compaction")["status"] == "RUNNING":
            time.sleep(0.1)

    def _admin(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._web}/{_TOPICS}/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def read() -> tuple[dict[str, str], dict[str, Recorded]]:
    """The versions, and what was recorded of each program."""
    if not RECORDED.exists():
        return {}, {}
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        versions, *programs = map(json.loads, lines)
    return versions, {each["name"]: each for each in programs}


def write(versions: dict[str, str], programs: dict[str, Recorded]) -> None:
    lines = [versions, *(programs[name] for name in sorted(programs))]
    text = "".join(json.dumps(each, separators=(",", ":"), sort_keys=True) + "\n" for each in lines)
    RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("web")
    parser.add_argument("server")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    _, known = read()
    programs = families.programs()
    known = {name: each for name, each in known.items() if name in programs}
    todo = [
        name for name, steps in programs.items()
        if (asked.all or name not in known or known[name]["steps"] != steps)
        and (not asked.only or any(name.startswith(each) for each in asked.only))
    ]  # fmt: skip
    unstable = 0
    with multiprocessing.get_context("spawn").Pool(PROCESSES, _begin) as pool:
        jobs = [(asked.url, asked.web, name, programs[name], asked.rounds) for name in todo]
        running = {job[2]: pool.apply_async(_rounds, job) for job in jobs}
        for name, job in running.items():
            found = _ended(name, job)
            unstable += found is None
            if found is not None:
                known[name] = found
                print(f"{name}: recorded", flush=True)
        pool.terminate()
    client = importlib.import_module("pulsar").__version__
    versions = {"server": asked.server, "client": f"pulsar-client {client}"}
    write(versions | {"python": platform.python_version()}, known)
    print(f"{len(todo) - unstable} recorded, {unstable} not; {len(known)} in all")
    return min(unstable, 1)


def _begin() -> None:
    """Silence Pulsar's client, which logs each connection."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _ended(name: str, job: Any) -> Recorded | None:
    try:
        traces, steps, reach = job.get(STUCK_S)
    except multiprocessing.TimeoutError:
        print(f"{name}: did not end", flush=True)
        return None
    for other in traces[1:]:
        for number, (one, another) in enumerate(zip(traces[0], other, strict=True)):
            if one != another:
                step, *both = map(json.dumps, (steps[number], one, another))
                print(f"{name}: step {number} {step} is not the same each time:", *both, sep="\n  ")
                return None
    return {"name": name, "steps": steps, "trace": traces[0], "reach": reach}


def _rounds(
    url: str, web: str, name: str, steps: list[Any], rounds: int
) -> tuple[list[list[Any]], list[Any], list[str]]:
    traces, reach = [], set()
    for _ in range(rounds):
        run = Interpreter(PulsarHost(url, web), f"{name}-{uuid.uuid4().hex[:6]}")
        traces.append(json.loads(json.dumps(run.run(steps))))
        reach |= run.reach
    return traces, steps, sorted(reach)


if __name__ == "__main__":
    sys.exit(main())
