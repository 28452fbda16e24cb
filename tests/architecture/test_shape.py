"""The shape of the code: packaging names every package, links are there, modules stay small."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.rules import patch_violations, path_violations, shape_violations
from tests.architecture.sources import FOLDERS, REPOSITORY, files, modules, texts
from tests.architecture.test_layers import check

ROOT_OF = {
    "pulsar_spark": "pulsar_spark",
    "connector": "pulsar_spark.connector",
    "state": "pulsar_spark.state",
}
HEAVY = (
    "pyspark", "py4j", "numpy", "pandas", "pyarrow", "pyroaring", "mmh3", "google", "obstore",
    "tqdm",
)  # fmt: skip


def test_setup_cfg_names_every_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    named = set(setup["options"]["packages"].split())
    there = set()
    for path in files():
        top, *below = path.relative_to(REPOSITORY).parent.parts or ("",)
        if path.suffix == ".py" and top in ROOT_OF:
            package = ".".join([ROOT_OF[top], *below])
            there.add(package.removeprefix("pulsar_spark.") if below == ["pulsarlite"] else package)
            assert (path.parent / "__init__.py").exists(), f"{path.parent} lacks __init__.py"
    assert named == there
    lines = setup["options"]["package_dir"].split("\n")
    mapped = {tuple(part.strip() for part in line.split("=")) for line in lines if line}
    assert mapped == {
        *((package, folder) for folder, package in ROOT_OF.items()),
        ("pulsarlite", "pulsar_spark/pulsarlite"),
    }


def test_pyproject_toml_holds_no_packaging() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert "\n[project]" not in text
    assert "\n[tool.setuptools" not in text


@pytest.mark.parametrize("folder", ["connector", "state"])
def test_a_link_in_the_package_leads_to_the_folder(folder: str) -> None:
    link = REPOSITORY / "pulsar_spark" / folder
    if link.is_symlink():
        assert link.readlink() == Path("..", folder)
    else:  # a checkout without symbolic links (Windows) has a file with the link's text
        assert link.read_text(encoding="utf-8").strip() == f"../{folder}"


def test_modules_are_small_named_after_their_noun_and_say_what_they_answer() -> None:
    everywhere = (*FOLDERS, "tests", "benchmarks", "pyspark_pulsarlite.py")
    check(v for file, text in modules(*everywhere) for v in shape_violations(file, text))


def test_no_test_moves_the_machine_s_clock() -> None:
    check(v for file, text in modules("tests") for v in patch_violations(file, text))


def test_no_file_names_a_path_of_one_machine() -> None:
    check(v for file, text in texts() for v in path_violations(file, text))


def test_importing_pulsar_spark_loads_nothing_heavy() -> None:
    code = "import sys; import pulsar_spark; print(*sorted(sys.modules))"
    loaded = _python(code).split()
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]
    assert [name for name in loaded if name.startswith("pulsar_spark")] == [
        "pulsar_spark",
        "pulsar_spark.version",
    ]


def test_spark_s_look_up_loads_no_more_than_the_class() -> None:
    code = (
        "import sys; import pyspark.sql.datasource; before = set(sys.modules);"
        "import pyspark_pulsarlite as p; assert p.DefaultSource.name() == 'pulsarlite';"
        "print(*(set(sys.modules) - before))"
    )
    assert _python(code).split() == ["pyspark_pulsarlite"]


def test_every_public_name_is_there_and_known_to_type_checkers() -> None:
    import pulsar_spark

    text = (REPOSITORY / "pulsar_spark" / "__init__.py").read_text(encoding="utf-8")
    block = text.split("if TYPE_CHECKING:\n")[1].split("\n\n")[0]
    for name in pulsar_spark.__all__:
        assert getattr(pulsar_spark, name) is not None
        assert name in dir(pulsar_spark)
        home = pulsar_spark._HOME_OF.get(name)
        assert home is None or f"    from {home} import" in block
    assert set(pulsar_spark._HOME_OF) == set(pulsar_spark.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    import pulsar_spark

    with pytest.raises(AttributeError, match="no attribute 'Consumr'"):
        getattr(pulsar_spark, "Consumr")  # noqa: B009 - mypy minds it otherwise


def _python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return run.stdout
