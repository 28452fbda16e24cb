"""A check that the messages behind a cursor still exist, and what happens if they don't.

Invariants: a ledger that was read to its end before it was trimmed is no loss; a loss is an error
that names topic, partition and range, or, where the user wants to go on, a warning and a cursor
behind it; a non-persistent topic has no losses. Follows the `failOnDataLoss` of Spark's Kafka
source.
"""

from __future__ import annotations

import logging

from pulsar_spark.connector.source.start_positions import first_position
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.errors import DataLossError
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.topic_name import TopicPartition, is_persistent

_log = logging.getLogger(__name__)


def check_present(
    ledger: ManagedLedger, partition: TopicPartition, cursor: Cursor, *, fail: bool
) -> Cursor:
    """The cursor, moved behind what was trimmed unread; DataLossError if that is to `fail`."""
    trimmed = ledger.state.trimmed_up_to(partition.partition)
    done = cursor.mark_delete_position
    if done >= trimmed:
        return cursor
    first = first_position(ledger.ledgers(partition.partition), trimmed)
    lost = (
        f"Messages after {done} up to {trimmed} of {partition} were trimmed away before they were "
        "read: the query was stopped for longer than the topic keeps messages, or its checkpoint, "
        "or the message id to start from, is old"
    )
    if not is_persistent(ledger.topic):  # nothing was promised
        return cursor.union(Cursor(trimmed))
    if fail:
        raise DataLossError(
            f"{lost}. Set failOnDataLoss to false to go on from {first}, or start with a new "
            "checkpoint; to keep messages longer, trim later."
        )
    _log.warning("%s; failOnDataLoss is false, so it goes on from %s", lost, first)
    return cursor.union(Cursor(trimmed))
