"""A clean copy of the repository, what is built from it, and environments outside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from tests.architecture.sources import REPOSITORY, files

KEPT = ("pulsar_spark", "connector", "state")


def checkout_to(folder: Path) -> Path:
    """Copy the repository there as a clone has it, links included."""
    for path in files():
        relative = path.relative_to(REPOSITORY)
        if len(relative.parts) == 1 or relative.parts[0] in KEPT:
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / relative)
    for name in ("connector", "state"):
        (folder / "pulsar_spark" / name).unlink(missing_ok=True)
        (folder / "pulsar_spark" / name).symlink_to(Path("..", name))
    return folder


def build(folder: Path, what: str) -> Path:
    """Build the project in `folder` with the tools of this environment; the file that was made."""
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", what, "--outdir", dist, folder)
    (built,) = dist.iterdir()
    return built


def contents(wheel: Path) -> set[str]:
    """The files of a wheel, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def environment_with(package: Path | str, folder: Path, *flags: str) -> Path:
    """A new virtual environment with the package in it; its Python.

    What the package depends on is borrowed from this environment by a path file (which leaves this
    one's own path files, an editable install among them, aside).
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(paths)) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(
        *pip,
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--ignore-installed",
        *flags,
        package,
    )
    return python


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command to its end; what it printed. AssertionError, with all of it, if it fails."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
