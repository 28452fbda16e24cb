"""`pulsarlite dashboard` as a process: its URL, its end, and what it says when it can't begin."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from pulsar_spark.connector.tools.command_line.command_line import main
from tests.connector.topics import send


@contextmanager
def served(root: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(the process, the URL that it printed)."""
    command = [sys.executable, "-m", "pulsar_spark", "dashboard", "--port", "0", *arguments]
    with subprocess.Popen(
        [*command, "--service-url", str(root)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"Dashboard of {root}: http://127.0.0.1:"), line
            yield process, next(word for word in line.split() if "http" in word)
        finally:
            process.kill()


def test_it_says_its_url_serves_and_ends_well_with_ctrl_c(tmp_path: Path) -> None:
    send(tmp_path, "orders", ["a"])
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with served(tmp_path) as (process, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?key=[\w-]{20,}", url)
        with browser.open(url, timeout=120) as answer:
            assert ">orders</a>" in answer.read().decode()
            assert answer.url == url.partition("?")[0], "the key does not stay in the history"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output, errors) == (0, "", "")


def test_it_listens_at_this_machines_own_address_alone(tmp_path: Path) -> None:
    with served(tmp_path) as (process, url):
        port = int(re.findall(r":(\d+)/", url)[0])
        listening = {
            fields[1]
            for name in ("tcp", "tcp6")
            for fields in map(
                str.split, Path(f"/proc/{process.pid}/net/{name}").read_text().splitlines()
            )
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A"
        }
        assert listening == {f"0100007F:{port:04X}"}


def test_a_port_that_is_taken_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as (_, url):
        port = re.findall(r":(\d+)/", url)[0]
        command = ["dashboard", "--port", port, "--service-url", str(tmp_path)]
        assert main(command) == 1
    assert f"--port {port}: Address already in use. Name another" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["dashboard", "metrics"])
@pytest.mark.parametrize("port", ["-1", "x", "65536"])
def test_a_wrong_port_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, port: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, "--port", port, "--service-url", str(tmp_path)])
    assert "argument --port" in capsys.readouterr().err


def test_without_its_packages_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(
        sys.modules, "pulsar_spark.connector.tools.dashboard.web_app", raising=False
    )
    monkeypatch.setitem(sys.modules, "flask", None)
    assert main(["dashboard", "--service-url", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "The dashboard needs flask" in said
    assert "pip install 'pulsarlite[dashboard]'" in said


def test_matplotlib_is_loaded_by_the_first_picture_and_pyspark_never() -> None:
    code = (
        "import sys;"
        "from pulsar_spark.connector.tools.dashboard import web_app, dashboard_command; "
        "assert not {'matplotlib', 'pyspark'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
