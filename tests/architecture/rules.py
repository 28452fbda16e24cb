"""The rules of the code's shape, as functions from source text to violations.

Each takes text, not files, so that the rules themselves are tested on small bad samples. A
violation says file, line, what is wrong and what to do instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_MODULE = 700
LONGEST_FUNCTION = 70
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"})

_HOST = "it belongs to connector/ or state/; the core is told by its caller"
_CLOCK = "the core reads no clock: take now_ms as an argument"
_LOTS = "the core draws no lots: take the value, or a seed, as an argument"
_IO = "the core opens nothing: take bytes, return bytes, and let the connector do it"
_WAIT = "the core never waits: return the next instant at which something falls due"

FORBIDDEN_MODULES = {
    "pyspark": _HOST,
    "py4j": _HOST,
    "obstore": _HOST,
    "time": _CLOCK,
    "sched": _CLOCK,
    "random": _LOTS,
    "secrets": _LOTS,
    "io": _IO,
    "os": _IO,
    "shutil": _IO,
    "tempfile": _IO,
    "pathlib": _IO,
    "glob": _IO,
    "socket": _IO,
    "ssl": _IO,
    "http": _IO,
    "urllib.request": _IO,
    "subprocess": _IO,
    "asyncio": _WAIT,
    "threading": _WAIT,
    "multiprocessing": _WAIT,
    "concurrent": _WAIT,
    "select": _WAIT,
    "signal": _WAIT,
}
FORBIDDEN_NAMES = {
    "datetime.datetime.now": _CLOCK,
    "datetime.datetime.utcnow": _CLOCK,
    "datetime.datetime.today": _CLOCK,
    "datetime.date.today": _CLOCK,
    "uuid.uuid1": _LOTS,
    "uuid.uuid4": _LOTS,
    "numpy.random": _LOTS,
    "numpy.load": _IO,
    "numpy.save": _IO,
    "numpy.memmap": _IO,
    "numpy.fromfile": _IO,
    "pyarrow.parquet": _IO,
    "pyarrow.fs": _IO,
    "pyarrow.dataset": _IO,
}
FORBIDDEN_CALLS = {"open": _IO, "input": _IO, "print": _IO, "breakpoint": _IO}

MACHINE_PATHS = re.compile(
    r"(?<![\w./])/(?:root|home|Users|work|mnt/c)/[\w.-]+|\.\./(?:shared|\.library)\b"
)

PATCHED_CLOCK = re.compile(r"""setattr\(\s*["']?(time\b|SystemClock\b|SYSTEM_CLOCK\b)""")


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a rule is broken."""

    file: str
    line: int
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.remedy}"


def core_violations(file: str, text: str) -> Iterator[Violation]:
    """What a module of the core may not do: Spark, clock, lots, files, network, waiting."""
    tree = _without_type_checking(ast.parse(text))
    names = _imported_names(tree)
    for node in ast.walk(tree):
        for module in _modules(node):
            remedy = _forbidden_module(module) or FORBIDDEN_NAMES.get(module)
            if remedy:
                yield Violation(file, _line(node), f"imports {module}", remedy)
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node, names)
            if dotted in FORBIDDEN_NAMES:
                yield Violation(file, node.lineno, f"uses {dotted}", FORBIDDEN_NAMES[dotted])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in FORBIDDEN_CALLS and name not in names:
                yield Violation(file, node.lineno, f"calls {name}()", FORBIDDEN_CALLS[name])


def import_violations(file: str, text: str, forbidden: dict[str, str]) -> Iterator[Violation]:
    """Imports of the modules in `forbidden` (name -> remedy) or of anything below them."""
    for node in ast.walk(ast.parse(text)):
        for module in _modules(node):
            for name, remedy in forbidden.items():
                if module == name or module.startswith(name + "."):
                    yield Violation(file, _line(node), f"imports {module}", remedy)
                    break
            else:
                continue
            break


def shape_violations(file: str, text: str) -> Iterator[Violation]:
    """Docstring, length of the module and of its functions, and a file name that says something."""
    stem = file.rsplit("/", 1)[-1].removesuffix(".py")
    if stem in VAGUE_NAMES:
        yield Violation(file, 1, f"is named {stem}", "name it after the noun that it holds")
    lines = text.count("\n")
    if lines > LONGEST_MODULE:
        yield Violation(
            file, lines, f"has {lines} lines", f"split it by noun; at most {LONGEST_MODULE}"
        )
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield Violation(file, 1, "has no docstring", "say in one sentence what it answers")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                what = f"{node.name} has {length} lines"
                yield Violation(file, node.lineno, what, f"split it; at most {LONGEST_FUNCTION}")


def patch_violations(file: str, text: str) -> Iterator[Violation]:
    """The machine's clock, moved for a whole process by a test: other threads would see it too."""
    remedy = "hand in a clock: the fixtures `clock` and `place`"
    return _lines_with(PATCHED_CLOCK, file, text, "patches", remedy)


def path_violations(file: str, text: str) -> Iterator[Violation]:
    """Paths that exist on one machine only."""
    remedy = "use a path relative to the repository, or a temporary folder"
    return _lines_with(MACHINE_PATHS, file, text, "names", remedy)


def _lines_with(
    pattern: re.Pattern[str], file: str, text: str, what: str, remedy: str
) -> Iterator[Violation]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := pattern.search(line):
            yield Violation(file, number, f"{what} {found[0]}", remedy)


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))


def _forbidden_module(module: str) -> str | None:
    parts = module.split(".")
    prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((FORBIDDEN_MODULES[p] for p in prefixes if p in FORBIDDEN_MODULES), None)


def _modules(node: ast.AST) -> list[str]:
    """What an import statement names, from the module itself to each name taken from it.

    `import_module("...")` with a literal counts as an import.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> the dotted name that it stands for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.Attribute, names: dict[str, str]) -> str:
    parts = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name) or value.id not in names:
        return ""
    return ".".join([names[value.id], *reversed(parts)])


class _TypeCheckingBlocks(ast.NodeTransformer):
    """Empties `if TYPE_CHECKING:` blocks, which never run."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        test = node.test
        name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")
        if name == "TYPE_CHECKING":
            node.body = [ast.copy_location(ast.Pass(), node)]
        return node


def _without_type_checking(tree: ast.Module) -> ast.Module:
    _TypeCheckingBlocks().visit(tree)
    return tree
