"""The result of a verification: the account of each subscription, and the differences.

Invariants: of each subscription `published == acknowledged + backlog + removed`, or a difference
says why not; a difference names the place, as far as it is known, and what to do; what could not be
read is no difference, and not verified either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

from pulsar_spark.errors import PulsarliteError, UnreadableFileError
from pulsar_spark.model.positions.ledger_info import LedgerInfo


class Check(str, Enum):
    """The two sides of a comparison."""

    LOG = "log"
    """Commits and snapshots with each other."""
    SUM = "sum"
    """A partition's ledgers with the sums of all that was published and removed."""
    FILE = "file"
    """A data file with its seal: whether it is there, its length, its checksums."""
    CONTENT = "content"
    """A ledger's rows with its digest."""
    BROKER = "broker"
    """The broker's state of a partition is compared with the log, and with itself."""
    CURSOR = "cursor"
    """A subscription's cursor with the ledgers, and with what it was before."""
    UNREAD = "unread"
    """Nothing: it could not be read, for want of rights, or as the disk fails."""


REMEDIES: Final = {
    Check.LOG: "Bring the named file of _log back from a copy, and verify again.",
    Check.SUM: "Bring the topic's _log back from a copy; --deep says whether the messages are "
    "still as they were.",
    Check.FILE: "Bring the file back from a copy. Until then read with failOnDataLoss=false, or "
    "past it by startMessageId.",
    Check.CONTENT: "Bring the file back from a copy. Who has read the ledger since may have had "
    "other messages than were published.",
    Check.BROKER: "If the root was restored: bring the topic and pulsar/system back from one "
    "copy. Else stop the broker, keep a copy of pulsar/system, and report this; "
    "`pulsarlite subscriptions seek` sets each subscription anew.",
    Check.CURSOR: "Set the subscription to where it was right: `pulsarlite subscriptions seek`. "
    "What lies behind is delivered again. Keep a copy of pulsar/system, and report this.",
    Check.UNREAD: "Look at the rights to it, and at the disk; then verify again.",
}
"""The remedy for each kind of difference; docs/verify.md explains more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as it was published, or could not be verified, as it is UNREAD.

    What is None does not apply, or is not known.
    """

    check: Check
    text: str
    partition: int | None = None
    subscription: str | None = None
    ledger_id: int | None = None
    file: str | None = None

    @staticmethod
    def met(error: PulsarliteError, check: Check, ledger: LedgerInfo | None = None) -> Difference:
        """The difference that an error means, of a ledger or of all."""
        check = Check.UNREAD if isinstance(error, UnreadableFileError) else check
        if ledger is None:
            return Difference(check, error.message)
        return Difference(
            check, error.message, ledger.partition, ledger_id=ledger.ledger_id, file=ledger.file
        )

    @property
    def remedy(self) -> str:
        return REMEDIES[self.check]

    @property
    def place(self) -> tuple[int, int, str]:
        """The key for sorting: the first ledger that differs comes first in its partition."""
        number = -1 if self.partition is None else self.partition
        return number, -1 if self.ledger_id is None else self.ledger_id, self.subscription or ""

    def to_json_value(self) -> dict[str, Any]:
        return {**asdict(self), "check": self.check.value, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class SubscriptionAccount:
    """Messages, chunks and hidden duplicates included. `removed` were trimmed, read or not.

    For a subscription that reads compacted, what compaction has kept of trimmed ledgers is still
    there.
    """

    subscription: str
    acknowledged: int
    backlog: int
    removed: int


@dataclass(frozen=True, slots=True)
class PartitionAccount:
    """The messages of one partition; `messages` of them are there."""

    partition: int
    published: int
    messages: int
    removed: int
    ledgers: int
    subscriptions: tuple[SubscriptionAccount, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifiedTopic:
    """A topic as of `commit`, and of what the broker knew after its commit `observed`.

    Of what is `unverified` nothing is known, as it could not be read: it may be as it was. The
    `unnamed_files` lie there and no commit names them: of tasks that failed, or under way.
    """

    topic: str
    deep: bool
    commit: int = -1
    partitions: tuple[PartitionAccount, ...] = ()
    differences: Sequence[Difference] = field(default_factory=tuple)
    unnamed_files: int = 0
    unverified: Sequence[Difference] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """True if all could be read, and nothing differs."""
        return not (self.differences or self.unverified)

    def to_json_value(self) -> dict[str, Any]:
        lists = {
            "differences": [each.to_json_value() for each in self.differences],
            "unverified": [each.to_json_value() for each in self.unverified],
        }
        return {**asdict(self), "ok": self.ok, **lists}
