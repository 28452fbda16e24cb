"""Mutants of acknowledgements by rows, and of transactions."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulsar_spark.connector.runtime.acknowledging import (
    acknowledgment_rows,
    acknowledgment_writer,
    transaction_conflicts,
)
from pulsar_spark.connector.spark.functions import processing
from tests.mutants.mutant import breaks


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
