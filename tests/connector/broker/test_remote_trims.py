"""Trims over a network: decided on the log as it is, whoever else reads it in this process."""

from __future__ import annotations

import pytest

from pulsar_spark.connector.runtime.broker.broker_sink import (
    REMOTE_TRIM_LEDGERS,
    SteppedTask,
    claim_term,
    commit_batch,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.topics import ledger_of, send

NAME = TopicName.parse("t")


def test_a_process_that_reads_no_log_trims_what_others_have_published_all_the_same(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the driver's process under Spark, where the broker's source has a process of its own."""
    send(place.service_url, "t", ["0"])
    stale = ManagedLedger.open_anew(place.store, NAME.storage_path, NAME.partitioned_topic_name)
    for number in range(1, 2 * REMOTE_TRIM_LEDGERS):
        send(place.service_url, "t", [str(number)])
    term = claim_term(place)
    monkeypatch.setattr(place.store, "remote", True)
    monkeypatch.setattr(Root, "known", lambda _root, name: stale if name == NAME else None)
    topic_partition = TopicPartition(NAME.partitioned_topic_name, 0)
    first = [each.ledger_id for each in ledger_of(place.service_url, "t").ledgers(0)]
    trims = [(topic_partition, first[:REMOTE_TRIM_LEDGERS])]
    commit_batch(place, [SteppedTask(None, trims=trims)], ("broker", 0), term)
    left = [each.ledger_id for each in ledger_of(place.service_url, "t").ledgers(0)]
    assert left == first[REMOTE_TRIM_LEDGERS:]
