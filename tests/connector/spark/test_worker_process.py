"""What is done for the processes that Spark runs us in."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from pulsar_spark.connector.spark.process.worker_process import leave_if_hung_up
try:
    raise {error}("Spark is gone")
finally:
    leave_if_hung_up()
"""


@pytest.mark.parametrize(
    ("error", "status"),
    [("EOFError", 0), ("BrokenPipeError", 0), ("ConnectionResetError", 0), ("ValueError", 1)],
)
def test_a_planner_that_spark_has_hung_up_on_leaves_without_a_word(error: str, status: int) -> None:
    command = [sys.executable, "-c", PROGRAM.format(error=error)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("Spark is gone" in done.stderr) == bool(status)
