"""A broker on Spark that is killed while it compacts: `python -m ... FOLDER`.

It is `pulsarlite standalone`, but that it keeps house at once, and that it kills itself with
SIGKILL when compaction copies what it keeps: the file is begun, and named by no commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pulsar_spark.connector.runtime.housekeeping import housekeeper
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.tools.command_line.command_line import main


def compact_and_die(*given: Any, **named: Any) -> Any:
    def progress(_doing: str, total: int) -> Callable[[int], object]:
        seen = 0

        def advance(done: int) -> None:
            nonlocal seen
            seen += done
            if seen > total // 2:  # all was read
                os.kill(os.getpid(), signal.SIGKILL)

        return advance

    return compact(*given, **{**named, "progress": progress})


if __name__ == "__main__":
    setattr(housekeeper, "EVERY_S", 0.2)  # noqa: B010 - mypy minds it otherwise
    setattr(housekeeper, "compact", compact_and_die)  # noqa: B010
    sys.exit(main(["standalone", "--service-url", sys.argv[1]]))
