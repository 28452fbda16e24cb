"""The views and their columns, declared once: schemas, docs/views.md and errors come from here.

Invariants: a view of messages has the columns of a message, of which those that lie in its data
file are null once it was trimmed; names are Pulsar's (`SubscriptionStats`, `ConsumerStats`,
`CursorStats`, `LedgerInfo`) in this project's spelling.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from pulsar_spark.connector.inspect.views.topic_stats import TOPIC
from pulsar_spark.connector.runtime.topics.message_columns import READ_COLUMNS
from pulsar_spark.errors import InvalidOptionError

TEXT: Final = pa.string()
LONG: Final = pa.int64()
INT: Final = pa.int32()
FLAG: Final = pa.bool_()
TIME: Final = pa.timestamp("us", tz="UTC")


class ViewColumn(NamedTuple):
    """A column of a view. `stored` ones come from the messages' data files."""

    name: str
    type: pa.DataType
    meaning: str
    stored: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """One view. `own` has the columns that a message, or a topic partition, does not have."""

    name: str
    meaning: str
    of_messages: bool
    own: tuple[ViewColumn, ...]
    has_as_of: bool = True

    @property
    def columns(self) -> tuple[ViewColumn, ...]:
        return (*MESSAGE, *self.own) if self.of_messages else self.own

    @property
    def schema(self) -> pa.Schema:
        """All of its columns."""
        return pa.schema([(each.name, each.type) for each in self.columns])

    def shown(self, *, value: bool, properties: bool) -> pa.Schema:
        """The columns without a user's choice: payload and properties only if asked for."""
        left_out = {"first_chunk_message_id"}
        left_out |= set() if value else {"value"}
        left_out |= set() if properties else {"properties"}
        return pa.schema([each for each in self.schema if each.name not in left_out])

    def check(self, names: list[str]) -> None:
        """InvalidOptionError if one of these is no column of it, with the nearest."""
        known = self.schema.names
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                offer = f" Did you mean {near[0]}?" if near else ""
                raise InvalidOptionError(
                    f"Column {name} is none of view {self.name}'s.{offer} It has "
                    f"{', '.join(known)}."
                )


MESSAGE: Final = tuple(
    ViewColumn(each.name, each.type, each.meaning, each.stored)
    for each in READ_COLUMNS
    if each.name not in {"redelivery_count", "attempt", "schema_error"}
)
"""The columns of every view of messages."""

_PLACE: Final = (
    ViewColumn("topic", TEXT, "full name, without partition"),
    ViewColumn("partition", INT, "of the topic, from 0"),
)
_SUBSCRIPTION: Final = ViewColumn("subscription", TEXT, "name of the subscription")
_COUNT: Final = ViewColumn(
    "redelivery_count", INT, "how often it was given back after somebody may have seen it"
)
_HELD: Final = (
    ViewColumn("consumer_name", TEXT, "who holds it; null if nobody does"),
    ViewColumn("attempt", INT, "at which grant; null if nobody holds it"),
    _COUNT,
)

_OF_MESSAGES: Final = (
    View("messages", "Every message that the log has, duplicates left out.", True, ()),
    View(
        "backlog",
        "What each subscription has not acknowledged, and where it is: a row a message and "
        "subscription.",
        True,
        (
            _SUBSCRIPTION,
            ViewColumn("state", TEXT, "`held` by a consumer, `delayed` by its producer, `waiting` "
                       "for its redelivery, or `ready`"),
            *_HELD,
        ),
    ),
    View(
        "unacknowledged",
        "What consumers hold. Of the one that reads all (Exclusive, Failover), what it said that "
        "it has delivered.",
        True,
        (
            _SUBSCRIPTION,
            *_HELD,
            ViewColumn("is_delivered", FLAG, "whether the consumer said, before it delivered it, "
                       "that it would; null if it never says"),
            ViewColumn("ack_timeout_ends", TIME, "when it is given back for want of an "
                       "acknowledgement; null without `ackTimeout`"),
            ViewColumn("lease_ends", TIME, "when its consumer is given up without a further sign "
                       "of life, by the store's clock; null with asOf, and without a lease file"),
        ),
    ),
    View(
        "delayed",
        "What is to be delivered later: by its producer (where consumers share; the others get it "
        "at once), or because it was rejected or timed out.",
        True,
        (
            _SUBSCRIPTION,
            ViewColumn("reason", TEXT, "`deliver_at` or `redelivery`"),
            ViewColumn("due", TIME, "when it is delivered; where its producer said so, within the "
                       "topic's tick after this, and null once it was trimmed"),
            _COUNT,
        ),
    ),
    View(
        "dead-letters",
        "The messages of dead letter topics. `topic` selects by the letter's topic, and by the one "
        "that it came from.",
        True,
        (
            _SUBSCRIPTION._replace(meaning="the one that gave it up; property REAL_SUBSCRIPTION"),
            ViewColumn("origin_topic", TEXT, "where it was published first; REAL_TOPIC"),
            ViewColumn("origin_message_id", TEXT, "its id there; ORIGIN_MESSAGE_ID"),
            ViewColumn("reason", TEXT, "how it came to be one: `rejected`, `ack timeout`, "
                       "`consumer gone`, `redelivery asked`, `reconsumed` or `dead letter asked`; "
                       "DEAD_LETTER_REASON"),
            ViewColumn("error", TEXT, "what was said when it was given back last, such as an "
                       "exception; ERROR"),
            ViewColumn("attempts", INT, "how often it may have been delivered; "
                       "DEAD_LETTER_ATTEMPTS"),
            ViewColumn("consumer_name", TEXT, "who had it last; DEAD_LETTER_CONSUMER"),
            ViewColumn("traceparent", TEXT, "its W3C trace context"),
            ViewColumn("reconsume_times", INT, "how often it was put off to a retry letter topic; "
                       "RECONSUMETIMES"),
        ),
    ),
    View(
        "acknowledgements",
        "What was acknowledged in each batch that `__dispatch` has, and by whom.",
        True,
        (
            _SUBSCRIPTION,
            ViewColumn("acknowledged_by", TEXT, "`consumer`, `sink`, or `broker`: expired, removed "
                       "or copied to a letter topic"),
            ViewColumn("consumer_name", TEXT, "the consumer; null for the others"),
            ViewColumn("reported", TIME, "when the report was sent that said so first, by its "
                       "sender's clock; null for `broker`"),
            ViewColumn("acknowledged", TIME, "the broker's time of the batch that took it in"),
            ViewColumn("batch", LONG, "the number of that batch"),
        ),
    ),
)  # fmt: skip

_OF_STATES: Final = (
    View(
        "subscriptions",
        "A row a topic partition and subscription.",
        False,
        (
            *_PLACE,
            _SUBSCRIPTION,
            ViewColumn("subscription_type", TEXT, "Exclusive, Failover, Shared or Key_Shared"),
            ViewColumn("is_durable", FLAG, "whether it stays without consumers"),
            ViewColumn("msg_backlog", LONG, "messages that are not acknowledged; of a chunked one "
                       "each chunk counts, though it is one row of `backlog`"),
            ViewColumn("unacked_messages", LONG, "messages that consumers hold by explicit grants"),
            ViewColumn("msg_delayed", LONG, "of the backlog, those whose producers delayed them"),
            ViewColumn("msg_waiting", LONG, "of the backlog, those that wait for their redelivery"),
            ViewColumn("msg_in_replay", LONG, "of the backlog, those that go out again next"),
            ViewColumn("earliest_msg_publish_time_in_backlog", TIME, "the first publish time of "
                       "the ledger in which the backlog begins; null without backlog"),
            ViewColumn("active_consumer_name", TEXT, "who reads all; null where consumers share"),
            ViewColumn("consumers", INT, "how many are connected"),
            ViewColumn("blocked_subscription_on_unacked_msgs", FLAG, "whether nothing is granted "
                       "until half of those are acknowledged"),
            ViewColumn("allow_out_of_order_delivery", FLAG, "of Key_Shared"),
            ViewColumn("key_shared_mode", TEXT, "of Key_Shared: AUTO_SPLIT or STICKY"),
            ViewColumn("read_compacted", FLAG, "whether its consumers read compacted"),
            ViewColumn("epoch", LONG, "rises with each seek"),
            ViewColumn("breaker", TEXT, "`closed`, `open` (delivery pauses), or `half-open` (a "
                       "trial is out, or due)"),
            ViewColumn("breaker_opened", TIME, "when it opened; null while it is closed"),
            ViewColumn("breaker_failed_trials", INT, "that failed since, in a row"),
            ViewColumn("breaker_next_trial", TIME, "until when nothing is granted; null likewise"),
        ),
    ),
    View(
        "cursors",
        "A row a topic partition and subscription: what it has acknowledged.",
        False,
        (
            *_PLACE,
            _SUBSCRIPTION,
            ViewColumn("mark_delete_position", TEXT, "ledger:entry; all up to it is acknowledged"),
            ViewColumn("read_position", TEXT, "ledger:entry; all up to it was granted once"),
            ViewColumn("individually_deleted_messages", TEXT, "what is acknowledged after the "
                       "mark-delete position: `3:0-5,7 3:8/10[0-3]` are entries 0 to 5 and 7 of "
                       "ledger 3, and of entry 8, a batch of 10, the indexes 0 to 3"),
            ViewColumn("total_non_contiguous_deleted_messages_range", LONG, "stretches of entries "
                       "among those"),
            ViewColumn("holes", LONG, "messages between the mark-delete position and the last that "
                       "is acknowledged, that are not"),
            ViewColumn("cursor_bytes", LONG, "bytes of its stored form"),
        ),
    ),
    View(
        "consumers",
        "A row a topic partition, subscription and consumer.",
        False,
        (
            *_PLACE,
            _SUBSCRIPTION,
            ViewColumn("consumer_name", TEXT, "name of the consumer"),
            ViewColumn("incarnation", LONG, "which run of it; a higher one replaced the others"),
            ViewColumn("priority_level", INT, "lower ones are served first"),
            ViewColumn("is_active", FLAG, "whether it reads all (Exclusive, Failover)"),
            ViewColumn("unacked_messages", LONG, "messages that it holds by explicit grants"),
            ViewColumn("delivered_messages", LONG, "messages that it said it has delivered and "
                       "that are not acknowledged"),
            ViewColumn("available_permits", LONG, "how many messages it may hold at most"),
            ViewColumn("blocked_consumer_on_unacked_msgs", FLAG, "whether it is granted nothing "
                       "until it holds half of what it may"),
            ViewColumn("key_hash_ranges", pa.list_(TEXT), "its slots in Key_Shared, both ends "
                       "included, as `0-32767`"),
            ViewColumn("ack_timeout_ms", LONG, "milliseconds; 0 for none"),
            ViewColumn("negative_ack_redelivery_delay_ms", LONG, "milliseconds"),
            ViewColumn("max_redeliver_count", INT, "null without a dead letter topic"),
            ViewColumn("dead_letter_topic", TEXT, "where its dead letters go; null without"),
            ViewColumn("lease_ends", TIME, "as in `unacknowledged`"),
        ),
    ),
    View(
        "producers",
        "A row a topic partition and producer name that the log knows: by sequence ids, or by an "
        "access mode. As of now only.",
        False,
        (
            *_PLACE[:1],
            ViewColumn("partition", INT, "null for one that has an access mode and no sequence id"),
            ViewColumn("producer_name", TEXT, "name of the producer"),
            ViewColumn("last_sequence_id", LONG, "its highest there"),
            ViewColumn("access_mode", TEXT, "null for one that never said"),
            ViewColumn("is_waiting", FLAG, "whether it waits for the topic; null likewise"),
            ViewColumn("producer_epoch", LONG, "how many of its runs were replaced; null likewise"),
            ViewColumn("topic_epoch", LONG, "of one that has the topic for itself; else null"),
            ViewColumn("lease_ends", TIME, "when it counts as gone; null likewise"),
        ),
        has_as_of=False,
    ),
    View(
        "ledgers",
        "A row a ledger: a range of rows of a data file, all of one partition.",
        False,
        (
            *_PLACE,
            ViewColumn("ledger_id", LONG, "unique within the topic"),
            ViewColumn("entries", LONG, "batches of messages"),
            ViewColumn("messages", LONG, "messages, hidden duplicates and chunks included"),
            ViewColumn("size", LONG, "payload bytes before compression"),
            ViewColumn("min_publish_time", TIME, "of its messages"),
            ViewColumn("max_publish_time", TIME, "of its messages"),
            ViewColumn("max_deliver_at", TIME, "of its messages; null if none is delayed"),
            ViewColumn("file", TEXT, "the data file, below the topic's folder"),
            ViewColumn("first_row", LONG, "its first row in that file"),
        ),
    ),
    View(
        "stats",
        "A row a topic partition: Pulsar's `topics stats`, by its names and nested as it is.",
        False,
        (*_PLACE, *(ViewColumn(*each) for each in TOPIC if each.type is not None)),
    ),
    View(
        "batches",
        "A row a batch of the broker that asOf can name.",
        False,
        (
            ViewColumn("batch", LONG, "its number: the ledger of `__dispatch` in which it ends"),
            ViewColumn("time", TIME, "the broker's time in that batch"),
            ViewColumn("written", TIME, "when it was written; asOf a time goes by this"),
            ViewColumn("commands_up_to", LONG, "the next ledger of `__commands` that it left"),
            ViewColumn("topic_partitions", INT, "how many had a broker"),
            ViewColumn("quarantined", INT, "how many of them could not step"),
            ViewColumn("written_anew", INT, "how many states it wrote whole"),
        ),
    ),
)  # fmt: skip

VIEWS: Final[dict[str, View]] = {each.name: each for each in (*_OF_MESSAGES, *_OF_STATES)}
"""The views by name."""
