"""Every benchmark, one after the other, each in a process of its own: `make benchmark`.

    python -m benchmarks [NAME ...]

Takes about half an hour on two cores; names such as `deduplication` pick some. docs/performance.md
keeps what it printed, and says when.
"""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    ("benchmarks.source_and_sink", "--rows", "2000000", "--bytes", "100"),
    ("benchmarks.source_and_sink", "--rows", "2000000", "--bytes", "1000"),
    ("benchmarks.source_and_sink", "--rows", "10000000", "--bytes", "100", "--only", "source"),
    ("benchmarks.micro_batch",),
    ("benchmarks.log",),
    ("benchmarks.cursor",),
    ("benchmarks.deduplication",),
)


def main() -> int:
    """Run them; 1 if one failed, 2 if there is none of that name."""
    names = {command[0].rpartition(".")[2] for command in BENCHMARKS}
    if unknown := sorted(set(sys.argv[1:]) - names):
        print(f"No benchmark {', '.join(unknown)}. There are {', '.join(sorted(names))}.")
        return 2
    chosen = set(sys.argv[1:]) or names
    failed = 0
    for command in BENCHMARKS:
        if command[0].rpartition(".")[2] not in chosen:
            continue
        print(f"\n## python -m {' '.join(command)}\n", flush=True)
        failed |= subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
