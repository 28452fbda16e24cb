"""A backlog quota that is exceeded, as the broker tells those who publish.

Invariants: the broker marks a topic's partitions in its settings while a quota is exceeded, and
takes the mark back when it is not: whoever publishes follows that log anyway, and needs nobody
else; what the policy says counts as of now, so a mark of a quota that was taken back says nothing;
a publication that was made before is never refused. Follows Pulsar's `BacklogQuotaManager` and
`PersistentTopic.checkBacklogQuotaExceeded`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

from pulsar_spark.broker.protocol.policies import INFINITE, BacklogQuotaPolicy
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import policies_now
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import ProducerBlockedQuotaExceededError, ProducerHeldError

EXCEEDED: Final = "backlog_exceeded"
"""The setting: by partition, [used, limit, whether they are bytes; else milliseconds] when the
quota was first found to be exceeded."""
Mark = list[Any]
_log = logging.getLogger(__name__)


def mark(ledger: ManagedLedger, marks: Mapping[int, Mark | None]) -> None:
    """Mark these partitions, or (None) take their marks back; never wait for a transaction."""

    def marked(settings: Mapping[str, Any]) -> Mapping[str, Any]:
        known = settings.get(EXCEEDED) or {}
        after = dict(known)
        for partition, each in marks.items():
            if each is None:
                after.pop(str(partition), None)
            else:
                after.setdefault(str(partition), each)
        if after == known:
            return settings
        others = {name: value for name, value in settings.items() if name != EXCEEDED}
        return {**others, EXCEEDED: after} if after else others

    ledger.change_settings(marked, waits=False)


def await_room(ledger: ManagedLedger, partitions: Iterable[int], patience_ms: float = inf) -> None:
    """Return when these partitions have room: at once where no quota of theirs is exceeded.

    ProducerBlockedQuotaExceededError if the quota's policy is producer_exception. If it is
    producer_request_hold, ProducerHeldError when `patience_ms` are over.
    """
    clock, begun_s = ledger.store.clock, ledger.store.clock.monotonic_s()
    requested, is_reported = set(partitions), False
    while (exceeded := _exceeded(ledger, requested)) is not None:
        policy, text = exceeded
        if policy is BacklogQuotaPolicy.PRODUCER_EXCEPTION:
            raise ProducerBlockedQuotaExceededError(text)
        waited_s = clock.monotonic_s() - begun_s
        if waited_s * 1000 >= patience_ms:
            raise ProducerHeldError(text)
        if not is_reported:
            _log.warning("Publishing waits until there is room. %s", text)
            is_reported = True
        clock.sleep(pause_s(waited_s, remote=ledger.store.remote))
        ledger.refresh()


def _exceeded(ledger: ManagedLedger, partitions: set[int]) -> tuple[BacklogQuotaPolicy, str] | None:
    """The policy of an exceeded quota that keeps producers out, and what to say; None if none."""
    marks = ledger.state.settings.get(EXCEEDED) or {}
    marked = sorted(partitions.intersection(map(int, marks)))
    if not marked:
        return None
    policies = policies_now(ledger)
    policy = policies.backlog_quota_policy
    limits = {True: policies.backlog_quota_bytes, False: policies.backlog_quota_time_ms}
    for partition in marked:
        used, limit, is_size = marks[str(partition)]
        if (
            limits[is_size] != INFINITE
            and policy is not BacklogQuotaPolicy.CONSUMER_BACKLOG_EVICTION
        ):
            unit = "bytes" if is_size else "ms"
            text = (
                f"The backlog of {ledger.topic}, partition {partition}, was {used:,} {unit} when "
                f"the broker looked, and its quota is {limit:,} ({policy.value}). Nothing was "
                "published. Have its slowest subscription acknowledge or delete it (`pulsarlite "
                f"subscriptions list {ledger.topic}`), with a broker that runs; or raise the "
                "quota: `pulsarlite topics set-backlog-quota`."
            )
            return policy, text
    return None
