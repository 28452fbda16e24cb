"""The compacted part of a partition: its kept messages, and where their rows lie now.

Invariants: up to the horizon, which ends a ledger, only the messages in `kept` are read; each
has the message id that it always had, since a compacted ledger has the batch sizes of its
original, though its file holds the rows of the kept messages only, in order; a trim of the
originals does not change it. Follows Pulsar's `CompactedTopicImpl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from pulsar_spark.log.ledger_commit import ledger_from_json, ledger_to_json
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet


@dataclass(frozen=True)
class CompactedLedgers:
    """The compacted part of one partition. A ledger without kept messages is not in `ledgers`.

    Of a compacted ledger `batch_sizes` and times are those of the original, `size_bytes` are the
    kept payloads, and `file` and `first_row` say where the first kept row lies.
    """

    horizon: Position
    ledgers: LedgerList
    kept: PositionSet

    @property
    def files(self) -> set[str]:
        return {each.file for each in self.ledgers}

    @cached_property
    def removed(self) -> PositionSet:
        """The messages of `ledgers` that are not kept."""
        return self.removed_from(self.ledgers)

    def view(self, ledgers: LedgerList) -> LedgerList:
        """These ledgers, and behind the horizon those of the partition."""
        last = ledgers[-1].ledger_id if len(ledgers) else -1
        return LedgerList([*self.ledgers, *ledgers.between(self.horizon.ledger_id + 1, last)])

    def with_log(self, ledgers: LedgerList) -> LedgerList:
        """These ledgers, and all others of the partition, those before the horizon too."""
        held = {each.ledger_id: each for each in (*ledgers, *self.ledgers)}
        return LedgerList(held[ledger_id] for ledger_id in sorted(held))

    def removed_from(self, ledgers: LedgerList) -> PositionSet:
        """The messages of these ledgers, up to the horizon, that are not kept."""
        return PositionSet.between(ledgers, EARLIEST, self.horizon).difference(self.kept)

    def before(self, ledger_id: int, ledgers: LedgerList) -> CompactedLedgers | None:
        """The part below that ledger; `ledgers` are the partition's. None if there is none."""
        if self.horizon.ledger_id < ledger_id:
            return self
        last = self.with_log(ledgers).last_before(ledger_id)
        if last is None:
            return None
        held = LedgerList(each for each in self.ledgers if each.ledger_id < ledger_id)
        return CompactedLedgers(last.last, held, self.kept.up_to(last.last))

    def remaining(self, messages: PositionSet) -> PositionSet:
        """The messages that a compacted read delivers."""
        kept = messages.up_to(self.horizon).intersection(self.kept)
        return kept.union(messages.after(self.horizon))

    def to_json_value(self) -> dict[str, Any]:
        return {
            "horizon": str(self.horizon),
            "kept": Cursor(individually_deleted=self.kept).to_json_value(),
            "ledgers": [ledger_to_json(each) for each in self.ledgers],
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> CompactedLedgers:
        """Read `to_json_value`. KeyError, TypeError, ValueError or CorruptFileError otherwise."""
        ledgers = [ledger_from_json(item) for item in value["ledgers"]]
        horizon = Position.parse(value["horizon"])
        if any(one.ledger_id >= other.ledger_id for one, other in pairwise(ledgers)):
            raise ValueError("its ledgers are not in order")
        kept = Cursor.from_json_value(value["kept"]).individually_deleted
        if [each.ledger_id for each in ledgers] != list(kept.ledger_ids):
            raise ValueError("its ledgers are not those of which messages are kept")
        if not all(map(kept.fits, ledgers)):
            raise ValueError("it keeps messages that its ledgers do not have")
        if ledgers and ledgers[-1].ledger_id > horizon.ledger_id:
            raise ValueError("it has ledgers behind its horizon")
        return CompactedLedgers(horizon, LedgerList(ledgers), kept)
