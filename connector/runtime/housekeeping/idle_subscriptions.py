"""The deletion of subscriptions that nobody uses, where a policy asks for it.

Invariants: a durable subscription goes only if, on each partition, nobody was connected, came, or
moved it for all of the time that its policy says, as this process has seen it, so a broker that has
just begun deletes none; and by a command to the broker, which refuses if somebody is connected by
then. Its partitions go in one commit: whoever subscribes meanwhile comes before all or behind all.
Follows Pulsar's `PersistentTopic.checkInactiveSubscriptions`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Final

from pulsar_spark.broker.protocol.commands import Unsubscribe
from pulsar_spark.connector.runtime.system_topics.subscription_admin import (
    SubscriptionStats,
    subscriptions,
)
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root

POLL_EVERY_S: Final = 30.0
"""Seconds between two reads of the broker's states: one read serves all topics of a poll."""

_Observed = tuple[object, ...]
_log = logging.getLogger(__name__)


class IdleSubscriptions:
    """The subscriptions of a root, as one housekeeper has observed them."""

    def __init__(self, root: Root) -> None:
        self._root, self._clock = root, root.clock
        self._idle: dict[str, dict[str, tuple[_Observed, float]]] = {}
        """The last observation and the time since which it holds, by topic and name."""
        self._known: dict[str, dict[str, list[SubscriptionStats]]] = {}
        self._polled_s = -inf

    def delete(self, ledger: ManagedLedger, after_ms: int) -> Sequence[str]:
        """Have the broker delete a topic's idle subscriptions; their names. 0: it is not asked."""
        before = self._idle.pop(ledger.topic, {})
        if not after_ms:
            return ()
        self._poll()
        idle, over, now_s = {}, [], self._clock.monotonic_s()
        for name, parts in self._known.get(ledger.topic, {}).items():
            if not parts[0].durable or any(each.consumers for each in parts):
                continue
            seen = tuple(_seen(each) for each in parts)
            known, since_s = before.get(name, (seen, now_s))
            idle[name] = (seen, since_s if known == seen else now_s)
            if (now_s - idle[name][1]) * 1000 >= after_ms:
                over.append(name)
        self._idle[ledger.topic] = {name: idle[name] for name in idle if name not in over}
        for name in over:
            self._ask(ledger, name)
        return over

    def _poll(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._polled_s < POLL_EVERY_S:
            return
        self._polled_s, self._known = now_s, {}
        for each in subscriptions(self._root):
            of_topic = self._known.setdefault(each.topic_partition.topic, {})
            of_topic.setdefault(each.name, []).append(each)

    def _ask(self, ledger: ManagedLedger, name: str) -> None:
        command = Unsubscribe(name, topic_incarnation=ledger.state.incarnation)
        parts = self._known[ledger.topic][name]
        commands = SystemTopic(self._root, COMMANDS)
        commands.append([Record.of(each.topic_partition, name, command) for each in parts])
        _log.info("Subscription %s of %s expires: nobody came for it", name, ledger.topic)


def _seen(stats: SubscriptionStats) -> _Observed:
    """The values that change when a consumer comes or goes, or a cursor is moved by hand."""
    held = stats.held
    return stats.topic_partition.partition, held.epoch, tuple(sorted(held.incarnations.items()))
