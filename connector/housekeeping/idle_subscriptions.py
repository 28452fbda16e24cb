"""Which subscriptions the broker deletes because nobody comes for them, where a policy says so.

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

from pulsar_spark.connector.system.subscription_admin import SubscriptionStats, subscriptions
from pulsar_spark.connector.system.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.protocol.commands import Unsubscribe

LOOK_EVERY_S: Final = 30.0
"""How often it reads what the broker knows: once for all topics that are looked at together."""

_Seen = tuple[object, ...]
_log = logging.getLogger(__name__)


class IdleSubscriptions:
    """What one housekeeper has seen of the subscriptions of a root."""

    def __init__(self, root: Root) -> None:
        self._root, self._clock = root, root.clock
        self._idle: dict[str, dict[str, tuple[_Seen, float]]] = {}
        """By topic and name: what was seen of it, and since when that is so."""
        self._known: dict[str, dict[str, list[SubscriptionStats]]] = {}
        self._looked_s = -inf

    def delete(self, ledger: ManagedLedger, after_ms: int) -> Sequence[str]:
        """Have the broker delete a topic's idle subscriptions; their names. 0: it is not asked."""
        before = self._idle.pop(ledger.topic, {})
        if not after_ms:
            return ()
        self._look()
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

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s, self._known = now_s, {}
        for each in subscriptions(self._root):
            of_topic = self._known.setdefault(each.topic_partition.topic, {})
            of_topic.setdefault(each.name, []).append(each)

    def _ask(self, ledger: ManagedLedger, name: str) -> None:
        command = Unsubscribe(name, topic_incarnation=ledger.state.incarnation)
        parts = self._known[ledger.topic][name]
        commands = SystemTopic(self._root, COMMANDS)
        commands.append([Record.of(each.topic_partition, name, command) for each in parts])
        _log.info("Subscription %s of %s expires: nobody came for it", name, ledger.topic)


def _seen(stats: SubscriptionStats) -> _Seen:
    """What changes when somebody comes and goes, or moves its cursor by hand."""
    held = stats.held
    return stats.topic_partition.partition, held.epoch, tuple(sorted(held.incarnations.items()))
