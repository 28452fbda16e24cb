"""How long a program takes from its start to its first grant, side by side with other commits.

    python -m benchmarks.start [--runs 5] [--beside FOLDER]...

A program of two cores makes a session, starts the broker, and a Shared consumer of a topic with a
hundred messages; its times are taken from before it starts. Once the broker is Spark's query, and
once embedded. FOLDER is another commit's checkout, whose own code prepares and runs the first of
the two; all take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
MESSAGES = 100
STAMPS = ("session", "standalone", "granted", "read")
"""The session is there; `standalone` has returned; the consumer's micro-batch is planned, read."""
DEADLINE_S = 180.0


def prepare(root: Path) -> None:
    """A topic with messages."""
    import pulsar_spark

    spark = pulsar_spark.session(master="local[2]")
    rows = spark.range(MESSAGES).selectExpr("encode(cast(id as string), 'utf-8') as value")
    options = {"topic": "t", "numPartitions": "4", "serviceUrl": str(root)}
    rows.write.format("pulsarlite").options(**options).mode("append").save()
    spark.stop()


def begin(root: Path, **given: Any) -> None:
    """Print the stamps: seconds since 1970."""
    import pulsar_spark

    spark = pulsar_spark.session(master="local[2]")
    stamps = {"session": time.time()}
    with pulsar_spark.standalone(spark, str(root), **given):
        stamps["standalone"] = time.time()
        options = {"topic": "t", "serviceUrl": str(root), "subscriptionName": "s"}
        options |= {"subscriptionType": "Shared", "subscriptionInitialPosition": "Earliest"}
        reader = spark.readStream.format("pulsarlite").options(**options)
        writer = reader.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(root / "consumer")).start()
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s and "read" not in stamps:
            time.sleep(0.02)
            for each in query.recentProgress:
                reported: dict[str, Any] = json.loads(each.json)
                if reported["numInputRows"]:
                    planned = root / "consumer/offsets" / str(reported["batchId"])
                    stamps |= {"granted": planned.stat().st_mtime, "read": time.time()}
        query.stop()
    print(json.dumps(stamps), flush=True)
    spark.stop()


def run(checkout: Path, step: str, root: Path) -> tuple[str, float]:
    """(what the step prints, when it was started), of that checkout's own code."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, __file__, "--step", step, "--root", str(root)]
    begun_s = time.time()
    done = subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout, begun_s


def begin_embedded(root: Path) -> None:
    begin(root, embedded=True)


STEPS = {"prepare": prepare, "begin": begin, "begin_embedded": begin_embedded}


def measure(checkout: Path, step: str, folder: Path) -> dict[str, float]:
    """Seconds from the program's start to each stamp, and from `standalone`'s return to a grant."""
    root = folder / "root"
    run(checkout, "prepare", root)
    said, begun_s = run(checkout, step, root)
    shutil.rmtree(root)
    stamps = json.loads(said.splitlines()[-1])
    return {name: stamps[name] - begun_s for name in STAMPS}


def spread(values: list[float], form: str = ".2f") -> str:
    """The median, and the lowest to the highest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        STEPS[asked.step](asked.root)
        return
    folder = Path(tempfile.mkdtemp(prefix="pulsarlite-benchmark-"))
    sides = [(HERE, "begin"), (HERE, "begin_embedded")]
    sides += [(each.resolve(), "begin") for each in asked.in_background]
    taken: dict[tuple[Path, str], list[dict[str, float]]] = {each: [] for each in sides}
    for _ in range(asked.runs):
        for side in sides:
            taken[side].append(measure(*side, folder))
            print(*side, taken[side][-1], file=sys.stderr, flush=True)
    print(f"Seconds after the program's start, medians of {asked.runs} (lowest to highest):")
    print(f"| | {' | '.join(STAMPS)} | session to granted | to the last row's |")
    print("| --- " * 7 + "|")
    waits = {
        side: [one["granted"] - one["session"] for one in each] for side, each in taken.items()
    }
    for side, each in taken.items():
        columns = [*([one[name] for one in each] for name in STAMPS), waits[side]]
        cells = [spread(column, ".1f") for column in columns]
        cells.append(spread([a / b for a, b in zip(waits[side], waits[sides[-1]], strict=True)]))
        checkout, step = side
        name = f"{checkout.name}{', embedded' if step == 'begin_embedded' else ''}"
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
