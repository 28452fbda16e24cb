"""Writes the pages that are made from the code: `python -m docs.generate`, `make docs`.

A test compares, so that none is changed by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from docs import command_line_page, from_pulsar_page
from pulsar_spark import errors
from pulsar_spark.connector.inspect.statistics import internal_stats
from pulsar_spark.connector.inspect.statistics.opentelemetry_gauges import GAUGES
from pulsar_spark.connector.inspect.statistics.prometheus_text import METRICS, OWN
from pulsar_spark.connector.inspect.views import topic_stats
from pulsar_spark.connector.inspect.views.view_columns import VIEWS, View
from pulsar_spark.connector.runtime.topics.message_columns import READ_COLUMNS
from pulsar_spark.connector.spark.acknowledgment_sink import ACK_COLUMNS
from pulsar_spark.connector.spark.column_types import write_types
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.options.options import markdown_table
from pulsar_spark.options.policy_units import SWITCH
from pulsar_spark.options.topic_policies import MISSING, POLICIES, switched_off

FOLDER = Path(__file__).resolve().parent
MADE = "<!-- Made by `make docs` from the code: change it there. -->\n"

OPTIONS = """\
# Options and columns

Options of `format("pulsarlite")`. Names are compared without regard to case; an unknown one is an
error that offers the nearest. This page is made from
[options.py](../pulsar_spark/options/options.py).

## The seven options of most uses

"""
SEVEN = (
    "serviceUrl", "topic", "startingOffsets", "subscriptionName", "subscriptionType", "ackMode",
    "maxRedeliverCount",
)  # fmt: skip
"""The options that most jobs need; the page begins with them."""
OPTIONS_REST = """
A Reader needs the first three, a sink the first two. The others make a query a consumer of a
subscription: how consumers share it, whether its messages are acknowledged by hand, and after how
many redeliveries a message becomes a dead letter. `maxMessagesPerTrigger` bounds a micro-batch, and
`numPartitions` counts when a sink creates the topic. `checkpointLocation` is Spark's own.

## All options

Options `storage.NAME` are those of the object store, such as `storage.aws_endpoint`; an unknown one
is an error too. A request that finds no answer is sent again with backoff, for
`storage.retry_timeout` (3m) and `storage.max_retries` times (1000) at most, and ten times to a
service that has never answered; then the query ends with `STORAGE_UNAVAILABLE`, and may be
restarted.
"""
GROUPS = {
    "serviceUrl": "Root and topics",
    "startingOffsets": "Where reading begins and ends, and the size of a micro-batch",
    "view": "Views of the queue",
    "statsIntervalSeconds": "Statistics, losses, compaction, new topics",
    "subscriptionName": "Subscriptions",
    "ackMode": "Acknowledging, redelivery, dead letters",
    "receiverQueueSize": "Receiver queue and lease",
    "maxPendingChunkedMessage": "Chunked messages and typed values, when reading",
    "ackReceiptEnabled": "Sinks that acknowledge",
    "numPartitions": "Publishing: topic, routing, entries, delays, chunks, schema",
    "producerName": "Producers, deduplication, transactions",
}
"""The headings of the table of options, by the option that comes first below each."""
READ = """
## Columns of a source

A schema given by the user (`.schema("value binary, key string")`) picks among these, in any order,
and only those are read: by far the cheapest way to read less. Without one there are all but
`properties`, `first_chunk_message_id` and `schema_error`. With `valueSchema` the column `value` has
the type of the topic's schema.

"""
WRITE = """
## Columns of a sink

Only `value` has to be there. Any other column is an error: put it into `value`, with `to_json` for
instance. With `schemaType`, `value` has the type that it says. `deliver_after` is an interval, or a
number of milliseconds.

"""
ACKNOWLEDGE = """
## Columns of a sink that acknowledges

With `subscriptionName` a sink publishes nothing: each row has the outcome of a message. A message
is identified by its id and `topic`, as they were read; a `batch_index` of null or -1 is the whole
entry. `ack_type`, in any case, is `Individual` (also null), `Cumulative` (not where consumers
share), `Negative` (redelivered after `delay` or the consumer's own), `ReconsumeLater` (to the
retry letter topic) or `DeadLetter` (to the dead letter topic immediately). With `attempt`, as it
was read, a row has no effect if its message was redelivered meanwhile, or was delivered before a
seek. `properties` and `error` go to the copy: `error` as `ERROR`. `delay` is a text such as `30s`,
an interval, or milliseconds, as is `delay_ms`. `process` makes such rows, and `acknowledge` and its
relatives write them: [subscriptions](subscriptions.md).

"""
POLICIES_TEXT = """\
# Policies

Policies are settings of a topic, or of all topics of a namespace, such as retention, backlog quotas
and limits. Each has three commands, with the names and flags of `pulsar-admin`, for `topics` and
for `namespaces`, and three methods:

```
pulsarlite topics set-retention orders --time 3d --size 10G
pulsarlite topics get-retention orders --applied
pulsarlite topics remove-retention orders
pulsarlite namespaces set-backlog-quota acme/eu --limit 10G --policy producer_request_hold
```
```python
orders = pulsar_spark.Admin("s3://bucket/prefix").policies("orders")  # or "acme/eu"
orders.set(retention_time="3d", retention_size="10G")
orders.get()  # {'retention_time': 259200, 'retention_size': 10737418240}
orders.applied()["retention_time"]  # the value in effect, and its source
orders.remove("retention_time", "retention_size")
```

**The value in effect**, for each setting by itself: an option of the sink or source, where there is
one; else the topic's; else its namespace's; else its root's; else the default. `get-... --applied`
prints it with its source. `policies` prints all; `--json` prints times in seconds and sizes in
bytes. A root's policies are set under the name `*`, as Pulsar's broker has settings for all topics:
`pulsarlite namespaces set-deduplication '*' --enable` (`brokerDeduplicationEnabled`),
`pulsarlite namespaces set-non-persistent-topics '*' --disable` (`enableNonPersistentTopics`).

**When**: nothing has to be restarted. A topic's value takes effect with the broker's next step, a
namespace's and a root's within five seconds (over a network two and ten minutes); in a sink and a
producer with their next publication.

| policy | setting | takes | default | what it does |
| --- | --- | --- | --- | --- |
"""
POLICIES_END = """
`set-NAME` takes the flags below. Pulsar's names that differ between its `topics`, `topicPolicies`
and `namespaces` are known to both. Where `pulsar-admin` has no such command, Pulsar has a setting
of its broker, for all topics.

| policy | flags | also called |
| --- | --- | --- |
"""
POLICIES_MISSING = """
## Not here
| in pulsar-admin | here |
| --- | --- |
"""
ERRORS = """\
# Errors

Every error that Pulsarlite raises on purpose is a `pulsar_spark.PulsarliteError`. Its text is its
condition in brackets, then the event and the remedy. PySpark wraps errors of a data source into
errors of its own (`AnalysisException`, `StreamingQueryException`): ours is then the line that
begins with `pulsar_spark.errors.`, near the end of the text.

| condition | class | when |
| --- | --- | --- |
"""

VIEWS_BEGIN = MADE
STATS = {
    "": topic_stats.TOPIC,
    "subscriptions": topic_stats.SUBSCRIPTION,
    "consumers": topic_stats.CONSUMER,
    "publishers": topic_stats.PUBLISHER,
}
VIEWS_END = "<!-- /views -->"
INTERNAL = {
    "": internal_stats.TOPIC,
    "ledgers": internal_stats.LEDGER,
    "cursors": internal_stats.CURSOR,
}
TABLES_END = "<!-- /tables -->"


def option_tables() -> tuple[str, str]:
    """The table of the seven, and those of all options by subject."""
    head, line, *rows = markdown_table().splitlines()
    by_name = {row.split("`")[1]: row for row in rows}
    table = f"{head}\n{line}\n"
    seven = table + "".join(f"{by_name[name]}\n" for name in SEVEN)
    missing = GROUPS.keys() - by_name.keys()
    assert not missing, f"no such options: {missing}"
    headings = {name: f"\n### {title}\n\n{table}" for name, title in GROUPS.items()}
    return seven, "".join(f"{headings.get(name, '')}{row}\n" for name, row in by_name.items())


def options_page() -> str:
    """docs/options.md."""
    read = "".join(
        f"| `{each.name}` | {from_arrow_type(each.type).simpleString()} "
        f"| {'yes' if each.nullable else 'no'} | {each.meaning} |\n"
        for each in READ_COLUMNS
    )
    write = "".join(
        f"| `{name}` | {' or '.join(each.simpleString() for each in types)} |\n"
        for name, types in write_types().items()
    )
    acknowledge = "".join(
        f"| `{name}` | {' or '.join(each.simpleString() for each in types)} |\n"
        for name, types in ACK_COLUMNS.items()
    )
    seven, groups = option_tables()
    columns = "| column | type |\n| --- | --- |\n"
    return (
        f"{MADE}{OPTIONS}{seven}{OPTIONS_REST}{groups}{READ}"
        f"| column | type | nullable | what it is |\n| --- | --- | --- | --- |\n{read}"
        f"{WRITE}{columns}{write}{ACKNOWLEDGE}{columns}{acknowledge}"
    )


def errors_page() -> str:
    """docs/errors.md."""
    rows = "".join(
        f"| `{each.condition}` | {_class(each)} | {_summary(each)} |\n" for each in all_errors()
    )
    return MADE + ERRORS + rows


def policies_page() -> str:
    """docs/policies.md."""
    rows, flags = [], []
    for policy in POLICIES:
        for number, each in enumerate(policy.settings):
            only = " (namespaces only)" if policy.is_namespaces else ""
            name = f"`{policy.name}`{only}" if not number else ""
            default = each.unit.text(each.default)
            option = f" Option: `{each.option}`." if each.option else ""
            rows.append(
                f"| {name} | `{each.name}` | {each.unit.expects} | {default} "
                f"| {each.meaning}{option} |\n"
            )
        shown = (switched_off(each) if each.unit is SWITCH else () for each in policy.settings)
        pairs = zip(policy.settings, shown, strict=True)
        taken = ", ".join(f"`{flag}`" for each, off in pairs for flag in (*each.flags, *off))
        also = ", ".join(f"`{each}`" for each in policy.also)
        broker = policy.pulsar and f"of the broker: `{policy.pulsar}`"
        flags.append(f"| `{policy.name}` | {taken} | {also or broker} |\n")
    missing = (f"| `{name}` | {why} |\n" for name, why in MISSING.items())
    return "".join((MADE, POLICIES_TEXT, *rows, POLICIES_END, *flags, POLICIES_MISSING, *missing))


def views_page() -> str:
    """docs/views.md, whose part between the marks is made."""
    text = (FOLDER / "views.md").read_text(encoding="utf-8")
    head, _, rest = text.partition(VIEWS_BEGIN)
    return head + VIEWS_BEGIN + "".join(map(_view, VIEWS.values())) + rest[rest.index(VIEWS_END) :]


def _view(view: View) -> str:
    rows = "".join(
        f"| `{each.name}` | {_type_text(each.type)} | {each.meaning} |\n" for each in view.own
    )
    kind = "The columns of a message, and" if rows else "The columns of a message."
    kind = f"{kind}\n\n" if view.of_messages else ""
    table = f"| column | type | what it is |\n| --- | --- | --- |\n{rows}\n" if rows else ""
    more = "".join(map(_stats, STATS)) if view.name == "stats" else ""
    return f"### `{view.name}`\n{view.meaning}\n\n{kind}{table}{more}"


def _stats(what: str) -> str:
    """Fields of a struct in the view `stats`, and those of Pulsar's that are not there."""
    fields = STATS[what]
    there = "".join(
        f"| `{each.name}` | {_type_text(each.type)} | {each.meaning} |\n"
        for each in fields
        if each.type is not None and what
    )
    table = f"Of `{what}`:\n\n| field | type | what it is |\n| --- | --- | --- |\n{there}\n"
    missing = _reasons((each.name, each.meaning) for each in fields if each.type is None)
    return f"{table if what else ''}Of Pulsar's these are missing:\n\n{missing}\n"


def monitoring_page() -> str:
    """docs/monitoring.md, whose part between the marks is made."""
    text = (FOLDER / "monitoring.md").read_text(encoding="utf-8")
    head, _, rest = text.partition(MADE)
    tables = _metrics_table() + _gauges_table() + "".join(map(_internal, INTERNAL))
    return head + MADE + tables + rest[rest.index(TABLES_END) :]


def _metrics_table() -> str:
    rows = "".join(
        f"| `{each.name}` | {each.topic_partition} | {each.meaning} |\n"
        for each in (*METRICS, *OWN)
        if each.value is not None
    )
    missing = _reasons((each.name, each.meaning) for each in METRICS if each.value is None)
    return (
        f"### Metrics\n| metric | of a | what it is |\n| --- | --- | --- |\n{rows}\n"
        f"Of Pulsar's these are missing:\n\n{missing}\n"
    )


def _gauges_table() -> str:
    rows = "".join(
        f"| `{name}` | `{unit}` | `{metric}` |\n" for metric, (name, unit) in GAUGES.items()
    )
    return f"### Gauges\n| gauge | unit | as the metric |\n| --- | --- | --- |\n{rows}\n"


def _internal(what: str) -> str:
    fields = INTERNAL[what]
    rows = "".join(f"| `{each.name}` | {each.meaning} |\n" for each in fields if each.exists)
    missing = _reasons((each.name, each.meaning) for each in fields if not each.exists)
    title = f"Of `{what}`" if what else "### Fields of stats-internal"
    return (
        f"{title}\n\n| field | what it is |\n| --- | --- |\n{rows}\n"
        f"Of Pulsar's these are missing:\n\n{missing}\n"
    )


def _reasons(pairs: Iterable[tuple[str, str]]) -> str:
    """Names by the reason why they are not there."""
    why: dict[str, list[str]] = {}
    for name, reason in pairs:
        why.setdefault(reason, []).append(f"`{name}`")
    return "".join(f"- {', '.join(names)}: {reason}.\n" for reason, names in why.items())


def _type_text(kind: pa.DataType) -> str:
    spark = from_arrow_type(kind)
    return spark.typeName() if "struct" in spark.simpleString() else spark.simpleString()


def all_errors() -> Iterator[type[PulsarliteError]]:
    """The classes in the order of their module, without the root."""
    for value in vars(errors).values():
        is_error = inspect.isclass(value) and issubclass(value, PulsarliteError)
        if is_error and value is not PulsarliteError:
            yield value


def _class(error: type[PulsarliteError]) -> str:
    """Its name, and the error that it is a kind of."""
    (above,) = (each for each in error.__bases__ if issubclass(each, PulsarliteError))
    kind = "" if above is PulsarliteError else f", a `{above.__name__}`"
    return f"`{error.__name__}`{kind}"


def _summary(error: type[PulsarliteError]) -> str:
    return (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ")


def command_line() -> str:
    """docs/command-line.md."""
    return MADE + command_line_page.page()


def from_pulsar() -> str:
    """Each command of pulsar-admin, and where it is."""
    return MADE + from_pulsar_page.page()


PAGES = {
    "options.md": options_page,
    "errors.md": errors_page,
    "policies.md": policies_page,
    "command-line.md": command_line,
    "from-pulsar.md": from_pulsar,
    "views.md": views_page,
    "monitoring.md": monitoring_page,
}


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
