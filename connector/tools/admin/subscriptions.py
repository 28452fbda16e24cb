"""Subscriptions looked after: made, moved, emptied, deleted, without being a consumer.

Invariants: a change is a command, and done when the broker of each partition has answered; it says
which topic it means, so it never reaches one that was made again under the name meanwhile.
Follows Pulsar's `Topics` (`createSubscription`, `resetCursor`, `skipMessages`, `expireMessages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pulsar_spark.broker.protocol.commands import (
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    Seek,
    SkipMessages,
    Unsubscribe,
)
from pulsar_spark.connector.runtime.system_topics.subscription_admin import (
    SubscriptionStats,
    ask,
    redeliver_unacknowledged_messages,
    subscriptions,
)
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.topics import Topics, parsed_id
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.topic_name import (
    TopicName,
    TopicPartition,
    check_subscription_name,
    check_user_topic,
)
from pulsar_spark.options.option_values import Delay, milliseconds_of

ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}


class Subscriptions:
    """The subscriptions of one root's topics. A topic's name may be that of one partition.

    All but `list` and `stats` need a broker: BrokerAbsentError if none answers, and
    BrokerRefusedError if it refuses, as where there is no such subscription.
    """

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self._root, self._topics = root, Topics(root)

    def list(self, topic: str) -> list[str]:
        """The names of a topic's subscriptions that a broker knows of, in order."""
        return sorted({each.name for each in self.stats(topic)})

    def stats(self, topic: str) -> Sequence[SubscriptionStats]:
        """The statistics of each subscription, by partition, as of its broker's last step."""
        ledger, chosen = self._opened(topic)
        found = subscriptions(self._root, ledger.topic)
        return [each for each in found if each.topic_partition.partition in chosen]

    def create(self, topic: str, name: str, message_id: str = "latest") -> None:
        """Make a durable subscription at the `latest`, the `earliest`, or behind a message's id.

        One that is there stays as it is.
        """
        if message_id in ENDS:
            where = InitialPosition(message_id.capitalize())
            self._ask(topic, CreateSubscription(name, where))
            return
        requested = parsed_id(message_id)
        if name in self.list(topic):
            return
        self._ask(topic, CreateSubscription(name))
        self.reset_cursor(topic, name, requested)

    def delete(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete it; BrokerRefusedError (ConsumerBusy) if it has consumers, unless `force`.

        As in Pulsar, a consumer that is thrown out and goes on makes it anew.
        """
        if force:
            self._throw_out(topic, name)
        self._ask(topic, Unsubscribe(name))

    def reset_cursor(
        self,
        topic: str,
        name: str,
        message_id: str | MessageId | None = None,
        *,
        timestamp_ms: int | None = None,
        exclude: bool = False,
    ) -> None:
        """Go on from a message (`earliest`, `latest`, or an id), or from a publish time.

        The message of the id comes next; with `exclude` the one behind it. By time the first that
        was published at that instant or later comes next.
        """
        if (message_id is None) == (timestamp_ms is None):
            raise InvalidOptionError("It takes an id or a time, and one of them.")
        if timestamp_ms is not None:
            self._ask(topic, Seek(name, timestamp_ms=timestamp_ms))
        elif isinstance(message_id, str) and message_id in ENDS:
            self._ask(topic, Seek(name, ENDS[message_id]))
        else:
            requested = parsed_id(message_id) if isinstance(message_id, str) else message_id
            assert requested is not None
            position, index = requested.position, requested.batch_index
            if exclude:
                position, index = (position, index + 1) if index >= 0 else (position.next, -1)
            self._ask(topic, Seek(name, position, index), only=requested.partition)

    def redeliver_unacknowledged_messages(
        self, topic: str, name: str, *, consumer: str | None = None, timeout: Delay = "60s"
    ) -> None:
        """Redeliver all messages that its consumers have not acknowledged, or those of one.

        A query's consumer is its `consumerName`. Returns when the broker has done it. Messages of a
        micro-batch that runs now are among them, unless it acknowledges them first. Follows
        Pulsar's `Consumer.redeliverUnacknowledgedMessages`.
        """
        timeout_s = milliseconds_of(timeout) / 1000
        redeliver_unacknowledged_messages(self._root, topic, name, consumer, timeout_s)

    def skip(self, topic: str, name: str, count: int) -> None:
        """Acknowledge the oldest `count` messages that it has not acknowledged, of each partition.

        Messages, where Pulsar counts batches: as the backlog does here.
        """
        if count < 1:
            raise InvalidOptionError(f"{count}: it takes a number of messages, 1 or more.")
        self._ask(topic, SkipMessages(name, count=count))

    def clear_backlog(self, topic: str, name: str) -> None:
        """Acknowledge all that the topic has. Pulsar: clear-backlog, skip-all."""
        self._ask(topic, SkipMessages(name))

    def expire(
        self,
        topic: str,
        name: str | None = None,
        *,
        older_than_ms: int | None = None,
        message_id: str | MessageId | None = None,
    ) -> Sequence[str]:
        """Acknowledge messages that are older, or all up to an id, that one included; for whom.

        Without a name of all durable subscriptions. Older is by their publish time: one that is
        just as old stays.
        """
        if (older_than_ms is None) == (message_id is None):
            raise InvalidOptionError("It takes an age or an id, and one of them.")
        before_ms = None if older_than_ms is None else self._root.clock.wall_ms() - older_than_ms
        position, only = None, -1
        if message_id is not None:
            requested = parsed_id(message_id) if isinstance(message_id, str) else message_id
            position, only = Position(*requested.position), requested.partition
        names = [name] if name is not None else self._durable(topic)
        for each in names:
            self._ask(topic, SkipMessages(each, position=position, before_ms=before_ms), only=only)
        return names

    # -- inside --------------------------------------------------------------------------------

    def _opened(self, topic: str) -> tuple[ManagedLedger, Sequence[int]]:
        check_user_topic(TopicName.parse(topic), "subscribed to")
        return self._topics.opened(topic)

    def _durable(self, topic: str) -> Sequence[str]:
        return sorted({each.name for each in self.stats(topic) if each.durable})

    def _throw_out(self, topic: str, name: str) -> None:
        out = [
            Record.of(each.topic_partition, name, LeaseLapsed(name, one.name, one.incarnation))
            for each in self.stats(topic)
            if each.name == name
            for one in each.consumers
        ]
        if out:
            SystemTopic(self._root, COMMANDS).append(out)

    def _ask(self, topic: str, command: Any, *, only: int = -1) -> None:
        """Have it done on each partition, or on one, and wait for the answers."""
        check_subscription_name(command.subscription)
        ledger, chosen = self._opened(topic)
        if only not in (-1, *chosen):
            raise InvalidOptionError(
                f"The id names no partition of {ledger.topic}, which has {len(chosen)}: {only}."
            )
        position = getattr(command, "position", None)
        if only == -1 and len(chosen) > 1 and position not in (None, EARLIEST, LATEST):
            raise InvalidOptionError(
                f"{ledger.topic} has {len(chosen)} partitions: the id has to say which, as in "
                "LEDGER:ENTRY:PARTITION, or the topic's name has to."
            )
        meant = replace(command, topic_incarnation=ledger.state.incarnation)
        asked = chosen if only == -1 else [only]
        ask(self._root, {TopicPartition(ledger.topic, each): meant for each in asked})
