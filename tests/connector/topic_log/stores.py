"""What the store's tests share: a store with hooks, a clock, and messages to publish."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.clock import SystemClock
from pulsar_spark.connector.storage.data_files.content_digest import content_digest
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader, LedgerFileWriter
from pulsar_spark.connector.storage.data_files.sequence_ids import sequence_ranges
from pulsar_spark.connector.storage.object_store import ObjectInfo, ObjectStore, Output
from pulsar_spark.log.ledger_commit import COMMIT_FORMAT
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.positions.ledger_info import BatchSizes
from pulsar_spark.model.records.stored_record import CHECKSUM_FIELD

FOLDER = "persistent/public/default/orders"
TIMES = pa.timestamp("us", tz="UTC")


@dataclass
class Clock(SystemClock):
    """The machine's, but for the time of day: that stands until a test moves it."""

    now_ms: int = 1_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms


def with_clock(store: ObjectStore, clock: Clock) -> ObjectStore:
    store.clock = clock
    return store


@dataclass
class Hook:
    operation: str
    suffix: str
    action: Callable[[], Any]
    after: bool
    times: int


@dataclass
class HookedStore(ObjectStore):
    """Another store, with actions of the test before or after chosen operations.

    An action runs with hooks off, so that it may use this very store, and may raise.
    """

    inner: ObjectStore
    hooks: list[Hook] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        self.root, self.remote = self.inner.root, self.inner.remote

    def before(
        self, operation: str, suffix: str, action: Callable[[], Any], times: int = 1
    ) -> None:
        self.hooks.append(Hook(operation, suffix, action, after=False, times=times))

    def after(self, operation: str, suffix: str, action: Callable[[], Any], times: int = 1) -> None:
        self.hooks.append(Hook(operation, suffix, action, after=True, times=times))

    def _run(self, operation: str, path: str, *rest: Any) -> Any:
        self.calls.append((operation, path))
        self._fire(operation, path, after=False)
        result = getattr(self.inner, operation)(path, *rest)
        self._fire(operation, path, after=True)
        return result

    def _fire(self, operation: str, path: str, *, after: bool) -> None:
        for hook in list(self.hooks):
            requested = hook.operation == operation and hook.after is after
            if requested and path.endswith(hook.suffix) and hook.times > 0:
                hook.times -= 1
                kept, self.hooks = self.hooks, []
                try:
                    hook.action()
                finally:
                    self.hooks = kept

    def get(self, path: str) -> bytes | None:
        data: bytes | None = self._run("get", path)
        return data

    def get_versioned(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        versioned: tuple[bytes, str] | tuple[None, None] = self._run("get_versioned", path)
        return versioned

    def create(self, path: str, data: bytes) -> bool:
        return self.inner.create(path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return bool(self._run("put_if_absent", path, data))

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return bool(self._run("compare_and_swap", path, token, data))

    def check(self) -> None:
        self.inner.check()

    def touch(self, path: str, data: bytes) -> None:
        self.inner.touch(path, data)

    def size(self, path: str) -> int | None:
        size: int | None = self._run("size", path)
        return size

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        listed: Iterator[ObjectInfo] = self._run("files", folder)
        return listed

    def folders(self, folder: str) -> list[str]:
        return list(self._run("folders", folder))

    def delete(self, path: str) -> None:
        self._run("delete", path)

    def open_input(self, path: str) -> Any:
        return self._run("open_input", path)

    def open_output(self, path: str) -> Output:
        output: Output = self._run("open_output", path)
        return output


def messages(values: Sequence[str], producer: str | None = None, first: int = 0) -> pa.Table:
    """Rows with those values, and sequence ids from `first` on if there is a producer."""
    columns: dict[str, Any] = {
        "value": pa.array([value.encode() for value in values], pa.binary()),
        "publish_time": pa.array([1_000_000] * len(values), pa.int64()).cast(TIMES),
    }
    if producer is not None:
        columns["producer_name"] = pa.array([producer] * len(values))
        columns["sequence_id"] = pa.array(range(first, first + len(values)), pa.int64())
    return pa.table(columns)


def write(ledger: ManagedLedger, parts: dict[int, pa.Table], batch: int = 1000) -> list[NewLedger]:
    """One file with the rows of those partitions; their ledgers, ready to be committed."""
    with LedgerFileWriter(ledger.store, ledger.folder) as writer:
        first_rows = {part: writer.write(rows, part) for part, rows in parts.items()}
        seal = writer.close()
    return [
        NewLedger(
            partition=part,
            file=writer.path,
            first_row=first_rows[part],
            batch_sizes=BatchSizes.of(
                min(batch, rows.num_rows - start) for start in range(0, rows.num_rows, batch)
            ),
            size_bytes=rows["value"].nbytes,
            min_publish_time_ms=1000,
            max_publish_time_ms=1000,
            sequences=sequence_ranges(rows),
            seal=seal,
            digest=content_digest(rows),
        )
        for part, rows in parts.items()
    ]


def rewrite(path: Path, **changes: Any) -> None:
    """A commit with other fields, as if somebody had written it so: its checksum agrees."""
    record = json.loads(path.read_bytes())
    version = record.pop("version")
    record.pop(CHECKSUM_FIELD, None)
    form = replace(COMMIT_FORMAT, version=changes.pop("version", version))
    path.write_bytes(form.encode(record | changes))


def rewrite_text(path: Path, old: str, new: str) -> None:
    """The same for a text that stands somewhere in the commit."""
    path.write_text(path.read_text().replace(old, new))
    rewrite(path)


def publish(ledger: ManagedLedger, *values: str, partition: int = 0, **how: Any) -> Any:
    """Write and commit values to one partition."""
    return ledger.append(write(ledger, {partition: messages(values)}), **how)


def values_of(ledger: ManagedLedger, partition: int = 0) -> list[str]:
    """All values of a partition, in order, hidden ones left out."""
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    found: list[str] = []
    for each in ledger.ledgers(partition):
        hidden = ledger.state.partition(partition).hidden.of([each.ledger_id])
        values = reader.read_table(each, ["value"])["value"].to_pylist()
        for row, value in enumerate(values):
            entry_id, batch_index = each.batch_sizes.locate(row)
            if not hidden.contains((each.ledger_id, entry_id), batch_index):
                found.append(value.decode())
    reader.close()
    return found


def snapshot(ledger: ManagedLedger, *, times: int, clock: Clock, step_ms: int) -> None:
    """Commit, snapshot and let time pass, so that the log is cleaned up behind the pointer."""
    for number in range(times):
        publish(ledger, f"snapshot-{ledger.state.number}-{number}")
        ledger.write_snapshot()
        clock.now_ms += step_ms
