"""Commands to the broker: from consumers, from admins, and from the log.

Invariants: a command is a value; one that arrives twice changes nothing the second time, and one
that arrives late is known to be late: by its epoch, its incarnation, its sequence number, or the
attempt that it rejects. Names are those of Pulsar's wire protocol (`PulsarApi.proto`) where it has
them; Flow and Ack travel together as a `Report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray

from pulsar_spark.broker.protocol.policies import ConsumerOptions, KeySharedPolicy, TopicPolicies
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet


class SubscriptionType(str, Enum):
    """The way in which the consumers of a subscription share its messages."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"

    @property
    def is_shared(self) -> bool:
        """True if several consumers get messages at a time."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class InitialPosition(str, Enum):
    """The place where a new subscription begins."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


@dataclass(frozen=True, slots=True)
class LedgerAdded:
    """A commit of the log added a ledger to this partition.

    `sticky_key_hashes` (31 bits), `deliver_at_ms` (0: at once) and `publish_times_ms` have one
    value a message, in order; each may be missing. `hidden` are duplicates that readers skip.
    """

    ledger: LedgerInfo
    published_at_ms: int = 0
    sticky_key_hashes: NDArray[Any] | None = None
    deliver_at_ms: NDArray[Any] | None = None
    publish_times_ms: NDArray[Any] | None = None
    hidden: PositionSet = field(default_factory=PositionSet)


@dataclass(frozen=True, slots=True)
class LedgersTrimmed:
    """A commit of the log removed these ledgers; readers find them no more."""

    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A commit of the log deleted the topic: nothing of it is left."""


@dataclass(frozen=True, slots=True)
class TopicMade:
    """A commit of the log made the topic, behind the deletion of those that had its name."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class LogIdentified:
    """The log's identity, the id of the commit that made the topic; with each part of the log."""

    made_by: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """A commit of the log compacted this partition, and says which messages are kept."""

    compacted: CompactedLedgers


@dataclass(frozen=True, slots=True)
class SetPolicies:
    """An admin changed the topic's policies, or the host found them in the topic's settings."""

    policies: TopicPolicies


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A consumer connects, or repeats that it did.

    `incarnation` tells the runs under one consumer name apart: a higher one replaces a lower.
    `resumes`: it has a checkpoint, so its earlier grants are still with it.
    `start_message_id` is (position, batch index or -1) and counts only for a new subscription; so
    does `begins_behind`, which comes before it: the messages that the consumer's own checkpoint has
    as done, where the subscription is not durable. `partitions` is how many the topic had when the
    consumer looked; None: it did not say. `topic_incarnation` is that of the topic which was meant:
    the broker refuses what was meant for one that was deleted.
    """

    subscription: str
    consumer: str
    incarnation: int = 0
    subscription_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    durable: bool = True
    initial_position: InitialPosition = InitialPosition.LATEST
    start_message_id: tuple[Position, int] | None = None
    start_message_id_inclusive: bool = False
    priority_level: int = 0
    key_shared_policy: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    options: ConsumerOptions = field(default_factory=ConsumerOptions)
    permits: int = 0
    read_compacted: bool = False
    resumes: bool = False
    request_id: int | None = None
    begins_behind: Cursor | None = None
    partitions: int | None = None
    topic_incarnation: int = 0


@dataclass(frozen=True, slots=True)
class CreateSubscription:
    """An admin, or a dead-letter policy, creates a durable subscription without consumers."""

    subscription: str
    initial_position: InitialPosition = InitialPosition.EARLIEST
    request_id: int | None = None
    topic_incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class CloseConsumer:
    """A consumer goes, having sent its last report."""

    subscription: str
    consumer: str
    incarnation: int = 0
    request_id: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseLapsed:
    """A consumer showed no life for longer than its lease; only the host's clock knows that."""

    subscription: str
    consumer: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Delete a subscription; by its only consumer, or by an admin (no consumer) if it has none."""

    subscription: str
    consumer: str = ""
    incarnation: int = 0
    request_id: int | None = None
    topic_incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Seek:
    """Begin a new epoch: at a message, which is the next one, or at a publish time."""

    subscription: str
    position: Position | None = None
    batch_index: int = -1
    timestamp_ms: int | None = None
    request_id: int | None = None
    topic_incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class SkipMessages:
    """Acknowledge the oldest of a backlog, for an admin: so many, those up to a position, or older.

    `count` messages; those up to `position`, itself included; those published before `before_ms`.
    With none of the three all of them.
    """

    subscription: str
    count: int | None = None
    position: Position | None = None
    before_ms: int | None = None
    request_id: int | None = None
    topic_incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Negatively acknowledged messages, as granted in `attempt`. No delay given: the consumer's.

    Without attempt: at whatever attempt they are held. `properties` are set on their dead
    letters: the error, for instance.
    """

    attempt: int | None
    messages: PositionSet
    delay_ms: int | None = None
    properties: tuple[tuple[str, str], ...] = ()
    to_dead_letter: bool = False
    """Dead letters at once, however seldom they were delivered."""


@dataclass(frozen=True, slots=True)
class ReconsumeLater:
    """Messages for the retry letter topic. `reconsume_times` is the present value of that property.

    Without attempt: at whatever attempt they are held.
    """

    attempt: int | None
    messages: PositionSet
    delay_ms: int = 0
    reconsume_times: int = 0
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The finished work of a consumer; or, without `consumer`, a sink's addition to it.

    Either way the union of the reports that arrive is right. `acknowledged_attempts` are
    acknowledged as granted in each attempt: grants from before the latest seek are left out. A
    sink knows no epoch: None is the present one. Its cursor has a mark-delete position if it
    acknowledges cumulatively, which is refused where several consumers share the subscription; as
    in Pulsar, so is one below the subscription's, and anything beyond the last entry.

    `sequence` rises with each report of an incarnation; of delivered, permits and committed floor
    the newest report's count. `delivered`, by attempt, has all messages that were granted, planned
    and not acknowledged so far; it is sent before they are delivered; None: not told. Of a consumer
    that prefetches it has those that its program was handed since the report before. `permits` is
    how many messages the consumer may hold at most. `revision` is the latest `Revoke` that it has
    obeyed. `committed` is the floor of its committed offset: below it no replay reads.
    """

    subscription: str
    consumer: str = ""
    incarnation: int = 0
    epoch: int | None = 0
    sequence: int = 0
    acknowledged: Cursor = field(default_factory=Cursor)
    delivered: Mapping[int, PositionSet] | None = None
    rejected: tuple[Rejection, ...] = ()
    reconsume_later: tuple[ReconsumeLater, ...] = ()
    permits: int | None = None
    revision: int = 0
    committed: Position | None = None
    request_id: int | None = None
    acknowledged_attempts: Mapping[int, Cursor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RedeliverUnacknowledgedMessages:
    """Give these back, as granted in each attempt; None: all that the consumer holds."""

    subscription: str
    consumer: str
    incarnation: int = 0
    epoch: int = 0
    sequence: int = 0
    messages: Mapping[int, PositionSet] | None = None


Command = (
    LedgerAdded
    | LedgersTrimmed
    | TopicDeleted
    | TopicMade
    | LogIdentified
    | Compacted
    | SetPolicies
    | Subscribe
    | CreateSubscription
    | CloseConsumer
    | LeaseLapsed
    | Unsubscribe
    | Seek
    | SkipMessages
    | Report
    | RedeliverUnacknowledgedMessages
)

Request = CreateSubscription | CloseConsumer | Unsubscribe | Seek | SkipMessages | Report
"""Commands that are answered, if they ask for it."""
