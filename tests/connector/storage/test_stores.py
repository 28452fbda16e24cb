"""A folder, memory and an object store behave alike, and no path leads out of any."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from pulsar_spark.connector.runtime.system_topics.lease import Lease, LeaseKeeper
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage import service_url
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader, LedgerFileWriter
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectStore, Output, join
from pulsar_spark.connector.storage.service_url import CLIENT, SERVICES, open_store
from pulsar_spark.errors import (
    DAMAGE,
    InvalidOptionError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from tests.connector.s3_server import BUCKET, S3Root
from tests.connector.topics import files_below, send


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
    assert list(store.answers(store.get, ["a/b/c", "a/b/d"])) == [b"first", None]
    assert list(store.answers(store.size, ["a/b/c", "a/b/d"])) == [5, None]
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
    assert store.get_versioned("a/p") == (None, None)
    assert store.compare_and_swap("a/p", None, b"1")
    assert not store.compare_and_swap("a/p", None, b"2")
    seen, token = store.get_versioned("a/p")
    assert seen == b"1"
    assert store.compare_and_swap("a/p", token, b"2")
    assert not store.compare_and_swap("a/p", token, b"3")
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
    output = store.open_output("a/data")
    output.sink.write(data)
    assert store.size("a/data") is None, "nothing is seen before it is closed"
    assert output.close() == size
    assert store.size("a/data") == size
    file = store.open_input("a/data")
    assert file.size() == size
    file.seek(size // 2)
    assert file.read(100) == data[size // 2 :][:100]
    if size and isinstance(file, pa.NativeFile):
        assert file.read_at(5, 2) == data[2:7]
    file.close()


def test_a_large_file_goes_to_the_object_store_while_it_is_written(s3_root: S3Root) -> None:
    store = open_store(s3_root.root, s3_root.options)
    rows = pa.table({"value": pa.array([os.urandom(1 << 20) for _ in range(24)], pa.binary())})
    with LedgerFileWriter(store, "topic", compression="NONE") as given_up:
        given_up.write(rows)
        given_up.end_row_group()
        assert uploads(s3_root) == 1, "all of it is in memory"
        assert list(store.files("topic/data")) == []
    assert uploads(s3_root) == 0
    with LedgerFileWriter(store, "topic", compression="NONE") as writer:
        writer.write(rows)
        seal = writer.close()
    assert [item.size_bytes for item in store.files("topic/data")] == [seal.size_bytes]
    assert uploads(s3_root) == 0
    ledger = LedgerInfo(0, 0, writer.path, 0, BatchSizes.of([24]), 24 << 20, 1, 1)
    assert LedgerFileReader(store, "topic", "t").read_table(ledger, ["value"]).equals(rows)


def test_a_store_that_did_something_beside_is_sent_to_other_processes() -> None:
    done = threading.Event()
    store = open_store("s3://bucket/sent", {"region": "eu-west-1"})
    store.in_background(done.set)
    assert done.wait(60)
    sent = cloudpickle.dumps(store)  # type: ignore[no-untyped-call]
    assert pickle.loads(sent).root == store.root


def test_an_upload_that_fails_is_told(s3_root: S3Root) -> None:
    store = open_store("s3://no-such-bucket/root", s3_root.options)
    for size in (1, 40 << 20):
        output = store.open_output("a/data")
        with pytest.raises(StorageError, match="Could not write a/data"):
            publish_bytes(output, size)
        output.abort()


def publish_bytes(output: Output, size: int) -> None:
    output.sink.write(bytes(size))
    output.close()


def uploads(s3: S3Root) -> int:
    """How many files are being uploaded in parts below the root."""
    with urlopen(f"{s3.options['aws_endpoint']}/{BUCKET}?uploads") as answer:
        return int(answer.read().decode().count(f"<Key>{s3.root.partition(BUCKET + '/')[2]}"))


def test_an_output_that_is_given_up_leaves_nothing(store: ObjectStore) -> None:
    output = store.open_output("a/data")
    output.sink.write(b"x")
    output.abort()
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
        ("s3://bucket/../other", "a part '.' or '..'"),
        ("gs://bucket/a/.", "a part '.' or '..'"),
        ("s3://bucket?versions=1", "has a '[?]' or '#'"),
        ("az://bucket/place#part", "has a '[?]' or '#'"),
        ("gs://bucket/place?", "has a '[?]' or '#'"),
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
        "from pulsar_spark.connector.storage.service_url import open_store\n"
        "open_store('s3://bucket/root')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingPackageError" in done.stderr
    assert "pip install 'pulsarlite[obstore]'" in done.stderr


def test_a_process_forked_after_use_is_told_instead_of_hanging(s3_root: S3Root) -> None:
    code = (
        "import os, signal, sys\n"
        "from pulsar_spark.connector.storage.service_url import open_store\n"
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


def test_the_environment_may_say_all_that_a_store_needs(
    s3_root: S3Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_root.options.items():
        monkeypatch.setenv(f"AWS_{name.removeprefix('aws_')}".upper(), value)
    store = open_store(s3_root.root, {})
    store.create("a", b"by AWS_ENDPOINT, AWS_ALLOW_HTTP and keys")
    assert store.get("a") == open_store(s3_root.root, s3_root.options).get("a")


@pytest.mark.parametrize(
    ("root", "given", "why"),
    [
        ("s3://b/root", {"aws_colour": "blue"}, "aws_colour is none of a store at s3://"),
        ("s3://b/root", {"aws_regoin": "x"}, "Did you mean storage.region"),
        ("gs://b/root", {"aws_region": "x"}, "none of a store at gs://"),
        ("az://b/root", {"acount_name": "x"}, "Did you mean storage.account_name"),
        ("s3://b/root", {"bucket": "other"}, "none of a store"),
        ("s3://b/root", {"aws_allow_http": "perhaps"}, "can't be opened"),
        ("s3://b/root", {"timeout": "soon"}, "can't be opened"),
        ("s3://b/root", {"max_retries": "-1"}, "a whole number, 0 to 1000"),
        ("s3://b/root", {"retry_timeout": "10000000000d"}, "a duration, such as 30s"),
        ("s3://b/root", {"aws_endpoint": "localhost:9000"}, "such as http://127.0.0.1:9000"),
        ("s3://b/root", {"endpoint_url": "nonsense"}, "such as http://127.0.0.1:9000"),
        ("/tmp/folder", {"aws_region": "x"}, "storage.aws_region is for an object store"),
        ("file:///tmp/folder", {"region": "x"}, "leave it out, or give s3://"),
        ("memory://name", {"region": "x"}, "is for an object store"),
    ],
)
def test_an_option_that_the_service_does_not_have_is_told(
    root: str, given: dict[str, str], why: str
) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(InvalidOptionError, match=why):
        open_store(root, given)


@pytest.mark.parametrize(
    ("request_name", "call"),
    [
        ("head", lambda store: store.size("a")),
        ("delete", lambda store: store.delete("a")),
        ("list_with_delimiter", lambda store: store.folders("a")),
        ("get", lambda store: store.get("a")),
        ("put", lambda store: store.create("a", b"")),
        ("open_reader", lambda store: store.open_input("a")),
    ],
)
def test_an_error_of_the_machine_is_told_whatever_was_asked(
    monkeypatch: pytest.MonkeyPatch, request_name: str, call: Callable[[ObjectStore], object]
) -> None:
    def reset(*arguments: object, **named: object) -> NoReturn:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    monkeypatch.setattr(pytest.importorskip("obstore"), request_name, reset)
    with pytest.raises(StorageUnavailableError, match="reset by peer"):
        call(open_store("s3://b/root", {"region": "x"}))


@pytest.mark.parametrize("request_name", ["get", "open_reader"])
def test_credentials_that_are_refused_are_no_damage_of_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    obstore = pytest.importorskip("obstore")

    def refuse(*arguments: object, **named: object) -> NoReturn:
        raise obstore.exceptions.PermissionDeniedError("ExpiredToken")

    monkeypatch.setattr(obstore, request_name, refuse)
    store = open_store("s3://b/root", {"region": "x"})
    with pytest.raises(StorageError, match="ExpiredToken") as reported:
        store.get("a") if request_name == "get" else store.open_input("a")
    assert not isinstance(reported.value, DAMAGE)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_what_a_process_is_short_of_is_no_damage_of_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*arguments: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(StorageError, match=os.strerror(number)) as reported:
        open_store(str(tmp_path)).get("a")
    assert isinstance(reported.value, DAMAGE) == (number == errno.EIO)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "az"])
def test_no_option_that_is_taken_ends_the_client(scheme: str) -> None:
    """By whatever prefix, and whatever it says: a store, or our error."""
    pytest.importorskip("obstore")
    names, prefixes = SERVICES[scheme]
    account = {"account_name": "a"} if scheme == "az" else {}
    for name in (*names, *CLIENT):
        for prefix in ("", *prefixes):
            for value in ("true", "5s", "http://127.0.0.1:1", "", "\0"):
                with suppress(InvalidOptionError):
                    open_store(f"{scheme}://b/root", {**account, prefix + name: value})


def test_the_options_are_those_that_the_client_says_it_has() -> None:
    obstore = pytest.importorskip("obstore")
    stubs = Path(obstore.__file__).parent / "_store"
    left_out = {"bucket", "container_name", "default_headers"}
    not_known = {"aws_endpoint_url_s3", "sts_endpoint"}  # named there, and refused
    for scheme, file, kind in (
        ("s3", "_aws", "S3Config"), ("gs", "_gcs", "GCSConfig"), ("az", "_azure", "AzureConfig"),
        ("", "_client", "ClientConfig"),
    ):  # fmt: skip
        text = (stubs / f"{file}.pyi").read_text().partition(f"class {kind}(")[2]
        reported = set(
            re.findall(r"^    ([a-z_0-9]+): ", text.partition("\nclass ")[0], re.MULTILINE)
        )
        known = set(SERVICES[scheme][0]) if scheme else set(CLIENT)
        assert reported - left_out - not_known <= known, kind
        assert known - reported <= {"endpoint_url", "token"}, kind


def full_disk(*arguments: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("operation", ["write", "fsync", "link", "replace"])
def test_a_full_disk_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    store = open_store(str(tmp_path))
    keeper = LeaseKeeper(store)
    keeper.keep(Lease("s", "c", 1, 60_000))
    send(tmp_path, "t", ["a"])
    before = files_below(tmp_path)
    monkeypatch.setattr(os, operation, full_disk)
    attempts: list[Callable[[], object]] = [
        lambda: keeper.keep(Lease("s", "c", 2, 60_000)),
        lambda: store.put_if_absent("a/once", b"x"),
        lambda: store.compare_and_swap("a/pointer", None, b"x"),
        lambda: send(tmp_path, "t", ["b"]),
    ]
    for attempt in attempts:
        with suppress(StorageError):
            attempt()
    monkeypatch.undo()
    keeper.stop()
    left = [path for path in files_below(tmp_path).keys() - before.keys() if ".tmp-" in path]
    assert left == []
    send(tmp_path, "t", ["c"])


def test_a_folder_whose_maker_died_is_made_durable_by_who_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(tmp_path, "other", ["a"])
    topic = tmp_path / "persistent/public/default/t"
    for folder in (topic, topic / "_log"):
        folder.mkdir()  # as by a process that was killed before it synced what they lie in
    synced: list[str] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    service_url._opened.clear()  # as another process
    send(tmp_path, "t", ["a"])
    first_commit = synced.index(str(topic / "_log"), synced.index(str(topic)))
    assert synced.index(str(topic.parent)) < synced.index(str(topic)) < first_commit
    synced.clear()
    service_url._opened.clear()
    send(tmp_path, "t", ["b"])
    folders = [path for path in synced if Path(path).is_dir()]
    assert folders == [str(topic / "data"), str(topic / "_log")], "nothing is made durable twice"


def test_what_is_confirmed_is_on_the_disk_data_before_log_and_file_before_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(tmp_path, "t", ["a"])
    topic = tmp_path / "persistent/public/default/t"
    synced: list[str] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(f"{path.relative_to(topic)}" if path.is_dir() else f"{path.parent.name}/file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    send(tmp_path, "t", ["b"])
    assert synced == ["data/file", "data", "_log/file", "_log"]


def test_what_a_reader_sees_before_its_folder_is_durable_the_reader_makes_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(tmp_path, "t", ["a"])
    folder = "persistent/public/default/t"
    log = tmp_path / folder / "_log"
    seen: list[int] = []
    synced: list[Path] = []
    real = os.fsync

    def read() -> int:
        ledger = ManagedLedger.open_anew(LocalStore(str(tmp_path)), folder)
        return ledger.state.partition(0).messages

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path)
        if path == log and not seen:  # the writer has linked its commit, and stands here
            synced.clear()
            seen.append(0)
            seen[0] = read()
            seen.append(synced.count(log))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    send(tmp_path, "t", ["b"])
    assert seen == [2, 1], "both messages, and one commit of them was not durable"
    synced.clear()
    assert read() == 2
    assert synced == [], "once the writer is done a reader makes nothing durable"


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
