"""The rooms: sub-packages of the three folders, in the order of ARCHITECTURE.md's table."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from tests.architecture.rules import _modules
from tests.architecture.sources import FOLDERS, REPOSITORY, modules
from tests.architecture.test_layers import CORE_FACE

MOST_FILES = 15
"""What a reader takes in at a glance."""

FILES = dict(modules(*FOLDERS))
ROOM_OF = {file: file.rsplit("/", 1)[0] for file in FILES}
FACE = {*CORE_FACE, "connector/__init__.py", "state/__init__.py"}


def test_a_room_has_few_files() -> None:
    for room in sorted(set(ROOM_OF.values())):
        files = [file for file in FILES if ROOM_OF[file] == room and not file.endswith("__.py")]
        assert len(files) <= MOST_FILES, f"{room} has {len(files)} files: which idea is missing?"


def test_a_room_says_in_three_lines_what_lives_there_and_what_may_not() -> None:
    faces = {file.rsplit("/", 1)[0] for file in FACE}
    for room in sorted(set(ROOM_OF.values()) - faces):
        tree = ast.parse(FILES[f"{room}/__init__.py"])
        text = ast.get_docstring(tree) or ""
        lines = [line for line in text.splitlines() if line]
        assert 2 <= len(lines) <= 3, f"{room}/__init__.py has {len(lines)} lines, not two or three"
        named = [node for node in tree.body[1:] if not _public_modules(node)]
        assert not named, f"{room}/__init__.py does more than name its public modules"


def test_a_room_names_the_modules_that_others_import() -> None:
    """A module that its room does not name is imported by its neighbours in the room alone."""
    imported: dict[str, set[str]] = {room: set() for room in ROOM_OF.values()}
    for file in FILES:
        for other in _imports(file):
            if ROOM_OF[other] != ROOM_OF[file]:
                imported[ROOM_OF[other]].add(other.rsplit("/", 1)[1].removesuffix(".py"))
    faces = {file.rsplit("/", 1)[0] for file in FACE}
    for room in sorted(set(imported) - faces):
        tree = ast.parse(FILES[f"{room}/__init__.py"])
        public = [name for node in tree.body for name in _public_modules(node)]
        assert public == sorted(imported[room]), (
            f"{room}/__init__.py: other rooms import {sorted(imported[room])}. Name a module there"
            " if others are meant to have it; else import one that is named."
        )


def test_no_files_import_each_other_in_a_circle() -> None:
    _check_acyclic({file: _imports(file) for file in FILES if file not in FACE})


def test_no_rooms_import_each_other_in_a_circle() -> None:
    _check_acyclic(_room_imports())


def test_a_room_imports_only_what_stands_above_it_in_the_architecture() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| `([\w/]+)/` \|", text, flags=re.MULTILINE)
    assert sorted(order) == sorted(set(ROOM_OF.values())), "the table of rooms has each room once"
    place = {room: number for number, room in enumerate(order)}
    for room, imported in _room_imports().items():
        for other in imported:
            assert place[other] < place[room], f"{room} imports {other}, which stands below it"


def _public_modules(node: ast.stmt) -> list[str]:
    """The names in a room's `__all__`."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return list(ast.literal_eval(node.value))
    return []


def _room_imports() -> Mapping[str, set[str]]:
    graph: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        if file in FACE:
            continue
        graph[ROOM_OF[file]] |= {ROOM_OF[other] for other in _imports(file)} - {ROOM_OF[file]}
    return graph


def _imports(file: str) -> set[str]:
    """The files that it imports, for type checkers only or not."""
    found = set()
    for node in ast.walk(ast.parse(FILES[file])):
        for module in _modules(node):
            path = module.replace(".", "/")
            for folder in ("connector", "state"):
                path = path.replace(f"pulsar_spark/{folder}/", f"{folder}/", 1)
            if f"{path}.py" in FILES and f"{path}.py" != file:
                found.add(f"{path}.py")
    return found


def _check_acyclic(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise AssertionError(f"a circle of imports: {circle}") from None
