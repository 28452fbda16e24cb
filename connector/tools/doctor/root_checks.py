"""A root: what its store promises, its broker's sign of life, its topics' logs and files.

Invariants: a store is tried out below `_doctor/`, and what was written there is deleted; topics are
only read. Without `deep` the logs and each file's footer are verified, with it every block.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pulsar_spark.connector.runtime.broker.broker_heartbeat import BrokerHeartbeat
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import MESSAGE_SCHEMA
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.connector.storage.process_identity import is_gone
from pulsar_spark.connector.tools.doctor.finding import (
    Finding,
    State,
    guarded,
    problem,
    warning,
    well,
)
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.model.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

TRIED: Final = "_doctor"
SKEW_MS: Final = 1000
"""Clocks that differ by more are worth a word: leases are short."""
SYNCS: Final = 5
SLOW_SYNC_S: Final = 0.1
"""A durable file that takes longer makes every commit slow."""
LITTLE_ROOM: Final = 1 << 30
SMALL_FILES: Final = 1000
SMALL_BYTES: Final = 1 << 20
VOLATILE: Final = ("tmpfs", "ramfs", "overlay", "overlayfs")
"""File systems that are gone with the machine, or the container."""
SHARED: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuseblk", "fuse.sshfs", "vboxsf")
_CREDENTIALS: Final = (
    "Look at the bucket's name, at the credentials in the environment or --storage, and at the "
    "rights: list, get, put and delete below the prefix."
)
_RIGHTS: Final = "Look at the disk and the rights on it, or choose another folder."


def check_root(root: Root, *, deep: bool = False) -> Iterator[Finding]:
    """All findings about a root; of one that can't be reached only why."""
    store = root.store
    if isinstance(store, LocalStore):
        folder = Path(store.root)
        if not folder.is_dir():
            yield well("root", f"there is no folder {folder}: the first publication makes it")
            return
        yield from guarded("file system", lambda: _file_system(folder), _RIGHTS)
    remedy = _CREDENTIALS if store.remote else _RIGHTS
    reachable = True
    for each in guarded("store", lambda: check_promises(store), remedy):
        reachable &= each.subject != "store"
        yield each
    if reachable:
        yield from guarded("broker", lambda: check_broker(root, State.WARNING), remedy)
        yield from guarded("topics", lambda: _topics(root, deep=deep), remedy)


def check_promises(store: ObjectStore) -> Iterator[Finding]:
    """True if the store does what a log needs of it, in a folder that is deleted afterwards."""
    store.check()
    folder = join(TRIED, uuid.uuid4().hex)
    path = join(folder, "file")
    try:
        yield from _conditional(store, path)
        yield from _clock(store, folder)
        store.delete(path)
        if isinstance(store, LocalStore):
            yield from _syncs(store, folder)
    finally:
        with suppress(Exception):
            for each in list(store.files(folder)):
                store.delete(each.path)
        if isinstance(store, LocalStore):
            shutil.rmtree(Path(store.root, folder), ignore_errors=True)
            with suppress(OSError):
                Path(store.root, TRIED).rmdir()


def _conditional(store: ObjectStore, path: str) -> Iterator[Finding]:
    subject, take = (
        "links and locks",
        "a file system with hard links and locks, as ext4 and XFS",
    )
    if store.remote:
        subject = "conditional puts"
        take = "a service with If-None-Match and If-Match, as S3, Google, Azure, MinIO and R2"
    remedy = (
        f"Topics in {store.root} may lose messages: two writers can publish the same commit, so no "
        f"topic is made there (CONDITIONAL_WRITE). Take {take}."
    )
    wrong = []
    if not store.put_if_absent(path, b"first"):
        wrong.append("a new file was not created")
    if store.create(path, b"second"):
        wrong.append("a file was created over one that is there")
    if store.get(path) != b"first":
        wrong.append("a file is not as it was written")
    token = store.get_versioned(path)[1]
    if not store.compare_and_swap(path, token, b"third"):
        wrong.append("a file that nobody changed was not replaced")
    if store.compare_and_swap(path, token, b"fourth"):
        wrong.append("a file was replaced by a writer who had not seen its content")
    if not wrong and store.get(path) != b"third":
        wrong.append("a replaced file has another content")
    if wrong:
        yield problem(subject, "; ".join(wrong), remedy)
    else:
        yield well(subject, "a name is created once, and replaced only by who saw its content")


def _clock(store: ObjectStore, folder: str) -> Iterator[Finding]:
    before_ms = store.clock.wall_ms()
    store.touch(join(folder, "clock"), b"")
    after_ms = store.clock.wall_ms()
    written = [each for each in store.files(folder) if each.name == "clock"]
    if not written:
        yield problem(
            "clock", "a file that was written is not listed", "Listings have to be whole."
        )
        return
    at_ms = written[0].modified_ms
    skew_ms = max(before_ms - at_ms, at_ms - after_ms, 0)
    if skew_ms > SKEW_MS:
        yield warning(
            "clock",
            f"the store's differs from this machine's by {skew_ms / 1000:.1f} s",
            "Set it by NTP. Leases bear it; publish times, retention by time and delays do not.",
        )
    else:
        yield well("clock", "the store's and this machine's agree")


def _syncs(store: ObjectStore, folder: str) -> Iterator[Finding]:
    begun_s = time.perf_counter()
    for number in range(SYNCS):
        store.create(join(folder, f"sync-{number}"), b"x" * 4096)
    each_s = (time.perf_counter() - begun_s) / SYNCS
    text = f"a durable file of 4 kB takes {each_s * 1000:.1f} ms"
    if each_s > SLOW_SYNC_S:
        remedy = "Each commit waits for two of these: take a faster disk for the topics."
        yield warning("fsync", text, remedy)
    else:
        yield well("fsync", text)


def _file_system(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    kind = file_system_of(folder)
    text = f"{kind or 'of an unknown kind'} at {folder}, {free / 1e9:.1f} GB free"
    if free < LITTLE_ROOM:
        yield warning("file system", text, "Make room: a full disk ends queries.")
    elif kind in VOLATILE:
        remedy = "It is gone with the machine or container: choose a folder on a disk, or a volume."
        yield warning("file system", text, remedy)
    elif kind is not None and kind.split(".")[0] in SHARED:
        yield warning(
            "file system",
            text,
            "Over a network links and locks are as good as its server: one machine at a time may "
            "write, and an object store serves several better.",
        )
    else:
        yield well("file system", text)


def file_system_of(folder: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The kind of the file system that the folder is on; None where the machine does not say."""
    found: tuple[Path, str | None] = (Path("/"), None)
    with suppress(OSError):
        for line in mounts.read_text().splitlines():
            _, where, kind, *_ = line.split(" ")
            at = Path(where.encode().decode("unicode_escape"))
            if folder.resolve().is_relative_to(at) and len(at.parts) >= len(found[0].parts):
                found = (at, kind)
    return found[1]


def check_broker(root: Root, absent: State) -> Iterator[Finding]:
    """The root's broker, by its heartbeat; `absent` is the severity of one that was killed.

    A root that no broker serves is well, unless `absent` is a problem.
    """
    heartbeat = BrokerHeartbeat(root)
    written_ms, shown = heartbeat.written_ms(), heartbeat.shown()
    start = f"pulsarlite standalone --service-url {root.service_url}"
    if written_ms is None:
        if absent is State.PROBLEM:
            yield problem("broker", "none serves this root", f"Start one: {start}")
        else:
            yield well("broker", f"none serves this root; subscriptions need one ({start})")
        return
    who = "one" if shown is None else f"process {shown.process} on {shown.host}"
    ago_ms = root.clock.wall_ms() - written_ms
    if ago_ms < heartbeat.holds_ms(shown) and not (shown is not None and is_gone(shown.identity)):
        yield well("broker", f"{who} serves this root")
    else:
        text = f"{who} served this root, and has shown no life for {max(ago_ms, 0) / 1000:.0f} s"
        yield Finding(absent, "broker", text, f"Start it again: {start}")


@dataclass
class _Sound:
    """The properties of the topics without a problem."""

    topics: int = 0
    messages: int = 0
    files: int = 0
    missing: int = 0
    """The number of topics that are deleted, or just being made."""


def _topics(root: Root, *, deep: bool) -> Iterator[Finding]:
    found = [each for domain in (PERSISTENT, NON_PERSISTENT) for each in root.find(domain=domain)]
    sound = _Sound()
    for topic in found:
        check = partial(_topic, root, topic, sound, deep=deep)
        yield from guarded(str(topic), check, _damaged(topic))
    how = "every block" if deep else "logs and footers; --deep verifies every block"
    system = sum(each.is_system for each in found)
    own = f", with {system} of Pulsarlite's own" if system else ""
    yield well(
        "topics",
        f"{sound.topics} of {len(found) - sound.missing} are sound{own}: "
        f"{sound.messages:,} messages, {sound.files:,} files ({how})",
    )


def _topic(root: Root, topic: TopicName, sound: _Sound, *, deep: bool) -> Iterator[Finding]:
    name = str(topic)
    try:
        ledger = ManagedLedger.open_anew(root.store, topic.storage_path, topic=name)
    except TopicNotFoundError:
        sound.missing += 1
        return
    problems = list(_ledgers(ledger, name, deep=deep))
    yield from problems
    if problems:
        return
    state = ledger.state
    sound.topics += 1
    sound.messages += sum(state.partition(each).messages for each in range(state.partitions))
    sound.files += len(state.files)
    small = sum(size is not None and size < SMALL_BYTES for size in _sizes(ledger))
    if small > SMALL_FILES:
        remedy = f"pulsarlite topics tidy {topic} --service-url {root.service_url}"
        yield warning(name, f"{small:,} of its files are small", remedy)


def _sizes(ledger: ManagedLedger) -> Iterator[int | None]:
    paths = [join(ledger.folder, file) for file in ledger.state.files]
    return ledger.store.answers(ledger.store.size, paths)


def _ledgers(ledger: ManagedLedger, name: str, *, deep: bool) -> Iterator[Finding]:
    """A finding for each file that is not as the log says."""
    columns = MESSAGE_SCHEMA.names
    seen: set[str] = set()
    with ledger.reader() as reader:
        for partition in range(ledger.state.partitions):
            for each in ledger.ledgers(partition):
                if each.file in seen:
                    continue
                if not deep:
                    seen.add(each.file)
                try:
                    for _ in reader.read(each, columns, 0, None if deep else 0):
                        pass
                except Exception as error:  # noqa: BLE001 - what the doctor was asked for
                    seen.add(each.file)
                    yield problem(name, str(error).partition("\n")[0], _damaged(name))


def _damaged(topic: object) -> str:
    return (
        f"Bring the file back from a backup. Until then read {topic} with failOnDataLoss=false, "
        "or past the damage with startMessageId."
    )
