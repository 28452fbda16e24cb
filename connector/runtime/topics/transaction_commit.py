"""Commits of several topics in one transaction: prepared in each of them, then decided once.

Invariants: nothing is visible before the decision, and everything with it; a repetition of a
committed transaction changes nothing, whichever topics it has; an exception aborts.
Follows Pulsar's `TransactionImpl`, whose coordinator is here the decision's file.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from pulsar_spark.connector.runtime.topics.transaction_decisions import TransactionDecisions
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import InvalidTxnStatusError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.transaction_attempt import (
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    Transaction,
    TxnStatus,
)

Prepare = Callable[[Transaction], object]
"""Makes one topic's commit, which names the transaction; returns it, or why there is none."""


def begin(
    store: ObjectStore,
    application: tuple[str, int] | None,
    timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
) -> Transaction:
    """A new try; without an application nobody else can try the same."""
    attempt = uuid.uuid4().hex
    if application is None:
        return Transaction.anonymous(store.clock.wall_ms(), attempt, timeout_ms)
    return Transaction.of(application, attempt, timeout_ms)


def commit_together(
    store: ObjectStore, transaction: Transaction, prepares: Sequence[Prepare]
) -> None:
    """Commit all of them, once. InvalidTxnStatusError if another process aborted meanwhile.

    Topics are prepared in an order that all users share, so that no two wait for each other.
    """
    decisions = TransactionDecisions(store, transaction.id)
    if decisions.committed():
        return
    prepared = False
    try:
        for left, prepare in zip(reversed(range(len(prepares))), prepares, strict=True):
            named = replace(transaction, complete=not left)
            prepared = isinstance(prepare(named), Commit) or prepared
        if not prepared:
            return
        status = decisions.commit(transaction.attempt)
    except BaseException:
        decisions.abort(transaction.attempt)
        raise
    if status is not TxnStatus.COMMITTED and not decisions.committed():
        raise InvalidTxnStatusError(
            f"Transaction {transaction.id} is aborted: a newer run of its application began it "
            f"again, or it took more than {transaction.timeout_ms} ms while another writer waited "
            "for it. Nothing of it was published. Begin it again, as Spark does with a "
            "micro-batch, or give it more transactionTimeout."
        )
