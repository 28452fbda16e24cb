"""The policies of a topic, of its namespace and of its root, declared once.

Invariants: what is stored, checked, taken by `Admin.policies` and the command line, and told
in docs/policies.md comes from the one table below; a topic's word comes before its namespace's,
that before its root's, and that before the default, for each setting by itself; what is unknown is
refused with the nearest name, and a value with what would be right. Times are stored in
milliseconds, and given in seconds.
Follows Pulsar's `HierarchyTopicPolicies`; commands and flags are those of `pulsar-admin`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypedDict

from pulsar_spark.broker.protocol.policies import (
    ALL_SUBSCRIPTION_TYPES,
    INFINITE,
    BacklogQuotaPolicy,
    InactiveTopicDeleteMode,
    TopicPolicies,
)
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.records.stored_record import canonical_json
from pulsar_spark.model.schema.schema_registry import DEFAULT_STRATEGY, STRATEGIES
from pulsar_spark.model.topic_name import MAX_PARTITIONS
from pulsar_spark.options import policy_units as units
from pulsar_spark.options.policy_units import SWITCH, Unit

PARTITIONED: Final = "partitioned"
NON_PARTITIONED: Final = "non-partitioned"
NESTED: Final = "policies"
"""The setting of a topic that has most of its policies; the others are settings themselves."""
PROPERTIES: Final = "properties"
"""The setting of a topic or namespace that has its owner's own names and texts."""
MOST_PROPERTIES_BYTES: Final = 64 << 10
"""The greatest size of all properties of one topic or namespace together, as JSON."""

Time = float | str | timedelta
"""Seconds, or a text such as `3d`."""
Size = int | str
"""Bytes, or a text such as `10G`."""


class PolicyValues(TypedDict, total=False):
    """The arguments of `Policies.set`, for type checkers; a test compares them with the table."""

    retention_time: Time
    retention_size: Size
    message_ttl: Time
    backlog_quota_limit: Size
    backlog_quota_limit_time: Time
    backlog_quota_policy: str
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    max_producers: int
    max_consumers: int
    max_consumers_per_subscription: int
    max_subscriptions_per_topic: int
    max_topics_per_namespace: int
    subscription_expiration_time: Time
    subscription_types_enabled: str | Collection[str]
    delayed_delivery: bool
    delayed_delivery_tick: Time
    delayed_delivery_strict: bool
    delayed_delivery_max_delay: Time
    deduplication: bool
    compaction_threshold: Size
    schema_compatibility_strategy: str
    is_allow_auto_update_schema: bool
    schema_validation_enforced: bool
    batch_index_acknowledgment: bool
    dispatcher_max_round_robin_batch_size: int
    key_shared_consistent_hashing: bool
    key_shared_look_ahead_per_consumer: int
    key_shared_look_ahead: int
    failover_consistent_hashing: bool
    breaker_threshold: int
    breaker_window: int
    breaker_delay: Time
    breaker_max_delay: Time
    delete_inactive_topics: bool
    max_inactive_duration: Time
    inactive_topic_delete_mode: str
    auto_topic_creation: bool
    auto_topic_type: str
    auto_topic_partitions: int
    auto_subscription_creation: bool
    non_persistent_topics: bool


class Setting(NamedTuple):
    """One value of a policy: its name in Python, and that under which it is stored.

    `flags` are those of the command that sets it; those of a switch turn it on. `option` is that of
    a sink or source, which comes before the policy.
    """

    name: str
    stored: str
    unit: Unit
    default: Any
    flags: tuple[str, ...]
    meaning: str
    is_required: bool = True
    option: str = ""


class Policy(NamedTuple):
    """Settings with one command: `set-NAME`, `get-NAME` and `remove-NAME`.

    `also` are other names of it in pulsar-admin. Where that has none, `pulsar` is the setting of
    Pulsar's broker.
    """

    name: str
    settings: tuple[Setting, ...]
    also: tuple[str, ...] = ()
    pulsar: str = ""
    is_namespaces: bool = False
    """True if it can be said of namespaces only."""


ENABLE: Final = ("-e", "--enable")
_MAX_NUM: Final = ("-m", "--maxNum", "-c")

POLICIES: Final = (
    Policy("retention", (
        Setting("retention_time", "retention_time_ms", units.time(0, infinite=True), 0,
                ("-t", "--time"),
                "How long messages stay that every durable subscription has acknowledged. While "
                "no retention is set, those of a topic that a client made (docs/subscriptions.md) "
                "stay for ten minutes, as far as they are the last 64 MiB and 10,000 commits."),
        Setting("retention_size", "retention_size_bytes", units.size(0, infinite=True), 0,
                ("-s", "--size"),
                "How many bytes of the topic stay at least. With time and size messages go as soon "
                "as either lets them; both are 0, or neither is."),
    )),
    Policy("message-ttl", (
        Setting("message_ttl", "message_ttl_ms", units.time(0), 0,
                ("-t", "--ttl", "-ttl", "--messageTTL"),
                "When a message counts as acknowledged by every subscription; 0 is never."),
    )),
    Policy("backlog-quota", (
        Setting("backlog_quota_limit", "backlog_quota_bytes", units.size(1, infinite=True),
                INFINITE,
                ("-l", "--limit"),
                "Bytes that the slowest durable subscription may be behind, for each partition.",
                is_required=False),
        Setting("backlog_quota_limit_time", "backlog_quota_time_ms",
                units.time(1, infinite=True, off=True), INFINITE, ("-lt", "--limitTime"),
                "How old the oldest message may be that it has not acknowledged.",
                is_required=False),
        Setting("backlog_quota_policy", "backlog_quota_policy",
                units.one_of(*(each.value for each in BacklogQuotaPolicy)),
                BacklogQuotaPolicy.PRODUCER_REQUEST_HOLD.value, ("-p", "--policy"),
                "What happens then: sinks and producers wait, sinks and producers fail, or the "
                "oldest messages count as acknowledged."),
    ), also=("backlog-quotas",)),
    Policy("max-unacked-messages-per-consumer", (
        Setting("max_unacked_messages_per_consumer", "max_unacked_messages_per_consumer",
                units.count(0), 0,
                (*_MAX_NUM, "--max-unacked-messages-per-consumer",
                 "--max-unacked-messages-per-topic"),
                "Messages that a Shared or Key_Shared consumer may have unacknowledged before it "
                "gets no more."),
    ), also=("max-unacked-messages-on-consumer",)),
    Policy("max-unacked-messages-per-subscription", (
        Setting("max_unacked_messages_per_subscription", "max_unacked_messages_per_subscription",
                units.count(0), 0, (*_MAX_NUM, "--max-unacked-messages-per-subscription"),
                "The same, over all consumers of a Shared or Key_Shared subscription."),
    ), also=("max-unacked-messages-on-subscription",)),
    Policy("max-producers", (
        Setting("max_producers", "max_producers_per_topic", units.count(0), 0,
                ("-p", "--max-producers", "--max-producers-per-topic"),
                "Queries and producers that may publish at once; another is refused. A query "
                "counts from its first micro-batch with messages until its producerLease is over."),
    ), also=("max-producers-per-topic", "maxProducers")),
    Policy("max-consumers", (
        Setting("max_consumers", "max_consumers_per_topic", units.count(0), 0,
                ("-c", "--max-consumers", "--max-consumers-per-topic"),
                "Consumers of all subscriptions of a partition together; another is refused."),
    ), also=("max-consumers-per-topic",)),
    Policy("max-consumers-per-subscription", (
        Setting("max_consumers_per_subscription", "max_consumers_per_subscription", units.count(0),
                0,
                ("-c", "--max-consumers-per-subscription"),
                "Consumers of one subscription of a partition; another is refused."),
    )),
    Policy("max-subscriptions-per-topic", (
        Setting("max_subscriptions_per_topic", "max_subscriptions_per_topic", units.count(0), 0,
                ("-s", "-m", "--max-subscriptions-per-topic"),
                "Subscriptions; a new one above that is refused."),
    ), also=("max-subscriptions",)),
    Policy("max-topics-per-namespace", (
        Setting("max_topics_per_namespace", "max_topics_per_namespace", units.count(0), 0,
                ("-t", "--max-topics-per-namespace"),
                "Topics of a namespace, each of whose partitions counts as one; who makes or "
                "enlarges one above that is refused. Dead-letter topics are made all the same."),
    ), is_namespaces=True),
    Policy("subscription-expiration-time", (
        Setting("subscription_expiration_time", "subscription_expiration_time_ms",
                units.time(0, default="m"), 0, ("-t", "--time"),
                "After what time the broker deletes a durable subscription to which nobody is "
                "connected, as the broker that runs has seen it; 0 is never. What it had not "
                "acknowledged is then kept for it no more."),
    )),
    Policy("subscription-types-enabled", (
        Setting("subscription_types_enabled", "subscription_types_enabled",
                units.some_of(*ALL_SUBSCRIPTION_TYPES.split(",")), ALL_SUBSCRIPTION_TYPES,
                ("-t", "--types"),
                "The types with which a consumer may subscribe; with another it is refused. Who is "
                "connected stays."),
    )),
    Policy("delayed-delivery", (
        Setting("delayed_delivery", "delayed_delivery", SWITCH, True, ENABLE,
                "Whether messages wait for the time that their producers gave them. Looked at when "
                "a message is published.", is_required=False),
        Setting("delayed_delivery_tick", "delayed_delivery_tick_ms", units.time(1), 1_000,
                ("-t", "--time"),
                "How much later than that they may come, so that many come together.",
                is_required=False),
        Setting("delayed_delivery_strict", "delayed_delivery_strict", SWITCH, True,
                ("--enable-strict",),
                "Whether none comes before its time; otherwise it may by as much as the tick. "
                "Pulsar's broker has `isDelayedDeliveryDeliverAtTimeStrict` for all topics, off.",
                is_required=False),
        Setting("delayed_delivery_max_delay", "delayed_delivery_max_delay_ms", units.time(0), 0,
                ("-md", "--maxDelay"),
                "How long after its publication a message may be delivered at the latest; who "
                "publishes one that is to come later is refused it. 0 is no limit.",
                is_required=False),
    )),
    Policy("deduplication", (
        Setting("deduplication", "deduplication", SWITCH, False, ENABLE,
                "Whether messages are dropped whose producer name and sequence id were used "
                "before.", option="enableDeduplication"),
    )),
    Policy("compaction-threshold", (
        Setting("compaction_threshold", "compaction_threshold_bytes", units.size(0), 0,
                ("-t", "--threshold"),
                "Bytes of a partition that no compaction has seen, above which the broker compacts "
                "it by itself, within a minute; 0 is never. The first compaction counts all."),
    )),
    Policy("inactive-topic-policies", (
        Setting("delete_inactive_topics", "delete_inactive_topics", SWITCH, False,
                (*ENABLE, "--enable-delete-while-inactive"),
                "Whether the broker deletes a topic, with its messages, that nobody publishes to "
                "or consumes for a while, once its retention time is over too. Readers without a "
                "subscription are not seen. Pulsar's default is on."),
        Setting("max_inactive_duration", "max_inactive_duration_ms", units.time(1), 60_000,
                ("-t", "--max-inactive-duration"),
                "For how long, as the broker that runs has seen it.", is_required=False),
        Setting("inactive_topic_delete_mode", "inactive_topic_delete_mode",
                units.one_of(*(each.value for each in InactiveTopicDeleteMode)),
                InactiveTopicDeleteMode.NO_SUBSCRIPTIONS.value, ("-m", "--delete-mode"),
                "Which topics: those without a subscription, or also those whose subscriptions "
                "have nothing left and nobody connected.", is_required=False),
    )),
    Policy("schema-compatibility-strategy", (
        Setting("schema_compatibility_strategy", "schema_compatibility_strategy",
                units.one_of(*STRATEGIES), DEFAULT_STRATEGY.value,
                ("-c", "--compatibility", "-s", "--strategy"),
                "Which schema may follow those of a topic."),
    )),
    Policy("is-allow-auto-update-schema", (
        Setting("is_allow_auto_update_schema", "is_allow_auto_update_schema", SWITCH, True, ENABLE,
                "Whether producers may add schemas."),
    )),
    Policy("schema-validation-enforce", (
        Setting("schema_validation_enforced", "schema_validation_enforced", SWITCH, False, ENABLE,
                "Whether producers without a schema are refused where the topic has one."),
    )),
    Policy("breaker", (
        Setting("breaker_threshold", "breaker_threshold", units.count(0, 99), 0,
                ("-t", "--threshold"),
                "Per cent of a subscription's latest outcomes: where more of them are failures, "
                "its delivery pauses and tries one message at a time. 0 is no breaker."),
        Setting("breaker_window", "breaker_window", units.count(1, 1_000), 20,
                ("-w", "--window"),
                "Outcomes that are looked at, at least, before it opens; and the size of the last "
                "trial before it closes.", is_required=False),
        Setting("breaker_delay", "breaker_delay_ms", units.time(1), 1_000, ("-d", "--delay"),
                "How long delivery pauses before the first trial; twice as long after each that "
                "fails.", is_required=False),
        Setting("breaker_max_delay", "breaker_max_delay_ms", units.time(1), 300_000,
                ("-m", "--max-delay"), "How long at most.", is_required=False),
    ), pulsar="no such setting"),
    Policy("auto-topic-creation", (
        Setting("auto_topic_creation", "auto_topic_creation", SWITCH, True, ENABLE,
                "Whether a topic that is not there is made by who publishes to it, and by a "
                "consumer or a stream that comes first. A batch that reads makes none.",
                option="allowAutoTopicCreation"),
        Setting("auto_topic_type", "auto_topic_type", units.one_of(PARTITIONED, NON_PARTITIONED),
                PARTITIONED, ("-t", "--type"),
                "Whether it gets the partitions below. One that is not partitioned is a topic with "
                "one partition.", is_required=False),
        Setting("auto_topic_partitions", "auto_topic_partitions", units.count(1, MAX_PARTITIONS),
                1, ("-n", "--num-partitions"), "How many partitions it gets then.",
                is_required=False, option="numPartitions"),
    ), is_namespaces=True),
    Policy("auto-subscription-creation", (
        Setting("auto_subscription_creation", "auto_subscription_creation", SWITCH, True, ENABLE,
                "Whether a consumer makes a durable subscription that is not there. Otherwise it "
                "is refused with SubscriptionNotFound, and `subscriptions create` makes it."),
    )),
    Policy("non-persistent-topics", (
        Setting("non_persistent_topics", "non_persistent_topics", SWITCH, True, ENABLE,
                "Whether topics may be `non-persistent://`. Otherwise who publishes to one, "
                "subscribes to it or makes it is refused with NotAllowedError, and a pattern "
                "leaves it out."),
    ), pulsar="enableNonPersistentTopics", is_namespaces=True),
    Policy("batch-index-acknowledgment", (
        Setting("batch_index_acknowledgment", "batch_index_acknowledgment", SWITCH, True, ENABLE,
                "Whether messages of a batch are acknowledged one by one. Without it a batch is "
                "delivered again unless all of it was."),
    ), pulsar="acknowledgmentAtBatchIndexLevelEnabled"),
    Policy("dispatcher-max-round-robin-batch-size", (
        Setting("dispatcher_max_round_robin_batch_size", "dispatcher_max_round_robin_batch_size",
                units.count(1), 20, _MAX_NUM,
                "Entries that a Shared consumer gets before it is the next one's turn."),
    ), pulsar="dispatcherMaxRoundRobinBatchSize"),
    Policy("key-shared-consistent-hashing", (
        Setting("key_shared_consistent_hashing", "key_shared_consistent_hashing", SWITCH, True,
                ENABLE,
                "Whether Key_Shared consumers get keys by a ring of hashes; otherwise by ranges "
                "that are split and joined. A subscription begins with it, and keeps it until its "
                "last consumer has gone."),
    ), pulsar="subscriptionKeySharedUseConsistentHashing"),
    Policy("key-shared-look-ahead", (
        Setting("key_shared_look_ahead_per_consumer", "key_shared_look_ahead_per_consumer",
                units.count(0), 2_000, ("-c", "--per-consumer"),
                "Messages, for each consumer, that Key_Shared looks at behind those whose consumer "
                "takes none just now.", is_required=False),
        Setting("key_shared_look_ahead", "key_shared_look_ahead", units.count(0), 20_000,
                ("-s", "--per-subscription"), "The same, over all its consumers.",
                is_required=False),
    ), pulsar="keySharedLookAheadMsgInReplayThresholdPerConsumer, ...PerSubscription"),
    Policy("failover-consistent-hashing", (
        Setting("failover_consistent_hashing", "failover_consistent_hashing", SWITCH, False, ENABLE,
                "Whether the active Failover consumer is found by a ring of hashes; otherwise it "
                "is the first that subscribed, and in a topic of several partitions the one of "
                "that place by name. A subscription begins with it, and keeps it until its last "
                "consumer has gone."),
    ), pulsar="activeConsumerFailoverConsistentHashing"),
)  # fmt: skip
"""Every policy, in the order in which they are printed."""

MISSING: Final = {
    "deduplication-snapshot-interval": "the log itself remembers sequence ids: no snapshot",
    "dispatch-rate, publish-rate, subscribe-rate": "a query's maxMessagesPerTrigger bounds it",
    "max-message-size": "the option maxMessageSize of a sink",
    "offload-policies, persistence": "topics are files already, and bookies there are none",
    "replication-clusters": "there is one cluster: the root",
}
"""Policies of pulsar-admin that there are not here, and why or what to do instead."""

NAMESPACES_ONLY: Final = frozenset(
    each.name for policy in POLICIES if policy.is_namespaces for each in policy.settings
)
SETTINGS: Final = {each.name: each for policy in POLICIES for each in policy.settings}
HOSTED: Final = frozenset(each.name for each in fields(TopicPolicies))
"""Names that are stored in NESTED."""
OWN: Final = frozenset({"keep_acknowledged", "keep_without_subscription"})
"""The names of HOSTED that are no policies: the creator of a topic sets them."""
_BY_STORED: Final = {each.stored: each for each in SETTINGS.values()}
APART: Final = frozenset(_BY_STORED) - HOSTED
"""Names that are stored beside NESTED: those which the broker does not have to know."""


def switched_off(setting: Setting) -> tuple[str, ...]:
    """The flags that turn a switch off."""
    return tuple(
        "-d" if each == "-e" else each.replace("--enable", "--disable") for each in setting.flags
    )


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values of these settings. InvalidOptionError names a wrong one."""
    found = {}
    for name, value in given.items():
        setting = named(name)
        try:
            found[setting.stored] = setting.unit.stored(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidOptionError(
                f"Policy {setting.name} can't be {value!r}: it takes {setting.unit.expects}."
            ) from None
    return found


def named(name: str) -> Setting:
    """The setting of that name; InvalidOptionError offers the nearest."""
    if name in SETTINGS:
        return SETTINGS[name]
    near = difflib.get_close_matches(name.replace("-", "_"), SETTINGS, n=1, cutoff=0.5)
    offer = f"Did you mean {near[0]}?" if near else f"There are {', '.join(SETTINGS)}."
    raise InvalidOptionError(f"There is no policy {name}. {offer}")


def set_policies(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The policies in a topic's or a namespace's settings, by stored name."""
    nested = settings.get(NESTED) or {}
    found = {name: (settings if name in APART else nested).get(name) for name in _BY_STORED}
    return {name: value for name, value in found.items() if value is not None}


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with these policies by stored name; None takes one back.

    InvalidOptionError if what they say then does not go together.
    """
    nested, in_background = dict(settings.get(NESTED) or {}), dict(settings)
    for name, value in changes.items():
        place = in_background if name in APART else nested
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    in_background.pop(NESTED, None)
    after = in_background | ({NESTED: nested} if nested else {})
    if {"retention_time_ms", "retention_size_bytes"} & changes.keys():
        _check_retention(set_policies(after))
    if {"auto_topic_type", "auto_topic_partitions"} & changes.keys():
        _check_new_topics(set_policies(after))
    return after


def properties(settings: Mapping[str, Any]) -> dict[str, str]:
    """The properties in these settings."""
    return dict(settings.get(PROPERTIES) or {})


def with_properties(
    settings: Mapping[str, Any], given: Mapping[str, str], without: Collection[str] = ()
) -> dict[str, Any]:
    """The settings, with these properties beside those that they have, and without some.

    InvalidOptionError if one is no text, or all are too long together.
    """
    words: list[Any] = [*given, *given.values()]
    for each in words:
        if not isinstance(each, str):
            raise InvalidOptionError(f"Properties are texts, by texts: {each!r} is none.")
    left = {name: each for name, each in properties(settings).items() if name not in without}
    after = {**left, **given}
    if (size := len(canonical_json(after))) > MOST_PROPERTIES_BYTES:
        raise InvalidOptionError(
            f"Properties would take {size:,} bytes, and may take {MOST_PROPERTIES_BYTES:,}: put "
            "what is long elsewhere, and its name here."
        )
    others = {name: each for name, each in settings.items() if name != PROPERTIES}
    return {**others, PROPERTIES: after} if after else others


def is_stored(settings: Mapping[str, Any]) -> bool:
    """True if each policy in these settings is what could have been stored."""
    if not all(isinstance(settings.get(each) or {}, Mapping) for each in (NESTED, PROPERTIES)):
        return False
    for name, value in set_policies(settings).items():
        unit = _BY_STORED[name].unit
        try:
            fits = unit.stored(unit.given(value)) == value and type(value) is not float
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            return False
    return True


class Applied(NamedTuple):
    """The effective value of a setting, and its source: topic, namespace, root or default."""

    setting: Setting
    value: Any
    source: str


def inherited(root: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a namespace, with the policies of its root where it says nothing."""
    nested = {**(root.get(NESTED) or {}), **(namespace.get(NESTED) or {})}
    apart = {name: value for name, value in root.items() if name in APART}
    return {**apart, **namespace} | ({NESTED: nested} if nested else {})


def applied(
    topic: Mapping[str, Any], namespace: Mapping[str, Any], root: Mapping[str, Any] | None = None
) -> dict[str, Applied]:
    """The effective values of a topic with these settings in that namespace, by name."""
    given = {"topic": topic, "namespace": namespace, "root": root or {}}
    levels = [(level, set_policies(settings)) for level, settings in given.items()]
    found = {}
    for name, setting in _BY_STORED.items():
        source, value = next(
            ((level, words[name]) for level, words in levels if name in words),
            ("default", setting.default),
        )
        found[name] = Applied(setting, value, source)
    return found


def hosted_policies(settings: Mapping[str, Any], namespace: Mapping[str, Any]) -> TopicPolicies:
    """The policies that the broker obeys, of a topic with these settings in that namespace.

    Unacknowledged messages have no limit unless one is set: Pulsar's protect the broker's memory,
    and here they are bitmaps, while a micro-batch takes hundreds of thousands at once.
    """
    counts = applied(settings, namespace)
    chosen = {name: each.value for name, each in counts.items() if name in HOSTED}
    chosen["backlog_quota_policy"] = BacklogQuotaPolicy(chosen["backlog_quota_policy"])
    nested = settings.get(NESTED) or {}
    for name in OWN & nested.keys():
        chosen[name] = nested[name]
    if counts["retention_time_ms"].source != "default":
        chosen["keep_acknowledged"] = False
    return TopicPolicies(**chosen)


def _check_retention(words: Mapping[str, Any]) -> None:
    pair = [words.get(name) for name in ("retention_time_ms", "retention_size_bytes")]
    if pair == [None, None]:
        return
    if None in pair or (pair[0] == 0) != (pair[1] == 0):
        raise InvalidOptionError(
            "Policies retention_time and retention_size go together: give both, and 0 for both or "
            "for neither, as messages go as soon as either lets them. -1 is no limit."
        )


def _check_new_topics(words: Mapping[str, Any]) -> None:
    count = words.get("auto_topic_partitions", 1)
    if words.get("auto_topic_type") == NON_PARTITIONED and count > 1:
        raise InvalidOptionError(
            f"Policies auto_topic_type {NON_PARTITIONED} and auto_topic_partitions {count} do not "
            "go together: such a topic has one partition. Leave one of them out."
        )
