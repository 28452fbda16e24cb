"""Topics to publish to without Spark, and what lies on the disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic, write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Options, Scope


def options_of(
    root: Path | str, scope: Scope = Scope.ANY, given: Mapping[str, object] | None = None
) -> Options:
    """Options as Spark would hand them over, all of them text."""
    texts = {name: _text(value) for name, value in (given or {}).items()}
    return Options.parse({"serviceUrl": str(root), **texts}, scope)


def send(
    root: Path | str,
    topic: str,
    values: Iterable[str | bytes | None] = (),
    *,
    columns: Mapping[str, Sequence[Any] | pa.Array] | None = None,
    application: tuple[str, int] | None = None,
    **given: object,
) -> None:
    """Publish rows as one task of a sink and its commit would."""
    options = options_of(root, Scope.WRITE, {"topic": topic, **given})
    publish(Root.of(options), written(options, values, columns), application)


def written(
    options: Options,
    values: Iterable[str | bytes | None],
    columns: Mapping[str, Sequence[Any] | pa.Array] | None = None,
) -> list[WrittenTopic]:
    """What one task hands to the commit."""
    payloads = [value.encode() if isinstance(value, str) else value for value in values]
    arrays = {"value": pa.array(payloads, pa.binary()), **(columns or {})}
    batch = pa.record_batch(
        {
            name: each if isinstance(each, pa.Array) else pa.array(each)
            for name, each in arrays.items()
        }
    )
    return write_messages([batch], options, Root.of(options))


def maps(values: Sequence[Mapping[str, str | None] | None]) -> pa.Array:
    """A column of properties."""
    pairs = [None if each is None else list(each.items()) for each in values]
    return pa.array(pairs, pa.map_(pa.string(), pa.string()))


def ledger_of(root: Path | str, topic: str) -> ManagedLedger:
    """The topic as another process would see it now."""
    return Root.of(options_of(root)).open(TopicName.parse(topic))


def numbers(first: int, stop: int) -> list[str]:
    """Values that tell their order."""
    return [str(number) for number in range(first, stop)]


def trim(root: Path | str, topic: str, before: int) -> None:
    """Drop the ledgers with ids below `before`, and their files at once."""
    ledger = ledger_of(root, topic)
    keeper = LedgerStore(ledger, grace_ms=0)
    keeper.trim(dict.fromkeys(range(ledger.state.partitions), before))
    keeper.sweep()


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file with its content: what a refused operation has to leave as it was."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
