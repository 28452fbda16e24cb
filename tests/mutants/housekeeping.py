"""Mutants of housekeeping and administration."""

from __future__ import annotations

from typing import Any

from pulsar_spark.connector.runtime.housekeeping import (
    housekeeper,
    idle_subscriptions,
    inactive_topics,
)
from pulsar_spark.connector.runtime.topics import managed_ledger
from tests.mutants.mutant import breaks


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
