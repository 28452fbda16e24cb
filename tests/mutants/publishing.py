"""Mutants of publishing."""

from __future__ import annotations

from typing import Any

from pulsar_spark.connector.runtime.broker import broker_input
from pulsar_spark.connector.runtime.publishing import message_routing, publishing
from pulsar_spark.connector.runtime.topics import backlog_quota, ledger_store, managed_ledger
from pulsar_spark.connector.storage import local_store
from pulsar_spark.log import last_active
from pulsar_spark.log import publication as publications
from pulsar_spark.options import topic_policies
from tests.mutants.mutant import breaks


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
