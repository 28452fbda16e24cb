"""What was decided on a transaction: numbered files, each put only if it is not there.

    _transactions/<application>/<version>/<20 digits>.json

Invariants: the files of a transaction are numbered without gaps, and nothing follows the first
that says `committed`; so one try at the most is committed, and creating that file is the instant
at which all that the try has prepared becomes visible, in all its topics. A try is aborted once a
file says so, or another try is committed. Follows Pulsar's `TransactionMetadataStore`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_spark.connector.object_store import ObjectStore, join
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.ledger_commit import canonical_json, check_version, read_json
from pulsar_spark.transaction_attempt import TxnStatus

TRANSACTIONS_FOLDER = "_transactions"
DECISION_VERSION = 1


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
        if status is TxnStatus.OPEN or not isinstance(attempt, str):
            raise _damaged(name, f"it decides nothing: {record}")
        return Decision(status, attempt)


class TransactionDecisions:
    """Those on one transaction, by its id."""

    def __init__(self, store: ObjectStore, transaction_id: str) -> None:
        """Reads nothing."""
        self._store = store
        self._folder = join(TRANSACTIONS_FOLDER, transaction_id)
        self._known: list[Decision] = []

    def status(self, attempt: str) -> TxnStatus:
        """Of that try, as of now."""
        self._read()
        return self._status(attempt)

    def committed(self) -> str | None:
        """Which try was committed; None while none was."""
        self._read()
        return self._committed()

    def commit(self, attempt: str) -> TxnStatus:
        """Commit that try, unless it is aborted; what it is then."""
        return self._decide(Decision(TxnStatus.COMMITTED, attempt))

    def abort(self, attempt: str) -> TxnStatus:
        """Abort that try, unless it is committed; what it is then."""
        return self._decide(Decision(TxnStatus.ABORTED, attempt))

    def _decide(self, decision: Decision) -> TxnStatus:
        while True:
            self._read()
            status = self._status(decision.attempt)
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
        return join(self._folder, f"{number:020d}.json")


def _damaged(name: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"Decision {name} is damaged: {why}. Restore the file from a copy: it says whether the "
        "messages of a transaction are visible."
    )
