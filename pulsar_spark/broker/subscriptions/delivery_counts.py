"""The numbers of messages that a subscription delivered, took back, let expire and acknowledged.

Invariants: immutable; counts only rise, through seeks too; a ledger that is gone is not counted.
Follows the counters of Pulsar's `SubscriptionStatsImpl`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """Messages, but for `delivered_bytes`."""

    delivered: int = 0
    """Granted one by one, or of an open grant and said to be delivered or acknowledged; what comes
    again counts each time."""
    delivered_bytes: int = 0
    """As if all messages of a ledger had one size."""
    redelivered: int = 0
    """Given back after they may have been delivered, and to come again."""
    expired: int = 0
    acknowledged: int = 0
    """Messages acknowledged also by the broker: expired, skipped, or copied to another topic."""

    def plus(
        self,
        ledgers: LedgerList,
        *,
        delivered: PositionSet = NOTHING,
        redelivered: PositionSet = NOTHING,
        expired: PositionSet = NOTHING,
        acknowledged: PositionSet = NOTHING,
    ) -> DeliveryCounts:
        """With these messages; those in none of the ledgers, which were trimmed, are left out."""
        delivered = _there(delivered, ledgers)
        return DeliveryCounts(
            self.delivered + delivered.count(ledgers),
            self.delivered_bytes + delivered.size_bytes(ledgers),
            self.redelivered + _there(redelivered, ledgers).count(ledgers),
            self.expired + _there(expired, ledgers).count(ledgers),
            self.acknowledged + _there(acknowledged, ledgers).count(ledgers),
        )

    def since(self, then: DeliveryCounts) -> DeliveryCounts:
        """The difference to earlier counts of the same subscription."""
        names = (each.name for each in fields(self))
        return DeliveryCounts(*(getattr(self, name) - getattr(then, name) for name in names))


def _there(messages: PositionSet, ledgers: LedgerList) -> PositionSet:
    known = [each for each in messages.ledger_ids if ledgers.get(each) is not None]
    return messages if len(known) == len(messages.ledger_ids) else messages.of_ledgers(known)
