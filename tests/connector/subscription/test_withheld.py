"""A message that ends the whole query: found in a few restarts, and a dead letter in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from pulsar_spark.broker.protocol.commands import Report
from pulsar_spark.connector.runtime.consuming.withheld_batches import (
    WithheldBatches,
    report_without_suspects,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options, Scope
from pulsar_spark.state.broker_query import standalone
from tests.connector.reading import Run
from tests.connector.topics import files_below, numbers, options_of, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DLQ = "t-s-DLQ"


ABOUT = TopicPartition("persistent://public/default/t", 0)
LEDGERS = {ABOUT: LedgerList([LedgerInfo(0, 0, "f", 0, BatchSizes.of([1] * 40), 1, 1, 1)])}


def offset(entries: int, attempt: int = 0) -> StreamOffset:
    """Behind so many entries."""
    part = PartitionOffset(Cursor(), {attempt: Cursor(Position(0, entries - 1))}, 0, EARLIEST)
    return StreamOffset({ABOUT: part}, "s", "c")


def options(root: Path, **given: object) -> Options:
    return options_of(root, Scope.STREAM_READ, {"topic": "t", "subscriptionName": "s", **given})


def planned_by_a_new_run(
    root: Path, begun: StreamOffset, ended: StreamOffset, **given: object
) -> tuple[WithheldBatches, bool]:
    run = WithheldBatches(options(root, **given), Root(str(root), {}))
    value = ended.to_json_value()
    left_out = run.leaves_out(begun, value, ended, lambda _: LEDGERS)
    assert run.leaves_out(begun, value, ended, lambda _: LEDGERS) == left_out, "counted once a run"
    return run, left_out


def test_a_batch_is_withheld_once_it_was_begun_too_often_and_stays_so(root: Path) -> None:
    begun, ended = offset(0), offset(40)
    given: dict[str, object] = {"maxRedeliverCount": 9, "maxBatchAttempts": 2}
    found = [planned_by_a_new_run(root, begun, ended, **given)[1] for _ in range(4)]
    assert found == [False, True, True, True]
    run, _ = planned_by_a_new_run(root, begun, ended, **given)
    state = run.behind(ended.to_json_value(), ended)
    assert len(state.groups) == 14
    assert {group.failures for group in state.groups} == {2}
    assert len(list(state.not_done(ABOUT).entries())) == 40
    report = Report("s", "c", 1, acknowledged=Cursor(Position(0, 39)))
    left = report_without_suspects(state, ABOUT, report, LEDGERS[ABOUT])
    assert not left.acknowledged.individually_deleted
    assert left.acknowledged.mark_delete_position == EARLIEST


def test_a_group_that_fails_is_cut_and_a_message_by_itself_is_given_up(root: Path) -> None:
    given: dict[str, object] = {"maxRedeliverCount": 2, "maxBatchAttempts": 1}
    begun = ended = offset(1)
    run, left_out = planned_by_a_new_run(root, offset(0), ended, **given)
    assert left_out
    for _ in range(2):
        state = run.behind(ended.to_json_value(), ended)
        assert not state.dead_lettered
        begun, ended = ended, run.named(state.release(), ended)
        run.planned(ended.to_json_value())
        assert not run.leaves_out(begun, ended.to_json_value(), ended, lambda _: LEDGERS)
        assert run.in_batch(ended).released is not None
        run, left_out = planned_by_a_new_run(root, begun, ended, **given)
        assert left_out, "a group fails at once"
    state = run.behind(ended.to_json_value(), ended)
    assert state.dead_lettered == {ABOUT: PositionSet.of([(0, 0)])}
    report = report_without_suspects(state, ABOUT, Report("s", "c"), LEDGERS[ABOUT])
    (rejection,) = report.rejected
    assert (rejection.attempt, rejection.to_dead_letter) == (None, True)
    assert "ended 3 times or more" in dict(rejection.properties)["ERROR"]
    again = run.named(state, offset(2))
    assert run.named(state, offset(3)).suspects == again.suspects
    run.forget(ended.to_json_value())
    names = [Path(path).name for path in files_below(root)]
    assert not [name for name in names if name == "withheld.json" and ended.suspects in name]


def test_nothing_is_counted_without_dead_letters_and_no_empty_batch_is_withheld(
    root: Path,
) -> None:
    for _ in range(5):
        assert not planned_by_a_new_run(root, offset(0), offset(40))[1]
    assert not files_below(root)
    given: dict[str, object] = {"maxRedeliverCount": 2, "maxBatchAttempts": 1}
    for _ in range(3):
        assert not planned_by_a_new_run(root, offset(3), offset(3), **given)[1]


def test_a_damaged_file_of_withheld_messages_is_named(root: Path) -> None:
    run, _ = planned_by_a_new_run(root, offset(0), offset(1), maxRedeliverCount=1,
                                  maxBatchAttempts=1)  # fmt: skip
    state = run.behind(offset(1).to_json_value(), offset(1))
    named = run.named(state, offset(1))
    (root / named.suspects).write_bytes(b"{}")
    with pytest.raises(CorruptFileError, match="is damaged: it says which messages"):
        run.in_batch(named)
    (root / named.suspects).unlink()
    with pytest.raises(CorruptFileError, match="is missing: it says which messages"):
        run.in_batch(named)


@pytest.mark.slow
def test_what_kills_the_worker_is_found_and_all_else_is_delivered_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    send(root, "t", [*numbers(0, 40), "poison", *numbers(41, 60)], batchingMaxMessages=7)
    seen: list[str] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend(row.value for row in batch.collect())

    def run() -> bool:
        frame = spark.readStream.format("pulsarlite").options(
            serviceUrl=str(root), topic="t", subscriptionName="s", subscriptionType="Shared",
            subscriptionInitialPosition="Earliest", maxRedeliverCount=2, maxBatchAttempts=1,
        ).load().mapInArrow(_parse, "value string, redelivery_count int")  # fmt: skip
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120), "the query did not end"
        except StreamingQueryException:
            return False
        return True

    with standalone(spark, str(root)):
        runs = 1
        while not run():
            runs += 1
            assert runs < 12, "the poison was not found"
        assert run(), "nothing is left that kills"
        assert sorted(map(int, seen)) == [number for number in range(60) if number != 40]
        dead = Run(root, topic=DLQ, startingOffsets="earliest", includeProperties=True).all()
    (letter,) = [message for batch in dead for message in batch.messages]
    properties = dict(letter["properties"])
    assert letter["value"] == b"poison"
    assert properties["REAL_SUBSCRIPTION"] == "s"
    assert "in a micro-batch that had this message, the last times by itself" in properties["ERROR"]
    assert runs == 5, "the batch, a part of it, the message by itself, twice; then an end"


def _parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    for batch in batches:
        values = [value.decode() for value in batch.column("value").to_pylist()]
        if "poison" in values:
            os._exit(3)
        yield pa.record_batch(
            {"value": pa.array(values), "redelivery_count": batch.column("redelivery_count")}
        )
