"""Topics looked after: made, deleted, ended, emptied.

Invariants: each change is one commit of the topic's log, so a process that is killed leaves the
topic as it was or as it is to be; a deleted topic's files are deleted behind that commit, by who
comes next if need be; what somebody may lose by it has to be forced. Follows Pulsar's `Topics`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pulsar_spark.broker.subscriptions.dead_letter import REDRIVE_SUBSCRIPTION
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore, sweep_deleted
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import check_domain, check_room
from pulsar_spark.connector.runtime.topics.topics import Root, partitions_of
from pulsar_spark.connector.tools.admin import messages
from pulsar_spark.connector.tools.admin.messages import StoredMessage
from pulsar_spark.errors import (
    BrokerRefusedError,
    InvalidOptionError,
    MessageNotFoundError,
    ServerError,
    TopicInUseError,
)
from pulsar_spark.log.ledger_log import TERMINATED
from pulsar_spark.log.producer_registry import ProducerRegistry
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import (
    NON_PERSISTENT,
    PERSISTENT,
    NamespaceName,
    TopicName,
    check_user_topic,
)
from pulsar_spark.options.topic_policies import properties as properties_of
from pulsar_spark.options.topic_policies import with_properties

if TYPE_CHECKING:
    from pulsar_spark.connector.runtime.housekeeping.redrive import Redriven

DOMAINS: Final = (PERSISTENT, NON_PERSISTENT)
ENDS: Final = ("earliest", "latest")
list_ = list
"""The type, where a method has its name."""


class Topics:
    """The topics of one root. A name is `orders`, `tenant/namespace/orders`, or a full one."""

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self._root = root

    def list(
        self,
        namespace: str | None = None,
        *,
        system: bool = False,
        domains: Sequence[str] = DOMAINS,
    ) -> list[str]:
        """The full names of the topics of a namespace, or of all, in order.

        `system`: also of those that Pulsarlite makes and writes itself.
        """
        tenant = local = None
        if namespace is not None:
            parsed = NamespaceName.parse(namespace)
            tenant, local = parsed.tenant, parsed.local_name
        found = (each for domain in domains for each in self._root.find(tenant, local, domain))
        return [
            str(each)
            for each in found
            if (system or not each.is_system) and self._root.exists(each)
        ]

    def create(
        self, topic: str, partitions: int = 1, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic, with these properties.

        TopicExistsError if it is there already, TooManyTopicsError if its namespace is full.
        """
        name = TopicName.parse(topic)
        if name.is_partition:
            raise InvalidOptionError(
                f"{name} is the name of a partition: create {name.partitioned_topic_name} with "
                "--partitions."
            )
        check_user_topic(name, "created")
        settings = with_properties({}, properties or {})
        check_domain(self._root, name)
        if not self._root.exists(name):
            check_room(self._root, name, partitions)
        self._root.create(name, partitions, settings)

    def delete(self, topic: str, *, force: bool = False) -> int:
        """Delete a topic with its messages; how many files were deleted.

        A topic that is made again under its name is another: no consumer, checkpoint, producer or
        acknowledgement of the old one reaches it. TopicInUseError if it has subscriptions, or
        producers that it knows of, unless `force`: then consumers and queries that read it fail
        with TopicDeletedError. To delete a deleted topic finishes what a killed process began.
        """
        name = self._users(topic, "deleted")
        ledger = self._root.open_log(name)
        if ledger is None or (ledger.state.is_deleted and not ledger.state.tombstones):
            ledger = self._root.open(name)  # TopicNotFoundError, and why
        if not ledger.state.is_deleted:
            if not force:
                self._check_unused(ledger)
            ledger.delete()
        return sweep_deleted(self._root.store, name.storage_path, ledger.topic)

    def update(self, topic: str, partitions: int) -> int:
        """Give a topic more partitions; how many it had.

        InvalidOptionError if it has more, TooManyTopicsError if its namespace is full.
        """
        name = self._users(topic, "updated")
        ledger = self._root.open(name)
        before = ledger.state.partitions
        if partitions < before:
            raise InvalidOptionError(
                f"{ledger.topic} has {before} partitions, and partitions are only ever added."
            )
        check_room(self._root, name, partitions - before)
        ledger.grow(partitions)
        return before

    def partitions(self, topic: str) -> int:
        """The number of its partitions. TopicNotFoundError if there is no such topic."""
        return self._root.open(TopicName.parse(topic)).state.partitions

    def terminate(self, topic: str) -> dict[int, MessageId]:
        """Let nobody publish to it any more; the last message id of each partition.

        What is there stays, and is read and acknowledged as before.
        """
        ledger = self._root.open(self._users(topic, "terminated"))
        ledger.change_settings(lambda known: {**known, TERMINATED: True})
        return self.last_message_id(topic)

    def last_message_id(self, topic: str) -> dict[int, MessageId]:
        """The id of the last message of each partition; -1:-1 where none was published."""
        ledger, chosen = self.opened(topic)
        return {number: _last_id(ledger, number) for number in chosen}

    def get_message_id(self, topic: str, timestamp_ms: int) -> dict[int, MessageId | None]:
        """The id of each partition's first message behind all that were published before then.

        There `reset_cursor` to that time goes on. None: nothing was published then or later.
        """
        ledger, chosen = self.opened(topic)
        return {number: messages.first_since(ledger, number, timestamp_ms) for number in chosen}

    def get_properties(self, topic: str) -> dict[str, str]:
        """The names and texts that its owner has given it. TopicNotFoundError if there is none."""
        return properties_of(self._root.open(TopicName.parse(topic)).state.settings)

    def update_properties(self, topic: str, given: Mapping[str, str]) -> None:
        """Give it these beside those that it has. InvalidOptionError if they are too long."""
        ledger = self._root.open(self._users(topic, "updated"))
        ledger.change_settings(lambda known: with_properties(known, given))

    def remove_properties(self, topic: str, *names: str) -> None:
        """Take these from it; one that it does not have is none."""
        ledger = self._root.open(self._users(topic, "updated"))
        ledger.change_settings(lambda known: with_properties(known, {}, names))

    def truncate(self, topic: str, *, force: bool = False) -> int:
        """Delete all messages, for all subscriptions; how many there were.

        Subscriptions stay, at the end. TopicInUseError if one of them has not acknowledged all,
        unless `force`.
        """
        state = self._root.open(self._users(topic, "truncated")).state
        before = dict.fromkeys(range(state.partitions), state.next_ledger_id)
        return self.trim(topic, before, force=force)[0]

    def trim(
        self, topic: str, before: Mapping[int, int], *, force: bool = False
    ) -> tuple[int, int]:
        """Drop each partition's ledgers with an id below `before[partition]`.

        How many messages went, in how many ledgers. TopicInUseError if a subscription has not
        acknowledged them, unless `force`.
        """
        ledger = self._root.open(self._users(topic, "trimmed"))
        if not force:
            self._check_acknowledged(ledger, before)
        ledgers = {number: ledger.ledgers(number) for number in before}
        commit = LedgerStore(ledger).trim(before)
        trimmed = commit.trimmed if commit else {}
        gone = [ledgers[number].get(each) for number, ids in trimmed.items() for each in ids]
        return sum(each.messages for each in gone if each), len(gone)

    def peek(self, topic: str, subscription: str, count: int = 1) -> list_[StoredMessage]:
        """The first messages that the subscription has not acknowledged, of each partition.

        As of its broker's last step. BrokerRefusedError if there is no such subscription.
        """
        ledger, chosen = self.opened(topic)
        found: list_[StoredMessage] = []
        known = [e for e in subscriptions(self._root, ledger.topic) if e.name == subscription]
        if not known:
            raise BrokerRefusedError(
                ServerError.SUBSCRIPTION_NOT_FOUND,
                f"{ledger.topic} has no subscription {subscription} that a broker knows of.",
            )
        for each in known:
            number = each.topic_partition.partition
            if number in chosen:
                held = each.unacknowledged(ledger.ledgers(number)).prefix(
                    count, ledger.ledgers(number)
                )
                found += messages.among(ledger, number, held)
        return found

    def examine(
        self, topic: str, initial_position: str = "latest", message_position: int = 1
    ) -> StoredMessage:
        """The `message_position`-th message from that end, `latest` or `earliest`; 1 is the first.

        Of a topic with partitions one of these has to be named. MessageNotFoundError if there are
        not so many.
        """
        if initial_position not in ENDS:
            raise InvalidOptionError(f"{initial_position!r} is none of {', '.join(ENDS)}.")
        if message_position < 1:
            raise InvalidOptionError(f"{message_position}: messages are counted from 1 on.")
        ledger, chosen = self.opened(topic)
        if len(chosen) > 1:
            raise InvalidOptionError(
                f"{ledger.topic} has {len(chosen)} partitions: name one, such as "
                f"{ledger.topic}-partition-0."
            )
        is_newest = initial_position == "latest"
        found = messages.nth(ledger, chosen[0], message_position, newest=is_newest)
        if not found:
            raise MessageNotFoundError(f"{ledger.topic} has no {message_position} messages.")
        return found[0]

    def get_message_by_id(self, topic: str, message_id: str | MessageId) -> list_[StoredMessage]:
        """The message of an id (`ledger:entry:partition[:index]`); without an index its entry.

        MessageNotFoundError if there is none, or not any more.
        """
        ledger, requested = self._meant(topic, message_id)
        found = messages.at(ledger, requested)
        if not found:
            raise MessageNotFoundError(f"{ledger.topic} has no message {requested}.")
        return found

    def backlog_size(self, topic: str, message_id: str | MessageId) -> int:
        """Bytes behind a message, or its entry, as if all messages of a ledger had one size.

        Payload before compression. Pulsar: `getBacklogSizeByMessageId`.
        """
        ledger, requested = self._meant(topic, message_id)
        ledgers = ledger.ledgers(requested.partition)
        if not len(ledgers):
            return 0
        behind = PositionSet.between(ledgers, Position(*requested.position), ledgers[-1].last)
        return behind.size_bytes(ledgers)

    def redrive(
        self,
        topic: str,
        *,
        origin_topic: str | None = None,
        dead_lettered_by: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        message_ids: Iterable[MessageId | str] = (),
        to: str | None = None,
        subscription: str = REDRIVE_SUBSCRIPTION,
        dry_run: bool = False,
    ) -> Redriven:
        """Publish messages of a dead letter topic where they came from; all, or those that match.

        They go back with value, key, ordering key, event time, schema and the properties that they
        had, and are acknowledged for the `subscription`, so the next redrive has only the others. A
        broker has to run. `to` is a topic to take in place of theirs; a `dry_run` changes nothing.

        TopicNotFoundError, InvalidOptionError; BrokerAbsentError; InvalidTxnStatusError if a newer
        redrive has taken over. Those whose topic is gone, or refuses them, stay and are counted.
        """
        from pulsar_spark.connector.runtime.housekeeping.redrive import DeadLetterFilter, Redrive

        ids = tuple(parsed_id(e) if isinstance(e, str) else e for e in message_ids)
        name = None if origin_topic is None else str(TopicName.parse(origin_topic))
        requested = DeadLetterFilter(
            name, dead_lettered_by, reason, error, key, dict(properties or {}), since, until, ids
        )
        run = Redrive(self._root, TopicName.parse(topic), requested, to, subscription)
        return run.look() if dry_run else run.run()

    def opened(self, topic: str) -> tuple[ManagedLedger, Sequence[int]]:
        """(the topic, its partitions: all, or the one that the name has)."""
        name = TopicName.parse(topic)
        ledger = self._root.open(name)
        return ledger, partitions_of(ledger, name)

    # -- inside --------------------------------------------------------------------------------

    def _meant(self, topic: str, message_id: str | MessageId) -> tuple[ManagedLedger, MessageId]:
        """(the topic, the id with its partition)."""
        ledger, chosen = self.opened(topic)
        requested = parsed_id(message_id) if isinstance(message_id, str) else message_id
        if requested.partition < 0 and len(chosen) == 1:
            requested = replace(requested, partition=chosen[0])
        if requested.partition not in chosen:
            raise InvalidOptionError(
                f"{requested} names no partition of {topic}, which has {ledger.state.partitions}. "
                f"Name the partition as the topic, such as {ledger.topic}-partition-0."
            )
        return ledger, requested

    def _users(self, topic: str, to_be: str) -> TopicName:
        """The name; InvalidTopicNameError if it is a system topic's, or a partition's."""
        name = check_user_topic(TopicName.parse(topic), to_be)
        if name.is_partition:
            raise InvalidOptionError(
                f"{name} is a partition, and can't be {to_be} alone: name the whole topic, "
                f"{name.partitioned_topic_name}."
            )
        return name

    def _check_acknowledged(self, ledger: ManagedLedger, before: Mapping[int, int]) -> None:
        behind = set()
        for each in subscriptions(self._root, ledger.topic):
            number = each.topic_partition.partition
            going = LedgerList(
                one for one in ledger.ledgers(number) if one.ledger_id < before.get(number, 0)
            )
            if each.unacknowledged(going):
                behind.add(each.name)
        if behind:
            raise TopicInUseError(
                f"Subscriptions {', '.join(sorted(behind))} of {ledger.topic} have not "
                "acknowledged all that would go. Say --force if it is to be lost."
            )

    def _check_unused(self, ledger: ManagedLedger) -> None:
        names = sorted({each.name for each in subscriptions(self._root, ledger.topic)})
        present = ProducerRegistry.from_json_value(ledger.state.producers).present
        now_ms = ledger.clock()
        producers = sorted(name for name, each in present.items() if each.lapses_ms > now_ms)
        used = [
            f"{what} {', '.join(which)}"
            for what, which in (("subscriptions", names), ("producers", producers))
            if which
        ]
        if used:
            raise TopicInUseError(
                f"Topic {ledger.topic} has {' and '.join(used)}. Delete them first (pulsarlite "
                f"topics unsubscribe), or say --force: whoever reads or writes it then fails."
            )


def parsed_id(text: str) -> MessageId:
    """A message id, also without a partition as pulsar-admin takes it. InvalidOptionError if none.

    Without a partition it has -1.
    """
    two = re.fullmatch(r"(\d+):(\d+)", text)
    try:
        return MessageId(int(two[1]), int(two[2])) if two else MessageId.parse(text)
    except ValueError as error:
        raise InvalidOptionError(f"{error}.") from None


def _last_id(ledger: ManagedLedger, partition: int) -> MessageId:
    ledgers = ledger.ledgers(partition)
    if not len(ledgers):
        last = ledger.state.partition(partition).trimmed_up_to
        return MessageId(last.ledger_id, last.entry_id, partition)
    size = ledgers[-1].batch_sizes.size_of(ledgers[-1].last.entry_id)
    index = size - 1 if size > 1 else -1
    return MessageId(ledgers[-1].last.ledger_id, ledgers[-1].last.entry_id, partition, index)
