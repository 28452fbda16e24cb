"""Mutants of reading: sources, views and verification."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import ANY

import pyarrow as pa

from pulsar_spark.connector.inspect.verification import file_check
from pulsar_spark.connector.inspect.views import dispatch_history
from pulsar_spark.connector.runtime.broker import broker_sink
from pulsar_spark.connector.runtime.consuming import consumer_run
from pulsar_spark.connector.runtime.reading import (
    chunk_reading,
    message_reader,
    offset_store,
    partition_view,
    reader_run,
    start_positions,
    subscribed_topics,
)
from pulsar_spark.connector.runtime.system_topics import hosted_topics
from pulsar_spark.connector.spark import typed_values
from pulsar_spark.connector.storage.data_files import content_digest, ledger_file
from pulsar_spark.model.positions import cursor
from pulsar_spark.model.positions.position import EARLIEST
from tests.mutants.mutant import breaks


@breaks(
    "RepeatsTheSame",
    "connector/source/test_stream_reader.py"
    "::test_a_replayed_batch_has_the_same_messages_in_the_same_tasks",
    "connector/source/test_stream_reader.py::test_a_restart_goes_on_at_the_message",
)
def forgets_where_a_batch_began(patch: Any) -> None:
    original = cursor.Cursor.difference

    def difference(self: Any, other: Any, ledgers: Any) -> Any:
        return original(self, cursor.Cursor(), ledgers) if other else original(self, other, ledgers)

    patch.setattr(cursor.Cursor, "difference", difference)


@breaks(
    "LatestIsPinned",
    "connector/source/test_stream_reader.py::test_latest_is_pinned_at_once_by_an_empty_batch",
)
def takes_the_earliest_for_the_latest(patch: Any) -> None:
    patch.setattr(partition_view.PartitionView, "last_position", EARLIEST)


@breaks(
    "OrderOfAPartition",
    "connector/source/test_batch_reader.py"
    "::test_both_ends_may_lie_inside_an_entry_and_are_themselves_read",
)
def reads_backwards(patch: Any) -> None:
    original = message_reader.read_messages

    def read_messages(*arguments: Any) -> Any:
        for batch in reversed(list(original(*arguments))):
            yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))

    patch.setattr(message_reader, "read_messages", read_messages)
    patch.setattr(typed_values, "read_messages", read_messages)


@breaks(
    "AllOrNothing",
    "connector/sink/test_chunked_messages.py::test_a_restart_between_the_chunks_loses_nothing",
)
def takes_each_chunk_for_a_message(patch: Any) -> None:
    patch.setattr(chunk_reading.PartitionChunks, "known", lambda *_: None)


@breaks(
    "WhatDiffersIsFound",
    "connector/verification/test_faults.py::test_a_rewritten_ledger_is_named_with_its_file",
)
def believes_in_every_digest(patch: Any) -> None:
    class Believing(content_digest.ContentDigest):
        @property
        def value(self) -> Any:
            return ANY

    patch.setattr(file_check, "ContentDigest", Believing)


@breaks(
    "WhatIsRightIsNotAccused",
    "connector/verification/test_verify.py"
    "::test_a_file_that_was_merged_away_since_it_was_listed_is_no_difference",
)
def looks_at_no_log_twice(patch: Any) -> None:
    patch.setattr(file_check, "_again", lambda _ledger, stored: stored)


@breaks(
    "WhatWasCanBeSeen",
    "connector/views/test_time_travel.py::test_as_of_a_batch_everything_is_as_it_was_seen_then",
)
def shows_the_newest_state_for_an_older(patch: Any) -> None:
    original = hosted_topics.last_shards
    patch.setattr(dispatch_history, "last_shards", lambda log, _: original(log, log.refresh()))


@breaks(
    "WhatWasCanBeSeen",
    "connector/views/test_views.py"
    "::test_as_of_goes_back_to_the_last_snapshot_but_one_and_as_far_as_retention_says",
)
def looks_back_to_the_last_snapshot_only(patch: Any) -> None:
    original = broker_sink._looked_back_to

    def looked_back_to(dispatch: Any, known: Any) -> Any:
        return original(dispatch, known)._replace(ledger_id=known[-1].ledger_id)

    patch.setattr(broker_sink, "_looked_back_to", looked_back_to)


@breaks(
    "NewIsReadFromItsBeginning",
    "connector/source/test_subscribed_topics.py::test_new_partitions_are_read_from_their_first_message",
    "connector/source/test_subscribed_topics.py"
    "::test_new_topics_that_match_are_read_from_their_first_message",
)
def begins_new_partitions_at_their_end(patch: Any) -> None:
    original = start_positions.StartPosition
    patch.setattr(reader_run, "StartPosition", lambda _: original("latest"))


@breaks(
    "WhatWaitsIsRead",
    "connector/source/test_many_topics.py"
    "::test_messages_that_wait_in_topics_without_news_are_read_all_the_same",
)
def looks_only_where_something_happened(patch: Any) -> None:
    original = reader_run.ReaderRun.plan

    def plan(self: Any, begun: Any) -> Any:
        planned = original(self, begun)
        self.waiting = {*planned.changed_since(begun)} if planned else set()
        return planned

    patch.setattr(reader_run.ReaderRun, "plan", plan)


@breaks(
    "RepeatsTheSame",
    "connector/source/test_many_topics.py"
    "::test_a_restart_goes_on_from_any_offset_and_repeats_any_batch",
)
def takes_an_offset_for_its_file(patch: Any) -> None:
    original = offset_store.OffsetStore._read_spilled
    patch.setattr(
        offset_store.OffsetStore,
        "_read_spilled",
        lambda self, value: original(self, {"spilled": value["spilled"], "version": 1}),
    )


@breaks(
    "NewIsReadFromItsBeginning",
    "connector/source/test_topics_made_on_receiving.py"
    "::test_a_reader_of_what_comes_may_come_first_and_misses_nothing",
    "connector/source/test_topics_made_on_receiving.py"
    "::test_a_consumer_may_come_first_and_misses_nothing",
)
def forgets_what_it_made(patch: Any) -> None:
    original = subscribed_topics.SubscribedTopics.refresh

    def refresh(self: Any) -> bool:
        activity = original(self)
        self.made.clear()
        return activity

    patch.setattr(subscribed_topics.SubscribedTopics, "refresh", refresh)


@breaks(
    "NobodyTakesItAll",
    "connector/subscription/test_subscription_reader.py"
    "::test_a_shared_consumer_that_says_no_number_leaves_work_to_who_comes_later",
)
def takes_all_there_is(patch: Any) -> None:
    patch.setattr(consumer_run, "has_pace", lambda _options: False)


@breaks(
    "LossIsTold",
    "connector/source/test_stream_reader.py::test_messages_trimmed_behind_a_stopped_query_are_a_loss",
)
def is_silent_about_losses(patch: Any) -> None:
    patch.setattr(partition_view.PartitionView, "check_present", lambda _self, start: start)


@breaks(
    "NothingIsKept",
    "connector/topic_log/test_non_persistent.py::test_what_was_published_while_it_was_away_is_not_for_it",
)
def keeps_what_nobody_was_there_for(patch: Any) -> None:
    patch.setattr(reader_run, "is_persistent", lambda _: True)


@breaks(
    "DamageIsNamed",
    "connector/ledger_files/test_ledger_file.py::test_a_flipped_byte_is_found_by_the_checksums",
    "connector/ledger_files/test_ledger_file.py::test_a_truncated_file_is_named_with_its_topic",
)
def names_no_damage(patch: Any) -> None:
    patch.setattr(
        ledger_file.LedgerFileReader, "_damage_named", lambda *_: contextlib.nullcontext()
    )


@breaks(
    "OneMismatchOneMessage",
    "connector/source/test_poison_values.py"
    "::test_poison_is_null_with_its_reason_and_its_neighbours_are_read",
)
def blames_the_neighbours_of_a_mismatch(patch: Any) -> None:
    original = typed_values.TypedValues._values

    def values(*arguments: Any) -> Any:
        column, reasons = original(*arguments)
        if not reasons:
            return column, reasons
        return pa.nulls(len(column), column.type), dict.fromkeys(range(len(column)), "a neighbour")

    patch.setattr(typed_values.TypedValues, "_values", values)
