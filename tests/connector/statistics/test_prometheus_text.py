"""Metrics as Prometheus's own parser reads them; Pulsar's are here or said not to be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulsar_spark import pulsar
from pulsar_spark.connector.inspect.statistics.prometheus_text import METRICS, prometheus_text
from pulsar_spark.connector.tools.command_line.command_line import main
from tests.connector.client.clients import all_of, shared
from tests.connector.statistics.test_pulsar_stats import RECORDED, advance, root_of
from tests.connector.topics import send

TOPIC = "persistent://public/default/t"


def parsed(text: str) -> dict[tuple[str, str, str], Any]:
    """(name, topic, subscription) -> the sample, as the official parser reads it."""
    return {
        (each.name, each.labels.get("topic", ""), each.labels.get("subscription", "")): each
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_each_metric_that_pulsar_has_of_a_topic_is_here_or_said_not_to_be() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))["metrics"]
    named = {each.name: each for each in METRICS}
    assert set(recorded) - set(named) == set()
    assert len(named) == len(METRICS)
    assert all(each.meaning for each in METRICS)
    for name, metric in named.items():
        if metric.value is not None:
            labels = {"cluster", "namespace", "topic"}
            labels |= {"subscription"} if metric.topic_partition == "subscription" else set()
            assert set(recorded[name]["labels"]) == labels, name


def test_the_official_parser_reads_what_was_counted(url: str, client: pulsar.Client) -> None:
    consumer = shared(client)
    send(url, "t", ["aa", "bb", "cc"], batchingMaxMessages=1)
    consumer.acknowledge(all_of(consumer)[0])
    advance(client, 1000)
    all_of(consumer, 100)
    advance(client, 4000)
    found = parsed(prometheus_text(root_of(url), "eu"))
    labels = {"cluster": "eu", "namespace": "public/default", "topic": TOPIC}
    counted = found["pulsar_in_messages_total", TOPIC, ""]
    assert (counted.labels, counted.value) == (labels, 3)
    behind = found["pulsar_subscription_back_log", TOPIC, "s"]
    assert (behind.labels, behind.value) == ({**labels, "subscription": "s"}, 2)
    assert found["pulsar_subscription_unacked_messages", TOPIC, "s"].value == 2
    assert found["pulsarlite_subscription_backlog_age_seconds", TOPIC, "s"].value >= 5
    assert found["pulsar_storage_backlog_age_seconds", TOPIC, ""].value >= 5
    assert found["pulsarlite_broker_up", "", ""].value == 1


def test_each_partition_has_its_own_and_a_strange_name_is_escaped(
    url: str, client: pulsar.Client
) -> None:
    strange = 'a "b\\c'
    client.create_producer("t", options={"numPartitions": "2"}).close()
    client.create_producer(f"persistent://public/default/{strange}").close()
    found = parsed(prometheus_text(root_of(url)))
    topics = {topic for name, topic, _ in found if name == "pulsar_storage_size"}
    assert topics == {f"{TOPIC}-partition-{number}" for number in range(2)} | {
        f"persistent://public/default/{strange}"
    }


@pytest.mark.parametrize("others", [["t"], []])
@pytest.mark.parametrize("can_be_read", [True, False])
def test_a_topic_whose_log_is_damaged_hides_no_other(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    others: list[str], can_be_read: bool,
) -> None:  # fmt: skip
    for name in ("bad", *others):
        send(root, name, ["a", "b"])
    damaged = tmp_path / "damaged"  # of which this process has nothing in memory
    shutil.copytree(root, damaged)
    (log,) = (damaged / "persistent/public/default/bad/_log").glob("*1.json")
    log.write_bytes(b"")
    if not can_be_read:  # as on a failing disk, or without rights
        log.unlink()
        log.mkdir()
    counted = {topic for name, topic, _ in parsed(prometheus_text(root_of(str(damaged)))) if topic}
    named = [f"persistent://public/default/{each}" for each in others]
    assert counted == {*named}
    for command in (["topics", "list"], ["namespaces", "topics", "public/default"]):
        assert main([*command, "--service-url", str(damaged)]) == 0
        printed = capsys.readouterr().out
        assert all(each in printed for each in ("persistent://public/default/bad", *named))
    assert main(["topics", "verify", "--service-url", str(damaged)]) == 1
    printed = capsys.readouterr().out
    assert all(f"ok      {each}:" in printed for each in named)
    assert main(["namespaces", "list", "public", "--service-url", str(damaged)]) == 0
    assert capsys.readouterr().out == "public/default\n"


def test_a_namespace_whose_policies_are_damaged_hides_no_other(root: Path, tmp_path: Path) -> None:
    for name in ("t", "acme/bad/t"):
        send(root, name, ["a"])
    shutil.copytree(root, damaged := tmp_path / "damaged")
    (damaged / "persistent/acme/bad/~policies.json").write_bytes(b"torn")
    counted = {topic for name, topic, _ in parsed(prometheus_text(root_of(str(damaged)))) if topic}
    assert counted == {"persistent://public/default/t"}


def test_a_root_without_topics_tells_of_its_broker_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "--service-url", str(tmp_path)]) == 0
    found = parsed(capsys.readouterr().out)
    assert {name: each.value for (name, *_), each in found.items()} == {"pulsarlite_broker_up": 0}


@contextmanager
def served(service_url: Path) -> Iterator[str]:
    """The URL of `pulsarlite metrics --port 0`."""
    command = [sys.executable, "-m", "pulsar_spark", "metrics", "--port", "0"]
    with subprocess.Popen(
        [*command, "--service-url", str(service_url)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield next(word for word in process.stdout.readline().split() if "http" in word)
        finally:
            process.terminate()


def test_prometheus_scrapes_a_port_of_this_machine(tmp_path: Path) -> None:
    send(tmp_path, "t", ["a"])
    with served(tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = parsed(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + "x", timeout=30)
    assert found["pulsar_in_messages_total", TOPIC, ""].value == 1


def test_a_port_that_is_taken_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as url:
        port = url.rpartition(":")[2].partition("/")[0]
        assert main(["metrics", "--port", port, "--service-url", str(tmp_path)]) == 1
    assert f"--port {port}: Address already in use" in capsys.readouterr().err
