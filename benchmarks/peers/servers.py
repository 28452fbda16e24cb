"""A peer's server: started on free ports with its data in a temporary folder, and gone at the end.

Invariants: when the block is left, also by an error, the process has ended and its folder is
deleted. A server that does not start says so with the last lines of its log. Settings are those of
the distribution's own files for one machine, but for ports and folders; they stand here.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.peers import installed

START_S = 120.0
STOP_S = 30.0
POLL_S = 0.2

_PULSAR_MEMORY = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g")
"""What Pulsar's `conf/pulsar_env.sh` gives it."""
_PULSAR_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/sun.net",
    "java.management/sun.management",
)
_DRIVERS = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{}Driver"
_PULSAR = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "loadBalancerEnabled": "false",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "nettyMaxFrameSizeBytes": "5253120",
    "journalMaxGroupWaitMSec": "1",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "allowLoopback": "true",
}
"""What Pulsar's `conf/standalone.conf` sets otherwise than its defaults."""
_KAFKA_MEMORY = ("-Xms1g", "-Xmx1g")
"""What `bin/kafka-server-start.sh` gives it."""
_KAFKA_LOGS = ("-Dorg.apache.logging.log4j.level=INFO",)
_KAFKA = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "num.partitions": "4",
}
"""What Kafka's `config/server.properties` sets otherwise than its defaults, but for partitions."""


@contextlib.contextmanager
def pulsar(
    *, durable: bool = False, web: int | None = None, memory: Sequence[str] = _PULSAR_MEMORY
) -> Iterator[str]:
    """A standalone, by the URL that clients have for it. What standalones and this one acknowledge

    is not yet on the disk, unless `durable`, which is the setting of a cluster's bookies. `web`
    is the port of its admin interface; otherwise it is a free one. `memory` is what it gets.
    """
    service, free, bookie = free_ports(3)
    web = free if web is None else web
    with tempfile.TemporaryDirectory(prefix="pulsar-") as name:
        folder = Path(name)
        settings = _PULSAR | {
            "brokerServicePort": str(service),
            "webServicePort": str(web),
            "journalSyncData": str(durable).lower(),
        }
        command = [
            *memory,
            *(f"--add-opens={each}=ALL-UNNAMED" for each in _PULSAR_OPENS),
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dbookkeeper.metadata.bookie.drivers={_DRIVERS.format('Bookie')}",
            f"-Dbookkeeper.metadata.client.drivers={_DRIVERS.format('Client')}",
            *("-cp", installed.pulsar_classpath(), "org.apache.pulsar.PulsarStandaloneStarter"),
            *("--config", written(folder, settings), "--no-functions-worker"),
            *("--no-stream-storage", "--metadata-dir", str(folder / "metadata")),
            *("--bookkeeper-dir", str(folder / "bookkeeper"), "--bookkeeper-port", str(bookie)),
        ]
        namespace = f"http://127.0.0.1:{web}/admin/v2/namespaces/public/default"
        with _running("Pulsar", folder, command, lambda _: _answers(namespace)):
            yield f"pulsar://127.0.0.1:{service}"


@contextlib.contextmanager
def kafka() -> Iterator[str]:
    """One node with KRaft, by the address that clients have for it. It leaves writing to the disk

    to the operating system, as Kafka does.
    """
    client, controller = free_ports(2)
    classpath = installed.kafka_classpath()
    with tempfile.TemporaryDirectory(prefix="kafka-") as name:
        folder = Path(name)
        settings = _KAFKA | {
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(folder / "data"),
        }
        path = written(folder, settings)
        storage = [installed.java(), "-cp", classpath, "kafka.tools.StorageTool", "format"]
        storage += ["--standalone", "--cluster-id", "5L6g3nShT-eMCtK--X86sw", "--config", path]
        subprocess.run(storage, check=True, capture_output=True)
        command = [*_KAFKA_MEMORY, *_KAFKA_LOGS, "-cp", classpath, "kafka.Kafka", path]
        with _running("Kafka", folder, command, lambda log: "Kafka Server started" in log):
            yield f"127.0.0.1:{client}"


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def written(folder: Path, settings: Mapping[str, str]) -> str:
    path = folder / "settings"
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def _running(
    name: str, folder: Path, command: list[str], is_ready: Callable[[str], bool]
) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [installed.java(), *command], cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline_s = time.monotonic() + START_S
        while not is_ready(_text(log)):
            if process.poll() is not None or time.monotonic() > deadline_s:
                last = "\n".join(_text(log).splitlines()[-30:])
                sys.exit(f"{name} did not start. The end of its log:\n{last}")
            time.sleep(POLL_S)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
