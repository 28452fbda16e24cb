"""The deletion of topics that nobody uses, where a policy asks for it.

Invariants: a topic goes only if nothing was published for all of the time that its policy says,
and its retention, as this process has seen it, so a broker that has just begun deletes nothing; if
nobody is connected and, by the policy's mode, nobody subscribed or nothing is left to deliver; and
by a commit on the very log that was looked at: one publication more, and it stays. Letters that
wait for their first subscription stay. Follows Pulsar's `PersistentTopic.checkGC`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final

from pulsar_spark.broker.protocol.policies import INFINITE, InactiveTopicDeleteMode
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.ledger_store import sweep_deleted
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.log.producer_registry import ProducerRegistry
from pulsar_spark.options.topic_policies import NESTED, Applied

_CAUGHT_UP: Final = InactiveTopicDeleteMode.SUBSCRIPTIONS_CAUGHT_UP.value
_log = logging.getLogger(__name__)


class InactiveTopics:
    """The topics of a root, as one housekeeper has observed them."""

    def __init__(self, root: Root) -> None:
        self._root, self._clock = root, root.clock
        self._quiet: dict[str, tuple[tuple[int, int], float]] = {}
        """The (incarnation, next ledger) and the time since which they hold, by folder."""

    def delete(self, ledger: ManagedLedger, policies: Mapping[str, Applied]) -> bool:
        """Delete the topic if it is inactive; whether it was. `policies` are those that count."""
        if not policies["delete_inactive_topics"].value:
            self._quiet.pop(ledger.folder, None)
            return False
        state, now_s = ledger.state, self._clock.monotonic_s()
        number, known = state.number, (state.incarnation, state.next_ledger_id)
        seen, since_s = self._quiet.setdefault(ledger.folder, (known, now_s))
        if seen != known:
            self._quiet[ledger.folder] = known, now_s
            return False
        wait_ms = policies["max_inactive_duration_ms"].value
        keep_ms = policies["retention_time_ms"].value
        if keep_ms == INFINITE or (now_s - since_s) * 1000 < max(wait_ms, keep_ms):
            return False
        if self._is_used(ledger, policies["inactive_topic_delete_mode"].value):
            self._quiet[ledger.folder] = known, now_s
            return False

        def build(there: TopicState, new: Commit) -> Commit | None:
            if there.number != number:
                return None
            return replace(new, deleted=True)

        if ledger.commit(build, waits=False) is None:
            return False
        _log.info("Deleted %s: nobody has used it for %.0f s", ledger.topic, now_s - since_s)
        self._quiet.pop(ledger.folder)
        sweep_deleted(self._root.store, ledger.folder, ledger.topic)
        return True

    def until_s(self, ledger: ManagedLedger, policies: Mapping[str, Applied]) -> float:
        """When to look at it again, though nothing happens there; inf is never."""
        keep_ms = policies["retention_time_ms"].value
        if ledger.folder not in self._quiet or keep_ms == INFINITE:
            return inf
        wait_ms: int = max(policies["max_inactive_duration_ms"].value, keep_ms)
        return self._quiet[ledger.folder][1] + wait_ms / 1000

    def _is_used(self, ledger: ManagedLedger, mode: str) -> bool:
        """True if there is a producer, a connected consumer, or a subscription."""
        if (ledger.state.settings.get(NESTED) or {}).get("keep_without_subscription"):
            return True
        present = ProducerRegistry.from_json_value(ledger.state.producers).present
        if any(each.lapses_ms > ledger.clock() for each in present.values()):
            return True
        return any(
            mode != _CAUGHT_UP or each.backlog or each.consumers
            for each in subscriptions(self._root, ledger.topic)
        )
