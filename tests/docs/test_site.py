"""The site is built without a network, with every page, and leads nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make site` does, where a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_needs_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    written = {path.stem for path in (REPOSITORY / "docs").glob("*.md")}
    notebooks = {f"notebooks/{path.stem}" for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert written | notebooks | {"index", "architecture", "api/admin"} <= pages
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\s\">]+)", text)
        loaded += re.findall(r"<link[^>]* href=\"?([^\s\">]+)", text)
        assert not [each for each in loaded if re.match("(https?:)?//", each)], path


@pytest.mark.slow
def test_pictures_of_notebooks_docstrings_and_the_search_are_in_it(site: Path) -> None:
    picture = 'src="data:image/png;base64,'
    assert picture in (site / "notebooks/06-order-by-key.html").read_text(encoding="utf-8")
    admin = (site / "api/admin.html").read_text(encoding="utf-8")
    assert "Publish messages of a dead letter topic where they came from" in admin
    assert "var __index =" in (site / "search/search_index.js").read_text(encoding="utf-8")
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="from-pulsar-client.html"' in home
    assert 'href="notebooks/01-first-steps.html"' in home
