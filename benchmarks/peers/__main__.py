"""Commands with the peers.

python -m benchmarks.peers pulsar|kafka     runs one until Ctrl-C, and prints its address
python -m benchmarks.peers record           runs tests/recorded/_programs against Pulsar
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from types import FrameType

from benchmarks.peers import installed, servers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("pulsar", "kafka", "record"))
    command = parser.parse_args().command
    signal.signal(signal.SIGTERM, end)
    if command == "record":
        sys.exit(record())
    with servers.pulsar() if command == "pulsar" else servers.kafka() as address:
        print(address, flush=True)
        threading.Event().wait()


def record() -> int:
    """What Pulsar's own client prints, written to where the tests compare with it."""
    with servers.pulsar() as url:
        server = f"Apache Pulsar {installed.PULSAR}, standalone"
        command = [str(installed.client_python()), "-m", "tests.recorded.programs", url]
        return subprocess.run([*command, "--record", server], check=False).returncode


def end(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM leaves the blocks as an error does, so that no server stays."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
