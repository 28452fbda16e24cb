"""Runs a dialogue on the embedded broker, and writes down what came of each line.

A message is called by its value. `NAME receive N` takes up to N messages; a number in brackets
behind one is its redelivery count. Durations are written 2s, 100ms, 1m or 1h.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

from pulsar_spark.broker.hosting import broker_rows
from pulsar_spark.broker.hosting.broker_rows import OutputRow
from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.protocol.commands import CreateSubscription, Seek, SubscriptionType
from pulsar_spark.broker.protocol.ready import BacklogQuotaExceeded, EpochBegan, Reply, Revoke
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import tell
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
from pulsar_spark.errors import (
    BrokerRefusedError,
    PulsarliteError,
)
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Options, Scope
from tests.scenarios.host import Host

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_TYPES = {each.value.lower(): each.value for each in SubscriptionType}
_SHORT = "persistent://public/default/"
_OPTIONS = {
    "from": "subscriptionInitialPosition", "nack-delay": "negativeAckRedeliveryDelay",
    "ack-timeout": "ackTimeout", "max-redeliver": "maxRedeliverCount", "queue": "receiverQueueSize",
    "dead-letters": "deadLetterTopic", "retries": "retryLetterTopic", "priority": "priorityLevel",
    "initial": "initialSubscriptionName", "start": "startMessageId",
}  # fmt: skip
_FLAGS = {
    "delayed": "delayedDelivery", "compacted": "readCompacted",
    "inclusive": "startMessageIdInclusive",
}  # fmt: skip


def milliseconds(text: str) -> int:
    """`2s` is 2000."""
    match = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 100ms, 2s, 1m or 1h")
    return int(match[1]) * _UNITS[match[2]]


class Dialogue:
    """One scenario. The topic is `orders` until a line says otherwise."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = "orders"
        self.consumers: dict[str, MessageConsumer] = {}
        self.received: dict[tuple[str, str], ReceivedMessage] = {}
        self.reported = 0
        self.quota = ""
        """What was said of the backlog quota last: every step says it while it is exceeded."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the topic's name says, else the only one."""
        name = TopicName.parse(self.name)
        return TopicPartition(name.partitioned_topic_name, max(name.partition_index, 0))

    def open(self) -> ManagedLedger:
        """The topic, made if it is not there."""
        whole = TopicName.parse(self.topic_partition.topic)
        return self.host.root.open_or_create(whole, self.topic_partition.partition + 1)

    def say(self, line: str) -> list[str]:
        """What comes of one line."""
        words = shlex.split(line)
        if len(words) > 1 and hasattr(self, "consumer_" + words[1].replace("-", "_")):
            action: Callable[..., list[str]] = getattr(
                self, "consumer_" + words[1].replace("-", "_")
            )
            arguments = [words[0], *words[2:]]
        elif hasattr(self, "do_" + words[0].replace("-", "_")):
            action = getattr(self, "do_" + words[0].replace("-", "_"))
            arguments = words[1:]
        else:
            raise ValueError(f"nobody understands {line!r}")
        plain = [word for word in arguments if "=" not in word or word.startswith("=")]
        named = dict(word.split("=", 1) for word in arguments if word not in plain)
        try:
            said = action(*plain, **named)
        except PulsarliteError as error:
            said = [f"refused: {_refusal(error)}"]
        return [*said, *self._activity()]

    # -- topics ------------------------------------------------------------------------------

    def do_topic(self, name: str, **options: str) -> list[str]:
        """topic NAME retention-time=.. retention-bytes=.. ttl=.. quota-bytes=.. ..."""
        self.name = name
        self.open().change_settings(lambda known: {**known, "policies": _policies(options)})
        self.host.run()
        return []

    def do_publish(self, *texts: str, **options: str) -> list[str]:
        """publish A B key:C D@5s ...; batch=yes puts them in one entry; @ delivers later."""
        batch = options.get("batch") == "yes"
        given = {"topic": self.name, "batchingEnabled": str(batch).lower()}
        producer = self.host.producer(given, publish_delay_ms=1)
        ids: list[Any] = []
        for text in texts:
            rest, _, delay = text.partition("@")
            key, colon, value = rest.rpartition(":")
            after = timedelta(milliseconds=milliseconds(delay)) if delay else None
            given_key = key if colon else None
            producer.send(value.encode(), key=given_key, deliver_after=after, done=ids.append)
        producer.close()
        ids.sort(key=lambda each: (each.partition, each.position, each.batch_index))
        self.host.run()
        return ["published " + " ".join(_short(str(each)) for each in ids)]

    def do_wait(self, duration: str) -> list[str]:
        self.host.advance(milliseconds(duration))
        return []

    def do_show(self, subscription: str) -> list[str]:
        """What the broker knows of a subscription."""
        state = self.host.state(self.topic_partition)
        held = state.subscriptions.get(subscription)
        if held is None:
            return ["no such subscription"]
        cursor = held.cursor
        lines = [f"mark-delete {cursor.mark_delete_position}"]
        if cursor.individually_deleted:
            ranges = ", ".join(
                f"({low}, {high}]" for low, high in _runs(cursor.individually_deleted)
            )
            parts = [
                f"{position}{_indexes(part)}"
                for position, part in cursor.individually_deleted.entries()
                if part is not None
            ]
            lines.append("deleted " + " ".join([*([ranges] if ranges else []), *parts]))
        lines.append(f"backlog {cursor.backlog(state.ledgers)}")
        for consumer in held.consumers.values():
            holds = f"{consumer.name} holds {consumer.held or 'nothing'}"
            opened = " and an open grant" if consumer.has_open_grant else ""
            lines.append(holds + opened)
        return lines

    def do_topics(self) -> list[str]:
        """Every topic, and the messages that a Reader finds in it, with their properties."""
        lines = []
        for topic in self.host.root.find():
            if not topic.is_system:
                lines.append(str(topic).removeprefix(_SHORT))
                lines += ["  " + each for each in self._messages(str(topic))]
        return lines

    def _messages(self, topic: str) -> Iterator[str]:
        given = {"serviceUrl": self.host.root.service_url, "topic": topic}
        schema = read_schema(include_properties=True)
        options = Options.parse(given, Scope.BATCH_READ)
        reader = PulsarliteReader(options, self.host.root, schema)
        for task in reader.partitions():
            for batch in reader.read(task):
                for row in batch.to_pylist():
                    text = row["value"].decode()
                    for key, value in row["properties"] or ():
                        text += f" {key}={value.removeprefix(_SHORT)}"
                    if row["deliver_at"] is not None:
                        after = row["deliver_at"] - row["publish_time"]
                        text += f" after {after // timedelta(milliseconds=1)} ms"
                    yield text

    def do_seek(self, subscription: str, where: str) -> list[str]:
        """seek SUBSCRIPTION earliest | latest | LEDGER:ENTRY[:INDEX] | -DURATION (ago)."""
        if where in ("earliest", "latest"):
            command = Seek(subscription, EARLIEST if where == "earliest" else LATEST)
        elif where.startswith("-"):
            ago = self.host.now_ms - milliseconds(where[1:])
            command = Seek(subscription, timestamp_ms=ago)
        else:
            ledger_id, entry_id, *index = (int(part) for part in where.split(":"))
            batch_index = index[0] if index else -1
            command = Seek(subscription, Position(ledger_id, entry_id), batch_index)
        self.host.tell(self.topic_partition, subscription, command)
        return []

    def do_compact(self) -> list[str]:
        compact(self.open())
        self.host.run()
        return []

    def do_create_subscription(self, name: str) -> list[str]:
        self.host.tell(self.topic_partition, name, CreateSubscription(name))
        return []

    def do_producer(self, name: str, mode: str = "Shared") -> list[str]:
        """A producer that stays; one that waits for the topic sleeps until it has it."""
        since_ms = self.host.now_ms
        given = {"topic": self.name, "producerName": name, "accessMode": mode}
        self.host.producer(given)
        waited_s = (self.host.now_ms - since_ms) // 1000  # it looks four times a second
        return [f"{name} may publish" + (f" after {waited_s} s" if waited_s else "")]

    def do_sink(self, subscription: str, what: str, *ids: str, **options: str) -> list[str]:
        """sink SUBSCRIPTION ack | ack-cumulative | nack | reconsume LEDGER:ENTRY ...

        With attempt=0 delay=2s error=TEXT bury=yes, where they have a meaning.
        """
        kinds = {
            "ack": "Individual", "ack-cumulative": "Cumulative", "nack": "Negative",
            "reconsume": "ReconsumeLater",
        }  # fmt: skip
        kind = "DeadLetter" if options.get("bury") == "yes" else kinds[what]
        details: dict[str, Any] = {"ack_type": kind}
        if "attempt" in options:
            details["attempt"] = int(options["attempt"])
        if "delay" in options:
            details["delay"] = options["delay"]
        if "error" in options:
            details["error"] = options["error"]
        rows = [
            {"ledger_id": place.ledger_id, "entry_id": place.entry_id, **details}
            for place in map(_place, ids)
        ]
        folded = fold([pa.RecordBatch.from_pylist(rows)], self.host.root, str(self.topic_partition))
        try:
            tell(self.host.root, subscription, [folded], None)
        finally:
            self.host.run()
        return []

    # -- consumers ---------------------------------------------------------------------------

    def consumer_subscribe(self, name: str, subscription: str, kind: str, **o: str) -> list[str]:
        """NAME subscribe SUBSCRIPTION TYPE from=Latest queue=1000 delayed=no nack-delay=1m ..."""
        self.open()
        group_ms = milliseconds(o.pop("group", "0ms"))
        options = {
            "topic": self.name, "subscriptionName": subscription, "consumerName": name,
            "subscriptionType": _TYPES[kind.lower()], "leaseTimeout": "30s",
        }  # fmt: skip
        if "start" in o:
            o.setdefault("inclusive", "no")
            place, _, index = o["start"].partition("/")
            o["start"] = f"{place}:{self.topic_partition.partition}" + (
                f":{index}" if index else ""
            )
        for word, text in o.items():
            options |= _option(word, text)
        self.consumers[name] = self.host.subscribe(options, acknowledgment_group_time_ms=group_ms)
        return []

    def consumer_receive(self, name: str, count: str = "1") -> list[str]:
        texts = []
        for _ in range(1_000 if count == "all" else int(count)):
            message = self.consumers[name].receive()
            if message is None:
                break
            text = (message.value or b"").decode()
            self.received[name, text] = message
            texts.append(
                f"{text} ({message.redelivery_count})" if message.redelivery_count else text
            )
        self.host.run()
        return [f"{name} gets {', '.join(texts) or 'nothing'}"]

    def consumer_ack(self, name: str, *values: str, by: str = "") -> list[str]:
        self.consumers[name].acknowledge(*(self.received[by or name, value] for value in values))
        self.host.run()
        return []

    def consumer_ack_cumulative(self, name: str, value: str) -> list[str]:
        self.consumers[name].acknowledge_cumulative(self.received[name, value])
        self.host.run()
        return []

    def consumer_nack(self, name: str, *values: str, delay: str = "") -> list[str]:
        chosen = (self.received[name, value] for value in values)
        delay_ms = milliseconds(delay) if delay else None
        self.consumers[name].negative_acknowledge(*chosen, delay_ms=delay_ms)
        self.host.run()
        return []

    def consumer_reconsume(self, name: str, value: str, delay: str, **custom: str) -> list[str]:
        message = self.received[name, value]
        self.consumers[name].reconsume_later(message, milliseconds(delay), custom)
        self.host.run()
        return []

    def consumer_redeliver(self, name: str) -> list[str]:
        self.consumers[name].redeliver_unacknowledged_messages()
        self.host.run()
        return []

    def consumer_close(self, name: str) -> list[str]:
        self.consumers[name].close()
        self.host.run()
        return []

    def consumer_die(self, name: str) -> list[str]:
        """Its process is killed; its lease is 30 seconds."""
        self.host.kill(self.consumers[name])
        return []

    def consumer_unsubscribe(self, name: str) -> list[str]:
        self.consumers[name].unsubscribe()
        self.host.run()
        return []

    # -- what the broker says besides ----------------------------------------------------------

    def _activity(self) -> list[str]:
        lines: list[str] = []
        for rows, deleted in self.host.said[self.reported :]:
            lines += (line for line in _reported(rows) if line != self.quota)
            self.quota = next((line for line in lines if line.startswith("backlog q")), self.quota)
            lines += [f"subscription {name} is deleted" for _, name in deleted]
        self.reported = len(self.host.said)
        return lines


def _reported(rows: tuple[OutputRow, ...]) -> Iterator[str]:
    for row in rows:
        if row.kind == broker_rows.REPUBLICATION:
            letter = wire_format.decode(row.data)
            yield f"broker copies {letter.messages} to {letter.topic.removeprefix(_SHORT)}"
    for row in rows:
        if row.kind == broker_rows.DISPATCH:
            yield from _told_item(wire_format.decode(row.data))
    for row in rows:
        if row.kind == broker_rows.TRIM:
            ledgers = row.data.decode().strip("[]")
            yield f"broker trims {row.topic.removeprefix(_SHORT)} {ledgers}"


def _told_item(item: object) -> Iterator[str]:
    if isinstance(item, EpochBegan):
        yield f"broker begins epoch {item.epoch} of {item.subscription}"
    elif isinstance(item, Reply) and item.error:
        if item.request_id is None or "unsubscribe" in item.message:
            yield f"broker to {item.consumer or 'a sink'}: {item.error.value}"
    elif isinstance(item, Revoke):
        what = "everything" if item.messages is None else str(item.messages)
        yield f"broker asks {item.consumer} to give back {what}"
    elif isinstance(item, BacklogQuotaExceeded):
        yield f"backlog quota: {item.used} of {item.limit}, {item.policy.value}"


def _refusal(error: PulsarliteError) -> str:
    """Pulsar's word for it and what the broker said; or what was seen before it was asked."""
    reported = re.search(r" on \S+: (\w+: .*?)\.?( Choose another .*)?$", error.message)
    if reported is not None and "The broker refuses" in error.message:
        return reported[1]
    word = error.error.value if isinstance(error, BrokerRefusedError) else error.condition
    return f"{word}: {error.message}"


def _option(word: str, text: str) -> dict[str, str]:
    """An option of the streaming source, by the dialogue's word for it."""
    if word in _OPTIONS:
        return {_OPTIONS[word]: text}
    if word in _FLAGS:
        return {_FLAGS[word]: str(text == "yes").lower()}
    if word == "ranges":
        return {"keySharedMode": "STICKY", "keySharedRanges": text}
    if word == "durable":
        return {"subscriptionMode": "NonDurable" if text == "no" else "Durable"}
    if word in ("backoff", "ack-timeout-backoff"):
        name = "negativeAck" if word == "backoff" else "ackTimeout"
        return {f"{name}RedeliveryBackoff": ",".join((*text.split("-"), "2"))}
    raise ValueError(f"nobody understands {word}={text}")


def _runs(messages: PositionSet) -> Iterator[tuple[Position, Position]]:
    """Stretches of whole entries, as (the entry before, the last one)."""
    for ledger_id in messages.ledger_ids:
        entries = list(messages.whole_entries(ledger_id))
        starts = [entries[0]] if entries else []
        stops = []
        for one, other in pairwise(entries):
            if other > one + 1:
                stops.append(one)
                starts.append(other)
        stops += entries[-1:]
        for start, stop in zip(starts, stops, strict=True):
            yield Position(ledger_id, start - 1), Position(ledger_id, stop)


def _policies(o: dict[str, str]) -> dict[str, Any]:
    """As a topic's settings have them."""
    given: dict[str, Any] = {}
    for name, option in (
        ("retention_time_ms", "retention-time"), ("message_ttl_ms", "ttl"),
        ("backlog_quota_time_ms", "quota-time"),
    ):  # fmt: skip
        if option in o:
            given[name] = milliseconds(o[option])
    for name, option in (
        ("retention_size_bytes", "retention-bytes"), ("backlog_quota_bytes", "quota-bytes"),
        ("max_unacked_messages_per_consumer", "max-unacked"),
        ("max_unacked_messages_per_subscription", "max-unacked-subscription"),
        ("dispatcher_max_round_robin_batch_size", "round-robin"),
        ("max_consumers_per_subscription", "max-consumers"),
    ):  # fmt: skip
        if option in o:
            given[name] = int(o[option])
    if o.get("retention") == "infinite":
        given |= {"retention_time_ms": -1, "retention_size_bytes": -1}
    if "quota-policy" in o:
        given["backlog_quota_policy"] = o["quota-policy"]
    if o.get("batch-index-ack") == "off":
        given["batch_index_acknowledgment"] = False
    return given


def _place(text: str) -> Position:
    return Position(*(int(part) for part in text.split(":")))


def _short(message_id: str) -> str:
    """Without the partition 0."""
    return re.sub(r"^(\d+:\d+):0", r"\1", message_id)


def _indexes(part: int) -> str:
    size = part.bit_length() - 1
    return "[" + ",".join(str(i) for i in range(size) if part >> i & 1) + f" of {size}]"
