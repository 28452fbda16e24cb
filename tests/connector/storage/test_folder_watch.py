"""Who waits for a folder's news is woken by it, and does not look again and again."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from pulsar_spark.connector.storage import folder_watch
from pulsar_spark.connector.storage.folder_watch import FolderWatch
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectStore

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
