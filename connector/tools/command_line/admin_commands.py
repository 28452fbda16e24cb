"""`pulsarlite topics ...`: the commands that are one call of `pulsar_spark.Admin`, as one table.

Invariants: a row has pulsar-admin's name and flags, says what it calls, and how the answer is shown
to a person; with `--json` the answer is printed as it is. Follows pulsar-admin's `CmdTopics`.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.admin.messages import StoredMessage, moment_text
from pulsar_spark.connector.tools.admin.subscriptions import Subscriptions
from pulsar_spark.connector.tools.admin.topics import DOMAINS
from pulsar_spark.connector.tools.command_line.noun import (
    Argument,
    Noun,
    argument,
    at_least,
    one_of,
    pairs,
    parsed,
)
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options import policy_units
from pulsar_spark.options.option_values import TIME

LONGEST_VALUE: Final = 200
"""Characters of a message that are shown to a person."""
TIMES: Final = ("event_time", "deliver_at")
_SHOWN: Final = ("key", "ordering_key", "producer_name", "sequence_id", "properties", *TIMES,
                 "uuid", "chunk_id", "num_chunks_from_msg")  # fmt: skip
JSON: Final = argument("--json", action="store_true", help="print the answer as JSON")
FORCE: Final = partial(argument, "-f", "--force", action="store_true")
SYSTEM_TOO: Final = argument(
    "-ist", "--include-system-topics", "--include-system-topic", action="store_true",
    help="also those that Pulsarlite makes and writes itself, such as __commands",
)  # fmt: skip
_SUBSCRIPTION: Final = argument(
    "-s", "--subscription", required=True, metavar="NAME", help="the subscription's name"
)
_AGE: Final = argument(
    "-t", "--expireTime", dest="age", metavar="AGE",
    help="older than this: 3d, 2h, or a number of seconds",
)  # fmt: skip
_POSITION: Final = argument(
    "-p", "--position", metavar="ID", help="up to this message, and that too: LEDGER:ENTRY"
)

_AGO: Final = policy_units.time(0)

Answer = tuple[Any, "str | list[str]"]
"""(what JSON has, what a person reads)."""


class AdminCommand(NamedTuple):
    """A command that is one call."""

    name: str
    text: str
    arguments: tuple[Argument, ...]
    call: Callable[[Admin, Namespace], Answer]
    also: tuple[str, ...] = ()
    """Other names that pulsar-admin has for it, which no list shows."""


def register_calls(
    noun: Noun, commands: tuple[AdminCommand, ...], topic_partition: Argument | None
) -> None:
    """Add these commands to a noun; `topic_partition` is what they all name first."""
    for each in commands:
        first = () if topic_partition is None else (topic_partition,)
        for name in (each.name, *each.also):
            takes = (*first, *each.arguments, JSON)
            noun.command(name, each.text, *takes, is_listed=name == each.name)(
                partial(_run, each.call)
            )


def _run(
    call: Callable[[Admin, Namespace], Answer], root: Root, arguments: Namespace
) -> Iterator[str]:
    return printed(arguments, *call(Admin(root.service_url, storage=root.storage), arguments))


def printed(arguments: Namespace, answer: Any, lines: str | list[str]) -> Iterator[str]:
    """The answer: to a person, or with `--json` as it is."""
    if arguments.json:
        yield json.dumps(answer)
    else:
        yield from [lines] if isinstance(lines, str) else lines


def domains_of(word: str | None) -> Sequence[str]:
    """The domains of pulsar-admin's word, such as `non_persistent`; all for another word."""
    meant = str(word).lower().replace("_", "-")
    return (meant,) if meant in DOMAINS else DOMAINS


def full(name: str) -> str:
    """The topic's full name."""
    return str(TopicName.parse(name))


# -- topics ----------------------------------------------------------------------------------------


def _create(admin: Admin, given: Namespace) -> Answer:
    properties = pairs("--metadata", given.metadata)
    admin.topics.create(given.name, given.partitions, properties=properties)
    answer = {"topic": full(given.name), "partitions": given.partitions}
    return answer, f"Created {full(given.name)}, partitions: {given.partitions}"


def _update(admin: Admin, given: Namespace) -> Answer:
    before = admin.topics.update(given.name, given.partitions)
    lines = [f"{full(given.name)} has {given.partitions} partitions now, and had {before}."]
    if given.partitions > before:
        lines.append(
            "Keys go to other partitions from now on: their order does not reach across this."
        )
    return {"topic": full(given.name), "partitions": given.partitions, "before": before}, lines


def _delete(admin: Admin, given: Namespace) -> Answer:
    files = admin.topics.delete(given.name, force=given.force)
    answer = {"topic": full(given.name), "files": files}
    return answer, f"Deleted {full(given.name)}, with {files:,} files."


def _terminate(admin: Admin, given: Namespace) -> Answer:
    last = admin.topics.terminate(given.name)
    lines = [f"{full(given.name)} takes no messages any more. Its last ones:", *_ids(last)]
    return {"topic": full(given.name), "lastMessageIds": _texts(last)}, lines


def _truncate(admin: Admin, given: Namespace) -> Answer:
    messages = admin.topics.truncate(given.name, force=given.force)
    answer = {"topic": full(given.name), "messages": messages}
    return answer, f"Deleted {messages:,} messages of {full(given.name)}."


def _last_message_id(admin: Admin, given: Namespace) -> Answer:
    last = admin.topics.last_message_id(given.name)
    return {"topic": full(given.name), "lastMessageIds": _texts(last)}, _ids(last)


def _message_id(admin: Admin, given: Namespace) -> Answer:
    found = admin.topics.get_message_id(given.name, parsed("--datetime", given.datetime, TIME))
    answer = {str(number): each and str(each) for number, each in found.items()}
    nothing = "nothing was published then or later"
    lines = [f"  partition {number}: {each or nothing}" for number, each in found.items()]
    return {"topic": full(given.name), "messageIds": answer}, lines


def _get_properties(admin: Admin, given: Namespace) -> Answer:
    return shown_properties(admin.topics.get_properties(given.name), full(given.name))


def _update_properties(admin: Admin, given: Namespace) -> Answer:
    admin.topics.update_properties(given.name, pairs("--property", given.property))
    return _get_properties(admin, given)


def _remove_properties(admin: Admin, given: Namespace) -> Answer:
    admin.topics.remove_properties(given.name, *given.key)
    return _get_properties(admin, given)


def shown_properties(found: Mapping[str, str], whose: str) -> Answer:
    """The properties of a topic or namespace."""
    lines = [f"  {_text(name)}={_text(each)}" for name, each in sorted(found.items())]
    return dict(found), lines or f"{whose} has no properties."


def _metadata(admin: Admin, given: Namespace) -> Answer:
    partitions = admin.topics.partitions(given.name)
    return {"partitions": partitions}, f"{full(given.name)} has {partitions} partitions."


def _ids(last: Mapping[int, MessageId]) -> list[str]:
    return [f"  partition {number}: {each}" for number, each in last.items()]


def _texts(last: Mapping[int, MessageId]) -> dict[str, str]:
    return {str(number): str(each) for number, each in last.items()}


# -- messages --------------------------------------------------------------------------------------


def _peek(admin: Admin, given: Namespace) -> Answer:
    found = admin.topics.peek(given.name, given.subscription, given.count)
    nothing = f"{given.subscription} on {full(given.name)} has acknowledged all."
    return _values(found), [*map(shown, found)] or nothing


def _examine(admin: Admin, given: Namespace) -> Answer:
    found = admin.topics.examine(given.name, given.initialPosition, given.messagePosition)
    return found.to_json_value(), shown(found)


def _by_id(admin: Admin, given: Namespace) -> Answer:
    requested = MessageId(given.ledgerId, given.entryId)
    found = admin.topics.get_message_by_id(given.name, requested)
    return _values(found), [*map(shown, found)]


def _backlog_size(admin: Admin, given: Namespace) -> Answer:
    size = admin.topics.backlog_size(given.name, given.messageId)
    return size, str(size)


def _values(found: list[StoredMessage]) -> list[dict[str, Any]]:
    return [each.to_json_value() for each in found]


def shown(message: StoredMessage) -> str:
    """A message as a person reads it."""
    each = message.message_id
    parts = [
        f"{each.ledger_id}:{each.entry_id}:{each.partition}:{each.batch_index}",
        f"published {moment_text(message.publish_time)}",
    ]
    there = ((name, message.columns.get(name)) for name in _SHOWN)
    parts += (
        f"{name} {moment_text(content) if name in TIMES else _text(content)}"
        for name, content in there
        if content is not None
    )
    value = "(null)" if message.value is None else _text(message.value)
    return f"{'  '.join(parts)}\n    {value}"


def _text(value: Any) -> str:
    """Printable, on one line, and not too long: a message must not play with the terminal."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    cut = f"... ({len(text):,} characters)" if len(text) > LONGEST_VALUE else ""
    text = text[:LONGEST_VALUE] + cut
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


# -- subscriptions ---------------------------------------------------------------------------------


def _subscriptions(admin: Admin, given: Namespace) -> Answer:
    names = admin.subscriptions.list(given.name)
    return names, names or f"{full(given.name)} has no subscription that a broker knows of."


def _create_subscription(admin: Admin, given: Namespace) -> Answer:
    return _who(given), created(admin.subscriptions, given, given.messageId)


def created(to: Subscriptions, given: Namespace, message_id: str) -> str:
    """Make a durable subscription, and say so; one that is there stays as it is."""
    known = given.subscription in to.list(given.name)
    to.create(given.name, given.subscription, message_id)
    if known:
        return f"{_named(given)} was there already, and stays where it is."
    return f"Created {_named(given)}, at {message_id}."


def _unsubscribe(admin: Admin, given: Namespace) -> Answer:
    admin.subscriptions.delete(given.name, given.subscription, force=given.force)
    return _who(given), f"Deleted {_named(given)}."


def _reset_cursor(admin: Admin, given: Namespace) -> Answer:
    time_ms = None
    if given.time is not None:
        time_ms = admin.now_ms() - _ago_ms("--time", given.time)
    admin.subscriptions.reset_cursor(
        given.name, given.subscription, given.messageId, timestamp_ms=time_ms, exclude=given.exclude
    )
    place = f"{given.time} ago" if given.messageId is None else given.messageId
    return _who(given), f"{_named(given)} goes on from {place}."


def _skip(admin: Admin, given: Namespace) -> Answer:
    admin.subscriptions.skip(given.name, given.subscription, given.count)
    return _who(given), f"{_named(given)} skipped {given.count:,} messages of each partition."


def _clear_backlog(admin: Admin, given: Namespace) -> Answer:
    admin.subscriptions.clear_backlog(given.name, given.subscription)
    return _who(given), f"{_named(given)} has no backlog now."


def _expire(admin: Admin, given: Namespace) -> Answer:
    age_ms = None if given.age is None else _age_ms(given)
    admin.subscriptions.expire(
        given.name, given.subscription, older_than_ms=age_ms, message_id=given.position
    )
    what = f"all up to {given.position}" if given.age is None else f"what is older than {given.age}"
    return _who(given), f"{_named(given)} has let go of {what}."


def _expire_all(admin: Admin, given: Namespace) -> Answer:
    names = admin.subscriptions.expire(given.name, older_than_ms=_age_ms(given))
    who = ", ".join(names) or "No subscription"
    answer = {"topic": full(given.name), "subscriptions": names}
    return answer, f"{who} let go of what is older than {given.age}."


def _age_ms(given: Namespace) -> int:
    return _ago_ms("--expireTime", given.age)


def _ago_ms(flag: str, text: str) -> int:
    """As pulsar-admin reads it: a number alone is seconds."""
    try:
        return int(_AGO.stored(text))
    except (TypeError, ValueError, OverflowError):
        raise InvalidOptionError(f"{flag} {text}: it takes {_AGO.expects}.") from None


def _who(given: Namespace) -> dict[str, str]:
    return {"topic": full(given.name), "subscription": given.subscription}


def _named(given: Namespace) -> str:
    return f"{given.subscription} on {full(given.name)}"


_AT = argument(
    "-m", "--messageId", default="latest", metavar="ID",
    help="where it begins: latest (the default), earliest, or LEDGER:ENTRY:PARTITION",
)  # fmt: skip
_COUNT = partial(argument, "-n", "--count", type=at_least(1), metavar="N")

TOPIC_COMMANDS: Final = (
    AdminCommand(
        "create", "Create a topic. Pulsar: create, create-partitioned-topic.",
        (
            argument("-p", "--partitions", type=int, default=1, help="default: %(default)s"),
            argument(
                "-m", "--metadata", action="append", default=[], metavar="NAME=VALUE",
                help="a property; as often as there are properties",
            ),
        ),
        _create, ("create-partitioned-topic",),
    ),
    AdminCommand(
        "update", "Give a topic more partitions. Pulsar: update-partitioned-topic.",
        (
            argument("-p", "--partitions", type=int, required=True, help="from now on"),
            FORCE(help="has no effect: nothing is to be forced"),
        ),
        _update, ("update-partitioned-topic",),
    ),
    AdminCommand(
        "delete",
        "Delete a topic with all its messages. Pulsar: delete, delete-partitioned-topic. One that "
        "is made again under its name is another: nobody who knew the old one reaches it.",
        (
            FORCE(help="also if it has subscriptions or producers, which then fail"),
            argument(
                "-d", "--deleteSchema", action="store_true",
                help="has no effect: its schemas go with it",
            ),
        ),
        _delete, ("delete-partitioned-topic",),
    ),
    AdminCommand(
        "get-partitioned-topic-metadata",
        "Print how many partitions a topic has. Pulsar: get-partitioned-topic-metadata.",
        (), _metadata,
    ),
    AdminCommand(
        "terminate",
        "Let nobody publish to a topic any more; what is there is read as before. Pulsar: "
        "terminate, partitioned-terminate.",
        (), _terminate, ("partitioned-terminate",),
    ),
    AdminCommand(
        "truncate", "Delete all messages of a topic, for all subscriptions. Pulsar: truncate.",
        (FORCE(help="also if a subscription has not acknowledged them all"),), _truncate,
    ),
    AdminCommand(
        "last-message-id", "Print the id of the last message. Pulsar: last-message-id.",
        (), _last_message_id,
    ),
    AdminCommand(
        "get-message-id",
        "Print the id of the first message behind all that were published before a time: there "
        "reset-cursor -t goes on. Pulsar: get-message-id.",
        (
            argument(
                "-d", "--datetime", required=True, metavar="TIME",
                help="2026-01-31T12:00:00Z, or milliseconds since 1970",
            ),
        ),
        _message_id,
    ),
    AdminCommand(
        "get-properties", "Print the properties of a topic. Pulsar: get-properties.",
        (), _get_properties,
    ),
    AdminCommand(
        "update-properties",
        "Give a topic properties beside those that it has. Pulsar: update-properties.",
        (
            argument(
                "-p", "--property", action="append", required=True, metavar="NAME=VALUE",
                help="as often as there are properties",
            ),
        ),
        _update_properties,
    ),
    AdminCommand(
        "remove-properties", "Take properties from a topic. Pulsar: remove-properties.",
        (
            argument(
                "-k", "--key", action="append", required=True, metavar="NAME",
                help="as often as there are properties to go",
            ),
        ),
        _remove_properties,
    ),
    AdminCommand(
        "peek-messages",
        "Print the first messages that a subscription has not acknowledged, as of its broker's "
        "last step. Pulsar: peek-messages.",
        (_SUBSCRIPTION, _COUNT(default=1, help="of each partition; default: %(default)s")), _peek,
    ),
    AdminCommand(
        "examine-messages",
        "Print one message, counted from an end of the topic. Pulsar: examine-messages.",
        (
            argument(
                "-i", "--initialPosition", default="latest", choices=("earliest", "latest"),
                help="from which end; default: %(default)s",
            ),
            argument(
                "-m", "--messagePosition", type=at_least(1), default=1, metavar="N",
                help="1 is the first from there; default: %(default)s",
            ),
        ),
        _examine,
    ),
    AdminCommand(
        "get-message-by-id", "Print the messages of an entry. Pulsar: get-message-by-id.",
        (
            argument("-l", "--ledgerId", type=int, required=True, metavar="N", help="its ledger"),
            argument("-e", "--entryId", type=int, required=True, metavar="N", help="its number"),
        ),
        _by_id,
    ),
    AdminCommand(
        "get-backlog-size",
        "Print how many bytes were published behind a message. Pulsar: get-backlog-size.",
        (
            argument(
                "-m", "--messageId", required=True, metavar="ID",
                help="LEDGER:ENTRY, of several partitions LEDGER:ENTRY:PARTITION",
            ),
        ),
        _backlog_size,
    ),
    AdminCommand(
        "subscriptions", "Name the subscriptions of a topic. Pulsar: subscriptions.",
        (), _subscriptions,
    ),
    AdminCommand(
        "create-subscription", "Create a durable subscription. Pulsar: create-subscription.",
        (_SUBSCRIPTION, _AT), _create_subscription,
    ),
    AdminCommand(
        "unsubscribe", "Delete a subscription. Pulsar: unsubscribe.",
        (_SUBSCRIPTION, FORCE(help="also if consumers are connected, which are thrown out")),
        _unsubscribe,
    ),
    AdminCommand(
        "reset-cursor", "Let a subscription go on from somewhere else. Pulsar: reset-cursor.",
        (
            _SUBSCRIPTION,
            one_of(
                argument("-t", "--time", metavar="AGO", help="so long ago: 10m, 3h, 2d"),
                argument(
                    "-m", "--messageId", metavar="ID",
                    help="earliest, latest, or LEDGER:ENTRY:PARTITION, which comes next",
                ),
            ),
            argument(
                "-e", "--exclude-reset-position", dest="exclude", action="store_true",
                help="the message behind --messageId comes next",
            ),
        ),
        _reset_cursor,
    ),
    AdminCommand(
        "skip", "Acknowledge the oldest messages of a subscription's backlog. Pulsar: skip.",
        (_SUBSCRIPTION, _COUNT(required=True, help="messages of each partition")), _skip,
    ),
    AdminCommand(
        "clear-backlog",
        "Acknowledge all messages for a subscription; reset-cursor brings back what is kept. "
        "Pulsar: clear-backlog, skip-all.",
        (_SUBSCRIPTION,), _clear_backlog,
    ),
    AdminCommand(
        "expire-messages", "Acknowledge old messages for a subscription. Pulsar: expire-messages.",
        (
            _SUBSCRIPTION, one_of(_AGE, _POSITION),
            argument(
                "-e", "--exclude-reset-position", action="store_true",
                help="has no effect: the message of --position always goes too",
            ),
        ),
        _expire,
    ),
    AdminCommand(
        "expire-messages-all-subscriptions",
        "Acknowledge old messages for all durable subscriptions. Pulsar: "
        "expire-messages-all-subscriptions.",
        (
            argument(
                "-t", "--expireTime", dest="age", metavar="AGE", required=True,
                help="older than this: 3d, 2h, or a number of seconds",
            ),
        ),
        _expire_all,
    ),
)  # fmt: skip
