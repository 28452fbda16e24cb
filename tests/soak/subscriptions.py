"""Kills a publisher, a broker and seven consumers at random; every subscription gets every flight.

    python -m tests.soak.subscriptions --kills 500 --seed 7 [--folder FOLDER] [--minutes M]

All are processes of their own with a Spark of their own, killed with `kill -9` and begun again
from their checkpoints at once. When nothing is left to deliver before the kills are through,
another round begins, with a topic of its own. At the end of a round the consumers' files are
counted: everything once, keys in order, dead letters complete. Exit status 1 if not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_spark.connector.ledger_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.system.subscription_admin import subscriptions
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.topic_name import TopicName
from tests.soak.__main__ import Role, Soak, kill, last, main
from tests.soak.query import PARTITIONS, Place
from tests.soak.subscribers import CONSUMERS, REJECTED, SUBSCRIPTIONS, seen

LONGEST_DELAY_S = 20.0
"""A kill comes at most so long after a role is past its start."""
EARLY_KILLS = 0.1
LOOK_EVERY_S = 2.0
LONGEST_ROUND_S = 3_600.0
KEY_ORDER = ("exclusive", "failover", "key_shared")


@dataclass
class Subscriptions(Soak):
    """One soak in its folder."""

    program: ClassVar[str] = "tests.soak.subscriptions"
    default_kills: ClassVar[int] = 500
    roles: ClassVar[tuple[str, ...]] = ("publisher", "broker", *CONSUMERS)

    looked_s: float = 0.0

    def run(self, role: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{role}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.soak.subscribers", role]
            command += [str(self.folder), str(self.number)]
            return self.start(command, log)

    def round(self) -> None:
        """Until all was published, and no subscription has a backlog."""
        place = Place(self.folder, self.number)
        place.round.mkdir(parents=True, exist_ok=True)
        Root(str(place.root), {}).open_or_create(TopicName.parse(place.topic), PARTITIONS)
        roles = [Role(name) for name in self.roles]
        deadline_s = time.monotonic() + LONGEST_ROUND_S
        try:
            while not self.is_drained(place):
                for role in roles:
                    self.look_at(role, place)
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"not drained in time: {self.done(place)}")
                time.sleep(0.05)
        finally:
            for role in roles:
                if role.process is not None:
                    kill(role.process)

    def look_at(self, role: Role, place: Place) -> None:
        """As for publisher and reader; of many, one is killed at a time, after a longer while."""
        before = role.kill_at_s
        super().look_at(role, place)
        if role.kill_at_s is not None and before is None:
            role.kill_at_s += self.draw.random() * LONGEST_DELAY_S

    def phase(self, role: str, place: Place) -> str:
        if role != "broker":
            return super().phase(role, place)
        if not place.ready(role).exists():
            return "starting"
        checkpoint = place.root / "_broker" / "checkpoint"
        planned, committed = (last(checkpoint / name) for name in ("offsets", "commits"))
        return "in a batch" if planned > committed else "between batches"

    def is_drained(self, place: Place) -> bool:
        if time.monotonic() - self.looked_s < LOOK_EVERY_S or not place.published.exists():
            return False
        self.looked_s = time.monotonic()
        root = Root(str(place.root), {})
        topic = str(TopicName.parse(place.topic))
        stats = subscriptions(root, topic)
        wanted = len(SUBSCRIPTIONS) * root.open(TopicName.parse(place.topic)).state.partitions
        return len(stats) == wanted and not any(each.backlog for each in stats)

    def done(self, place: Place) -> str:
        published = last(place.checkpoint("publisher") / "commits") + 1
        batches = sum(last(place.checkpoint(name) / "commits") + 1 for name in CONSUMERS)
        return f"published {published:3} batches, consumed {batches:4}"

    def count(self) -> bool:
        """Compare what the consumers' sinks have with what was to come; whether all is well."""
        place = Place(self.folder, self.number)
        wanted = Counter(pq.read_table(place.expected)["value"].cast(pa.binary()).to_pylist())
        well = True
        for name, (kind, consumers) in SUBSCRIPTIONS.items():
            tables = {each: table_of(place, f"{name}-{each}") for each in range(consumers)}
            whole = pa.concat_tables(tables.values())
            found = Counter(whole["value"].to_pylist())
            most = wanted + rejected_of(wanted) if name == "shared" else wanted
            lost, extra = sum((wanted - found).values()), sum((found - most).values())
            disorder = sum(map(out_of_order, tables.values())) if name in KEY_ORDER else 0
            again = sum((found - wanted).values()) - extra
            once = len(whole) - extra - again
            print(
                f"round {self.number}: {kind:10} {once:,} once, {lost} lost, {extra} more "
                f"than once, {again} again after a rejection, {disorder} out of key order",
                flush=True,
            )
            well &= not (lost or extra or disorder)
        return well and self.count_letters(place, wanted)

    def count_letters(self, place: Place, wanted: Counter[bytes]) -> bool:
        """Every flight of the rejected carrier is a dead letter, once, and no other is."""
        rejected = rejected_of(wanted)
        found = Counter(letters(place))
        print(
            f"round {self.number}: dead letters {sum(found.values()):,} of "
            f"{sum(rejected.values()):,}",
            flush=True,
        )
        return found == rejected


def rejected_of(wanted: Counter[bytes]) -> Counter[bytes]:
    """The flights of the rejected carrier. Each comes once more, and is a dead letter then.

    A consumer that dies before its first micro-batch leaves behind what nobody saw: the broker has
    counted that delivery, so the rejected of these come once. Hence values are counted, and not the
    rows by their redelivery count.
    """
    return Counter({value: n for value, n in wanted.items() if REJECTED.encode() in value})


def table_of(place: Place, consumer: str) -> pa.Table:
    """All that one consumer had, in the order of its micro-batches."""
    files = sorted(seen(place, consumer).glob("*.parquet"), key=lambda each: int(each.stem))
    return pa.concat_tables(pq.read_table(file) for file in files)


def out_of_order(table: pa.Table) -> int:
    """How many messages come before an earlier one of their key, in the same partition."""
    last_of: dict[Any, tuple[int, int, int]] = defaultdict(lambda: (-1, -1, -1))
    wrong = 0
    names = ("key", "partition", "ledger_id", "entry_id", "batch_index")
    columns = [table[name].to_pylist() for name in names]
    for key, partition, *place in zip(*columns, strict=True):
        if key is None:  # such have no order
            continue
        here = tuple(place)
        wrong += here < last_of[key, partition]
        last_of[key, partition] = here
    return wrong


def letters(place: Place) -> list[bytes]:
    topic = Root(str(place.root), {}).open(TopicName.parse(f"{place.topic}-shared-DLQ"))
    reader = LedgerFileReader(topic.store, topic.folder, topic.topic)
    try:
        return [
            value
            for ledger in topic.ledgers(0)
            for value in reader.read_table(ledger, ["value"])["value"].to_pylist()
        ]
    finally:
        reader.close()


if __name__ == "__main__":
    sys.exit(main(Subscriptions))
