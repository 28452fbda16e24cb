"""As the soak of subscriptions, without Spark: a process that embeds the broker is killed as well.

    python -m tests.soak.without_spark --kills 1000 --seed 7 [--folder FOLDER] [--minutes M]

A publisher, six consumers and the host of the broker, which is `pulsarlite standalone --embedded`
or a client that hosts it, drawn anew each time that it begins: each goes on with the other's
checkpoint. It is killed more often than any other.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_spark.connector.runtime.broker.broker_heartbeat import BrokerHeartbeat
from pulsar_spark.connector.runtime.topics.topics import Root
from tests.soak.__main__ import Role, main
from tests.soak.clients import HOSTS, PUBLISHER
from tests.soak.query import Place
from tests.soak.subscribers import CLIENTS, SUBSCRIPTIONS
from tests.soak.subscriptions import Subscriptions

MOST_SERVED_S = 20.0
"""A host is killed at most so long after it began to serve."""
LEASE_S = 10.0
"""Shorter than under Spark: processes without it start in a second."""


class WithoutSpark(Subscriptions):
    """One soak in its folder."""

    program: ClassVar[str] = "tests.soak.without_spark"
    default_kills: ClassVar[int] = 1_000
    roles: ClassVar[tuple[str, ...]] = (PUBLISHER, "broker", *CLIENTS)
    lease_s: ClassVar[float] = LEASE_S
    longest_delay_s: ClassVar[float] = 5.0
    names: ClassVar[tuple[str, ...]] = tuple(n for n, each in SUBSCRIPTIONS.items() if each.clients)

    def run(self, role: str) -> subprocess.Popen[bytes]:
        name = self.draw.choice(HOSTS) if role == "broker" else role
        command = [sys.executable, "-m", "tests.soak.clients", name]
        command += [str(self.folder), str(self.number), str(self.lease_s)]
        with (self.folder / f"{role}.log").open("wb") as log:
            return self.start(command, log)

    def look_at(self, role: Role, place: Place) -> None:
        if role.name == "broker" and role.process is not None and role.kill_at_s is None:
            heartbeat = BrokerHeartbeat(Root(str(place.root), {})).shown()
            if heartbeat is not None and heartbeat.process == role.process.pid:
                place.ready("broker").touch()
        before = role.kill_at_s
        super().look_at(role, place)
        if role.name == "broker" and role.kill_at_s is not None and before is None:
            role.kill_at_s = time.monotonic() + self.draw.random() * MOST_SERVED_S

    def phase(self, role: str, place: Place) -> str:
        if role == "broker" and place.ready(role).exists():
            return "serving"
        return super().phase(role, place)

    def ends(self, place: Place) -> tuple[Path, ...]:
        return (place.sent,)

    def wanted_values(self, place: Place) -> pa.ChunkedArray:
        return pq.read_table(place.sent_by_client)["value"]


if __name__ == "__main__":
    sys.exit(main(WithoutSpark))
