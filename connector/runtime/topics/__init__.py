"""Topics below a root, and the protocol of their logs: commit, snapshot, pointer, decision.

What a commit means is decided in `pulsar_spark/log`; here it is put where others find it.
"""

__all__ = [
    "activity", "backlog_quota", "ledger_columns", "ledger_store", "log_pointer",
    "log_snapshot", "managed_ledger", "message_columns", "non_persistent", "policies",
    "prefetch", "producer_connection", "topics", "transaction_commit", "transaction_decisions",
]  # fmt: skip
