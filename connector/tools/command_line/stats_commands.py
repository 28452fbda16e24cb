"""`pulsarlite topics stats` and its relatives: Pulsar's JSON, or a table by partition.

Invariants: no Spark; nothing is changed. Follows pulsar-admin's `CmdTopics` (stats,
partitioned-stats, stats-internal, partitioned-stats-internal).
"""

from __future__ import annotations

import datetime as dt
import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from pulsar_spark.connector.inspect.statistics.internal_stats import (
    internal_stats,
    partitioned_internal_stats,
)
from pulsar_spark.connector.inspect.statistics.pulsar_stats import (
    Stats,
    partitioned_stats,
    topic_stats,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import TOPIC, Noun, argument, opened, table
from pulsar_spark.model.topic_name import TopicName

_JSON: Final = argument(
    "--json", action="store_true", help="as JSON, which is what it prints anyway"
)
_ALWAYS: Final = tuple(
    argument(*flags, action="store_true", help="as Pulsar has it; it is always so here")
    for flags in (
        ("-gpb", "--get-precise-backlog"),
        ("-sbs", "--get-subscription-backlog-size"),
        ("-etb", "--get-earliest-time-in-backlog"),
    )
)
_EXCLUDED: Final = (
    argument("-ep", "--exclude-publishers", action="store_true", help="leave publishers out"),
    argument("-ec", "--exclude-consumers", action="store_true", help="leave consumers out"),
)


def register_stats(noun: Noun) -> None:
    """Add these commands to the noun `topics`."""
    noun.command(
        "stats",
        "Print what is in a topic and who reads it: fields, names and JSON of Pulsar. Of a "
        "partitioned topic it is the sum; name a partition (TOPIC-partition-0) for its own. As of "
        "the broker's last step; messages that it has not heard of are in each backlog. Pulsar: "
        "stats.",
        TOPIC,
        argument("--table", action="store_true", help="by partition, for people to read"),
        _JSON,
        *_EXCLUDED,
        *_ALWAYS,
    )(_stats)
    noun.command(
        "partitioned-stats",
        "Print the same of a partitioned topic. Pulsar: partitioned-stats.",
        TOPIC,
        argument("--per-partition", action="store_true", help="also of each partition"),
        _JSON,
        *_EXCLUDED,
        *_ALWAYS,
    )(_partitioned)
    noun.command(
        "stats-internal",
        "Print a partition's ledgers and cursors. Pulsar: stats-internal.",
        TOPIC,
        argument(
            "-m", "--metadata", action="store_true",
            help="has no effect: each ledger has its own",
        ),
        _JSON,
    )(_internal)  # fmt: skip
    noun.command(
        "partitioned-stats-internal",
        "Print the ledgers and cursors of all partitions. Pulsar: partitioned-stats-internal.",
        TOPIC,
        _JSON,
    )(_partitioned_internal)


def _stats(root: Root, arguments: Namespace) -> Iterator[str]:
    if arguments.table:
        yield from _table(root, arguments)
    else:
        found = topic_stats(root, TopicName.parse(arguments.name))
        yield _text(_without(found, arguments))


def _partitioned(root: Root, arguments: Namespace) -> Iterator[str]:
    name = TopicName.parse(arguments.name)
    found = partitioned_stats(root, name, per_partition=arguments.per_partition)
    for each in found.get("partitions", {}).values():
        _without(each, arguments)
    yield _text(_without(found, arguments))


def _internal(root: Root, arguments: Namespace) -> Iterator[str]:
    yield _text(internal_stats(root, TopicName.parse(arguments.name)))


def _partitioned_internal(root: Root, arguments: Namespace) -> Iterator[str]:
    yield _text(partitioned_internal_stats(root, TopicName.parse(arguments.name)))


def _without(stats: Stats, arguments: Namespace) -> Stats:
    """Less what was to be left out."""
    if arguments.exclude_publishers:
        stats["publishers"] = []
    if arguments.exclude_consumers:
        for each in stats["subscriptions"].values():
            each["consumers"] = []
    return stats


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=False)


def _table(root: Root, arguments: Namespace) -> Iterator[str]:
    ledger = opened(root, arguments)
    state = ledger.state
    yield f"{ledger.topic} in {root.store.root}"
    rows, files, messages = [], set(), 0
    for partition in range(state.partitions):
        part = state.partition(partition)
        messages += part.messages
        ledgers = list(part.ledgers)
        own = {each.file for each in ledgers}
        files |= own
        rows.append(
            [
                str(partition), f"{len(ledgers):,}", f"{sum(e.entries for e in ledgers):,}",
                f"{part.messages:,}", _bytes(part.size_bytes), f"{len(own):,}",
                f"{ledgers[0].ledger_id}:0" if ledgers else "-",
                f"{ledgers[-1].ledger_id}:{ledgers[-1].entries - 1}" if ledgers else "-",
            ]
        )  # fmt: skip
    heads = ["partition", "ledgers", "entries", "messages", "payload", "files", "first", "last"]
    yield from table(heads, rows)
    paths = (f"{ledger.folder}/{file}" for file in files)
    stored = sum(size or 0 for size in ledger.store.answers(ledger.store.size, paths))
    moment = dt.datetime.fromtimestamp(state.timestamp_ms / 1000, dt.timezone.utc)
    committed = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    settings = f", settings {json.dumps(state.settings, sort_keys=True)}" if state.settings else ""
    yield (
        f"{messages:,} messages in {len(files):,} files of {_bytes(stored)}; newest commit "
        f"{state.number}, of {committed}{settings}"
    )
    if state.tombstones:
        yield f"{len(state.tombstones):,} files were given up: `topics tidy` deletes them in time."


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
