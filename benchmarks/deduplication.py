"""What deduplication costs, and that it is right: a million messages, half of them duplicates.

    python -m benchmarks.deduplication [--messages 1000000] [--batches 10] [--tasks 4]

The messages of one producer are spread over micro-batches and tasks: with new ids that rise from
micro-batch to micro-batch, in any order within one, and duplicates of any earlier message; and in
any order altogether. The last line says what Pulsar's rule, that an id below the highest is a
duplicate, would drop of messages that never were published.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import pulsar_spark
from pulsar_spark.connector.runtime.publishing.message_writer import write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.log.producing.hashing import java_string_hash_many
from pulsar_spark.log.producing.message_router import partitions_of_keys
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Options
from pulsar_spark.state.deduplication_processor import deduplicate

Ids = NDArray[np.int64]
ROWS_AT_ONCE = 10_000
PARTITIONS = 4


def in_rising_micro_batches(messages: int, batches: int, seed: int = 1) -> list[Ids]:
    """Half of them duplicates of what came before, or of their own micro-batch; shuffled."""
    lots = np.random.default_rng(seed)
    new = messages // 2 // batches
    parts = []
    for number in range(batches):
        fresh = np.arange(number * new, (number + 1) * new)
        part = np.concatenate((fresh, lots.integers(0, (number + 1) * new, new)))
        lots.shuffle(part)
        parts.append(part)
    return parts


def in_any_order(messages: int, batches: int, seed: int = 2) -> list[Ids]:
    """Each id twice, shuffled over all."""
    ids = np.repeat(np.arange(messages // 2), 2)
    np.random.default_rng(seed).shuffle(ids)
    return [np.asarray(part) for part in np.array_split(ids, batches)]


def rows(ids: Ids) -> pa.RecordBatch:
    """Messages with these sequence ids, 100 bytes each; a key, so a duplicate goes where it was."""
    texts = [f"{number:0100}" for number in ids.tolist()]
    return pa.record_batch(
        {
            "value": pa.array(texts),
            "key": pa.array([text[-6:] for text in texts]),
            "producer_name": pa.repeat("producer", len(ids)),
            "sequence_id": pa.array(ids),
        }
    )


def at_the_commit(
    folder: Path, parts: Sequence[Ids], tasks: int, **given: str
) -> tuple[float, int]:
    """Seconds, and how many messages a reader then sees."""
    name = "-".join(["t", *given.values()])
    raw = {"serviceUrl": str(folder), "topic": name, "numPartitions": str(PARTITIONS), **given}
    options = Options.parse(raw)
    root = Root.of(options)
    prepared = [[list(batches_of(share)) for share in np.array_split(p, tasks)] for p in parts]
    started = time.perf_counter()
    for number, shares in enumerate(prepared):
        written = [topic for share in shares for topic in write_messages(share, options, root)]
        publish(root, written, ("benchmark", number))
    return time.perf_counter() - started, visible(root, name)


def batches_of(ids: Ids) -> Any:
    """As Spark hands rows to a sink."""
    return (rows(ids[at : at + ROWS_AT_ONCE]) for at in range(0, len(ids), ROWS_AT_ONCE))


def visible(root: Root, topic: str) -> int:
    ledger = root.open(TopicName.parse(topic))
    found = 0
    for partition in range(ledger.state.partitions):
        part = ledger.state.partition(partition)
        found += part.messages - part.hidden.since(0).count(part.ledgers)
    return found


def len_of(parts: Sequence[Ids]) -> int:
    return sum(map(len, parts))


def kept_by_the_highest_id(parts: Sequence[Ids]) -> int:
    """How many messages Pulsar's rule keeps, by partition, where each micro-batch is one set."""
    kept = 0
    highest = [-1] * PARTITIONS
    for part in parts:
        keys = rows(part).column("key")
        chosen = partitions_of_keys(java_string_hash_many(keys), PARTITIONS)
        for partition in range(PARTITIONS):
            ids = np.unique(part[chosen == partition])
            kept += int((ids > highest[partition]).sum())
            highest[partition] = max(highest[partition], *ids[-1:].tolist())
    return kept


def in_the_state_store(
    folder: Path, parts: Sequence[Ids], *, deduplicated: bool
) -> tuple[float, int]:
    """Seconds from the query's start to its end, and how many messages a reader then sees."""
    spark = pulsar_spark.session("benchmark", "local[2]")
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for number, part in enumerate(parts):
        pq.write_table(pa.Table.from_batches([rows(part)]), source / f"{number:04}.parquet")
    schema = "value string, key string, producer_name string, sequence_id long"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    name = f"state-{deduplicated}"
    sent = deduplicate(frame) if deduplicated else frame
    writer = sent.writeStream.format("pulsarlite").option("topic", name)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    started = time.perf_counter()
    query = writer.trigger(availableNow=True).start(str(folder))
    query.awaitTermination()
    seconds = time.perf_counter() - started
    return seconds, visible(Root.of(Options.parse({"serviceUrl": str(folder)})), name)


def main() -> int:
    """Print a table; 1 if a message was lost or seen twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=4)
    arguments = parser.parse_args()
    rising = in_rising_micro_batches(arguments.messages, arguments.batches)
    mixed = in_any_order(arguments.messages, arguments.batches)
    requested, wanted_mixed = len(np.unique(np.concatenate(rising))), arguments.messages // 2
    print(
        "| what | seconds | messages a second | seen | expected |\n| --- | --- | --- | --- | --- |"
    )
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def line(what: str, measured: tuple[float, int], expected: int, sent: int) -> None:
            nonlocal wrong
            seconds, seen = measured
            wrong += seen != expected
            print(f"| {what} | {seconds:.1f} | {sent / seconds:,.0f} | {seen:,} | {expected:,} |")

        sent = len_of(rising)
        off = at_the_commit(folder, rising, arguments.tasks, enableDeduplication="false")
        line("published, duplicates too", off, sent, sent)
        on = at_the_commit(folder, rising, arguments.tasks, enableDeduplication="true")
        line("deduplicated at the commit, ids rise", on, requested, sent)
        mixed_folder = folder / "mixed"
        any_order = at_the_commit(mixed_folder, mixed, arguments.tasks, enableDeduplication="true")
        line("deduplicated at the commit, any order", any_order, wanted_mixed, len_of(mixed))
        plain = in_the_state_store(folder, mixed, deduplicated=False)
        line("through Spark, duplicates too", plain, len_of(mixed), arguments.messages)
        exact = in_the_state_store(folder, mixed, deduplicated=True)
        line(
            "through Spark, deduplicated in the state store",
            exact,
            wanted_mixed,
            arguments.messages,
        )
    lost = wanted_mixed - kept_by_the_highest_id(mixed)
    print(f"\nIn any order Pulsar's rule would drop {lost:,} of {wanted_mixed:,} new messages.")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
