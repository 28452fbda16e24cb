"""The kit for your own tests: a root in memory whose clock you move (docs/testing.md).

from pulsar_spark.testing import Place

with Place() as place:
place.client.create_producer("jobs").send(b"1")
place.clock.advance(days=30)
"""

from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.testing.place import Outcome, Place

__all__ = ["ManualClock", "Outcome", "Place"]
