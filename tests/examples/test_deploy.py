"""The files of deploy/: valid by their own checkers, and each command in them runs as a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

import pulsar_spark
from pulsar_spark import pulsar
from tests.architecture.sources import REPOSITORY
from tests.connector.s3_server import S3Root, s3_root, s3_server
from tests.waiting import eventually

__all__ = ["s3_root", "s3_server"]

DEPLOY = REPOSITORY / "deploy"
BIN = Path(sys.executable).parent
CONTAINER = (DEPLOY / "Containerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = {
    f"{each['kind']}/{each['metadata']['name']}": each
    for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
}
PROBE = ["pulsarlite", "doctor", "--live"]
BROKER = ["standalone", "--embedded", "--standby"]
METRICS = ["metrics", "--host", "0.0.0.0", "--port", "9464"]


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "deploy/Containerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml"],
        ["kubernetes-validate", "--strict", "deploy/kubernetes.yaml"],
    ],
    ids=lambda command: str(command[0]),
)
def test_the_files_are_valid(command: list[str]) -> None:
    command = [str(BIN / command[0]), *command[1:]]
    checked = subprocess.run(command, check=False, cwd=REPOSITORY, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def container(kind: str) -> dict[str, Any]:
    (found,) = KUBERNETES[f"Deployment/pulsarlite-{kind}"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_files_have_the_commands_that_are_tried_here() -> None:
    assert f"CMD {json.dumps(BROKER)}" in CONTAINER
    assert 'ENTRYPOINT ["pulsarlite"]' in CONTAINER
    for name, service in COMPOSE["services"].items():
        assert service["command"] == (METRICS if name == "metrics" else BROKER)
        assert service.get("healthcheck", {"test": ["CMD", *PROBE]})["test"] == ["CMD", *PROBE]
    broker = container("broker")
    assert broker["args"] == BROKER
    assert broker["startupProbe"]["exec"]["command"] == PROBE
    assert broker["livenessProbe"]["exec"]["command"] == PROBE
    assert container("metrics")["args"] == METRICS
    given = {each.partition("=")[0] for each in COMPOSE["services"]["broker"]["environment"]}
    assert given >= KUBERNETES["ConfigMap/pulsarlite"]["data"].keys()


@pytest.mark.slow
def test_what_the_image_copies_is_what_an_installation_needs(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "installed"
    source.mkdir()
    for line in CONTAINER.splitlines():
        command, *names = line.split()
        if command == "COPY":
            for name in names[:-1]:
                if (REPOSITORY / name).is_dir():
                    shutil.copytree(REPOSITORY / name, source / name, symlinks=True)
                else:
                    shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "pulsar_spark", "--version"], check=True, cwd=target,
        capture_output=True, text=True,
    )  # fmt: skip
    assert pulsar_spark.__version__ in shown.stdout


class Running:
    """A process of the image's user: its home can't be written."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        self.output = output
        with output.open("w") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=stream, cwd="/"
            )

    def printed(self, text: str) -> bool:
        printed = self.output.read_text()
        if self.process.poll() is not None:
            raise RuntimeError(f"it has ended: {printed}")
        return text in printed


@contextmanager
def running(command: list[str], environment: dict[str, str], output: Path) -> Iterator[Running]:
    one = Running([str(BIN / "pulsarlite"), *command], environment, output)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_broker_standby_probe_and_metrics_run_over_a_bucket(
    s3_root: S3Root, tmp_path: Path
) -> None:
    options = {name.upper(): value for name, value in s3_root.options.items()}
    environment = {
        **{name.replace("ALLOW_HTTP", "AWS_ALLOW_HTTP", 1): each for name, each in options.items()},
        "PULSARLITE_SERVICE_URL": s3_root.root, "PYTHONUNBUFFERED": "1",
        "HOME": "/nonexistent", "PATH": os.environ["PATH"],
    }  # fmt: skip

    def probe() -> int:
        command = [str(BIN / PROBE[0]), *PROBE[1:]]
        done = subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)
        return done.returncode

    assert probe() == 1, "nobody serves"
    with ExitStack() as stack:

        def start(command: list[str], name: str) -> Running:
            return stack.enter_context(running(command, environment, tmp_path / name))

        broker = start(BROKER, "broker")
        eventually(lambda: broker.printed("term 1"), 120, "the broker serves")
        assert probe() == 0
        standby = start(BROKER, "standby")
        metrics = start([*METRICS[:-1], "0"], "metrics")
        with pulsar.Client(s3_root.root, storage=s3_root.options) as client:
            consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
            client.create_producer("t").send(b"before")
            assert consumer.receive(60_000).data() == b"before"
            eventually(lambda: standby.printed("stands by"), 120, "the other stands by")
            broker.process.kill()
            broker.process.wait()
            eventually(lambda: standby.printed("term 2"), 120, "the other serves")
            assert probe() == 0
            client.create_producer("t").send(b"after")
            assert consumer.receive(60_000).data() == b"after"
        eventually(lambda: metrics.printed("http://"), 120, "metrics are served")
        port = metrics.output.read_text().split("/metrics")[0].rpartition(":")[2]
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"pulsarlite_broker_up 1" in answer.read().replace(
                b'{cluster="standalone"}', b""
            )
        standby.process.send_signal(signal.SIGTERM)
        assert standby.process.wait(30) == 0, "within the grace period"
    assert probe() == 1
