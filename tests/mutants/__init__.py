"""Pulsarlite broken on purpose, each time in one place: `python -m tests.mutants [NAME ...]`.

Each mutant names the invariant that it breaks and the tests that hold it, every one of which has
to fail. `docs/reliability.md` names all three, and `tests/invariants.py` says what they are. The
brokers of the simulation are broken in `tests/simulation/mutants.py`, their hosts in
`tests/simulation/cluster_mutants.py`, the protocols in `docs/models`.
"""

from tests.mutants import (
    acknowledging,
    handing_out,
    housekeeping,
    publishing,
    reading,
    subscriptions,
)
from tests.mutants.mutant import MUTANTS, Mutant, fails

__all__ = ["MUTANTS", "Mutant", "fails"]
ROOMS = acknowledging, handing_out, housekeeping, publishing, reading, subscriptions
"""The modules whose import registers the mutants."""
