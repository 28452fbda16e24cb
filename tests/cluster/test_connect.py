"""A Spark Connect server, and a program that has neither Java nor a driver of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import pulsar_spark
from tests.architecture.sources import REPOSITORY
from tests.cluster import remote_application
from tests.cluster.processes import SPARK_HOME, Machine, Process, free_port

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]
pytest.importorskip("grpc")


def test_all_that_is_public_works_from_a_remote_session(machine: Machine) -> None:
    server = connect_server(machine, PYTHONPATH=str(REPOSITORY))
    application = machine.run(
        "application", sys.executable, "-m", "tests.cluster.remote_application",
        server, str(machine.folder), PYTHONPATH=str(REPOSITORY), JAVA_HOME="/nowhere",
    )  # fmt: skip
    for part in remote_application.PARTS:
        application.eventually_says(part.__name__)
    application.eventually_says("all of it")


NEEDS_NO_SPARK = {
    "Admin", "Client", "PulsarliteError", "__version__", "dataset", "verify",
}  # fmt: skip
DONE_BY_SESSION = {"register", "ship"}


def test_all_that_is_public_and_knows_spark_is_tried_there() -> None:
    tried = re.findall(r"pulsar_spark\.(\w+)", Path(remote_application.__file__).read_text())
    assert {*tried} | NEEDS_NO_SPARK | DONE_BY_SESSION == set(pulsar_spark.__all__)


def connect_server(machine: Machine, **environment: str) -> str:
    """Its address."""
    port = free_port()
    server: Process = machine.run_bare(
        "server", str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g",
        "--conf", f"spark.sql.warehouse.dir={machine.folder / 'warehouse'}", "spark-internal",
        **environment,
    )  # fmt: skip
    server.eventually_says("Spark Connect server started")
    return f"sc://127.0.0.1:{port}"
