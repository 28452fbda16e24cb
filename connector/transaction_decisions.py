"""What was decided on a transaction: numbered files, each put only if it is not there.

    _transactions/<application>/<version>.<20 digits>.json

Invariants: the files of a transaction are numbered without gaps, and nothing follows the first
that says `committed`; so one try at the most is committed, and creating that file is the instant
at which all that the try has prepared becomes visible, in all its topics. A try is aborted once a
file says so, or another try is committed. Files are deleted after their version was closed (see
`transaction_cleanup`). Follows Pulsar's `TransactionMetadataStore`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pulsar_spark.connector.object_store import ObjectStore, join
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.ledger_commit import canonical_json, check_version, read_json
from pulsar_spark.transaction_attempt import TxnStatus

TRANSACTIONS_FOLDER = "_transactions"
CLOSED_FILE = "closed.json"
DECISION_VERSION = 1

_DECIDED = (TxnStatus.COMMITTED, TxnStatus.ABORTED)


@dataclass(frozen=True, slots=True)
class Decision:
    """One file: COMMITTED or ABORTED, and which try that is about."""

    status: TxnStatus
    attempt: str

    def to_json(self) -> bytes:
        return canonical_json(
            {"version": DECISION_VERSION, "status": self.status.value, "attempt": self.attempt}
        )

    @staticmethod
    def from_json(data: bytes, name: str) -> Decision:
        """CorruptFileError if it is damaged; FutureVersionError if a newer version wrote it."""
        record = read_json(data, name)
        check_version(record, DECISION_VERSION, name)
        try:
            status, attempt = TxnStatus(record["status"]), record["attempt"]
        except (KeyError, ValueError) as error:
            raise _damaged(name, repr(error)) from error
        if status not in _DECIDED or not isinstance(attempt, str):
            raise _damaged(name, f"it decides nothing: {record}")
        return Decision(status, attempt)


class TransactionDecisions:
    """Those on one transaction, by its id."""

    def __init__(self, store: ObjectStore, transaction_id: str) -> None:
        """Reads nothing."""
        self._store = store
        self._prefix = join(TRANSACTIONS_FOLDER, transaction_id)
        application, _, version = transaction_id.partition("/")
        self._closed, self._version = ClosedVersions(store, application), int(version)
        self._known: list[Decision] = []

    def status(self, attempt: str) -> TxnStatus:
        """Of that try, as of now. FORGOTTEN if the decisions were deleted, or may have been."""
        self._read()
        # Looked at after the decisions: what is read in an emptied place is void.
        if self._closed.has(self._version):
            return TxnStatus.FORGOTTEN
        return self._status(attempt)

    def committed(self) -> bool:
        """Whether one of the tries was committed."""
        self._read()
        return self._committed() is not None or self._closed.has(self._version)

    def commit(self, attempt: str) -> TxnStatus:
        """Commit that try, unless it is aborted; what it is then."""
        return self._decide(Decision(TxnStatus.COMMITTED, attempt))

    def abort(self, attempt: str) -> TxnStatus:
        """Abort that try, unless it is committed; what it is then."""
        return self._decide(Decision(TxnStatus.ABORTED, attempt))

    def _decide(self, decision: Decision) -> TxnStatus:
        while True:
            status = self.status(decision.attempt)
            if status is not TxnStatus.OPEN:
                return status
            # If it is there, somebody was quicker, or a request only seemed to fail: read again.
            self._store.put_if_absent(self._path(len(self._known)), decision.to_json())

    def _read(self) -> None:
        while self._committed() is None:
            name = self._path(len(self._known))
            data = self._store.get(name)
            if data is None:
                return
            self._known.append(Decision.from_json(data, name))

    def _status(self, attempt: str) -> TxnStatus:
        committed = self._committed()
        if committed is not None:
            return TxnStatus.COMMITTED if committed == attempt else TxnStatus.ABORTED
        aborted = any(each.attempt == attempt for each in self._known)
        return TxnStatus.ABORTED if aborted else TxnStatus.OPEN

    def _committed(self) -> str | None:
        last = self._known[-1] if self._known else None
        return last.attempt if last and last.status is TxnStatus.COMMITTED else None

    def _path(self, number: int) -> str:
        return f"{self._prefix}.{number:020d}.json"


class ClosedVersions:
    """The versions of an application whose decisions may be gone: one of each was committed."""

    def __init__(self, store: ObjectStore, application: str) -> None:
        """Reads nothing."""
        self._store = store
        self._path = join(TRANSACTIONS_FOLDER, application, CLOSED_FILE)

    def has(self, version: int) -> bool:
        """Whether it is closed, as of now."""
        return any(first <= version <= last for first, last in self._parse(self._read()))

    def add(self, versions: Iterable[int]) -> None:
        """Close these too."""
        more = [(version, version) for version in versions]
        while True:
            there = self._store.get_versioned(self._path)
            joined: list[tuple[int, int]] = []
            for first, last in sorted([*self._parse(there.data if there else None), *more]):
                if joined and first <= joined[-1][1] + 1:
                    joined[-1] = joined[-1][0], max(joined[-1][1], last)
                else:
                    joined.append((first, last))
            record = {"version": DECISION_VERSION, "closed": [list(each) for each in joined]}
            token = there.token if there else None
            if self._store.compare_and_swap(self._path, token, canonical_json(record)):
                return

    def _read(self) -> bytes | None:
        return self._store.get(self._path)

    def _parse(self, data: bytes | None) -> list[tuple[int, int]]:
        if data is None:
            return []
        record = read_json(data, self._path)
        check_version(record, DECISION_VERSION, self._path)
        try:
            return [(int(first), int(last)) for first, last in record["closed"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(self._path, repr(error)) from error


def _damaged(name: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"Decision {name} is damaged: {why}. Restore the file from a copy: it says whether the "
        "messages of a transaction are visible."
    )
