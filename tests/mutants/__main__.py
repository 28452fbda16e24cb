"""Run the tests of all mutants, or of some: `python -m tests.mutants [NAME ...]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.mutants import MUTANTS, fails


def main(names: Sequence[str]) -> int:
    """1 if a test of one of them does not fail."""
    wrong = 0
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        for test in mutant.tests:
            began = time.monotonic()
            caught = fails(mutant, test)
            wrong += not caught
            found, took_s = "caught" if caught else "NOBODY NOTICED", time.monotonic() - began
            print(f"{mutant.name}: {test}: {found} ({took_s:.1f} s)", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
