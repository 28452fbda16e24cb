"""A folder, memory and an object store behave alike, and no path leads out of any."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_spark.connector.local_store import LocalStore
from pulsar_spark.connector.memory_store import MemoryStore
from pulsar_spark.connector.object_store import ObjectStore, join, open_store
from pulsar_spark.errors import InvalidOptionError, ObjectNotFoundError, StorageError
from tests.store.conftest import S3Root


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "local":
        yield open_store(str(tmp_path / "root"))
    elif request.param == "memory":
        yield open_store(f"memory://{tmp_path.name}")
        MemoryStore.forget(tmp_path.name)
    else:
        s3 = request.getfixturevalue("s3_root")
        yield open_store(s3.root, s3.options)


def test_a_file_is_created_once(store: ObjectStore) -> None:
    assert store.get("a/b/c") is None
    assert store.put_if_absent("a/b/c", b"first")
    assert not store.put_if_absent("a/b/c", b"second")
    assert store.get("a/b/c") == b"first"
    assert store.size("a/b/c") == 5
    assert list(store.get_many(["a/b/c", "a/b/d"])) == [b"first", None]
    assert store.sizes(["a/b/c", "a/b/d"]) == {"a/b/c": 5, "a/b/d": None}
    assert store.exists("a/b/c")


def test_of_many_that_create_a_file_one_succeeds(store: ObjectStore) -> None:
    created: list[int] = []

    def create(number: int) -> None:
        if store.put_if_absent("a/one", str(number).encode()):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert store.get("a/one") == str(created[0]).encode()


def test_a_file_is_replaced_only_by_whoever_saw_the_last(store: ObjectStore) -> None:
    assert store.get_versioned("a/p") is None
    assert store.compare_and_swap("a/p", None, b"1")
    assert not store.compare_and_swap("a/p", None, b"2")
    seen = store.get_versioned("a/p")
    assert seen is not None
    assert seen.data == b"1"
    assert store.compare_and_swap("a/p", seen.token, b"2")
    assert not store.compare_and_swap("a/p", seen.token, b"3")
    assert store.get("a/p") == b"2"


def test_files_and_folders_are_listed_each_for_itself(store: ObjectStore) -> None:
    for path in ("a/x", "a/b/y", "a/c%2Fd/z"):
        store.put_if_absent(path, b"12")
    assert [(item.path, item.size_bytes) for item in store.files("a")] == [("a/x", 2)]
    assert all(item.modified_ms > 1_600_000_000_000 for item in store.files("a"))
    assert store.folders("a") == ["b", "c%2Fd"]
    assert [item.path for item in store.files("a/c%2Fd")] == ["a/c%2Fd/z"]
    assert list(store.files("nowhere")) == []
    assert store.folders("nowhere") == []
    assert store.folders("") == ["a"]


def test_deleting_what_is_not_there_is_fine(store: ObjectStore) -> None:
    store.put_if_absent("a/x", b"1")
    store.delete("a/x")
    store.delete("a/x")
    assert store.get("a/x") is None


@pytest.mark.parametrize("size", [0, 10, 12_000_000])
def test_a_large_file_is_streamed_and_read_at_random(store: ObjectStore, size: int) -> None:
    data = os.urandom(size)
    with store.open_output("a/data") as output:
        output.sink.write(data)
        assert store.size("a/data") is None, "nothing is seen before it is closed"
    assert store.size("a/data") == size
    file = store.open_input("a/data")
    assert file.size() == size
    file.seek(size // 2)
    assert file.read(100) == data[size // 2 :][:100]
    if size and isinstance(file, pa.NativeFile):
        assert file.read_at(5, 2) == data[2:7]
    file.close()


def test_an_output_that_is_given_up_leaves_nothing(store: ObjectStore) -> None:
    output = store.open_output("a/data")
    output.sink.write(b"x")
    output.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert store.size("a/data") is None
    assert list(store.files("a")) == []
    with pytest.raises(StorageError):
        output.close()


def test_a_missing_input_says_so(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFoundError, match="a/none is not there"):
        store.open_input("a/none")


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/./b", "a/\0", "a/"]
)
def test_no_path_leads_out_of_the_root(store: ObjectStore, path: str) -> None:
    with pytest.raises(StorageError, match="inside the root"):
        store.get(path)
    with pytest.raises(StorageError, match="inside the root"):
        store.put_if_absent(path, b"")
    with pytest.raises(StorageError, match="inside the root"):
        store.open_output(path)
    with pytest.raises(StorageError, match="inside the root"):
        store.delete(path)


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("", "is empty"),
        ("hdfs://host/path", "scheme 'hdfs'"),
        ("file://host/path", "names the host 'host'"),
        ("file:relative", "three slashes"),
    ],
)
def test_a_root_of_another_kind_is_refused(root: str, why: str) -> None:
    with pytest.raises(InvalidOptionError, match=why):
        open_store(root)


def test_a_folder_may_be_named_in_three_ways(tmp_path: Path) -> None:
    named = tmp_path / "a b"
    for root in (str(named), f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b"):
        opened = open_store(root)
        assert isinstance(opened, LocalStore)
        assert opened.root == str(named)
    assert not named.exists(), "opening has no effect"


def test_stores_are_kept_for_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(str(tmp_path))
    assert open_store(str(tmp_path)) is first
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert open_store(str(tmp_path)) is not first


def test_without_obstore_the_error_tells_the_command() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from pulsar_spark.connector.object_store import open_store\n"
        "open_store('s3://bucket/root')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingPackageError" in done.stderr
    assert "pip install 'pulsarlite[obstore]'" in done.stderr


def test_a_process_forked_after_use_is_told_instead_of_hanging(s3_root: S3Root) -> None:
    code = (
        "import os, signal, sys\n"
        "from pulsar_spark.connector.object_store import open_store\n"
        f"root, options = {s3_root.root!r}, {s3_root.options!r}\n"
        "open_store(root, options)\n"
        "early = os.fork()\n"
        "signal.alarm(20)\n"
        "if early: os.waitpid(early, 0)\n"
        "open_store(root, options).get('a')\n"
        "if not early: os._exit(0)\n"
        "late = os.fork()\n"
        "if late: sys.exit(os.waitstatus_to_exitcode(os.waitpid(late, 0)[1]))\n"
        "open_store(root, options).get('a')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Start it with the method 'spawn'" in done.stderr


def test_an_unknown_option_of_the_service_is_told() -> None:
    pytest.importorskip("obstore")
    with pytest.raises(InvalidOptionError, match="can't be opened"):
        open_store("s3://bucket/root", {"aws_colour": "blue"})


def test_a_folder_without_rights_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(str(tmp_path))
    with pytest.raises(StorageError, match="Could not write file/x"):
        store.put_if_absent("file/x", b"")
    assert store.get("file/x") is None


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too long"):
        open_store(str(tmp_path)).put_if_absent("a/" + "x" * 300, b"")


def test_join_leaves_out_what_is_empty() -> None:
    assert join("", "a", "", "b") == "a/b"
