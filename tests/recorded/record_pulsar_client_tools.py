"""Runs the command lines of a file by Pulsar's own tool, and writes down what they print.

    python record_pulsar_client_tools.py FILE bin/pulsar-client

To be run beside a Pulsar (`bin/pulsar standalone`) that has none of the topics; nothing of this
repository is needed. FILE is written anew: a line `$ ARGUMENTS`, then what the command printed, and
its exit code if that is not 0. Of a failure only the first line and the count are kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAYLOAD = b"line one\nline two\n"


def main(file: Path, command: list[str]) -> None:
    stories = [line for line in file.read_text("utf-8").splitlines() if line.startswith("$ ")]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "payload.txt").write_bytes(PAYLOAD)
        lines = [line for story in stories for line in (story, *run(story, command, folder))]
    file.write_text("\n".join(lines) + "\n", "utf-8")


def run(story: str, command: list[str], folder: str) -> list[str]:
    """What it printed, without log4j's columns and without times."""
    argv = [*command, *story.split(" ")[1:]]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    text = re.sub(r"^\S+ \[\S+\] [A-Z]+ +\S+ - ", "", done.stdout, flags=re.MULTILINE)
    lines = re.sub(r"publishTime:\[\d+\]", "publishTime:[TIME]", text).splitlines()
    if done.returncode:
        lines = [*lines[:1], *(line for line in lines[1:] if " successfully " in line)]
        lines.append(f"[{done.returncode}]")
    return lines


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
