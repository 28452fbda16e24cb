"""Three consumers of a subscription: our client against Pulsar's, in Python and in Java.

    python -m benchmarks.peers subscriptions [--rounds 5] [--messages 50000] [--few 5000]

`worker.py` says what the work is, and `Worker.java` is the same in Java. Each client is a process
that lives for all rounds, the first of which is thrown away; they take turns. Ours is durable:
`send` is answered when the file is on the disk. Pulsar's standalone is measured as it comes, which
leaves that to the operating system, and with a journal that does not.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.peers import installed, servers

HERE = Path(__file__).resolve().parent
OURS = "Pulsarlite"
KINDS = ("Shared", "Key_Shared", "delayed", "redelivered")
FEW = ("delayed", "redelivered")
SAID = "seconds: "


class Worker:
    """A process that does the work with one client."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, kind: str, messages: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {messages}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(SAID):
                return float(line.removeprefix(SAID))
        return sys.exit(f"{self._command} ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def workers() -> Iterator[Mapping[str, Worker]]:
    """One of each client, by name."""
    with contextlib.ExitStack() as entered:
        root = entered.enter_context(tempfile.TemporaryDirectory(prefix="pulsarlite-"))
        script, python = str(HERE / "worker.py"), str(installed.client_python())
        classpath = installed.pulsar_classpath()
        classes = installed.java_class(HERE / "Worker.java", classpath)
        java = [installed.java(), "-Xmx1g", "-cp", f"{classes}:{classpath}", "Worker"]
        commands = {OURS: [sys.executable, script, root, "--ours"]}
        for name, durable in (("", False), (", durable", True)):
            url = entered.enter_context(servers.pulsar(durable=durable))
            commands |= {f"Python{name}": [python, script, url], f"Java{name}": [*java, url]}
        found = {}
        for name, command in commands.items():
            found[name] = Worker(command)
            entered.callback(found[name].close)
        yield found


def measure(rounds: int, messages: int, few: int) -> None:
    """Print the table."""
    print("| what | messages | client | seconds | messages a second | theirs to ours |")
    print("| --- | --- | --- | --- | --- | --- |")
    with workers() as each:
        for kind in KINDS:
            count = few if kind in FEW else messages
            took = [
                {name: worker.seconds(kind, count) for name, worker in each.items()}
                for _ in range(1 + rounds)
            ][1:]
            for name in each:
                seconds = statistics.median(one[name] for one in took)
                ratios = sorted(one[name] / one[OURS] for one in took)
                middle = statistics.median(ratios)
                against = f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                print(
                    f"| {kind} | {count:,} | {name} | {seconds:.2f} | {count / seconds:,.0f} | "
                    f"{'' if name == OURS else against} |",
                    flush=True,
                )
