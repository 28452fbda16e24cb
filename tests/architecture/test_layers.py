"""The layers: core, connector, state; arrows point to the core only."""

from __future__ import annotations

from collections.abc import Iterable

from tests.architecture.rules import Violation, core_violations, import_violations
from tests.architecture.sources import FOLDERS, modules

SPARK_ROOMS = ("connector/spark/", "state/")
"""The rooms that import pyspark."""
SPARK_PROGRAMS = {
    "connector/tools/command_line/demo_command.py": "the demo is a program of Spark's user",
}
"""File -> the reason why it imports pyspark all the same."""
ABOVE_STATE = ("connector/tools/",)
"""The rooms that import `state`, which itself imports the connector."""

CORE_FACE = {
    "pulsar_spark/__init__.py", "pulsar_spark/__main__.py", "pulsar_spark/aio.py",
    "pulsar_spark/examples.py", "pulsar_spark/pictures.py",
    "pulsar_spark/pulsar/__init__.py", "pulsar_spark/pulsar/_pulsar.py",
    "pulsar_spark/pulsar/asyncio.py",
    "pulsar_spark/pulsar/exceptions.py", "pulsar_spark/pulsar/schema.py",
    "pulsar_spark/pulsarlite/__init__.py",
    "pulsar_spark/telemetry.py", "pulsar_spark/testing.py",
}  # fmt: skip
"""The doors of the package: they name the connector, and do nothing themselves."""

BY_FOLDER = {
    "connector": "a second copy of its classes would be loaded: import pulsar_spark.connector",
    "state": "a second copy of its classes would be loaded: import pulsar_spark.state",
}


def test_the_core_knows_no_spark_reads_no_clock_and_opens_nothing() -> None:
    check(v for file, text in modules("pulsar_spark") for v in core_violations(file, text))


def test_the_core_imports_neither_connector_nor_state() -> None:
    remedy = "arrows point to the core: take what you need as an argument"
    forbidden = {"pulsar_spark.connector": remedy, "pulsar_spark.state": remedy}
    check(
        violation
        for file, text in modules("pulsar_spark")
        if file not in CORE_FACE
        for violation in import_violations(file, text, forbidden)
    )


NEWER = {
    "typing": "LiteralString Never NotRequired Required Self TypeVarTuple Unpack assert_never "
    "assert_type override reveal_type",
    "datetime": "UTC",
    "enum": "StrEnum ReprEnum EnumCheck verify member nonmember",
    "asyncio": "Runner TaskGroup timeout timeout_at",
    "contextlib": "chdir",
    "itertools": "batched",
    "tomllib": "load loads",
}
"""The names of `typing` that Python 3.10 lacks."""


def test_nothing_is_imported_that_the_oldest_python_lacks() -> None:
    forbidden = {
        f"{module}.{name}": "Python 3.10 lacks it: take it from typing_extensions for types alone"
        for module, names in NEWER.items()
        for name in names.split()
    }
    check(
        violation
        for file, text in modules("pulsar_spark", "connector", "state")
        for violation in import_violations(file, text, forbidden)
    )


def test_pyspark_is_imported_by_the_rooms_of_spark_alone() -> None:
    remedy = f"only {', '.join(SPARK_ROOMS)} may: take columns and rows as Arrow has them"
    check(
        violation
        for file, text in modules("connector", "state")
        if not file.startswith(SPARK_ROOMS) and file not in SPARK_PROGRAMS
        for violation in import_violations(file, text, {"pyspark": remedy})
    )


def test_the_connector_does_not_import_the_broker_s_host_in_spark() -> None:
    remedy = "the host imports what it hosts: connector/tools alone may import it"
    check(
        violation
        for file, text in modules("connector")
        if not file.startswith(ABOVE_STATE)
        for violation in import_violations(file, text, {"pulsar_spark.state": remedy})
    )


def test_no_folder_is_imported_by_its_own_name() -> None:
    everywhere = (*FOLDERS, "tests", "benchmarks", "docs", "pyspark_pulsarlite.py")
    check(
        violation
        for file, text in modules(*everywhere)
        for violation in import_violations(file, text, BY_FOLDER)
    )


def test_the_core_has_modules_to_check() -> None:
    assert {file for file, _ in modules("pulsar_spark")} >= CORE_FACE
    assert any(file.startswith("connector/") for file, _ in modules("connector"))


def check(violations: Iterable[Violation]) -> None:
    found = list(violations)
    assert not found, "\n" + "\n".join(map(str, found))
