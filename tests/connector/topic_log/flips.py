"""Flips bits and cuts ends of a topic's files, and reads it: a named error, or the same rows.

python -m tests.connector.topic_log.flips [--every N] [--cuts N]   every N-th bit (3), byte (1)
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.policies import change_policies, read_policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import commit_together
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.log.transaction_attempt import Transaction
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope
from tests.connector.topics import ledger_of, maps, options_of, send, written

TOPIC: Final = "t"
HANG_S: Final = 20
Read = Callable[[], Any]


@dataclass(frozen=True)
class Damage:
    """One change of one file: a bit flipped, or all from a byte on cut off."""

    file: Path
    place: int
    cuts: bool = False

    def __str__(self) -> str:
        what = f"cut off at byte {self.place}" if self.cuts else f"bit {self.place} flipped"
        return f"{self.file}: {what}"

    def of(self, data: bytes) -> bytes:
        if self.cuts:
            return data[: self.place]
        byte, bit = divmod(self.place, 8)
        return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def make_topic(root: Path, *, snapshot: bool = True) -> None:
    """A small topic with all that lies on a disk: keys, chunks, transactions, a snapshot."""
    properties = maps([{"a": "b"}, None, {"c": None}])
    send(root, TOPIC, ["one", "two", "three"], columns={"key": ["k", None, "l"]})
    send(root, TOPIC, ["four", b"", None], columns={"properties": properties})
    send(
        root, TOPIC, ["x" * 3000], chunkingEnabled=True, batchingEnabled=False, maxMessageSize=1000
    )
    ledger = ledger_of(root, TOPIC)
    compact(ledger)
    transaction = Transaction.of(("flips", 0), "try", 60_000)
    ledger.change_settings(lambda known: {**known, "deduplication": False})
    commit_together(ledger.store, transaction, [_prepared(root)])
    ledger.refresh()
    if snapshot:
        ledger.write_snapshot()
    change_policies(ledger.store, TopicName.parse(TOPIC).namespace, deduplication=True)
    send(root, TOPIC, ["after", "the snapshot"], columns={"key": ["k", "k"]})
    second = Transaction.of(("flips", 1), "try", 60_000)
    commit_together(ledger.store, second, [_prepared(root)])


def _prepared(root: Path) -> Callable[[Transaction], object]:
    (topic,) = written(options_of(root, given={"topic": TOPIC}), ["in a transaction"])

    def prepare(transaction: Transaction) -> object:
        return ledger_of(root, TOPIC).append(topic.ledgers, transaction=transaction)

    return prepare


def read_all(root: Path) -> Any:
    """What a Reader, a compacted one and the policies say, as a process would that begins now."""
    managed_ledger._cache.clear()
    store = Root.of(options_of(root)).store
    policies = read_policies(store, TopicName.parse(TOPIC).namespace)
    return [_messages(root, compacted=compacted) for compacted in (False, True)], policies


def _messages(root: Path, *, compacted: bool) -> list[Any]:
    options = options_of(root, Scope.BATCH_READ, {"topic": TOPIC, "readCompacted": compacted})
    reader = PulsarliteReader(options, Root.of(options), read_schema(include_properties=True))
    batches = (batch for task in reader.partitions() for batch in reader.read(task))
    return [message for batch in batches for message in batch.to_pylist()]


def files_of(root: Path) -> list[Path]:
    """Those that say something; locks are empty."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)


def damages(file: Path, every: int, cuts: int, first: int = 0) -> Iterator[Damage]:
    """Every so many bits flipped, and cut at every so many bytes, from number `first` on."""
    size = file.stat().st_size
    yield from (Damage(file, bit) for bit in range(first % every, size * 8, every))
    yield from (Damage(file, byte, cuts=True) for byte in range(first % cuts, size, cuts))


def outcome(damage: Damage, read: Read, expected: Any) -> str:
    """The condition of the error, or `same`; AssertionError for anything else."""
    whole = damage.file.read_bytes()
    damage.file.write_bytes(damage.of(whole))
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    try:
        found = read()
    except PulsarliteError as error:
        return error.condition
    except Exception as error:
        raise AssertionError(f"{damage}: {error!r} instead of a named error") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        damage.file.write_bytes(whole)
    assert found == expected, f"{damage}: other rows"
    return "same"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--cuts", type=int, default=1)
    given = parser.parse_args()
    failures, total = 0, Counter[str]()
    for snapshot in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            make_topic(root, snapshot=snapshot)
            for file in files_of(root):
                counted, failed = _in_children(root, file, given.every, given.cuts)
                failures, total = failures + failed, total + counted
                print(f"{file.relative_to(root)}: {_counts(counted)}, {failed} FAILED", flush=True)
    print(f"{_counts(total)}, {failures} FAILED")
    sys.exit(bool(failures))


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


def _in_children(root: Path, file: Path, every: int, cuts: int) -> tuple[Counter[str], int]:
    """Outcomes, and failures: a child does the work, so that its death is one of them."""
    counted: Counter[str] = Counter()
    failures, skipped = 0, 0
    whole = file.read_bytes()
    while True:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            with os.fdopen(writing, "w", buffering=1) as reported:
                _report(root, damages(file, every, cuts), skipped, reported)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as reported:
            lines = reported.read().splitlines()
        _, status = os.waitpid(child, 0)
        file.write_bytes(whole)
        failures += sum(line.startswith("!") for line in lines)
        counted.update(line for line in lines if not line.startswith("!"))
        for line in lines:
            if line.startswith("!"):
                print(line, flush=True)
        if not status:
            return counted, failures
        skipped += len(lines) + 1
        failures += 1
        print(f"! died with status {status} at number {skipped} of {file}", flush=True)


def _report(root: Path, all_: Iterator[Damage], skipped: int, reported: Any) -> None:
    expected = read_all(root)
    for number, damage in enumerate(all_):
        if number >= skipped:
            try:
                reported.write(outcome(damage, lambda: read_all(root), expected) + "\n")
            except AssertionError as error:
                reported.write(f"! {error}".replace("\n", " ")[:500] + "\n")


if __name__ == "__main__":
    main()
