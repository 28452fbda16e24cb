"""What is made from the code is current; what is written by hand leads somewhere."""

from __future__ import annotations

import ast
import pkgutil
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import pulsar_spark
from docs.generate import FOLDER, PAGES, SEVEN, all_errors, option_tables
from pulsar_spark.connector.tools.command_line.command_line import parser_of
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.options.options import OPTIONS
from tests.architecture.sources import REPOSITORY, texts

PROSE = [file for file, _ in texts() if file.endswith(".md")]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_made_from_the_code_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_options_begin_with_the_seven_of_most_uses_and_each_stands_once_below() -> None:
    seven, groups = option_tables()
    assert re.findall(r"^\| `(\w+)`", seven, re.MULTILINE) == list(SEVEN)
    assert re.findall(r"^\| `(\w+)`", groups, re.MULTILINE) == [each.name for each in OPTIONS]


def test_every_error_stands_in_errors_py() -> None:
    for package in ("pulsar_spark.", "pulsar_spark.connector."):
        path = pulsar_spark.__path__ if package == "pulsar_spark." else _connector_path()
        for module in pkgutil.iter_modules(path, package):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    found, waiting = set(), [PulsarliteError]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        found |= {each for each in below if each.__module__.startswith("pulsar_spark")}
    assert found == set(all_errors())


def test_the_condition_of_an_error_is_its_name() -> None:
    conditions = {each.__name__: each.condition for each in all_errors()}
    assert len(set(conditions.values())) == len(conditions)
    assert conditions["InvalidTxnStatusError"] == "INVALID_TXN_STATUS"
    assert conditions["DataLossError"] == "DATA_LOSS"


@pytest.mark.parametrize("file", PROSE)
def test_every_link_to_a_file_leads_to_one(file: str) -> None:
    path = REPOSITORY / file
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{file} leads to {target}"


@pytest.mark.parametrize("file", PROSE)
def test_every_link_to_a_heading_leads_to_one(file: str) -> None:
    path = REPOSITORY / file
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
    for target, anchor in links:
        page = path.parent / target if target else path
        if "://" not in target and page.suffix == ".md":
            assert anchor in _anchors(page), f"{file} leads to {target}#{anchor}"


@pytest.mark.parametrize("file", ["ARCHITECTURE.md", "docs/glossary.md", "docs/reliability.md"])
def test_every_source_file_that_a_document_names_is_there(file: str) -> None:
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    named = re.findall(r"`((?:pulsar_spark|connector|state|docs|tests|benchmarks)/[\w./-]+)`", text)
    missing = [name for name in named if not (REPOSITORY / name).exists()]
    assert named
    assert not missing


def test_examples_of_python_are_python_and_name_options_that_there_are() -> None:
    known = {option.name for option in OPTIONS} | {"checkpointLocation"}
    named = set()
    for file, block in _blocks("python"):
        for call in ast.walk(ast.parse(block, file)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                if call.func.attr == "option":
                    named.add((file, ast.literal_eval(call.args[0])))
                elif call.func.attr == "options":
                    named.update((file, each.arg) for each in call.keywords)
    assert named
    assert not [(file, name) for file, name in named if name not in known]


def test_examples_of_the_command_line_are_commands_that_there_are() -> None:
    lines = [
        (file, line.strip())
        for file, block in (*_blocks(""), *_blocks("sh"))
        for line in block.splitlines()
        if line.strip().startswith("pulsarlite ") and "TOPIC" not in line
    ]
    assert lines
    for file, line in lines:
        print(file, line)  # argparse prints why it does not take one
        argv = shlex.split(line)[1:]
        parser_of(argv).parse_args(argv)


def _anchors(page: Path) -> set[str]:
    """The names of its headings in links, as GitHub makes them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    titles = re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).strip().lower() for each in titles)
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in plain}


def _blocks(language: str) -> Iterator[tuple[str, str]]:
    """(file, text) of the examples in the pages; without a language, all that have none."""
    for file in PROSE:
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if match[1] == language:
                yield file, match[2]


def _connector_path() -> list[str]:
    return list(import_module("pulsar_spark.connector").__path__)
