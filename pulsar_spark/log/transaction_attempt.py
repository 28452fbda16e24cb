"""A transaction as the commits of its topics name it: its id, and the try at it.

Invariants: the names of the decisions begin with an id, which can't lead elsewhere; the tries
at one (application, version) share the id, so that at most one of them is ever committed; while a
transaction is open its commit is the last of the topic's log.

Takes the place of Pulsar's `TxnID` and of the contents of `TransactionBuffer`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
"""Pulsar's `TransactionBuilder` has the same."""
MAX_TRANSACTION_TIMEOUT_MS = 60 * 60_000
"""The longest wait of writers behind an open transaction, whatever timeout it has."""
ANONYMOUS = "0" * 32
"""The application in ids of transactions that have none: nobody tries them again."""
_VERSIONS_A_SECOND = 10**9
_ID = re.compile(r"[0-9a-f]{32}/\d{20}")
_FLAGS = (False, True)
TRANSACTION_FIELDS = {"id", "attempt", "timeout_ms", "complete"}


class TxnStatus(Enum):
    """The status of one try at a transaction (Pulsar's `TxnStatus`).

    FORGOTTEN: another try, or this one, was committed so long ago that no log refers to it.
    """

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Transaction:
    """One try. A waiting writer may abort it `timeout_ms` after its commit.

    `complete`: the commit is the try's last, and only the decision is missing. Any process that
    meets it may then finish the transaction.
    """

    id: str
    attempt: str
    timeout_ms: int
    complete: bool = False

    @staticmethod
    def of(application: tuple[str, int], attempt: str, timeout_ms: int) -> Transaction:
        """The try called `attempt` at what the application publishes as its `version`."""
        name, version = application
        of_application = hashlib.sha256(name.encode()).hexdigest()[:32]
        return Transaction(f"{of_application}/{version:020d}", attempt, timeout_ms)

    @staticmethod
    def anonymous(begun_ms: int, attempt: str, timeout_ms: int) -> Transaction:
        """The one try at something that no application publishes; versions rise with time."""
        drawn = int(hashlib.sha256(attempt.encode()).hexdigest(), 16) % _VERSIONS_A_SECOND
        version = first_version(begun_ms) + drawn
        return Transaction(f"{ANONYMOUS}/{version:020d}", attempt, timeout_ms)

    @property
    def application(self) -> str:
        """The part of the id that all tries of one application share; without one, its own id."""
        application = self.id.partition("/")[0]
        return self.id if application == ANONYMOUS else application

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> Transaction:
        """Read what `asdict` gives. KeyError, TypeError or ValueError if it is none."""
        named, attempt = value["id"], value["attempt"]
        timeout_ms, complete = value["timeout_ms"], value["complete"]
        if not isinstance(named, str) or not _ID.fullmatch(named):
            raise ValueError(f"{named!r} is no transaction id")
        if not isinstance(attempt, str) or type(timeout_ms) is not int or complete not in _FLAGS:
            raise TypeError(f"{value!r} is no transaction")
        return Transaction(named, attempt, timeout_ms, complete=complete)


def first_version(begun_ms: int) -> int:
    """The lowest version of an anonymous transaction that began in that second."""
    return begun_ms // 1000 * _VERSIONS_A_SECOND
