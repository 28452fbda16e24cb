"""ARCHITECTURE.md's flows: each file calls those below it, and none of them calls back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.architecture.sources import FOLDERS, REPOSITORY, modules

FILES = dict(modules(*FOLDERS))


def test_the_flows_enter_their_files_in_one_direction() -> None:
    flows = list(_flows())
    assert len(flows) == 4
    for flow in flows:
        above: list[tuple[int, str]] = []
        for indent, file in flow:
            above = [each for each in above if each[0] < indent]
            if above:
                caller = above[-1][1]
                assert _names(caller, file), f"{caller} does not call {file}"
            for _, caller in above:
                assert not _names(file, caller), f"{file} calls back to {caller}"
            above.append((indent, file))


def _flows() -> Iterator[list[tuple[int, str]]]:
    """The (indentation, file) of each line of each flow."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## Four flows\n")[1].split("\n## ")[0]
    for block in re.findall(r"```\n(.*?)```", section, flags=re.DOTALL):
        lines = re.findall(r"^( *)(\S+\.py)\b", block, flags=re.MULTILINE)
        yield [(len(indent), file) for indent, file in lines]


def _names(file: str, other: str) -> bool:
    """Whether a file names the other's module: it imports it, if only when it is needed."""
    module = other.removesuffix(".py").replace("/", ".")
    if not module.startswith("pulsar_spark."):
        module = f"pulsar_spark.{module}"
    return re.search(rf"{re.escape(module)}\b", FILES[file]) is not None
