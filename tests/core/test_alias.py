"""`import pulsarlite` is `import pulsar_spark`."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pulsar_spark
from pulsar_spark import errors


def test_both_names_are_one_package_with_one_class_of_each_name() -> None:
    assert import_module("pulsarlite") is pulsar_spark
    assert import_module("pulsarlite.errors") is errors
    assert errors.__spec__ is not None
    assert errors.__spec__.name == "pulsar_spark.errors"


def test_the_other_name_loads_as_little_and_runs_the_command() -> None:
    code = "import sys, pulsarlite; assert not {'pyspark', 'numpy', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
    command = [sys.executable, "-m", "pulsarlite", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"pulsarlite {pulsar_spark.__version__}\n"
