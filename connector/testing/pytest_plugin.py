"""The fixtures that pytest finds wherever Pulsarlite is installed, by the entry point `pytest11`.

Invariant: a run that asks for none of them loads neither the client nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pulsar_spark.connector.storage.clock import ManualClock
    from pulsar_spark.connector.testing.place import Place


@pytest.fixture
def pulsarlite() -> Iterator[Place]:
    """A place in memory, with a client, a broker and a clock that the test moves."""
    from pulsar_spark.connector.testing.place import Place

    with Place() as place:
        yield place


@pytest.fixture
def pulsarlite_clock(pulsarlite: Place) -> ManualClock:
    """The clock of the fixture `pulsarlite`."""
    return pulsarlite.clock
