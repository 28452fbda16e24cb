"""Messages that an Exclusive or Failover consumer holds back, as their delivery time lies ahead.

Invariants: a ledger's times are read once, and only if one of them lies ahead; no message is
planned before its time; a message that is held back is in no offset, so it is neither delivered nor
reported. Stands in for the broker's delayed delivery, which open grants (all that comes) rule out.
"""

from __future__ import annotations

from pulsar_spark.connector.ledger_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.source.partition_view import PartitionView
from pulsar_spark.connector.topic_log.ledger_columns import delivery_times_of
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.protocol.policies import hosted_policies
from pulsar_spark.subscriptions.delayed_messages import DelayedMessages
from pulsar_spark.topic_name import TopicPartition


class DeliveryTimes:
    """The times of all topic partitions of one run."""

    def __init__(self) -> None:
        self._delayed: dict[TopicPartition, DelayedMessages] = {}
        self._seen: dict[TopicPartition, int] = {}
        """The newest ledger whose times are known."""

    def ahead(self, view: PartitionView, now_ms: int) -> PositionSet:
        """The messages of the partition whose time is later than `now_ms`."""
        about, ledger = view.about, view.ledger
        policies = hosted_policies(ledger.state.settings)
        if not policies.delayed_delivery:
            return PositionSet()
        delayed = self._delayed.get(about, DelayedMessages())
        number = about.partition
        while (info := ledger.ledgers(number).first_after(self._seen.get(about, -1))) is not None:
            if info.max_deliver_at_ms is not None and info.max_deliver_at_ms > now_ms:
                reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
                times = delivery_times_of(ledger, info, reader)
                reader.close()
                if times is not None:
                    delayed = delayed.add_ledger(info, times, now_ms)
            self._seen[about] = info.ledger_id
        delayed, _ = delayed.scheduled_messages(now_ms, policies.delayed_delivery_tick_ms)
        trimmed = ledger.state.trimmed_up_to(number).ledger_id
        delayed = delayed.without([each for each in delayed.messages.ledger_ids if each <= trimmed])
        self._delayed[about] = delayed
        return delayed.messages
