"""Who waits for a folder's news is woken by it, and does not look again and again."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker import broker_source
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage import clock, folder_watch
from pulsar_spark.connector.storage.folder_watch import FolderWatch
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state import broker_query
from tests.connector.reading import Run
from tests.connector.topics import send

FULL = "persistent://public/default/"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")


class Asked:
    """Counts how often somebody asks whether a file is there."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self.store, self.path, self.times = store, path, 0

    def __call__(self) -> bool:
        self.times += 1
        return self.store.exists(self.path)


@LINUX
def test_without_news_nothing_is_looked_at_but_at_the_beginning_and_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    asked = Asked(LocalStore(str(tmp_path)), "a/new")
    FolderWatch(asked.store).wait(["a"], 0.2, asked)
    assert asked.times == 2


@LINUX
def test_a_new_name_wakes_all_threads_that_wait(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    asked = Asked(LocalStore(str(tmp_path)), "a/new")
    watch = FolderWatch(asked.store)
    waiting = [
        threading.Thread(target=watch.wait, args=(["a"], 60.0, asked), daemon=True)
        for _ in range(3)
    ]
    for each in waiting:
        each.start()
    asked.store.put_if_absent("a/new", b"")
    for each in waiting:
        each.join(30)
    assert not any(each.is_alive() for each in waiting)


@pytest.mark.parametrize("kind", ["another system", "a folder that is not there", "memory"])
def test_where_the_kernel_does_not_tell_it_looks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "a").mkdir()
    store = MemoryStore("memory://t") if kind == "memory" else LocalStore(str(tmp_path))
    if kind == "another system":
        monkeypatch.setattr(folder_watch, "_inotify", lambda: None)
    asked = Asked(store, "a/new")
    folders = ["a", "b"] if kind == "a folder that is not there" else ["a"]
    waiting = threading.Thread(
        target=FolderWatch(store).wait, args=(folders, 60.0, asked), daemon=True
    )
    waiting.start()
    store.put_if_absent("a/new", b"")
    waiting.join(30)
    assert not waiting.is_alive()


@pytest.mark.parametrize("who", ["broker", "consumer", "reader"])
def test_news_ends_the_pause_of_a_source_that_spark_has_asked(
    who: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "LONGEST_WAIT_S", 600.0)
    monkeypatch.setattr(broker_query, "LONGEST_WAIT_S", 600.0)
    paused = threading.Event()

    def long(_quiet_s: float, *, remote: bool) -> float:
        del remote
        paused.set()
        return 600.0

    for module in (clock, broker_source, stream_reader):
        monkeypatch.setattr(module, "pause_s", long)
    send(root, "t", ["a"])
    place = Root(str(root), {})
    broker = EmbeddedBroker(place)  # from now on there is a log in which it speaks
    given: Any = {"subscriptionName": "s"} if who == "consumer" else {}
    run = Run(root, topic="t", **given)
    reader: DataSourceStreamReader = run.reader
    if who == "broker":
        SystemTopic(place, COMMANDS).open()
        reader = broker_query.BrokerStreamReader(place)
    start = reader.initialOffset()
    if who != "broker":  # the first offset says who it is, or where it begins
        start = reader.latestOffset(start, ReadAllAvailable())
    ends: list[object] = []
    looks = threading.Thread(
        target=lambda: ends.append(reader.latestOffset(start, ReadAllAvailable())), daemon=True
    )
    looks.start()
    assert paused.wait(60)
    if who == "broker":
        said = Record.of(TopicPartition(FULL + "t", 0), "s", CreateSubscription("s"))
        SystemTopic(place, COMMANDS).append([said])
    elif who == "consumer":
        broker.until_quiet()
    else:
        send(root, "t", ["b"])
    looks.join(60)
    assert ends
    assert ends != [start]
