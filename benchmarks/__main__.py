"""Every benchmark, one after the other, each in a process of its own: `make benchmark`.

Takes about two hours on two cores. docs/laboratory.md keeps its figures with
their dates, and docs/performance.md those of today.
With names, only those: `python -m benchmarks broker cursor`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHMARKS = (
    ("benchmarks.source_and_sink", "--rows", "2000000", "--bytes", "100"),
    ("benchmarks.source_and_sink", "--rows", "2000000", "--bytes", "1000"),
    ("benchmarks.source_and_sink", "--rows", "10000000", "--bytes", "100", "--only", "source"),
    ("benchmarks.source_and_sink", "--own-session"),
    ("benchmarks.digests",),
    ("benchmarks.micro_batch",),
    ("benchmarks.log",),
    ("benchmarks.cursor",),
    ("benchmarks.deduplication",),
    ("benchmarks.duplicates",),
    ("benchmarks.broker",),
    ("benchmarks.fairness",),
    ("benchmarks.subscriptions",),
    ("benchmarks.subscriptions", "--only", "idle", "--topics", "1000", "--embedded"),
    ("benchmarks.latency",),
    ("benchmarks.latency", "--embedded"),
    ("benchmarks.start",),
    ("benchmarks.takeover",),
    ("benchmarks.client",),
    ("benchmarks.many_topics",),
    ("benchmarks.consumers",),
    ("benchmarks.tracing",),
)
NAMES = sorted({command[0].removeprefix("benchmarks.") for command in BENCHMARKS})


def main(arguments: list[str] | None = None) -> int:
    """Run them all, or those named; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    names = parser.parse_args(arguments).names
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no benchmark {min(unknown)}: there are {', '.join(NAMES)}")
    failed = 0
    for command in BENCHMARKS:
        if names and command[0].removeprefix("benchmarks.") not in names:
            continue
        print(f"\n## python -m {' '.join(command)}\n", flush=True)
        failed |= subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
