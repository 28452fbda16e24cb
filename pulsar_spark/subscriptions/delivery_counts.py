"""How many messages a subscription has delivered, taken back, let expire and acknowledged.

Invariants: immutable; counts only rise, through seeks too, and begin with the first batch of a
broker that counts (version 7 of its state); a ledger that is gone is not counted. Follows the
counters of Pulsar's `SubscriptionStatsImpl`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position_set import NOTHING, PositionSet


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
    """By the broker too: expired, skipped, or copied to a letter topic."""

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
        """What has come to the earlier counts of the same subscription."""
        names = (each.name for each in fields(self))
        return DeliveryCounts(*(getattr(self, name) - getattr(then, name) for name in names))


def _there(messages: PositionSet, ledgers: LedgerList) -> PositionSet:
    known = [each for each in messages.ledger_ids if ledgers.get(each) is not None]
    return messages if len(known) == len(messages.ledger_ids) else messages.of_ledgers(known)
