"""Kills publishers, a broker and consumers at random; every subscription gets every flight.

    python -m tests.soak.subscriptions --kills 500 --seed 7 [--folder FOLDER] [--minutes M]

All are processes of their own, killed with `kill -9`: a publisher, the broker and four consumers
with a Spark each, begun again from their checkpoints; a publisher and six consumers without Spark,
whose place only the topic and the broker know. Half of the killed consumers begin again at once,
the others after their lease has lapsed, when what they held and their keys have gone to others.
When nothing is left to deliver before the kills are through, another round begins, with a topic of
its own. At the end of a round the consumers' files are counted: everything once but for what a
consumer held whose lease lapsed, or that it keeps no checkpoint of; keys in order across the
consumers; dead letters complete. Exit status 1 if not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.model.topic_name import TopicName
from tests.soak.__main__ import Role, Soak, kill, last, main
from tests.soak.clients import PUBLISHER
from tests.soak.query import PARTITIONS, Place
from tests.soak.subscribers import (
    CLIENTS,
    CONSUMERS,
    FIRST_SEEN,
    LEASE_S,
    MAX_REDELIVER_COUNT,
    REJECTED,
    SUBSCRIPTIONS,
    members_of,
    seen,
)

LONGEST_DELAY_S = 20.0
"""A kill comes at most so long after a role is past its start."""
EARLY_KILLS = 0.1
POLL_EVERY_S = 2.0
LONGEST_ROUND_S = 3_600.0
LONG_ABSENCES = 0.5
"""The share of killed consumers that stay away for longer than their lease."""
KEY_ORDER = ("exclusive", "failover", "key_shared", "alone")


@dataclass(frozen=True)
class Absence:
    """A killed consumer: what it may have seen and not acknowledged is in these micro-batches."""

    round: int
    consumer: str
    committed: int
    planned: int


@dataclass
class Subscriptions(Soak):
    """One soak in its folder."""

    program: ClassVar[str] = "tests.soak.subscriptions"
    default_kills: ClassVar[int] = 500
    roles: ClassVar[tuple[str, ...]] = ("publisher", PUBLISHER, "broker", *CONSUMERS)
    client_share: ClassVar[int] = 4
    names: ClassVar[tuple[str, ...]] = (*SUBSCRIPTIONS,)
    lease_s: ClassVar[float] = LEASE_S
    longest_delay_s: ClassVar[float] = LONGEST_DELAY_S
    """A kill comes at most so long after a role is past its start."""

    looked_s: float = 0.0
    absences: list[Absence] = field(default_factory=list)

    def run(self, role: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{role}.log").open("wb") as log:
            has_spark = role not in (PUBLISHER, *CLIENTS)
            module = "tests.soak.subscribers" if has_spark else "tests.soak.clients"
            command = [sys.executable, "-m", module, role]
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
            role.kill_at_s += self.draw.random() * self.longest_delay_s

    def killed(self, role: Role, place: Place) -> None:
        """Every other consumer stays away until others have what it held."""
        role.away_s = 0.0
        if role.name in CONSUMERS:
            if self.draw.random() < LONG_ABSENCES:
                role.away_s = self.lease_s * (1.1 + self.draw.random())
            logs = (place.checkpoint(role.name) / name for name in ("commits", "offsets"))
            self.absences.append(Absence(self.number, role.name, *map(last, logs)))

    def kept(self) -> dict[str, object]:
        return {"absences": [asdict(each) for each in self.absences]}

    def take_up(self, known: dict[str, Any]) -> None:
        self.absences = [Absence(**each) for each in known.get("absences", ())]

    def phase(self, role: str, place: Place) -> str:
        if role != "broker":
            return super().phase(role, place)
        if not place.ready(role).exists():
            return "starting"
        checkpoint = place.root / "_broker" / "checkpoint"
        planned, committed = (last(checkpoint / name) for name in ("offsets", "commits"))
        return "in a batch" if planned > committed else "between batches"

    def is_drained(self, place: Place) -> bool:
        published = all(each.exists() for each in self.ends(place))
        if time.monotonic() - self.looked_s < POLL_EVERY_S or not published:
            return False
        self.looked_s = time.monotonic()
        root = Root(str(place.root), {})
        topic = str(TopicName.parse(place.topic))
        stats = subscriptions(root, topic)
        requested = len(self.names) * root.open(TopicName.parse(place.topic)).state.partitions
        return len(stats) == requested and not any(each.backlog for each in stats)

    def ends(self, place: Place) -> tuple[Path, ...]:
        """The files that say that all was published."""
        return place.published, place.sent

    def wanted_values(self, place: Place) -> pa.ChunkedArray:
        return pq.read_table(place.expected)["value"]

    def done(self, place: Place) -> str:
        names = ("publisher", PUBLISHER)
        published = sum(last(place.checkpoint(name) / "commits") + 1 for name in names)
        batches = sum(last(place.checkpoint(name) / "commits") + 1 for name in CONSUMERS)
        return f"published {published:3} batches, consumed {batches:4}"

    def count(self) -> bool:
        """Compare what the consumers' sinks have with what was to come; whether all is well."""
        place = Place(self.folder, self.number)
        requested = Counter(self.wanted_values(place).cast(pa.binary()).to_pylist())
        well, abandoned = True, Counter[bytes]()
        for name in self.names:
            kind = SUBSCRIPTIONS[name].kind
            members = members_of(name)
            table = tables_of(place, members)
            found = Counter(table["value"].to_pylist())
            held = Counter[bytes]()
            for each in members:
                held += self.abandoned_by(place, each)
            most = requested + held
            if name == "shared":
                abandoned = held
                for _ in range(MAX_REDELIVER_COUNT):
                    most += rejected_of(requested)
            lost, extra = sum((requested - found).values()), sum((found - most).values())
            disorder = out_of_order(table) if name in KEY_ORDER else 0
            again = sum((found - requested).values()) - extra
            once = len(table) - extra - again
            print(
                f"round {self.number}: {kind:10} {once:,} once, {lost} lost, {extra} more often "
                f"than they may be, {again} again after a lapse or a rejection, {disorder} out of "
                "key order",
                flush=True,
            )
            well &= not (lost or extra or disorder)
        return well and self.count_letters(place, requested, abandoned)

    def abandoned_by(self, place: Place, consumer: str) -> Counter[bytes]:
        """What others may have got as well, because its lease lapsed while it had not reported.

        That is its last committed micro-batch, and the one that was under way: it repeats that one
        when it comes back.
        """
        held = Counter[bytes]()
        for each in self.absences:
            if (each.round, each.consumer) == (self.number, consumer):
                for number in range(max(each.committed, 0), each.planned + 1):
                    file = seen(place, consumer) / f"{number}.parquet"
                    if file.exists():
                        held.update(pq.read_table(file)["value"].to_pylist())
        return held

    def count_letters(
        self, place: Place, requested: Counter[bytes], abandoned: Counter[bytes]
    ) -> bool:
        """Every flight of the rejected carrier is a dead letter, once.

        Another is, only if consumer after consumer died with it.
        """
        rejected = rejected_of(requested)
        found = Counter(dead_letters(place))
        others = found - rejected
        print(
            f"round {self.number}: dead letters {sum((found & rejected).values()):,} of "
            f"{sum(rejected.values()):,}, and {sum(others.values())} whose consumers died",
            flush=True,
        )
        may = all(abandoned[value] > MAX_REDELIVER_COUNT for value in others)
        return not rejected - found and may and max(others.values(), default=0) <= 1


def rejected_of(requested: Counter[bytes]) -> Counter[bytes]:
    """The flights of the rejected carrier."""
    return Counter({value: n for value, n in requested.items() if REJECTED.encode() in value})


def tables_of(place: Place, consumers: Iterable[str]) -> pa.Table:
    """All that these consumers had, with the time at which each micro-batch came first."""
    tables = []
    for file in (file for each in consumers for file in seen(place, each).glob("*.parquet")):
        table = pq.read_table(file)
        moment = pa.scalar(int(table.schema.metadata[FIRST_SEEN]), pa.int64())
        table = table.replace_schema_metadata(None)
        tables.append(table.append_column("seen_ns", pa.repeat(moment, len(table))))
    return pa.concat_tables(tables)


def out_of_order(table: pa.Table) -> int:
    """How many messages were seen first after a later one of their key, by whichever consumer."""
    names = ("key", "partition", "ledger_id", "entry_id", "batch_index")
    order = [("seen_ns", "ascending"), *((name, "ascending") for name in names[1:])]
    last_of: dict[Any, tuple[int, int, int]] = defaultdict(lambda: (-1, -1, -1))
    known: set[tuple[int, ...]] = set()
    wrong = 0
    columns = [table.sort_by(order)[name].to_pylist() for name in names]
    for key, partition, *place in zip(*columns, strict=True):
        place[-1] = max(place[-1], 0)  # without a batch Pulsar's index is -1
        message = (partition, *place)
        if key is None or message in known:  # a message without a key has no order
            continue
        known.add(message)
        here = tuple(place)
        wrong += here < last_of[key, partition]
        last_of[key, partition] = max(here, last_of[key, partition])
    return wrong


def dead_letters(place: Place) -> list[bytes]:
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
