"""Patches that bring a point's fault back; the point notices each at its seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

from pulsar_spark.connector.runtime.acknowledging.transaction_conflicts import ConflictCheck
from pulsar_spark.connector.runtime.broker import watched_leases
from pulsar_spark.connector.storage.remote_store import RemoteStore

Mutant = Callable[[], AbstractContextManager[object]]

MUTANTS: dict[str, Mutant] = {
    "two_transactions_acknowledge_one_message": lambda: mock.patch.object(
        ConflictCheck, "__call__", return_value=None
    ),
    "who_was_killed_is_locked_out": lambda: mock.patch.object(
        watched_leases, "is_gone", return_value=False
    ),
    "a_store_that_ignores_conditions_loses": lambda: mock.patch.object(
        RemoteStore, "check_writes", return_value=None
    ),
}
"""Point -> what brings its fault back."""
