"""Processes of a cluster: each with its output in a file, all killed at a test's end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sysconfig
import venv
from contextlib import ExitStack, suppress
from pathlib import Path

import pyspark

from pulsar_spark.connector.spark.process.java_home import ensure_java
from tests.architecture.sources import REPOSITORY
from tests.java_classes import SHORT_LIVED
from tests.waiting import eventually

SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE_S = 180
"""For each wait: beside other tests a Java takes half a minute to start."""


class Process:
    """A process, its output in a file; killed with its children at the end of the test."""

    def __init__(self, name: str, folder: Path, command: list[str], **environment: str) -> None:
        self.name, self._output = name, folder / f"{name}.log"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment},
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def eventually_says(self, text: str, times: int = 1) -> None:
        def says_or_ended() -> bool:
            ended = self.process.poll() is not None
            return ended or self.said().count(text) >= times

        try:
            eventually(says_or_ended, DEADLINE_S, f"{self.name} says {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said: {self.said()[-3000:]}") from error
        has_said = self.said().count(text) >= times
        assert has_said, f"{self.name} ended: {self.said()[-3000:]}"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


class Machine:
    """A folder in which processes run, whose workers' Python has all but Pulsarlite."""

    def __init__(self, folder: Path, all_ended: ExitStack) -> None:
        self.folder, self._all_ended = folder, all_ended
        ensure_java()
        venv.create(folder / "bare", symlinks=True)
        (packages,) = (folder / "bare").glob("lib/python*/site-packages")
        libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (packages / "libraries.pth").write_text("\n".join(libraries))
        self.bare_python = str(folder / "bare" / "bin" / "python")

    def run(self, name: str, *command: str, **environment: str) -> Process:
        """A process that has Pulsarlite as an installed package."""
        return self.run_bare(name, *command, **{"PYTHONPATH": str(REPOSITORY), **environment})

    def run_bare(self, name: str, *command: str, **environment: str) -> Process:
        """A process that does not have it."""
        ours = {
            "PYTHONPATH": "",
            "PYSPARK_PYTHON": self.bare_python,
            "PYSPARK_DRIVER_PYTHON": self.bare_python,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        }
        process = Process(name, self.folder, list(command), **{**ours, **environment})
        self._all_ended.callback(process.kill)
        return process


class Cluster:
    """A master and two workers of Spark's own."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        master = self._begin(
            "master", "master.Master", "--host", "127.0.0.1", "--port", str(port),
            "--webui-port", "0",
        )  # fmt: skip
        master.eventually_says("I have been elected leader")
        self.workers = {name: self._worker(name) for name in ("worker-0", "worker-1")}
        for worker in self.workers.values():
            worker.eventually_says("Successfully registered with master")

    def executes(self, name: str, application: int) -> bool:
        """Whether a worker has, or had, an executor of the so manieth application."""
        return bool(list((self.machine.folder / name).glob(f"app-*-{application:04}")))

    def _worker(self, name: str) -> Process:
        return self._begin(
            name, "worker.Worker", "--host", "127.0.0.1", "--cores", "8", "--memory", "8g",
            "--work-dir", str(self.machine.folder / name), "--webui-port", "0", self.master,
        )  # fmt: skip

    def _begin(self, name: str, of_spark: str, *arguments: str) -> Process:
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        return self.machine.run_bare(
            name, spark_class, f"org.apache.spark.deploy.{of_spark}", *arguments,
            SPARK_DAEMON_MEMORY="256m",
        )  # fmt: skip


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
