"""Runs programs that were written against Pulsar's Python client, and compares what they print.

    python -m tests.recorded.programs pulsar://localhost:6650

runs them with the client that is installed as `pulsar`, against that Pulsar. What a program is to
print stands in its docstring.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import textwrap
import uuid
from contextlib import redirect_stdout
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "_programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


def expected(name: str) -> str:
    """What the program's docstring says that it prints."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return textwrap.dedent(text.split("\nPrints:\n")[1].split('"""')[0])


def printed(name: str, url: str) -> str:
    """What the program prints, on topics of its own."""
    os.environ |= {"PULSAR_URL": url, "PULSAR_TOPIC": f"{name}-{uuid.uuid4().hex[:8]}"}
    with redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return out.getvalue()


def main(url: str) -> int:
    """The number of programs that print something else."""
    wrong = 0
    for name in PROGRAMS:
        found = printed(name, url)
        wrong += found != expected(name)
        print(f"{name}: {'as expected' if found == expected(name) else found}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
