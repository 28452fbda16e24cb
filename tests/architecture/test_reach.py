"""Product code serves users: none of it is reached by tests alone.

A module is reached if one of the doors imports it, directly or through others; a name, if product
code elsewhere says it, or if a page tells users of it. What is not is to be deleted, or used.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.architecture.sources import FOLDERS, REPOSITORY, modules, texts
from tests.vectors.check import KINDS

DOORS = (
    "pulsar_spark", "pulsar_spark.__main__", "pulsar_spark.aio", "pulsar_spark.pulsar",
    "pulsar_spark.examples", "pulsar_spark.pictures", "pulsar_spark.telemetry",
    "pulsar_spark.testing",
    "pulsar_spark.pulsarlite",
    "pulsar_spark.connector.testing.pytest_plugin",
    "pulsar_spark.connector.spark.process.worker_daemon",
    "pyspark_pulsarlite",
)  # fmt: skip
"""What users and Spark import: the package, the command, the clients, the test kit, the format."""
CHECKS = {"check"}
"""What every structure offers to tests."""
FROM_PULSAR = {
    "schema_info",
    "failover_selector", "sticky_key_selector",
}  # fmt: skip
"""Modules whose names are Pulsar's own calls, each held by recorded vectors."""


def product() -> dict[str, ast.Module]:
    """The trees of the product's modules, by the name by which they are imported."""
    found = {"pyspark_pulsarlite": _tree("pyspark_pulsarlite.py")}
    for path, text in modules(*FOLDERS):
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        parts = parts if parts[0] == "pulsar_spark" else ["pulsar_spark", *parts]
        found[".".join(parts)] = ast.parse(text)
    return found


def _tree(path: str) -> ast.Module:
    return ast.parse(next(text for name, text in texts() if name == path))


def pages() -> str:
    """What users read."""
    return "\n".join(
        text
        for path, text in texts()
        if path == "README.md"
        or (path.startswith(("docs/", "notebooks/")) and "decisions" not in path)
    )


def reached_modules(trees: dict[str, ast.Module], reported: str) -> set[str]:
    """Those that a door, or a module that a page tells of, imports."""
    waiting = [*DOORS, *(name for name in trees if "." in name and f"{name} import" in reported)]
    waiting += [name for name in trees if re.search(rf"{re.escape(name)}\.\w", reported)]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in trees and name not in reached:
            reached.add(name)
            waiting += [name.rpartition(".")[0], *imports(trees[name])]
    return reached


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules that it imports, inside functions too, and those that it names as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def said(tree: ast.AST) -> dict[str, int]:
    """How often each name is said: as a name, an attribute, or in a short text."""
    counts: dict[str, int] = defaultdict(int)
    for node in ast.walk(tree):
        names: list[str | None] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"\w+", node.value) if len(node.value) < 100 else []
        for name in names:
            if name:
                counts[name] += 1
    return counts


def defined(tree: ast.Module) -> Iterator[tuple[str, str, ast.AST]]:
    """(what to call it, name, definition) of public functions, classes and their methods.

    Methods of a class that follows somebody else's interface are left out: others call them.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node.name, node
        if isinstance(node, ast.ClassDef) and not node.bases:
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                    yield f"{node.name}.{each.name}", each.name, each


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return product()


def test_every_module_is_reached_from_a_door(trees: dict[str, ast.Module]) -> None:
    reached = reached_modules(trees, pages())
    alone = {name for name in trees if name not in reached}
    assert alone == set(), "reached by tests alone: use it, or delete it"


def test_every_public_name_is_said_by_the_product_or_told_to_users(
    trees: dict[str, ast.Module],
) -> None:
    everywhere: dict[str, int] = defaultdict(int)
    for tree in trees.values():
        for each, count in said(tree).items():
            everywhere[each] += count
    reported = set(re.findall(r"\w+", pages()))
    unused = []
    for module, tree in trees.items():
        home = module.rpartition(".")[2]
        if module in DOORS or home in FROM_PULSAR:
            continue
        for whole, name, node in defined(tree):
            if name in reported:
                continue
            if name not in CHECKS and everywhere[name] <= said(node).get(name, 0):
                unused.append(f"{module}: {whole}")
    assert sorted(unused) == [], "said by tests alone: use it, tell users of it, or delete it"


def test_the_table_of_vectors_says_what_is_driven_and_whether_users_run_it(
    trees: dict[str, ast.Module],
) -> None:
    table = (REPOSITORY / "tests" / "vectors" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (yes|no)", table, re.MULTILINE)
    assert [kind for kind, _, _ in rows] == sorted(KINDS)
    driven: set[str] = set()
    for tree in _checkers():
        driven |= said(tree).keys()
    for kind, functions, runs in rows:
        for whole in re.findall(r"`([\w.]+)`", functions):
            module, _, name = whole.rpartition(".")
            assert name in driven, f"{kind}: no checker says {name}"
            if module.startswith("tests."):
                assert runs == "no", f"{kind}: {whole} is a model, and no user runs it"
                continue
            homes = [each for each in trees if each.endswith(f".{module}")]
            assert len(homes) == 1, f"{kind}: there is no module {module}"
            (home,) = homes
            assert name in {each for _, each, _ in defined(trees[home])}, f"{kind}: no {whole}"
            assert runs == "yes", f"{kind}: {whole} is listed as the contrary"


def _checkers() -> Iterator[ast.Module]:
    for path, text in modules("tests"):
        if path.startswith("tests/vectors/"):
            yield ast.parse(text)


def test_the_finder_finds_what_only_tests_use() -> None:
    tree = ast.parse("def used():\n    pass\n\ndef unused():\n    unused()\n\nused()\n")
    counts = said(tree)
    assert [name for _, name, node in defined(tree) if counts[name] <= said(node).get(name, 0)] == [
        "unused"
    ]
