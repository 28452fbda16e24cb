"""On a cluster, with a root on S3: workers and brokers are killed, and each message comes once."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.spark.shipping import write_archive
from tests.cluster.processes import DEADLINE_S, SPARK_HOME, Cluster, Machine, Process
from tests.connector.s3_server import S3Root
from tests.java_classes import SHORT_LIVED
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]
SETTINGS = {
    "spark.executor.cores": "2",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
SUBMITTED = "import sys; from pulsar_spark.__main__ import main; sys.exit(main())"
OF_ONE, OF_OTHER = ("Exclusive", "Shared", "Key_Shared"), ("Failover", "Shared")


def test_each_message_comes_once_though_a_worker_and_the_brokers_driver_are_killed(
    machine: Machine, s3_root: S3Root
) -> None:
    cluster = Cluster(machine)
    first = broker(cluster, s3_root, "broker-1", sys.executable, "-m", "pulsar_spark")
    first.eventually_says("The broker of")
    one = application(cluster, s3_root, "one", OF_ONE)
    other = application(cluster, s3_root, "other", OF_OTHER)
    for each in (one, other):
        each.eventually_says("ready")
    publish(one, 0, 300)
    second = submitted_broker(cluster, s3_root, "broker-2")
    consumed(machine.folder, 300)
    runs_the_broker = next(each for each in cluster.workers if cluster.executes(each, 0))
    cluster.workers[runs_the_broker].kill()
    publish(other, 300, 600)
    consumed(machine.folder, 600)
    second.eventually_says("stands by")
    first.kill()
    publish(one, 600, 900)
    second.eventually_says("The broker of")
    consumed(machine.folder, 900)
    assert re.search(r"term 2\b", second.said())


def broker(cluster: Cluster, root: S3Root, name: str, *command: str) -> Process:
    return cluster.machine.run(
        name, *command, *serving(cluster, root), "--master", cluster.master,
        *(f"--conf={key}={value}" for key, value in SETTINGS.items()),
    )  # fmt: skip


def submitted_broker(cluster: Cluster, root: S3Root, name: str) -> Process:
    """Begun by spark-submit, on a machine whose Python lacks the package too."""
    folder = cluster.machine.folder
    write_archive(folder / "pulsarlite.zip")
    (folder / "run_broker.py").write_text(SUBMITTED)
    return cluster.machine.run_bare(
        name, str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master,
        *(f"--conf={key}={value}" for key, value in SETTINGS.items()),
        "--py-files", str(folder / "pulsarlite.zip"), "run_broker.py", *serving(cluster, root),
    )  # fmt: skip


def serving(cluster: Cluster, root: S3Root) -> tuple[str, ...]:
    storage = (f"--storage={key}={value}" for key, value in root.options.items())
    checkpoint = (cluster.machine.folder / "broker").as_uri()
    service = ("--service-url", root.root, *storage)
    return ("standalone", "--standby", *service, "--checkpoint", checkpoint)


def application(cluster: Cluster, root: S3Root, name: str, consumers: tuple[str, ...]) -> Process:
    folder = cluster.machine.folder / name
    folder.mkdir()
    given: dict[str, Any] = {
        "name": name,
        "master": cluster.master,
        "settings": SETTINGS,
        "options": {
            "serviceUrl": root.root,
            **{f"storage.{key}": value for key, value in root.options.items()},
        },
        "consumers": consumers,
        "folder": str(folder),
    }
    module = "tests.cluster.application"
    return cluster.machine.run(name, sys.executable, "-m", module, json.dumps(given))


def publish(one: Process, first: int, last: int) -> None:
    done = one.said().count("published")
    one.tell(f"publish {first} {last}")
    one.eventually_says("published", done + 1)


def consumed(folder: Path, count: int) -> None:
    """Wait until every subscription has had each number; none comes twice."""
    for kind in sorted({*OF_ONE, *OF_OTHER}):

        def has_all(kind: str = kind) -> bool:
            return len(set(numbers(folder, kind))) >= count

        eventually(has_all, DEADLINE_S, f"{kind} has {count}")
    for kind in sorted({*OF_ONE, *OF_OTHER}):
        assert Counter(numbers(folder, kind)) == Counter(range(count)), kind


def numbers(folder: Path, kind: str) -> Iterator[int]:
    """What Spark's file sink of each application says that it has written."""
    written = {
        json.loads(line)["path"].removeprefix("file:")
        for log in folder.glob(f"*/out/{kind}/_spark_metadata/[0-9]*")
        for line in log.read_text().splitlines()[1:]
    }
    for each in written:
        yield from (json.loads(row)["number"] for row in Path(each).read_text().splitlines())
