"""Every benchmark, one after the other, each in a process of its own: `make benchmark`.

Takes about half an hour on two cores. docs/performance.md keeps what it printed, and says when.
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
)


def main() -> int:
    """Run them all; 1 if one failed."""
    failed = 0
    for command in BENCHMARKS:
        print(f"\n## python -m {' '.join(command)}\n", flush=True)
        failed |= subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
