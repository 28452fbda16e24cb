"""The rules can fail: each is shown small bad samples, and good ones beside them."""

from __future__ import annotations

import pytest

from tests.architecture.rules import (
    core_violations,
    import_violations,
    patch_violations,
    path_violations,
    shape_violations,
)


@pytest.mark.parametrize(
    "source",
    [
        "import pyspark",
        "from pyspark.sql import SparkSession",
        "def f():\n    import time\n",
        "from time import sleep",
        "import os.path",
        "from os import urandom",
        "import random",
        "from threading import Lock",
        "import io",
        "import socket",
        "from datetime import datetime\nx = datetime.now()",
        "import datetime as d\nx = d.datetime.utcnow()",
        "import datetime\nclock = datetime.datetime.now",
        "import uuid\nx = uuid.uuid4()",
        "from uuid import uuid4",
        "import numpy as np\nx = np.random.default_rng()",
        "import pyarrow.parquet as pq",
        "from pyarrow import parquet",
        "open('x')",
        "print('x')",
        "from importlib import import_module\nimport_module('time')",
        "import importlib\nimportlib.import_module('pyspark.sql')",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import os",
    ],
)
def test_the_core_may_not(source: str) -> None:
    assert list(core_violations("pulsar_spark/x.py", source))


@pytest.mark.parametrize(
    "source",
    [
        "import re, struct, json, hashlib",
        "from datetime import datetime, timezone\nx = datetime.fromtimestamp(0, timezone.utc)",
        "import numpy as np\nx = np.zeros(3)",
        "if TYPE_CHECKING:\n    from pyspark.sql import SparkSession",
        "from urllib.parse import quote",
        "def step(state, commands, now_ms):\n    return state.open(now_ms)",
        "from uuid import UUID",
        "import_module(name)",
        "from pulsar_spark.time_of_day import random_access",
    ],
)
def test_the_core_may(source: str) -> None:
    assert not list(core_violations("pulsar_spark/x.py", source))


def test_a_violation_says_file_line_and_remedy() -> None:
    (found,) = core_violations("pulsar_spark/x.py", '"""Doc."""\n\nimport time\n')
    assert str(found) == (
        "pulsar_spark/x.py:3: imports time: the core reads no clock: take now_ms as an argument"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import state",
        "import state.broker",
        "from state import broker",
        "from state.broker import x",
        "def f():\n    import_module('state.broker')",
    ],
)
def test_a_forbidden_import_is_found(source: str) -> None:
    (found,) = import_violations("x.py", source, {"state": "no"})
    assert found.what.startswith("imports state")


def test_a_forbidden_name_inside_another_is_no_import_of_it() -> None:
    source = "import statement\nfrom pulsar_spark import state\nfrom . import state\n"
    assert not list(import_violations("x.py", source, {"state": "no"}))


def test_a_submodule_taken_from_its_package_is_found() -> None:
    source = "from pulsar_spark import state"
    assert len(list(import_violations("x.py", source, {"pulsar_spark.state": "no"}))) == 1


def test_the_shape_of_a_module_is_held() -> None:
    long_function = '"""Doc."""\ndef f():\n' + "    x = 1\n" * 70
    long_module = '"""Doc."""\n' + "x = 1\n" * 700
    assert [v.what for v in shape_violations("a/b.py", long_function)] == ["f has 71 lines"]
    assert [v.what for v in shape_violations("a/b.py", long_module)] == ["has 701 lines"]
    assert [v.what for v in shape_violations("a/b.py", "x = 1\n")] == ["has no docstring"]
    assert [v.what for v in shape_violations("a/utils.py", '"""Doc."""\n')] == ["is named utils"]
    assert not list(shape_violations("a/b.py", '"""Doc."""\ndef f():\n' + "    x = 1\n" * 69))


@pytest.mark.parametrize("what", ['"time.sleep"', 'time, "sleep"', 'SystemClock, "sleep"'])
def test_a_patch_of_the_machine_s_clock_is_found(what: str) -> None:
    assert [v.line for v in patch_violations("a.py", f"x\nmonkeypatch.setattr({what}, f)")] == [2]
    assert not list(patch_violations("a.py", 'monkeypatch.setattr(timeouts, "x", 1)'))


@pytest.mark.parametrize("above", ["shared/notes.md", ".library/x"])
def test_a_path_beside_the_repository_is_found(above: str) -> None:
    assert [v.line for v in path_violations("a.md", f"one\nsee ../{above}\n")] == [2]


@pytest.mark.parametrize("start", ["home", "root", "work", "Users"])
def test_a_machine_path_is_found(start: str) -> None:
    assert [v.line for v in path_violations("a.md", f"one\nlies in /{start}/ada/x\n")] == [2]


@pytest.mark.parametrize("start", ["home", "work"])
@pytest.mark.parametrize("before", ["docs", "https://x.org"])
def test_other_paths_are_left_alone(before: str, start: str) -> None:
    up = "." * 2
    assert not list(path_violations("a.md", f"see {up}/connector, {before}/{start}/y"))
