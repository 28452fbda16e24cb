"""`pulsarlite topics ...`: what each of these commands does, as the lines that it prints.

Invariants: no Spark; nothing is changed by `list`, `stats` and `peek`; `trim` and `tidy` go
through LedgerStore, which may be stopped anywhere and run again.
Follows pulsar-admin's `CmdTopics`.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsar_spark.connector.runtime.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.runtime.system_topics.lease import LEASES
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore, delete_temporaries
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.non_persistent import check_kept
from pulsar_spark.connector.runtime.topics.policies import enforces_schemas, schema_policies
from pulsar_spark.connector.runtime.topics.topics import Root, partitions_of
from pulsar_spark.connector.tools.admin.messages import newest, oldest
from pulsar_spark.connector.tools.admin.topics import Topics
from pulsar_spark.connector.tools.command_line.admin_commands import (
    FORCE,
    JSON,
    SYSTEM_TOO,
    TOPIC_COMMANDS,
    domains_of,
    printed,
    register_calls,
    shown,
)
from pulsar_spark.connector.tools.command_line.noun import (
    TOPIC,
    Noun,
    argument,
    one_of,
    opened,
    parsed,
    progress_bar,
    table,
)
from pulsar_spark.connector.tools.command_line.redrive_command import register_redrive
from pulsar_spark.connector.tools.command_line.stats_commands import register_stats
from pulsar_spark.connector.tools.command_line.topic_policies_command import (
    policies_of_topic,
    register_policies,
)
from pulsar_spark.errors import (
    DAMAGE,
    InvalidOptionError,
    TopicNotFoundError,
    VerificationError,
)
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from pulsar_spark.options.option_values import DURATION, PATTERN, TIME

if TYPE_CHECKING:
    from pulsar_spark.connector.inspect.verification.verified import VerifiedTopic

TOPICS: Final = Noun(
    "List, create, look into and look after topics. No Spark is started. All commands of "
    "topicPolicies are here too."
)
add_to = TOPICS.add_to


@TOPICS.command(
    "list",
    "Name the topics that there are, with their partitions. Pulsar: list.",
    argument("namespace", nargs="?", metavar="TENANT/NAMESPACE", help="only its topics"),
    SYSTEM_TOO,
    argument(
        "-td", "--topic-domain", choices=("persistent", "non_persistent"), metavar="DOMAIN",
        help="only persistent or only non_persistent ones",
    ),
    JSON,
)  # fmt: skip
def _list(root: Root, arguments: Namespace) -> Iterator[str]:
    tenant = namespace = None
    if arguments.namespace:
        name = NamespaceName.parse(arguments.namespace)
        tenant, namespace = name.tenant, name.local_name
    rows = []
    domains = domains_of(arguments.topic_domain)
    found = (root.find(tenant, namespace, domain) for domain in domains)
    for topic in chain.from_iterable(found):
        if topic.is_system and not arguments.include_system_topics:
            continue
        try:
            ledger = root.open_found(topic)
        except DAMAGE:
            rows.append([str(topic), "-", "unreadable: topics verify says why"])
            continue
        if ledger is None:
            continue
        state = ledger.state
        messages = sum(state.partition(partition).messages for partition in range(state.partitions))
        rows.append([str(topic), f"{state.partitions:,}", f"{messages:,}"])
    if arguments.json:
        yield json.dumps([row[0] for row in rows])
    elif rows:
        yield from table(["topic", "partitions", "messages"], rows)
    else:
        where = f"{root.store.root}, {arguments.namespace}" if tenant else root.store.root
        missing = not root.store.remote and not Path(root.store.root).is_dir()
        yield f"No topics in {where}" + (": there is no such folder" if missing else "")


register_calls(TOPICS, TOPIC_COMMANDS, TOPIC)


@TOPICS.command(
    "schemas",
    "List the schemas of a topic, by version. Pulsar: schemas get.",
    TOPIC,
    argument("--definition", action="store_true", help="print the definitions too"),
    JSON,
)
def _schemas(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = TopicName.parse(arguments.name)
    ledger = root.open(topic)
    policies = schema_policies(ledger, topic)
    if arguments.json:
        yield json.dumps(
            {
                "topic": ledger.topic,
                "compatibility": policies.strategy.value,
                "allow_auto_update": policies.allow_auto_update,
                "enforced": enforces_schemas(ledger, topic),
                "schemas": [
                    {"version": version, "type": each.type.value, "definition": each.definition}
                    for version, each in enumerate(ledger.state.schemas.schemas)
                ],
            }
        )
        return
    update = "" if policies.allow_auto_update else ", and no producer may add one"
    enforced = ", and none may go without" if enforces_schemas(ledger, topic) else ""
    yield f"{ledger.topic}: compatibility {policies.strategy.value}{update}{enforced}"
    rows = []
    for version, schema in enumerate(ledger.state.schemas.schemas):
        fields = [each.name for each in schema.avro().fields] if schema.definition else []
        rows.append([str(version), schema.type.value, ", ".join(fields) or "-"])
    if not rows:
        yield "no schemas: values are bytes"
        return
    yield from table(["version", "type", "fields"], rows)
    if arguments.definition:
        for version, schema in enumerate(ledger.state.schemas.schemas):
            if schema.definition:
                yield f"version {version}: {schema.definition}"


register_stats(TOPICS)


@TOPICS.command(
    "peek",
    "Print the oldest messages. Pulsar: peek-messages.",
    TOPIC,
    argument("-n", "--count", type=int, default=5, help="of each partition; default: 5"),
    argument("--last", action="store_true", help="the newest ones instead"),
    JSON,
)
def _peek(root: Root, arguments: Namespace) -> Iterator[str]:
    if arguments.count < 1:
        raise InvalidOptionError(f"--count {arguments.count}: it takes a number, 1 or more.")
    topic = TopicName.parse(arguments.name)
    ledger = root.open(topic)
    read = newest if arguments.last else oldest
    for partition in partitions_of(ledger, topic):
        found = read(ledger, partition, arguments.count)
        if arguments.json:
            yield from (json.dumps(each.to_json_value()) for each in found)
        else:
            yield from [*map(shown, found)] or [f"partition {partition} is empty"]


@TOPICS.command(
    "trim",
    "Drop old messages, whole ledgers at a time. Their files are deleted by a later `tidy`. Not in "
    "Pulsar, whose trim-topic does what a broker here does by itself.",
    TOPIC,
    one_of(
        argument(
            "--before", metavar="ID",
            help="drop ledgers before that of this message id: LEDGER:ENTRY:PARTITION as peek "
            "prints it, or a ledger's number, for all partitions",
        ),
        argument(
            "--before-time", metavar="TIME",
            help="drop ledgers that were published wholly before: 2026-01-31T12:00:00Z, or "
            "milliseconds since 1970",
        ),
    ),
    FORCE(help="also what a subscription has not acknowledged"),
    JSON,
)  # fmt: skip
def _trim(root: Root, arguments: Namespace) -> Iterator[str]:
    ledger = opened(root, arguments, "trimmed")
    if arguments.before is None:
        before = _before_time(ledger, arguments.before_time)
    else:
        before = _before_id(ledger, arguments.before)
    messages, ledgers = Topics(root).trim(ledger.topic, before, force=arguments.force)
    lines = [
        f"Dropped {messages:,} messages of {ledger.topic}, in {ledgers:,} ledgers.",
        "`topics tidy` deletes their files in time.",
    ]
    nothing = f"Nothing of {ledger.topic} is that old."
    answer = {"topic": ledger.topic, "messages": messages, "ledgers": ledgers}
    yield from printed(arguments, answer, lines if ledgers else nothing)


def _before_id(ledger: ManagedLedger, text: str) -> dict[int, int]:
    partitions = ledger.state.partitions
    if text.isdecimal():
        return dict.fromkeys(range(partitions), int(text))
    try:
        message_id = MessageId.parse(text)
    except ValueError as error:
        raise InvalidOptionError(f"--before: {error}.") from None
    if not 0 <= message_id.partition < partitions:
        raise InvalidOptionError(
            f"--before {text} names no partition of {ledger.topic}, which has {partitions}: it "
            "takes LEDGER:ENTRY:PARTITION, or a ledger's number alone."
        )
    return {message_id.partition: message_id.ledger_id}


def _before_time(ledger: ManagedLedger, text: str) -> dict[int, int]:
    oldest_ms = parsed("--before-time", text, TIME)
    before = {}
    for partition in range(ledger.state.partitions):
        ledgers = ledger.ledgers(partition)
        for each in takewhile(lambda each: each.max_publish_time_ms < oldest_ms, ledgers):
            before[partition] = each.ledger_id + 1
    return before


@TOPICS.command(
    "compact",
    "Keep the latest message of each key, for those who read with readCompacted; the others read "
    "all as before. Pulsar: compact.",
    TOPIC,
    argument(
        "--retain-null-key", action="store_true",
        help="keep messages without a key, which are dropped otherwise",
    ),
    JSON,
)  # fmt: skip
def _compact(root: Root, arguments: Namespace) -> Iterator[str]:
    from pulsar_spark.connector.runtime.housekeeping.compaction import (
        compact,  # needs parts of pyspark
    )

    ledger = opened(root, arguments, "compacted")
    check_kept(ledger.topic)
    with progress_bar() as progress:
        done = compact(ledger, retain_null_key=arguments.retain_null_key, progress=progress)
    names = ("partition", "kept", "read")
    answer = [
        {**{name: getattr(each, name) for name in names}, "horizon": str(each.horizon)}
        for each in done
    ]
    lines = [
        f"partition {each.partition}: kept {each.kept:,} of {each.read:,} messages, up to "
        f"{each.horizon}"
        for each in done
    ]
    nothing = f"Nothing was published to {ledger.topic} since it was compacted."
    yield from printed(arguments, answer, lines or nothing)


@TOPICS.command(
    "verify",
    "Prove that what is there is what was published: of each subscription published = acknowledged "
    "+ backlog + removed, without reading messages. Changes nothing, and may run beside brokers, "
    "sinks and trims. Exit status 1 if anything differs: docs/verify.md says what to do.",
    argument(
        "names", nargs="*", metavar="TOPIC",
        help="topics, or single partitions; without any all of the root, system topics too",
    ),
    argument("--regex", metavar="PATTERN", help="all topics whose names match"),
    argument(
        "--deep", action="store_true",
        help="read all files, and name the first ledger of each that differs; compare what the "
        "broker knew batch by batch",
    ),
    argument("--json", action="store_true", help="print each topic as a line of JSON"),
)  # fmt: skip
def _verify(root: Root, arguments: Namespace) -> Iterator[str]:
    # Needs numpy, which the other commands do without.
    from pulsar_spark.connector.inspect.verification.verify import chosen_topics, verify_topics

    pattern = arguments.regex and parsed("--regex", arguments.regex, PATTERN)
    names = chosen_topics(root, arguments.names, pattern)
    if not names:
        which = f" whose name matches {arguments.regex}" if arguments.regex else ""
        raise TopicNotFoundError(
            f"There is no topic{which} in {root.service_url}, so nothing was verified. Is "
            "--service-url the right one?"
        )
    differences = unverified = topics = 0
    with progress_bar(unit="") as progress:
        for each in verify_topics(root, names, deep=arguments.deep, progress=progress):
            topics += 1
            differences += len(each.differences)
            unverified += bool(each.unverified)
            yield from _verified_lines(each, as_json=arguments.json)
    if differences or unverified:
        counted = [f"{differences:,} differences in {topics:,} topics"]
        if unverified:
            counted.append(f"{unverified:,} of them could not be verified, as not all can be read")
        raise VerificationError(
            f"{', and '.join(counted)}. Nothing was changed; docs/verify.md says what each means "
            "and what to do."
        )
    if not arguments.json:
        yield f"{topics:,} topics are as they were published" + (
            "" if arguments.deep else "; --deep reads their files too"
        )


def _verified_lines(each: VerifiedTopic, *, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(each.to_json_value())
        return
    parts, indent = each.partitions, " " * 8
    published, there, removed = (
        sum(getattr(part, name) for part in parts) for name in ("published", "messages", "removed")
    )
    verdict = "ok" if each.ok else "DIFFERS" if each.differences else "UNREAD"
    yield (
        f"{verdict:8}{each.topic}: {published:,} messages published, "
        f"{there:,} there, {removed:,} removed; commit {each.commit}"
    )
    rows = [
        [held.subscription, f"{part.partition}", *(
            f"{number:,}"
            for number in (part.published, held.acknowledged, held.backlog, held.removed)
        )]
        for part in parts for held in part.subscriptions
    ]  # fmt: skip
    heads = ["subscription", "partition", "published", "= acknowledged", "+ backlog", "+ removed"]
    yield from (indent + line for line in (table(heads, rows) if rows else ()))
    if each.unnamed_files:
        yield (
            f"{indent}{each.unnamed_files:,} files are named by no commit: of tasks under way, or "
            "that failed (`topics tidy` gives those up)"
        )
    for difference in (*each.differences, *each.unverified):
        place = ", ".join(
            f"{name} {value}"
            for name, value in difference.to_json_value().items()
            if name in ("partition", "subscription", "file") and value is not None
        )
        yield f"{indent}{place}{': ' if place else ''}{difference.text}"
        yield f"{indent}-> {difference.remedy}"


@TOPICS.command(
    "tidy",
    "Merge small files, and delete those that nothing needs any more. Message ids stay as they "
    "are, and what is being written or read is let be.",
    TOPIC,
    argument("--no-merge", action="store_true", help="leave small files as they are"),
    argument(
        "--grace", default="1h", metavar="TIME",
        help="how long a file stays after it was given up (default: %(default)s)",
    ),
    argument(
        "--orphan-age", default="1d", metavar="TIME",
        help="how old a file is that no commit names (default: %(default)s)",
    ),
    argument(
        "--inactive-age", default="7d", metavar="TIME",
        help="how long an application (a query, or txnAppId) or a producer that publishes nothing "
        "is remembered (default: %(default)s)",
    ),
    JSON,
)  # fmt: skip
def _vacuum(root: Root, arguments: Namespace) -> Iterator[str]:
    grace_ms = parsed("--grace", arguments.grace, DURATION)
    orphan_ms = parsed("--orphan-age", arguments.orphan_age, DURATION)
    inactive_ms = parsed("--inactive-age", arguments.inactive_age, DURATION)
    ledger = opened(root, arguments)
    ledger.settle()
    store = LedgerStore(ledger, grace_ms=grace_ms)
    answer: dict[str, int] = {}

    def did(number: int, name: str, text: str, what: str) -> Iterator[str]:
        answer[name] = number
        if not arguments.json:
            yield f"{text:10} {number:,} {what}"

    if not arguments.no_merge:
        before = len(ledger.state.files)
        with progress_bar() as progress:
            commits = store.merge_small_files(progress=progress)
        merged = before - len(ledger.state.files) + len(commits)
        yield from did(merged, "merged", "merged", f"small files into {len(commits):,}")
    orphans = store.reclaim_orphans(older_than_ms=orphan_ms)
    given_up = len(orphans.reclaimed) if orphans else 0
    yield from did(given_up, "given_up", "gave up", "files that no commit names")
    deleted = len(store.sweep(temporary_age_ms=orphan_ms))
    what = f"files given up {arguments.grace} ago or earlier"
    yield from did(deleted, "deleted", "deleted", what)
    waiting = len(ledger.state.tombstones)
    yield from did(waiting, "waiting", "waiting", "files, given up since")
    delete_temporaries(root.store, LEASES, ledger.clock() - orphan_ms)
    inactive = store.forget_inactive(older_than_ms=inactive_ms)
    gone = inactive.inactive_applications + inactive.inactive_producers if inactive else ()
    what = "applications and producers that publish no more"
    yield from did(len(gone), "forgotten_producers", "forgot", what)
    what = "transactions that no topic's log refers to"
    yield from did(forget_decisions(root), "forgotten_transactions", "forgot", what)
    if arguments.json:
        yield json.dumps({"topic": ledger.topic, **answer})


register_redrive(TOPICS)
register_policies(TOPICS, TOPIC, policies_of_topic, is_listed=False)
