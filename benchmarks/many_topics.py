"""What a reader and a consumer of many topics cost, of which ten are busy.

    python -m benchmarks.many_topics [--batches 15] [--topics 10 1000 10000]

Streaming sources as Spark calls them, without Spark: the roots are in memory, so it is their own
work that is measured, and that of no disk. In each round one message goes to each of ten topics; a
*micro-batch* is `latestOffset`, `partitions`, `read` and `commit`, and of the consumer also the
look behind it, which acknowledges. *Idle* is a look that finds nothing, the wait for news left
out. *Broker* is the embedded broker's work for the consumer's micro-batch, and its *idle* a look.
*One message* is from before it is published until the consumer's micro-batch has it, nobody else
being busy. Medians; the sizes take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.publishing.message_writer import write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.activity import BUSY_S, KEPT_S
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteStreamReader, StreamReader
from pulsar_spark.connector.spark.subscription_reader import SubscriptionStreamReader
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.memory_store import MEMORY, MemoryStore
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope

BUSY = 10
NEVER_MS = "999999999"
WARM_UP = 3
SETTLED = 5
"""So many looks until each has its place."""


class Query:
    """A streaming source, driven as Spark drives it."""

    def __init__(self, root: Root, **given: str) -> None:
        named = {"topicsPattern": "t.*", "topicDiscoveryInterval": NEVER_MS, **given}
        options = options_of({"serviceUrl": root.service_url, **named}, Scope.STREAM_READ)
        is_consumer = "subscriptionName" in given
        schema = read_schema(include_properties=False, consumer=is_consumer)
        kind = SubscriptionStreamReader if is_consumer else PulsarliteStreamReader
        self.source: StreamReader = kind(options, root, schema)
        self.offset = json.dumps(self.source.initialOffset())

    def look(self) -> int:
        """One micro-batch, or none; how many messages it had."""
        source, start = self.source, json.loads(self.offset)
        end = json.dumps(source.latestOffset(start, ReadAllAvailable()))
        if end == self.offset:
            return 0
        tasks = source.partitions(json.loads(self.offset), json.loads(end))
        rows: int = sum(each.num_rows for task in tasks for each in source.read(task))
        self.offset = end
        source.commit(json.loads(end))
        return rows


class Setting:
    """A root with so many topics, and who reads them."""

    def __init__(self, topics: int) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        MemoryStore.named(f"many-{topics}", self.clock)
        self.root = Root(f"{MEMORY}many-{topics}", {})
        names = [f"t{number:05d}" for number in range(topics)]
        for name in names:
            self.root.open_or_create(TopicName.parse(name), 1)
        self.busy = names[:: topics // BUSY]
        self.reader = Query(self.root, startingOffsets="earliest")
        self.consumer = Query(self.root, subscriptionName="s", subscriptionType="Shared")
        self.broker = EmbeddedBroker(self.root)
        self.found: dict[str, list[float]] = defaultdict(list)
        self.broker_bytes = 0
        for passed_s in (0, KEPT_S, BUSY_S):  # the topics were made long ago
            self.clock.advance(int(passed_s * 1000))
            self._settle()

    def round(self) -> None:
        """A message to each busy topic, read by both."""
        for name in self.busy:
            self._publish(name)
        assert self._timed("reader", self.reader.look) == BUSY
        assert self._timed("reader idle", self.reader.look) == 0
        self._timed("broker", self.broker.until_quiet)
        self.broker_bytes = len(json.dumps(self.broker.offset.to_json_value()))
        assert self._timed("consumer", self.consumer.look) == BUSY
        assert self._timed("acknowledging", self.consumer.look) == 0
        self._timed("broker again", self.broker.until_quiet)
        self.consumer.look()
        assert self._timed("consumer idle", self.consumer.look) == 0
        self.broker.until_quiet()
        assert self._timed("broker idle", self.broker.until_quiet) == 0
        assert self._timed("message", self._one_message) == 1
        self.consumer.look()
        self.broker.until_quiet()
        self.consumer.look()
        self.reader.look()

    def _one_message(self) -> int:
        self._publish(self.busy[0])
        self.broker.until_quiet()
        return self.consumer.look()

    def _publish(self, name: str) -> None:
        options = options_of({"serviceUrl": self.root.service_url, "topic": name}, Scope.WRITE)
        rows = pa.record_batch({"value": pa.array([b"x" * 100])})
        publish(self.root, write_messages([rows], options, self.root), None)

    def row(self) -> list[float]:
        """Medians in ms, and bytes of the last offsets."""
        ms = {name: 1000 * statistics.median(each[WARM_UP:]) for name, each in self.found.items()}
        return [
            ms["reader"], ms["reader idle"], ms["consumer"] + ms["acknowledging"],
            ms["consumer idle"], ms["broker"] + ms["broker again"], ms["broker idle"],
            ms["message"], len(self.reader.offset), len(self.consumer.offset), self.broker_bytes,
        ]  # fmt: skip

    def _settle(self) -> None:
        for _ in range(SETTLED):
            self.reader.look()
            self.consumer.look()
            self.broker.until_quiet()

    def _timed(self, name: str, act: Any) -> int:
        begun_s = time.perf_counter()
        done: int = act()
        self.found[name].append(time.perf_counter() - begun_s)
        return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 1_000, 10_000])
    given = parser.parse_args()
    stream_reader.LONGEST_WAIT_S = 0.0
    settings = {count: Setting(count) for count in given.topics}
    for _ in range(given.batches + WARM_UP):
        for each in settings.values():
            each.round()
    print(
        "| topics | reader, ms | idle | consumer, ms | idle | broker, ms | idle | one message, ms "
        "| reader's offset, bytes | consumer's | broker's | one message, to the first row's |"
    )
    print("| --- " * 12 + "|")
    (first, *_) = settings.values()
    for count, each in settings.items():
        figures = [f"{figure:,.1f}" for figure in each.row()[:7]]
        figures += [f"{figure:,.0f}" for figure in each.row()[7:]]
        pairs = zip(each.found["message"], first.found["message"], strict=True)
        ratios = [mine / theirs for mine, theirs in [*pairs][WARM_UP:]]
        figures.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {count:,} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
