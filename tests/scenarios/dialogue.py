"""Runs a dialogue on the in-memory host, and writes down what came of each line.

A message is called by its value. `NAME receive N` takes up to N messages; a number in brackets
behind one is its redelivery count. Durations are written 2s, 100ms, 1m or 1h.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pulsar_spark.commands import (
    CreateSubscription,
    InitialPosition,
    Producer,
    ReconsumeLater,
    Rejection,
    Report,
    Seek,
    SetPolicies,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.cursor import Cursor
from pulsar_spark.errors import BrokerRefusedError
from pulsar_spark.in_memory_consumer import InMemoryConsumer, Message
from pulsar_spark.in_memory_host import InMemoryHost
from pulsar_spark.policies import (
    BacklogQuotaPolicy,
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    TopicPolicies,
)
from pulsar_spark.position import EARLIEST, LATEST, Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.producer_access import ProducerAccessMode
from pulsar_spark.range_set import RangeSet
from pulsar_spark.ready import Ready
from pulsar_spark.redelivery_backoff import MultiplierRedeliveryBackoff

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_TYPES = {each.value.lower(): each for each in SubscriptionType}


def milliseconds(text: str) -> int:
    """`2s` is 2000."""
    match = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 100ms, 2s, 1m or 1h")
    return int(match[1]) * _UNITS[match[2]]


class Dialogue:
    """One scenario. The topic is `orders` until a line says otherwise."""

    def __init__(self) -> None:
        self.host = InMemoryHost(now_ms=1_000_000)
        self.name = "orders"
        self.consumers: dict[str, InMemoryConsumer] = {}
        self.homes: dict[str, str] = {}
        self.received: dict[tuple[str, str], Message] = {}
        self.told = 0

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
        except BrokerRefusedError as error:
            said = [f"refused: {error.error.value}: {error.message}"]
        return [*said, *self._news()]

    # -- topics ------------------------------------------------------------------------------

    def do_topic(self, name: str, **options: str) -> list[str]:
        """topic NAME retention-time=.. retention-bytes=.. ttl=.. quota-bytes=.. ..."""
        self.name = name
        policies = _policies(options)
        held = self.host.topic(name, policies)
        if options and held.state.policies != policies:
            self.host.send(name, SetPolicies(policies))
            self.host.run()
        return []

    def do_publish(self, *texts: str, **options: str) -> list[str]:
        """publish A B key:C D@5s ...; batch=yes puts them in one entry; @ delivers later."""
        messages = []
        for text in texts:
            rest, _, delay = text.partition("@")
            key, colon, value = rest.rpartition(":")
            deliver_at = self.host.now_ms + milliseconds(delay) if delay else None
            messages.append(Message(value.encode(), key if colon else None, {}, deliver_at))
        ids = self.host.publish(self.name, messages, batch=options.get("batch") == "yes")
        self.host.run()
        return ["published " + " ".join(_short(str(each)) for each in ids)]

    def do_wait(self, duration: str) -> list[str]:
        self.host.advance(milliseconds(duration))
        return []

    def do_show(self, subscription: str) -> list[str]:
        """What the broker knows of a subscription."""
        state = self.host.topic(self.name).state
        held = state.subscriptions.get(subscription)
        if held is None:
            return ["no such subscription"]
        cursor = held.cursor
        lines = [f"mark-delete {cursor.mark_delete_position}"]
        if cursor.individually_deleted:
            ranges = ", ".join(
                f"({each.lower}, {each.upper}]" for each in RangeSet(cursor.individually_deleted)
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
        """Every topic, and its messages with their properties."""
        lines = []
        for name, held in sorted(self.host.topics.items()):
            lines.append(name.removeprefix("persistent://public/default/"))
            for message in held.messages.values():
                text = message.value.decode()
                for key, value in message.properties.items():
                    text += f" {key}={value.removeprefix('persistent://public/default/')}"
                if message.deliver_at_ms is not None:
                    text += f" after {message.deliver_at_ms - message.publish_time_ms} ms"
                lines.append("  " + text)
        return lines

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
        self.host.send(self.name, command)
        self.host.run()
        return []

    def do_compact(self) -> list[str]:
        self.host.compact(self.name)
        self.host.run()
        return []

    def do_create_subscription(self, name: str) -> list[str]:
        self.host.send(self.name, CreateSubscription(name))
        self.host.run()
        return []

    def do_producer(self, name: str, mode: str = "Shared") -> list[str]:
        self.host.send(self.name, Producer(name, ProducerAccessMode(mode)))
        self.host.run()
        return []

    def do_sink(self, subscription: str, what: str, *ids: str, **options: str) -> list[str]:
        """sink SUBSCRIPTION ack | ack-cumulative | nack | reconsume LEDGER:ENTRY ...

        With attempt=0 delay=2s error=TEXT bury=yes, where they have a meaning.
        """
        places = [_place(each) for each in ids]
        messages = PositionSet.of(places)
        attempt = int(options["attempt"]) if "attempt" in options else None
        delay_ms = milliseconds(options["delay"]) if "delay" in options else None
        texts = (("ERROR", options["error"]),) if "error" in options else ()
        report = {
            "ack": lambda: Report(subscription, acknowledged=Cursor().acknowledge(messages)),
            "ack-cumulative": lambda: Report(subscription, acknowledged=Cursor(max(places))),
            "nack": lambda: Report(
                subscription,
                rejected=(
                    Rejection(attempt, messages, delay_ms, texts, options.get("bury") == "yes"),
                ),
            ),
            "reconsume": lambda: Report(
                subscription,
                reconsume_later=(ReconsumeLater(attempt, messages, delay_ms or 0, 0, texts),),
            ),
        }[what]()
        self.host.send(self.name, replace(report, epoch=None))
        self.host.run()
        return []

    # -- consumers ---------------------------------------------------------------------------

    def consumer_subscribe(self, name: str, subscription: str, kind: str, **o: str) -> list[str]:
        """NAME subscribe SUBSCRIPTION TYPE from=Latest queue=1000 delayed=no nack-delay=1m ..."""
        policy = KeySharedPolicy()
        if "ranges" in o:
            pairs = (each.split("-") for each in o["ranges"].split(","))
            ranges = tuple((int(low), int(high)) for low, high in pairs)
            policy = KeySharedPolicy(KeySharedMode.STICKY, ranges=ranges)
        command = Subscribe(
            subscription, name, subscription_type=_TYPES[kind.lower()],
            durable=o.get("durable") != "no",
            initial_position=InitialPosition(o.get("from", "Latest")),
            start_message_id=_start(o.get("start")),
            start_message_id_inclusive=o.get("inclusive") == "yes",
            priority_level=int(o.get("priority", "0")), key_shared_policy=policy,
            options=_consumer_options(o), read_compacted=o.get("compacted") == "yes",
        )  # fmt: skip
        consumer = self.host.subscribe(
            self.name, command, receiver_queue_size=int(o.get("queue", "1000")),
            group_time_ms=milliseconds(o.get("group", "0ms")),
            delayed_delivery=o.get("delayed") == "yes",
        )  # fmt: skip
        self.host.run()
        if consumer.refusal is not None:
            raise consumer.refusal
        self.consumers[name], self.homes[name] = consumer, self.name
        return []

    def consumer_receive(self, name: str, count: str = "1") -> list[str]:
        texts = []
        for _ in range(1_000 if count == "all" else int(count)):
            message = self.consumers[name].receive()
            if message is None:
                break
            text = message.value.decode()
            self.received[name, text] = message
            texts.append(
                f"{text} ({message.redelivery_count})" if message.redelivery_count else text
            )
        self.host.run()
        return [f"{name} gets {', '.join(texts) or 'nothing'}"]

    def consumer_ack(self, name: str, *values: str, by: str = "") -> list[str]:
        chosen = [self.received[by or name, value] for value in values]
        self.consumers[name].acknowledge(chosen, self.host.now_ms)
        self.host.run()
        return []

    def consumer_ack_cumulative(self, name: str, value: str) -> list[str]:
        self.consumers[name].acknowledge_cumulative(self.received[name, value], self.host.now_ms)
        self.host.run()
        return []

    def consumer_nack(self, name: str, *values: str, delay: str = "") -> list[str]:
        chosen = [self.received[name, value] for value in values]
        delay_ms = milliseconds(delay) if delay else None
        self.consumers[name].negative_acknowledge(chosen, delay_ms)
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
        consumer = self.consumers[name]
        command = Unsubscribe(
            consumer.command.subscription, name, consumer.command.incarnation,
            self.host.next_number(),
        )  # fmt: skip
        self.host.send(self.homes[name], command)
        self.host.run()
        return []

    # -- what the broker says besides ----------------------------------------------------------

    def _news(self) -> list[str]:
        lines: list[str] = []
        for topic, ready in self.host.history[self.told :]:
            short = topic.removeprefix("persistent://public/default/")
            lines += _told(short, ready)
        self.told = len(self.host.history)
        return lines


def _told(topic: str, ready: Ready) -> list[str]:
    lines = []
    for letter in ready.letters:
        to = letter.topic.removeprefix("persistent://public/default/")
        lines.append(f"broker copies {letter.messages} to {to}")
    lines += [f"broker begins epoch {each.epoch} of {each.subscription}" for each in ready.epochs]
    for reply in ready.replies:
        if reply.error is not None and reply.origin is None and not reply.subscription:
            lines.append(f"broker refuses {reply.consumer}: {reply.error.value}: {reply.message}")
        elif reply.error and (reply.request_id is None or "unsubscribe" in reply.message):
            lines.append(f"broker to {reply.consumer or 'a sink'}: {reply.error.value}")
        elif reply.error is None and not reply.subscription:
            epoch = "" if reply.topic_epoch is None else f" at topic epoch {reply.topic_epoch}"
            lines.append(f"broker lets {reply.consumer} publish{epoch}")
    for revoke in ready.revokes:
        what = "everything" if revoke.messages is None else str(revoke.messages)
        lines.append(f"broker asks {revoke.consumer} to give back {what}")
    lines += [f"broker fences {each}" for each in ready.closed_producers]
    if ready.backlog_quota is not None:
        quota = ready.backlog_quota
        lines.append(f"backlog quota: {quota.used} of {quota.limit}, {quota.policy.value}")
    lines += [f"subscription {each} is deleted" for each in ready.deleted_subscriptions]
    if ready.trim:
        lines.append(f"broker trims {topic} {', '.join(map(str, ready.trim))}")
    return lines


def _policies(o: dict[str, str]) -> TopicPolicies:
    numbers = {
        "retention_time_ms": o.get("retention-time"), "message_ttl_ms": o.get("ttl"),
        "backlog_quota_time_ms": o.get("quota-time"),
    }  # fmt: skip
    given: dict[str, Any] = {
        name: milliseconds(text) for name, text in numbers.items() if text is not None
    }
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
    policy = BacklogQuotaPolicy(o.get("quota-policy", "producer_request_hold"))
    on = o.get("batch-index-ack") != "off"
    return TopicPolicies(**given, backlog_quota_policy=policy, batch_index_acknowledgment=on)


def _consumer_options(o: dict[str, str]) -> ConsumerOptions:
    backoff = timeout_backoff = policy = None
    if "backoff" in o:
        low, high = (milliseconds(each) for each in o["backoff"].split("-"))
        backoff = MultiplierRedeliveryBackoff(low, high)
    if "ack-timeout-backoff" in o:
        low, high = (milliseconds(each) for each in o["ack-timeout-backoff"].split("-"))
        timeout_backoff = MultiplierRedeliveryBackoff(low, high)
    if "max-redeliver" in o:
        policy = DeadLetterPolicy(
            int(o["max-redeliver"]), o.get("dead-letters", ""), o.get("retries", ""),
            o.get("initial", ""),
        )  # fmt: skip
    return ConsumerOptions(
        milliseconds(o.get("nack-delay", "1m")), backoff, milliseconds(o.get("ack-timeout", "0ms")),
        timeout_backoff, policy,
    )  # fmt: skip


def _start(text: str | None) -> tuple[Position, int] | None:
    if text is None:
        return None
    ledger_id, entry_id, *index = (int(part) for part in text.split(":"))
    return Position(ledger_id, entry_id), index[0] if index else -1


def _place(text: str) -> Position:
    return Position(*(int(part) for part in text.split(":")))


def _short(message_id: str) -> str:
    """Without the partition -1."""
    return re.sub(r"^(\d+:\d+):-1", r"\1", message_id)


def _indexes(part: int) -> str:
    size = part.bit_length() - 1
    return "[" + ",".join(str(i) for i in range(size) if part >> i & 1) + f" of {size}]"
