"""Commands with the peers.

python -m benchmarks.peers pulsar|kafka     runs one until Ctrl-C, and prints its address
python -m benchmarks.peers record           runs tests/recorded/_programs against Pulsar
python -m benchmarks.peers record-programs   runs those of tests/programs, new and changed ones
python -m benchmarks.peers record-stats     writes down what its `topics stats` and metrics have
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from types import FrameType

from benchmarks.peers import installed, servers, source_and_sink, subscriptions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = (
        "pulsar",
        "kafka",
        "record",
        "record-programs",
        "record-stats",
        "subscriptions",
        "kafka-source",
    )
    parser.add_argument("command", choices=commands)
    parser.add_argument("--all", action="store_true", help="record every program anew")
    parser.add_argument("--only", action="append", default=[], help="programs of that name")
    parser.add_argument("--rounds", type=int, help="3 of programs; 5 of measurements")
    parser.add_argument("--messages", type=int, help="50,000 of a subscription; 2,000,000 of Kafka")
    parser.add_argument("--few", type=int, default=5_000, help="of delayed and redelivered ones")
    asked = parser.parse_args()
    command = asked.command
    signal.signal(signal.SIGTERM, end)
    if command == "record":
        sys.exit(record())
    if command == "record-programs":
        sys.exit(record_programs(asked.only, asked.rounds or 3, everything=asked.all))
    if command == "record-stats":
        sys.exit(record_stats())
    if command == "subscriptions":
        subscriptions.measure(asked.rounds or 5, asked.messages or 50_000, asked.few)
        return
    if command == "kafka-source":
        source_and_sink.measure(asked.rounds or 5, asked.messages or 2_000_000)
        return
    with servers.pulsar() if command == "pulsar" else servers.kafka() as address:
        print(address, flush=True)
        threading.Event().wait()


def record() -> int:
    """What Pulsar's own client prints, written to where the tests compare with it."""
    with servers.pulsar() as url:
        server = f"Apache Pulsar {installed.PULSAR}, standalone"
        command = [str(installed.client_python()), "-m", "tests.recorded.programs", url]
        return subprocess.run([*command, "--record", server], check=False).returncode


def record_programs(only: list[str], rounds: int, *, everything: bool) -> int:
    """The traces of programs that are new or changed, written to where the tests compare with."""
    (web,) = servers.free_ports(1)
    with servers.pulsar(web=web, memory=("-Xms512m", "-Xmx1g")) as url:
        command = [str(installed.client_python()), "-m", "tests.programs.record"]
        command += [url, f"http://127.0.0.1:{web}", f"Apache Pulsar {installed.PULSAR}, standalone"]
        command += ["--rounds", str(rounds)]
        command += ["--all"] * everything
        command += [word for name in only for word in ("--only", name)]
        return subprocess.run(command, check=False).returncode


def record_stats() -> int:
    """The fields of Pulsar's statistics and metrics, written to where the tests compare with."""
    (web,) = servers.free_ports(1)
    with servers.pulsar(web=web) as url:
        module = "tests.recorded.record_pulsar_stats"
        command = [str(installed.client_python()), "-m", module]
        command += [url, f"http://127.0.0.1:{web}", f"Apache Pulsar {installed.PULSAR}, standalone"]
        return subprocess.run(command, check=False).returncode


def end(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM leaves the blocks as an error does, so that no server stays."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
