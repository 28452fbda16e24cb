"""python -m tests.scenarios [--rewrite]: run all dialogues, or write what comes of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.scenarios.dialogue import Dialogue
from tests.scenarios.host import Host

FOLDER = Path(__file__).parent


def played(text: str) -> str:
    """The dialogue with what comes of its lines now; comments and blank lines stay."""
    lines = []
    with Host() as host:
        dialogue = Dialogue(host)
        for line in text.splitlines():
            if line.startswith("> "):
                lines.append(line)
                lines += ["  " + answer for answer in dialogue.say(line[2:])]
            elif not line.startswith("  "):
                lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """How many scenarios differ."""
    different = 0
    for path in sorted(FOLDER.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        now = played(text)
        if now != text:
            different += 1
            print(f"{path.name} differs")
            if "--rewrite" in sys.argv:
                path.write_text(now, encoding="utf-8")
    return different


if __name__ == "__main__":
    sys.exit(main())
