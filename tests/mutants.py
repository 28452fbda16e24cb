"""Pulsarlite broken on purpose, each time in one place: `python -m tests.mutants [NAME ...]`.

Each mutant names the invariant that it breaks and the tests that hold it, every one of which has
to fail. `docs/reliability.md` names all three, and `tests/invariants.py` says what they are. The
brokers of the simulation are broken in `tests/simulation/mutants.py`, their hosts in
`tests/simulation/cluster_mutants.py`, the protocols in `docs/models`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pytest

from pulsar_spark.broker.hosting import hosted_broker
from pulsar_spark.connector.inspect.verification import file_check
from pulsar_spark.connector.inspect.views import dispatch_history
from pulsar_spark.connector.runtime.acknowledging import (
    acknowledgment_rows,
    acknowledgment_writer,
    transaction_conflicts,
)
from pulsar_spark.connector.runtime.broker import broker_input, broker_sink, embedded_broker
from pulsar_spark.connector.runtime.broker.planned_batch import PlannedBatch
from pulsar_spark.connector.runtime.consuming import consumer_run, subscription_client
from pulsar_spark.connector.runtime.consuming import withheld_batches as withheld
from pulsar_spark.connector.runtime.housekeeping import (
    housekeeper,
    idle_subscriptions,
    inactive_topics,
    redrive,
)
from pulsar_spark.connector.runtime.publishing import message_routing, publishing
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
from pulsar_spark.connector.runtime.topics import backlog_quota, ledger_store, managed_ledger
from pulsar_spark.connector.spark import typed_values
from pulsar_spark.connector.spark.functions import processing
from pulsar_spark.connector.storage import local_store
from pulsar_spark.connector.storage.data_files import content_digest, ledger_file
from pulsar_spark.consumer import partition_consumer
from pulsar_spark.log import last_active
from pulsar_spark.log import publication as publications
from pulsar_spark.model.positions import cursor
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.options import topic_policies
from pulsar_spark.state import broker_query

TESTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Mutant:
    """`tests` are of the form FOLDER/FILE.py::NAME; each has to fail once `patch` was applied."""

    patch: Callable[[Any], None]
    invariant: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.patch.__name__


MUTANTS: list[Mutant] = []


def breaks(invariant: str, *tests: str) -> Callable[[Callable[[Any], None]], None]:
    """Register what the decorated function, given pytest's monkeypatch, breaks."""

    def register(patch: Callable[[Any], None]) -> None:
        MUTANTS.append(Mutant(patch, invariant, tests))

    return register


# -- publishing --------------------------------------------------------------------------------


@breaks(
    "PublishedOnce",
    "connector/sink/test_sink.py::test_the_same_query_and_batch_is_published_once",
    "connector/topic_log/test_log_protocol.py::test_an_application_version_is_published_once",
    "connector/sink/test_sink.py"
    "::test_committing_the_same_files_again_without_an_application_is_harmless",
    "connector/ack_sink/test_acknowledging.py::test_a_repeated_micro_batch_or_write_is_told_once",
)
def forgets_what_was_published(patch: Any) -> None:
    patch.setattr(publications.Publication, "_was_published", lambda *_: False)


@breaks(
    "ForgottenInTime",
    "connector/topic_log/test_inactive.py"
    "::test_an_application_that_was_away_is_forgotten_and_not_before",
)
def forgets_who_was_away_for_half_the_time(patch: Any) -> None:
    original = last_active.LastActive.inactive
    half_ms = ledger_store.INACTIVE_AGE_MS // 2
    patch.setattr(
        last_active.LastActive,
        "inactive",
        lambda self, since_ms, present: original(self, since_ms + half_ms, present),
    )


@breaks(
    "NoDuplicateIsSeen",
    "connector/topic_log/test_deduplication.py::test_what_was_published_before_is_hidden_and_the_rest_is_seen",
)
def hides_no_duplicate(patch: Any) -> None:
    patch.setattr(publications.Publication, "_duplicates", lambda *_: {})


@breaks(
    "FencedNeverLands",
    "connector/sink/test_access_modes.py"
    "::test_a_sink_that_is_fenced_between_its_look_and_its_commit_loses_the_race",
)
def checks_no_producer(patch: Any) -> None:
    patch.setattr(publications.Publication, "_producers", lambda *_: None)


@breaks(
    "QuotaIsObeyed",
    "connector/sink/test_backlog_quota.py"
    "::test_producer_exception_refuses_a_sink_until_its_backlog_is_acknowledged",
)
def overlooks_a_quota(patch: Any) -> None:
    patch.setattr(backlog_quota, "_exceeded", lambda *_: None)


@breaks(
    "QuotaIsObeyed",
    "connector/sink/test_backlog_quota.py"
    "::test_a_batch_that_was_published_is_not_refused_when_it_is_repeated",
)
def holds_back_what_was_published(patch: Any) -> None:
    patch.setattr(publishing._TopicPart, "_is_published", False)


@breaks(
    "TheNearerWordCounts",
    "connector/broker/test_policies_heard.py"
    "::test_a_topic_s_word_is_heard_at_once_and_a_namespace_s_at_the_next_look",
)
def lets_the_namespace_s_word_count(patch: Any) -> None:
    patch.setattr(
        broker_input,
        "hosted_policies",
        lambda topic, namespace: topic_policies.hosted_policies(namespace, topic),
    )


@breaks(
    "AllOrNothing",
    "connector/topic_log/test_transactions.py::test_nothing_is_visible_before_the_decision",
    "connector/topic_log/test_transactions.py::test_an_exception_aborts",
)
def shows_what_is_not_decided(patch: Any) -> None:
    patch.setattr(managed_ledger.ManagedLedger, "_decided", lambda _, commit: commit)


@breaks(
    "KeysKeepTheirOrder",
    "connector/sink/test_routing.py::test_a_key_goes_to_the_partition_of_its_hash_in_order",
)
def spreads_keys(patch: Any) -> None:
    patch.setattr(
        message_routing,
        "partitions_of_keys",
        lambda hashes, count: (hashes + range(len(hashes))).astype("int32") % count,
    )


@breaks(
    "ConfirmedIsDurable",
    "connector/storage/test_stores.py"
    "::test_what_is_confirmed_is_on_the_disk_data_before_log_and_file_before_folder",
)
def syncs_nothing(patch: Any) -> None:
    patch.setattr(local_store, "_is_durable", lambda _: False)


@breaks(
    "StoredIsReadable",
    "connector/sink/test_extreme_options.py"
    "::test_what_could_not_be_read_back_is_not_put_wherever_it_comes_from",
)
def stores_what_nobody_can_read(patch: Any) -> None:
    patch.setattr(managed_ledger, "readable", lambda write, _read, _name: write())


# -- reading -----------------------------------------------------------------------------------


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


# -- housekeeping and admin --------------------------------------------------------------------


@breaks(
    "TheDeletedStaysDeleted",
    "connector/admin/test_deleted_topics.py"
    "::test_files_written_for_the_old_topic_are_not_published_in_the_new_one",
)
def asks_for_no_incarnation(patch: Any) -> None:
    patch.setattr(managed_ledger.ManagedLedger, "check_incarnation", lambda *_: None)


@breaks(
    "TheUsedIsKept",
    "connector/housekeeping/test_inactive_topics.py"
    "::test_a_topic_goes_that_nobody_has_used_for_the_time_that_its_policy_says",
)
def takes_no_topic_for_used(patch: Any) -> None:
    patch.setattr(inactive_topics.InactiveTopics, "_is_used", lambda *_: False)


@breaks(
    "TheUsedIsKept",
    "connector/housekeeping/test_idle_subscriptions.py"
    "::test_a_cursor_that_an_admin_moves_is_in_use",
)
def sees_no_visits(patch: Any) -> None:
    patch.setattr(idle_subscriptions, "_seen", lambda _: ())


@breaks(
    "CompactedByItself",
    "connector/housekeeping/test_housekeeper.py"
    "::test_the_broker_compacts_by_itself_once_more_than_the_threshold_was_published",
)
def overlooks_what_is_to_compact(patch: Any) -> None:
    patch.setattr(housekeeper, "backlog_bytes", lambda *_: 0)


@breaks(
    "DeletedInTime",
    "connector/housekeeping/test_housekeeper.py"
    "::test_files_of_ledgers_that_every_subscription_has_passed_are_deleted_after_an_hour",
)
def deletes_at_once(patch: Any) -> None:
    patch.setattr(housekeeper, "FILE_GRACE_MS", 0)


# -- subscriptions -----------------------------------------------------------------------------


@breaks(
    "LettersFirst",
    "connector/broker/test_embedded_broker.py"
    "::test_a_dead_letter_passes_by_an_exclusive_producer_of_its_topic",
)
def buries_without_a_letter(patch: Any) -> None:
    patch.setattr(broker_sink, "_publish_republications", lambda *_: None)


@breaks(
    "RedrivenOnce",
    "connector/housekeeping/test_redrive.py::test_a_newer_redrive_stops_an_older_one",
)
def redrives_behind_a_fence(patch: Any) -> None:
    original = publishing.commit_as_one

    def commit_as_one(*arguments: Any, fence: Any) -> None:
        original(*arguments)

    patch.setattr(redrive, "commit_as_one", commit_as_one)


@breaks(
    "GrantsOutliveTheBroker",
    "connector/subscription/test_subscription_reader.py::test_an_open_grant_is_read_on_while_no_broker_runs",
)
def reads_what_is_granted_one_by_one_only(patch: Any) -> None:
    original = partition_consumer.PartitionConsumer.offered

    def offered(*arguments: Any) -> Any:
        found = original(*arguments)
        return replace(found, waiting=replace(found.waiting, cursor=None))

    patch.setattr(partition_consumer.PartitionConsumer, "offered", offered)


@breaks(
    "KeptIsDelivered",
    "connector/subscription/test_compacted_subscriptions.py"
    "::test_what_is_compacted_while_it_waits_is_passed_over",
)
def delivers_what_compaction_removed(patch: Any) -> None:
    patch.setattr(partition_view.PartitionView, "removed", PositionSet())


@breaks(
    "OneBroker",
    "connector/broker/test_embedded_broker.py::test_a_broker_whose_term_is_over_writes_nothing",
)
def takes_every_term_for_the_newest(patch: Any) -> None:
    original = broker_sink.commit_batch

    def commit_batch(root: Any, tasks: Any, batch: Any, _term: int) -> None:
        original(root, tasks, batch, 99)

    for host in (broker_sink, embedded_broker):
        patch.setattr(host, "commit_batch", commit_batch)


@breaks(
    "PoisonIsSetApart",
    "connector/subscription/test_withheld.py::test_a_batch_is_withheld_once_it_was_begun_too_often_and_stays_so",
)
def counts_no_failures(patch: Any) -> None:
    patch.setattr(withheld.WithheldBatches, "_count", lambda *_: 0)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_broker_restarts.py::test_a_query_that_fails_is_begun_again_and_counted",
)
def takes_every_failure_for_the_last(patch: Any) -> None:
    patch.setattr(broker_query.Broker, "_may_pass", lambda *_: False)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_embedded_broker.py"
    "::test_a_broker_goes_on_after_an_error_at_any_change_of_the_store",
)
def plans_anew_after_an_error(patch: Any) -> None:
    original = embedded_broker.EmbeddedBroker.run_once

    def run_once(broker: embedded_broker.EmbeddedBroker) -> bool:
        broker._under_way = None
        return original(broker)

    patch.setattr(embedded_broker.EmbeddedBroker, "run_once", run_once)


@breaks(
    "TheBrokerComesBack",
    "connector/broker/test_set_aside.py"
    "::test_a_query_that_repeats_a_batch_has_the_states_that_were_said_when_it_happened",
)
def steps_again_what_has_happened(patch: Any) -> None:
    patch.setattr(broker_input.BatchInput, "_with_what_happened", lambda _, rows: iter(rows))


@breaks(
    "TroubleStaysApart",
    "connector/broker/test_set_aside.py"
    "::test_a_step_that_fails_ends_nobody_elses_and_is_tried_again",
)
def ends_all_brokers_with_one(patch: Any) -> None:
    def described(error: Exception) -> str:
        raise error

    patch.setattr(hosted_broker, "described", described)


@breaks(
    "TheGoneAreNoticed",
    "connector/subscription/test_subscription_reader.py"
    "::test_a_consumer_that_is_refused_on_one_topic_leaves_the_others_to_the_next",
)
def stays_where_it_was_not_refused(patch: Any) -> None:
    patch.setattr(subscription_client.SubscriptionClient, "_report_and_leave", lambda *_: None)


@breaks(
    "NewIsReadFromItsBeginning",
    "connector/subscription/test_growth.py"
    "::test_the_first_consumer_of_a_new_partition_reads_it_from_the_beginning",
)
def subscribes_nobody_to_new_partitions(patch: Any) -> None:
    patch.setattr(
        PlannedBatch, "create", lambda batch, topic_partition, _: batch.host(topic_partition)
    )


# -- acknowledging by sink ---------------------------------------------------------------------


@breaks(
    "OnlyWhatIsThere",
    "connector/ack_sink/test_acknowledging.py::test_what_can_not_be_right_is_an_error_and_nothing_is_stored",
)
def believes_in_every_id(patch: Any) -> None:
    patch.setattr(
        acknowledgment_rows,
        "_batch_sizes",
        lambda rows, *_: np.ones(len(rows["ledger_id"]), np.int64),
    )


@breaks(
    "AcknowledgedByOne",
    "connector/client/test_transaction_conflicts.py"
    "::test_who_lost_its_lease_and_went_on_publishes_nothing",
)
def commits_what_another_has_acknowledged(patch: Any) -> None:
    patch.setattr(transaction_conflicts.ConflictCheck, "__call__", lambda *_: None)


@breaks(
    "SeekTakesAll",
    "connector/client/test_seeking.py"
    "::test_an_acknowledgement_of_what_was_received_before_a_seek_leaves_the_seek_as_it_is",
)
def takes_every_attempt_for_the_epoch_s(patch: Any) -> None:
    patch.setattr(acknowledgment_rows.Acknowledgments, "since", lambda found, _: found)


@breaks(
    "OnlyWhatIsThere",
    "connector/ack_sink/test_acknowledging.py"
    "::test_what_a_topic_has_not_or_a_subscription_does_not_allow_is_refused",
)
def asks_for_no_subscription(patch: Any) -> None:
    patch.setattr(acknowledgment_writer, "check_subscription", lambda *_: None)


@breaks(
    "EachHasAnOutcome",
    "connector/functions/test_processing.py"
    "::test_a_message_that_kills_its_process_is_known_and_the_others_go_on",
)
def gives_a_message_the_outcome_of_another(patch: Any) -> None:
    original = processing._in_order

    def in_order(*arguments: Any) -> Any:
        outcomes = original(*arguments)
        return outcomes[1:] + outcomes[:1]

    patch.setattr(processing, "_in_order", in_order)


def main(names: Sequence[str]) -> int:
    """Run the tests of all mutants, or of those; 1 if one of them does not fail."""
    wrong = 0
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        for test in mutant.tests:
            began = time.monotonic()
            caught = fails(mutant, test)
            wrong += not caught
            found, took_s = "caught" if caught else "NOBODY NOTICED", time.monotonic() - began
            print(f"{mutant.name}: {test}: {found} ({took_s:.1f} s)", flush=True)
    return 1 if wrong else 0


def fails(mutant: Mutant, test: str) -> bool:
    """Whether the test runs, and fails, in a process in which the mutant was applied."""
    child = os.fork()
    if child == 0:
        status = int(pytest.ExitCode.INTERNAL_ERROR)
        try:
            status = _run(mutant, test)
        except Exception:  # noqa: BLE001 - whatever it is, the test did not run
            traceback.print_exc()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == pytest.ExitCode.TESTS_FAILED


def _run(mutant: Mutant, test: str) -> int:
    mutant.patch(pytest.MonkeyPatch())
    arguments = ["-q", "-x", "-p", "no:cacheprovider", str(TESTS / test)]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the mutant imported it
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
