"""The real Pulsar and Kafka of `benchmarks/peers`: what a machine without them is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import installed, servers


def test_a_machine_without_maven_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"The peers need mvn .* apt install maven"):
        installed.kafka_classpath()


def test_a_server_that_does_not_start_shows_its_log_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho it is broken\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(installed, "pulsar_classpath", lambda: "jars")
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(data))
    with pytest.raises(SystemExit, match="it is broken"), servers.pulsar():
        pass
    assert not list(data.iterdir())
