"""`pulsarlite doctor`: each finding says what is so, and what to do where it is not well."""

from __future__ import annotations

import configparser
import json
import os
import random
import re
import shutil
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.broker.broker_heartbeat import HEARTBEAT_FILE, HEARTBEAT_FORMAT
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectInfo
from pulsar_spark.connector.storage.process_identity import this_process
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.connector.tools.doctor import machine
from pulsar_spark.connector.tools.doctor.finding import Finding, State
from pulsar_spark.connector.tools.doctor.machine import OPTIONAL, PROVIDER, REQUIRED, check_machine
from pulsar_spark.connector.tools.doctor.root_checks import (
    check_promises,
    check_root,
    file_system_of,
)
from pulsar_spark.model.topic_name import TopicName
from tests.architecture.sources import REPOSITORY
from tests.connector.s3_server import S3Root, s3_root, s3_server
from tests.connector.topics import files_below

__all__ = ["s3_root", "s3_server"]


def found(findings: Iterable[Finding], subject: str) -> Finding:
    (finding,) = (each for each in findings if each.subject == subject)
    return finding


@pytest.fixture
def topics(root: Path) -> Root:
    """A root with a topic of some messages."""
    for content in ("one", "two"):
        assert main(["produce", "orders", "-m", content, "--service-url", str(root)]) == 0
    return Root(str(root), {})


def data_file(topics: Root, topic: str = "orders") -> Path:
    ledger = topics.open(TopicName.parse(topic))
    return Path(topics.service_url, ledger.folder, min(ledger.state.files))


# -- this machine ------------------------------------------------------------------------------


def python(folder: Path, answer: str) -> Path:
    """A Python that says this of itself."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    file.chmod(0o755)
    return file


def test_the_workers_python_may_be_this_one() -> None:
    finding = found(
        check_machine({"PYSPARK_PYTHON": sys.executable, "PATH": ""}), "workers' Python"
    )
    assert finding.state is State.OK


def test_the_workers_python_has_to_have_the_same_version_and_packages(tmp_path: Path) -> None:
    packages = {"pyspark": "4.2.0", "pyarrow": None, "numpy": "2.0"}
    other = python(tmp_path, json.dumps([[3, 9, 1], packages, "0.0.1"]))
    finding = found(check_machine({"PYSPARK_PYTHON": str(other), "PATH": ""}), "workers' Python")
    assert finding.state is State.PROBLEM
    for part in ("it has no pyarrow", "it is Python 3.9.1", "it has Pulsarlite 0.0.1", str(other)):
        assert part in finding.text
    assert finding.remedy.startswith(f"export PYSPARK_PYTHON={sys.executable}")


def test_a_workers_python_that_cannot_be_run_is_a_problem(tmp_path: Path) -> None:
    environment = {"PYSPARK_PYTHON": str(tmp_path / "nowhere"), "PATH": ""}
    finding = found(check_machine(environment), "workers' Python")
    assert finding.state is State.PROBLEM
    assert "can't be asked" in finding.text


def test_another_python_on_the_path_is_a_warning_as_a_session_takes_this_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "python3").symlink_to(python(tmp_path, json.dumps([[3, 9, 1], {}, None])))
    finding = found(check_machine({"PATH": str(tmp_path)}), "workers' Python")
    assert finding.state is State.WARNING
    assert "it has no Pulsarlite" in finding.text
    assert "pulsar_spark.session() takes this Python" in finding.remedy


def test_a_machine_without_java_is_told_where_to_get_one_and_what_does_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "choose", lambda _: None)
    finding = found(check_machine({"PATH": ""}), "Java")
    assert finding.state is State.PROBLEM
    assert "pip install 'pulsarlite[java]'" in finding.remedy
    assert found(check_machine({"PATH": ""}), "bash").state is State.PROBLEM


def test_packages_have_the_bounds_of_the_installation() -> None:
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    options = setup["options"]["install_requires"], setup["options.extras_require"]
    requested = {
        line.split()[0]: re.findall(r"[\d.]+", line.partition(" ")[2])
        for text in (options[0], *(options[1][each[2]] for each in OPTIONAL.values()))
        for line in text.split("\n")
        if line
    }
    ours: dict[str, Any] = dict(REQUIRED) | {name: each[:2] for name, each in OPTIONAL.items()}
    assert requested == {
        name: [".".join(map(str, each)) for each in bounds if each is not None]
        for name, bounds in ours.items()
    }


def test_a_package_that_is_missing_or_too_old_is_a_problem_only_if_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"pyspark": "3.5.1", "numpy": "2.1.0", "fastavro": "0.9"}
    monkeypatch.setattr(machine, "_version", versions.get)
    findings = list(check_machine({"PATH": ""}))
    assert found(findings, "package pyspark").state is State.PROBLEM
    assert found(findings, "package pyspark").remedy.endswith("install 'pyspark>=4.2,<5'")
    assert found(findings, "package pyarrow").text == "it is not installed"
    assert found(findings, "package numpy").state is State.OK
    assert found(findings, "package obstore").state is State.OK
    assert found(findings, "package fastavro").state is State.WARNING


def test_another_state_store_in_sparks_defaults_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"# c\n{PROVIDER}   org.example.Other\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path), "PATH": ""}
    finding = found(check_machine(environment), "state store")
    assert finding.state is State.WARNING
    assert "org.example.Other" in finding.text
    assert "RocksDBStateStoreProvider" in finding.remedy


# -- a store -----------------------------------------------------------------------------------


class _Overwriting(MemoryStore):
    def create(self, path: str, data: bytes) -> bool:
        if not super().create(path, data):
            self.touch(path, data)
        return True


class _Careless(MemoryStore):
    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        del token
        self.touch(path, data)
        return True


class _Skewed(MemoryStore):
    def files(self, folder: str) -> Any:
        for each in super().files(folder):
            yield ObjectInfo(each.path, each.size_bytes, each.modified_ms - 60_000)


class _Broken(MemoryStore):
    def create(self, path: str, data: bytes) -> bool:
        raise OSError(1, "Operation not permitted")


def test_a_store_that_keeps_its_promises_is_well_and_is_left_as_it_was() -> None:
    store = MemoryStore("memory://x")
    assert {each.state for each in check_promises(store)} == {State.OK}
    assert not [each for folder in store.folders("_doctor") for each in store.files(folder)]


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (_Overwriting("memory://x"), "a file was created over one that is there"),
        (_Careless("memory://x"), "replaced by a writer who had not seen its content"),
    ],
)
def test_a_store_without_conditional_writes_is_a_problem(store: MemoryStore, text: str) -> None:
    finding = found(check_promises(store), "links and locks")
    assert finding.state is State.PROBLEM
    assert text in finding.text
    assert "two writers can publish the same commit" in finding.remedy


def test_a_clock_that_is_wrong_is_a_warning() -> None:
    finding = found(check_promises(_Skewed("memory://x")), "clock")
    assert finding.state is State.WARNING
    assert "differs from this machine's by 60.0 s" in finding.text


def test_what_a_store_raises_is_a_finding_and_ends_the_visit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Root, "store", property(lambda _: _Broken("memory://x")))
    (finding,) = check_root(Root("memory://x", {}))
    assert (finding.state, finding.subject) == (State.PROBLEM, "store")
    assert "Operation not permitted" in finding.text


def test_a_file_system_is_known_by_its_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inner = tmp_path / "in ner"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    mounts.write_text(f"/dev/vda1 / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n")
    assert file_system_of(inner / "deeper", mounts) == "nfs4"
    assert file_system_of(tmp_path, mounts) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "nothing") is None


def test_a_bucket_keeps_its_promises_and_one_that_is_missing_is_named(
    s3_root: S3Root, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = [f"--storage={name}={value}" for name, value in s3_root.options.items()]
    main(["produce", "orders", "-m", "one", "--service-url", s3_root.root, *storage])
    capsys.readouterr()
    main(["doctor", "--json", "--service-url", s3_root.root, *storage])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = {each["subject"]: each["state"] for each in findings}
    assert states["conditional puts"] == states["clock"] == states["topics"] == "ok"
    status = main(["doctor", "--json", "--service-url", "s3://nowhere/x", *storage])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status, last["subject"], last["state"]) == (1, "store", "problem")
    assert "no such bucket" in last["text"]


# -- a root ------------------------------------------------------------------------------------


def test_a_root_that_is_well_is_left_as_it_was(topics: Root) -> None:
    before = files_below(Path(topics.service_url))
    findings = list(check_root(topics, deep=True))
    assert {each.state for each in findings} <= {State.OK, State.WARNING}  # a disk may be full
    assert found(findings, "topics").text.startswith("1 of 1 are sound: 2 messages, 2 files")
    assert files_below(Path(topics.service_url)) == before


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    (finding,) = check_root(Root(str(tmp_path / "x"), {}))
    assert (finding.state, finding.subject) == (State.OK, "root")
    assert not (tmp_path / "x").exists()


def test_a_broker_that_serves_and_one_that_is_gone_are_told_apart(topics: Root) -> None:
    assert "none serves this root" in found(check_root(topics), "broker").text
    broker = EmbeddedBroker(topics)
    finding = found(check_root(topics), "broker")
    assert finding.state is State.OK
    broker.close()
    machine, _, process = this_process().rpartition("/")
    number, started = map(int, process.split())
    other = f"{machine}/{number} {started - 1}"
    gone = {"host": "h", "process": number, "id": "x", "holds_ms": 10_000, "identity": other}
    topics.store.touch(HEARTBEAT_FILE, HEARTBEAT_FORMAT.encode(gone))
    finding = found(check_root(topics), "broker")
    assert finding.state is State.WARNING
    assert "pulsarlite standalone" in finding.remedy


def test_a_probe_is_told_by_the_exit_status_whether_a_broker_serves(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    live = ["doctor", "--live", "--service-url", topics.service_url]
    assert main(live) == 1
    assert "none serves this root" in capsys.readouterr().out
    with EmbeddedBroker(topics):
        assert main(live) == 0
        host, process = socket.gethostname(), os.getpid()
        assert f"ok       broker: process {process} on {host} serves" in capsys.readouterr().out
    late = {"host": "h", "process": 1, "id": "x", "holds_ms": -1}
    topics.store.touch(HEARTBEAT_FILE, HEARTBEAT_FORMAT.encode(late))
    assert main(live) == 1
    assert "has shown no life for" in capsys.readouterr().out


def test_a_probe_needs_a_root_and_says_what_is_wrong_with_its_store(
    s3_root: S3Root, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PULSARLITE_SERVICE_URL", raising=False)
    assert main(["doctor", "--live"]) == 1
    assert "give --service-url" in capsys.readouterr().err
    storage = [f"--storage={name}={value}" for name, value in s3_root.options.items()]
    assert main(["doctor", "--live", "--service-url", "s3://nowhere/x", *storage]) == 1
    assert "no such bucket" in capsys.readouterr().out


def test_a_file_that_is_gone_is_a_problem_of_its_topic(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = data_file(topics)
    missing.unlink()
    finding = found(check_root(topics), "persistent://public/default/orders")
    assert finding.state is State.PROBLEM
    assert missing.name in finding.text
    assert "backup" in finding.remedy
    capsys.readouterr()
    assert main(["doctor", "--service-url", topics.service_url]) == 1
    printed = capsys.readouterr().out
    assert "problem  persistent://public/default/orders: " in printed
    assert "         -> Bring the file back" in printed
    assert "0 of 1 are sound" in printed


def test_a_damaged_byte_is_found_by_reading_everything(topics: Root, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(random.Random(0).randbytes(3 << 20))
    arguments = ["large", "-f", str(tmp_path / "large"), "--service-url", topics.service_url]
    assert main(["produce", *arguments]) == 0
    file = data_file(topics, "large")
    content = bytearray(file.read_bytes())
    content[1 << 20] ^= 1
    file.write_bytes(content)
    large = "persistent://public/default/large"
    assert large not in [each.subject for each in check_root(topics)]
    assert found(check_root(topics, deep=True), large).state is State.PROBLEM


def test_a_damaged_log_is_a_problem_and_the_other_topics_are_looked_at(topics: Root) -> None:
    root = Path(topics.service_url)
    shutil.copytree(root / "persistent/public/default/orders", root / "persistent/public/default/b")
    commit = root / "persistent/public/default/orders/_log" / f"{1:020d}.json"
    commit.write_bytes(commit.read_bytes()[:-20])
    findings = list(check_root(topics))
    assert found(findings, "persistent://public/default/orders").state is State.PROBLEM
    assert found(findings, "topics").text.startswith("1 of 2 are sound")


@pytest.mark.parametrize(
    ("given", "usage", "nearest"),
    [
        (("doctor", "--deeep"), "pulsarlite doctor ", "--deep"),
        (("topics", "verify", "--dep"), "pulsarlite topics verify ", "--deep"),
        (("metrics", "--prot=1"), "pulsarlite metrics ", "--port"),
        (("topics", "peek", "t", "--zzz"), "pulsarlite topics peek ", None),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_an_option_that_is_mistyped_has_its_commands_usage_and_the_nearest_name(
    given: tuple[str, ...], usage: str, nearest: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(given)
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {usage}")
    assert f"unrecognized arguments: {given[-1]}" in said
    assert said.endswith("\n" if nearest is None else f" Did you mean {nearest}?\n")
