"""docs/from-pulsar.md: each command of four groups of pulsar-admin, and where it is here.

The commands are recorded from Pulsar's own tool (`tests/recorded/pulsar-admin-4.0.json`). Whether
one of the same name is here, and which of its options, is looked up in the parsers; for all others
the tables below say why not.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pulsar_spark.connector.tools.command_line.command_line import parser_of

RECORDED: Final = Path(__file__).parents[1] / "tests" / "recorded" / "pulsar-admin-4.0.json"
HEAD: Final = """\
# From Pulsar's pulsar-admin

Each command of the groups `topics`, `namespaces`, `tenants` and `schemas` of `pulsar-admin`
{version} (commands for subscriptions are among those of `topics`), and its counterpart here. A
refused command ends with 1 and one line of explanation on standard error; with `--json` the answer
is printed as JSON. [The command line](command-line.md) has the options, which are Pulsar's where a
command has its name, except [some](#options-that-are-not-here). The same in Python, without Spark,
is `pulsar_spark.Admin`:

```python
admin = pulsar_spark.Admin("s3://bucket/prefix")
admin.topics.create("orders", partitions=4)
admin.subscriptions.reset_cursor("orders", "billing", "0:17:2")
admin.topics.delete("orders", force=True)
```

## Differences
- **A deleted topic, and a later one of its name, are two topics.** No message id returns, and an
  old checkpoint, consumer, producer or admin's command is refused with
  `TOPIC_DELETED` ([decision 0037](decisions/0037-deleting-a-topic-is-a-commit.md)). A query that
  reads by a pattern continues without a deleted topic, and reads a new one from its beginning; of
  several named topics a consumer continues without it, and so does a query with `failOnDataLoss`
  off. A query that publishes, or a new query, uses the topic that has the name, and creates one if
  there is none (unless `allowAutoTopicCreation` is off).
- `topics delete` is refused while the topic has subscriptions, or producers with an access mode,
  unless `--force`; readers are not registered. `topics truncate` and `topics trim` are
  refused while a subscription has not acknowledged the messages, and `namespaces clear-backlog`
  while one has a backlog (Pulsar asks at the terminal), unless `--force`.
- `topics skip -n`, `examine-messages -m` and `peek-messages -n` count messages, where Pulsar counts
  entries (batches): as the backlog does here.
- `reset-cursor -m` continues **at** that message, with `-e` after it. `-t 3h` continues at the
  first message that was published three hours ago or later. `expire-messages -t` acknowledges older
  messages, not those of exactly that age; `-p` includes the message of that id.
- Commands about subscriptions wait for the broker, and print how to start one if none answers. The
  request stays in the log, and is executed when a broker comes.
- `get-message-id -d` names the message at which `reset-cursor` to that time continues, for each
  partition; if nothing was published since, it prints that there is none.
- Delayed messages are never early, unless a policy allows it (`set-delayed-delivery
  --disable-strict`). In Pulsar they may be: `isDelayedDeliveryDeliverAtTimeStrict` is a setting of
  its broker, for all topics.
- `set-subscription-expiration-time` deletes subscriptions without a connected consumer for that
  time **while this broker ran**: a broker that has just started counts from then. One topic may
  have a value of its own.
- A namespace and a tenant are created with their first topic. `namespaces create` and `tenants
  create` exist, and nothing needs them.
"""

_RIGHTS: Final = "nobody logs in: who may read and write the folder or bucket, may"
_CLUSTERS: Final = "there are no clusters: to have the messages elsewhere, read and publish them"
_BUNDLES: Final = "no broker owns a part of the topics: one serves the root"
_OFFLOAD: Final = "messages lie in the folder or bucket from the beginning"
_BOOKIES: Final = "there are no bookies: the store keeps the copies"
_SHADOW: Final = "anybody may read a topic as often as he likes: a shadow has nothing to spare"
_RATES: Final = (
    "Spark's queries say how much they take (`maxMessagesPerTrigger`, `maxBytesPerTrigger`), and "
    "who publishes is not slowed down"
)

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "topics": {
        "analyze-backlog": "topics stats",
        "list-partitioned-topics": "topics list",
        "disable-deduplication": "topics set-deduplication",
        "enable-deduplication": "topics set-deduplication",
        "get-deduplication-enabled": "topics get-deduplication",
        "compaction-status": "topics stats-internal",
        "info-internal": "topics stats-internal",
    },
    "namespaces": {
        "get-schema-autoupdate-strategy": "namespaces get-schema-compatibility-strategy",
        "set-schema-autoupdate-strategy": "namespaces set-schema-compatibility-strategy",
        "destinations": "namespaces topics",
    },
    "tenants": {},
    "schemas": {"metadata": "schemas get"},
}
"""Pulsar's command -> ours of another name."""

NOT_HERE: Final = (
    (r".*permission.*|.*subscription-auth-mode", _RIGHTS),
    (r".*(replicat|clusters?$|migration).*", _CLUSTERS),
    (r".*anti-affinity.*", _BUNDLES),
    (r".*(bundle|lookup|unload|topic-positions).*", _BUNDLES),
    (r".*offload.*", _OFFLOAD),
    (r".*(persistence|bookie|ack-state).*", _BOOKIES),
    (r".*shadow.*", _SHADOW),
    (r".*-rate", _RATES),
    (r".*resource-group", "there are no quotas over several brokers: one serves the root"),
    (r".*entry-filters", "a query filters: `.where(...)`, in any language, and with all columns"),
    (r".*encryption-required", "messages are not encrypted by producers: the store encrypts"),
    (
        r".*deduplication-snapshot-interval",
        "who published what stands in the log: no snapshot of it",
    ),
    (r".*max-message-size", "`maxMessageSize` is an option of who publishes; larger ones are cut"),
    (r"trim-topic", "a broker trims by itself what may go; `topics trim` drops what it names"),
    (r"create-missed-partitions", "a topic is made with all its partitions, by one commit"),
    (r"extract", "it takes a Java class out of a jar; a Python `Record` says its schema itself"),
    (r"delete", "a version of a schema stays: stored messages name it. Delete the topic"),
    (r".*subscription-properties", "entry filters read them there: keep them as the topic's"),
)
"""Commands that are not here, by their whole name, and why; the first that fits."""

_ONE_BY_ONE: Final = "name them one by one"
OPTIONS_NOT_HERE: Final = {
    "--bundle": _BUNDLES,
    "--bundles": _BUNDLES,
    "--clusters": _CLUSTERS,
    "--replicated": _CLUSTERS,
    "--update-local-only": _CLUSTERS,
    "--from-file": _ONE_BY_ONE,
    "regex": _ONE_BY_ONE,
    "--property": "as for `update-subscription-properties`",
    "--show-server-marker": "among the messages there are no markers",
    "--transaction-isolation-level": "what is not committed is nowhere to be seen",
}
"""Options of commands that are here, and why they are not."""


@cache
def commands(noun: str) -> dict[str, ArgumentParser]:
    """The commands of `pulsarlite NOUN`, listed or not."""
    return _choices(_choices(parser_of([noun]))[noun])


def missing_options(recorded: Mapping[str, Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Each option that a command of the same name does not have -> these commands."""
    found: dict[str, list[str]] = {}
    for group, known in recorded.items():
        for command, options in known.items():
            if (parser := commands(group).get(command)) is None:
                continue
            here = {flag for each in parser._actions for flag in each.option_strings}  # noqa: SLF001
            for option in options:
                if option not in here:
                    found.setdefault(option, []).append(f"{group} {command}")
    return found


def verdict(group: str, command: str) -> str:
    """Where a command of pulsar-admin is here. KeyError if nobody has said."""
    if command in commands(group):
        return "here"
    other = ELSEWHERE[group].get(command)
    if other is not None:
        return f"here as `{other}`"
    for pattern, why in NOT_HERE:
        if re.fullmatch(pattern, command):
            return f"not here: {why}"
    raise KeyError(f"{group} {command}")


def page() -> str:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    parts = [HEAD.format(version=recorded["version"])]
    for group, known in recorded["commands"].items():
        parts += [f"\n## {group}\n", "| pulsar-admin | here |\n| --- | --- |\n"]
        parts += (f"| {names} | {said} |\n" for names, said in _rows(group, sorted(known)))
    parts += ["\n## Options that are not here\n", "| option | of | why |\n| --- | --- | --- |\n"]
    for option, of in sorted(missing_options(recorded["commands"]).items()):
        named = ", ".join(f"`{each}`" for each in of)
        parts.append(f"| `{option}` | {named} | {OPTIONS_NOT_HERE[option]} |\n")
    return "".join(parts)


def _rows(group: str, known: list[str]) -> Iterator[tuple[str, str]]:
    """(commands, verdict): what is read, set and removed in one row if they have one answer."""
    rows: dict[tuple[str, str], list[str]] = {}
    for command in known:
        topic_partition = re.sub(r"^(get|set|remove)-", "", command)
        rows.setdefault((topic_partition, verdict(group, command)), []).append(command)
    for (_, said), names in rows.items():
        yield ", ".join(f"`{each}`" for each in names), said


def _choices(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    found = (each for each in parser._actions if isinstance(each, _SubParsersAction))  # noqa: SLF001
    return dict(next(found).choices)
