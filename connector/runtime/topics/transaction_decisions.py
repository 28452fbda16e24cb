"""The decisions on a transaction: numbered files, each put only if it is not there.

    _transactions/<application>/<version>.<20 digits>.json

Invariants: the files of a transaction are numbered without gaps, and nothing follows the first
that says `committed`; so at most one try is committed, and creating that file is the instant at
which all that the try has prepared becomes visible, in all its topics. A try is aborted once a
file says so, or another try is committed. Files are deleted after their version was closed (see
`transaction_cleanup`). Follows Pulsar's `TransactionMetadataStore`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.log.transaction_attempt import ANONYMOUS, TxnStatus
from pulsar_spark.model.records.stored_record import MOST_SMALL_RECORD_BYTES, StoredFormat, readable

TRANSACTIONS_FOLDER = "_transactions"
CLOSED_FILE = "closed.json"

_REMEDY: Final = (
    "Restore the file from a copy: it says whether the messages of a transaction are visible."
)
DECISION_FORMAT: Final = StoredFormat(
    "Decision", checked=True, fields=frozenset({"status", "attempt"}), remedy=_REMEDY,
    most_bytes=MOST_SMALL_RECORD_BYTES,
)  # fmt: skip
CLOSED_FORMAT: Final = StoredFormat(
    "Decision", checked=True, fields=frozenset({"closed"}), remedy=_REMEDY
)
_DECIDED = (TxnStatus.COMMITTED, TxnStatus.ABORTED)


@dataclass(frozen=True, slots=True)
class Decision:
    """One file: COMMITTED or ABORTED, and the try that it is about."""

    status: TxnStatus
    attempt: str

    def to_json(self) -> bytes:
        return DECISION_FORMAT.encode({"status": self.status.value, "attempt": self.attempt})

    @staticmethod
    def from_json(data: bytes, name: str) -> Decision:
        """CorruptFileError if it is damaged; FutureVersionError if a newer version wrote it."""
        record = DECISION_FORMAT.decode(data, name)
        try:
            status, attempt = TxnStatus(record["status"]), record["attempt"]
        except (KeyError, ValueError) as error:
            raise DECISION_FORMAT.damaged(name, repr(error)) from error
        if status not in _DECIDED or not isinstance(attempt, str):
            raise DECISION_FORMAT.damaged(name, f"it decides nothing: {record}")
        return Decision(status, attempt)


class TransactionDecisions:
    """The decisions on one transaction, by its id."""

    def __init__(self, store: ObjectStore, transaction_id: str) -> None:
        self._store = store
        self._prefix = join(TRANSACTIONS_FOLDER, transaction_id)
        application, _, version = transaction_id.partition("/")
        self._is_anonymous = application == ANONYMOUS
        self._closed, self._version = ClosedVersions(store, application), int(version)
        self._known: list[Decision] = []

    def status(self, attempt: str) -> TxnStatus:
        """The try's status as of now. FORGOTTEN if the decisions were deleted, or may have been."""
        self._read()
        # After the decisions: a file in an emptied place is void.
        if self._closed.has(self._version):
            return TxnStatus.FORGOTTEN
        committed = self._committed()
        if committed is not None:
            return TxnStatus.COMMITTED if committed == attempt else TxnStatus.ABORTED
        aborted = any(each.attempt == attempt for each in self._known)
        return TxnStatus.ABORTED if aborted else TxnStatus.OPEN

    def committed(self) -> bool:
        """True if one of the tries was committed."""
        self._read()
        if self._committed() is not None:
            return True
        return not self._is_anonymous and self._closed.has(self._version)

    def commit(self, attempt: str) -> TxnStatus:
        """Commit that try, unless it is aborted; its status then."""
        return self._decide(Decision(TxnStatus.COMMITTED, attempt))

    def abort(self, attempt: str) -> TxnStatus:
        """Abort that try, unless it is committed; its status then."""
        return self._decide(Decision(TxnStatus.ABORTED, attempt))

    def _decide(self, decision: Decision) -> TxnStatus:
        while (status := self.status(decision.attempt)) is TxnStatus.OPEN:
            path = self._path(len(self._known))
            data = readable(decision.to_json, Decision.from_json, path)
            # Refused: another was quicker, or a request only seemed to fail. Read again.
            self._store.put_if_absent(path, data)
        return status

    def _read(self) -> None:
        while self._committed() is None:
            name = self._path(len(self._known))
            if (data := self._store.get(name)) is None:
                return
            self._known.append(Decision.from_json(data, name))

    def _committed(self) -> str | None:
        last = self._known[-1] if self._known else None
        return last.attempt if last and last.status is TxnStatus.COMMITTED else None

    def _path(self, number: int) -> str:
        return f"{self._prefix}.{number:020d}.json"


class ClosedVersions:
    """The versions of an application whose decisions may be gone: one try of each was committed.

    Of transactions without an application all of some age are closed, committed or not.
    """

    def __init__(self, store: ObjectStore, application: str) -> None:
        self._store = store
        self._path = join(TRANSACTIONS_FOLDER, application, CLOSED_FILE)

    def has(self, version: int) -> bool:
        """True if the version is closed, as of now."""
        closed = self._parse(self._store.get(self._path))
        return any(first <= version <= last for first, last in closed)

    def add(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Close these versions too: (first, last), both included."""
        more = list(ranges)

        def with_more(data: bytes | None) -> bytes | None:
            known = self._parse(data)
            joined: list[tuple[int, int]] = []
            for first, last in sorted([*known, *more]):
                if joined and first <= joined[-1][1] + 1:
                    joined[-1] = joined[-1][0], max(joined[-1][1], last)
                else:
                    joined.append((first, last))
            if joined == known:
                return None
            record = {"closed": [list(each) for each in joined]}
            return readable(
                lambda: CLOSED_FORMAT.encode(record), lambda stored, _: self._parse(stored),
                self._path,
            )  # fmt: skip

        self._store.replace(self._path, with_more)

    def _parse(self, data: bytes | None) -> list[tuple[int, int]]:
        if data is None:
            return []
        record = CLOSED_FORMAT.decode(data, self._path)
        try:
            return [(int(first), int(last)) for first, last in record["closed"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CLOSED_FORMAT.damaged(self._path, repr(error)) from error
