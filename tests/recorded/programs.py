"""Programs that were written for Pulsar's Python client, and what they print with it.

    python -m benchmarks.peers record

runs those of `_programs` with Pulsar's own client against a Pulsar that it starts, three times, and
writes what they print to `programs.json`: the truth that the tests compare with. Programs that do
not print the same each time are named, and nothing is written.

    python -m tests.recorded.programs pulsar://localhost:6650

runs them with the client that is installed as `pulsar`, and says who prints something else there.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import io
import json
import os
import platform
import runpy
import sys
import traceback
import uuid
from contextlib import redirect_stdout
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted(path.stem for path in (HERE / "_programs").glob("*.py"))
RECORDED = HERE / "programs.json"
ROUNDS = 3
STUCK_S = 120


def recorded(name: str) -> str:
    """What the program printed with Pulsar's client."""
    printed_there = json.loads(RECORDED.read_text(encoding="utf-8"))["printed"]
    return "".join(f"{line}\n" for line in printed_there.get(name, ["never recorded"]))


def printed(name: str, url: str) -> str:
    """What the program prints, on topics of its own."""
    os.environ |= {"PULSAR_URL": url, "PULSAR_TOPIC": f"{name}-{uuid.uuid4().hex[:8]}"}
    with redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(HERE / "_programs" / f"{name}.py"), run_name="__main__")
    return out.getvalue()


def main() -> int:
    """The number of programs that print something else, or not the same each time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--record", metavar="SERVER", help="write programs.json, of this server")
    parser.add_argument("--only", metavar="PROGRAM", action="append", choices=PROGRAMS)
    asked = parser.parse_args()
    found, wrong = {}, 0
    for name in asked.only or PROGRAMS:
        rounds = {attempted(name, asked.url) for _ in range(ROUNDS if asked.record else 1)}
        found[name] = rounds.pop()
        if rounds:
            wrong += 1
            print(f"{name}: prints now this\n{found[name]}and now that\n{rounds.pop()}")
        elif found[name] == recorded(name):
            print(f"{name}: as recorded")
        else:
            wrong += not asked.record
            print(f"{name}: {found[name]}recorded:\n{recorded(name)}")
    if asked.record and not wrong:
        write(asked.record, found)
    return wrong


def attempted(name: str, url: str) -> str:
    """What a program prints, or how it failed; a stuck one ends this process and says where."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    try:
        return printed(name, url)
    except Exception:  # noqa: BLE001 - whatever it is, the other programs are still to be run
        return traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()


def write(server: str, found: dict[str, str]) -> None:
    client = importlib.import_module("pulsar").__version__
    known = json.loads(RECORDED.read_text(encoding="utf-8"))["printed"] if RECORDED.exists() else {}
    known |= {name: text.splitlines() for name, text in found.items()}
    record = {
        "server": server,
        "client": f"pulsar-client {client}",
        "python": platform.python_version(),
        "printed": {name: known[name] for name in PROGRAMS if name in known},
    }
    RECORDED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
