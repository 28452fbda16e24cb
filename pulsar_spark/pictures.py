"""Pictures of cursors, hash rings and events in time: `from pulsar_spark import pictures`.

They need matplotlib: `pip install 'pulsarlite[demo]'`.
"""

from pulsar_spark.connector.tools.notebooks.drawing import (
    COLOURS,
    Event,
    Picture,
    canvas,
    ring,
    strip,
    time_line,
)

__all__ = ["COLOURS", "Event", "Picture", "canvas", "ring", "strip", "time_line"]
