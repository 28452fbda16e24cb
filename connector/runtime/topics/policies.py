"""Policies on disk: a topic's are settings in its log, a namespace's are one small file.

Invariants: both have the same form, and are changed on their latest state only (the log's next
commit, the file's compare-and-swap); a file of a newer version is refused; an option of a sink
comes before its topic's word, and that before its namespace's. Follows Pulsar's `Policies` and
`TopicPolicies`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.errors import (
    DAMAGE,
    BrokerRefusedError,
    InvalidOptionError,
    PulsarliteError,
    ServerError,
    TooManyTopicsError,
)
from pulsar_spark.model.records.stored_record import StoredFormat, readable
from pulsar_spark.model.schema.schema_registry import DEFAULT_STRATEGY, SchemaCompatibilityStrategy
from pulsar_spark.model.topic_name import (
    NON_PERSISTENT,
    PERSISTENT,
    NamespaceName,
    TopicName,
    check_user_topic,
)
from pulsar_spark.options import topic_policies
from pulsar_spark.options.options import Options
from pulsar_spark.options.topic_policies import (
    APART,
    HOSTED,
    NAMESPACES_ONLY,
    NESTED,
    NON_PARTITIONED,
    PROPERTIES,
    Applied,
    hosted_policies,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pulsar_spark.options.topic_policies import PolicyValues

POLICIES_FILE = "~policies.json"
"""The file beside the namespace's topics, whose folders' names have no `~`."""
POLICIES_FORMAT: Final = StoredFormat(
    "File",
    checked=True,
    fields=APART | {NESTED, PROPERTIES},
    remedy="Restore it from a copy, or delete it to be without policies.",
)
EVERY_NAMESPACE: Final = "*"
"""The name under which a root's policies are set: those of namespaces that say nothing."""
KEPT: Final = {NESTED: {"keep_without_subscription": True}}
"""Settings of a topic that keeps all until it has had a durable subscription."""
KEPT_FOR_SEEKS: Final = {NESTED: {**KEPT[NESTED], "keep_acknowledged": True}}
"""Settings of a topic that a client makes: a seek back also finds what was just acknowledged."""
POLICIES_EVERY_S: Final = 5.0
"""Seconds between two polls of a namespace's policies by broker and consumers, on a local disk."""
REMOTE_POLICIES_EVERY_S: Final = 120.0
"""The same over a network, where a publisher passes the policies that it read."""
ROOT_POLICIES_EVERY_S: Final = 600.0
"""Seconds between two polls of a root's policies over a network."""
Settings = Mapping[str, Any]
_log = logging.getLogger(__name__)


class Policies:
    """The policies of a topic, of all topics of a namespace or of a root, and the effective ones.

        orders = pulsar_spark.Admin("s3://bucket/prefix").policies("orders")
        orders.set(retention_time="3d", retention_size="10G")
        orders.get()                      # {'retention_time': 259200, 'retention_size': ...}
        orders.remove("retention_time", "retention_size")

    Names and values are those of docs/policies.md: times in seconds or as texts such as `3d` (or a
    `timedelta`), sizes in bytes or as `10G`. What is said holds from the next micro-batch, message
    or step of the broker on, and nothing has to be started anew.
    """

    def __init__(self, root: Root, name: str) -> None:
        """`name` is a topic's (`orders`), a namespace's with its tenant (`acme/eu`), or `*`.

        `*` stands for the root: what it says holds in namespaces that say nothing.

        TopicNotFoundError if there is no such topic. A namespace need not be there.
        """
        self._store, self._ledger = root.store, None
        self._namespace: NamespaceName | None = None
        if name == EVERY_NAMESPACE:
            self.name = name
        elif name.count("/") == 1:
            self._namespace = NamespaceName.parse(name)
            self.name = name
        else:
            topic = check_user_topic(TopicName.parse(name), "changed")
            self._namespace, self._ledger = topic.namespace, root.open(topic)
            self.name = self._ledger.topic

    def set(self, **policies: Unpack[PolicyValues]) -> None:
        """Say these. InvalidOptionError if a name or a value is wrong: then nothing is changed."""
        changes = topic_policies.checked(policies)
        if self._ledger is not None and (beyond := NAMESPACES_ONLY & policies.keys()):
            raise InvalidOptionError(
                f"Policy {min(beyond)} is said of a namespace: of {self._namespace}, for instance."
            )
        self._change(changes)

    def remove(self, *names: str) -> None:
        """Say nothing of these any more: what the namespace says counts then, or the default."""
        self._change({topic_policies.named(name).stored: None for name in names})

    def get(self) -> dict[str, Any]:
        """The policies that are set here, by name."""
        if self._ledger is None:
            words = topic_policies.set_policies(_own_policies(self._store, self._namespace))
        else:
            self._ledger.refresh()
            words = topic_policies.set_policies(self._ledger.state.settings)
        settings = topic_policies.SETTINGS.values()
        return {e.name: e.unit.given(words[e.stored]) for e in settings if e.stored in words}

    def applied(self) -> dict[str, Applied]:
        """The effective policies, by name, and their source."""
        settings: Settings = {}
        if self._ledger is not None:
            self._ledger.refresh()
            settings = self._ledger.state.settings
        everywhere = _own_policies(self._store, None)
        own = _own_policies(self._store, self._namespace) if self._namespace else {}
        found = topic_policies.applied(settings, own, everywhere)
        return {
            each.setting.name: each._replace(value=each.setting.unit.given(each.value))
            for each in found.values()
            if self._ledger is None or each.setting.name not in NAMESPACES_ONLY
        }

    def why(self, source: str) -> str:
        """In words, why what such a source says counts here."""
        if source == "default":
            return "the default: nobody says otherwise"
        if source == "topic":
            return "as the topic says"
        open_ = "" if self._ledger is None else "; the topic says nothing"
        if source == "root":
            return f"as is said of every namespace ({EVERY_NAMESPACE}){open_}"
        return f"as namespace {self._namespace} says{open_}"

    def _change(self, changes: Mapping[str, Any]) -> None:
        if self._ledger is None:
            change_policies(self._store, self._namespace, **changes)
        else:
            self._ledger.change_settings(lambda known: topic_policies.changed(known, changes))


# -- a namespace's file ----------------------------------------------------------------------------


def read_policies(store: ObjectStore, namespace: NamespaceName) -> Settings:
    """The policies of the namespace as of now, and its root's where it says nothing.

    Over a network the root's are as of the last poll.
    """
    own = _own_policies(store, namespace)
    everywhere = _polled_policies(store, None) if store.remote else _own_policies(store, None)
    return topic_policies.inherited(everywhere, own)


def _own_policies(store: ObjectStore, namespace: NamespaceName | None) -> Settings:
    """The contents of the file of a namespace, or of the root; empty if there is none."""
    path = policies_path(namespace)
    return policies_of(store.get(path), path)


def policies_of(data: bytes | None, name: str) -> Settings:
    """Read a file. CorruptFileError if it is damaged, FutureVersionError if it is too new."""
    if data is None:
        return {}
    settings = POLICIES_FORMAT.decode(data, name)
    if not topic_policies.is_stored(settings):
        raise POLICIES_FORMAT.damaged(name, f"it says {settings}")
    POLICIES_FORMAT.check_fields(settings.get(NESTED) or (), HOSTED, name)
    return settings


def change_policies(
    store: ObjectStore, namespace: NamespaceName | None, **changes: Any
) -> Settings:
    """Have the file say these by stored name, or (None) say nothing of them; all that it says."""
    return change_settings(store, namespace, lambda known: topic_policies.changed(known, changes))


def change_settings(
    store: ObjectStore, namespace: NamespaceName | None, changed: Callable[[Settings], Settings]
) -> Settings:
    """Have the file say what is made of what it says; all that it says then."""
    path = policies_path(namespace)
    requested: Settings = {}

    def change(data: bytes | None) -> bytes | None:
        nonlocal requested
        known = policies_of(data, path)
        requested = changed(known)
        if requested == known:
            return None
        return readable(lambda: POLICIES_FORMAT.encode(requested), policies_of, path)

    store.replace(path, change)
    return requested


class NamespaceWatch:
    """The policies of namespaces, polled now and then. Unreadable ones stay as they were.

    Over a network it has the root's too; on a local disk these are read with each namespace's.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._every_s = REMOTE_POLICIES_EVERY_S if store.remote else POLICIES_EVERY_S
        self._known: dict[NamespaceName | None, tuple[float, Settings]] = {}
        """When a namespace was looked at, and what it said."""

    def policies(self, namespace: NamespaceName | None, before: Settings | None = None) -> Settings:
        """The policies of a namespace, or of the root; `before` has those that the caller knows."""
        now_s = self._store.clock.monotonic_s()
        looked_s, known = self._known.get(namespace, (-inf, before or {}))
        if now_s - looked_s < (self._every_s if namespace else ROOT_POLICIES_EVERY_S):
            return known
        try:
            store = self._store
            known = read_policies(store, namespace) if namespace else _own_policies(store, None)
        except PulsarliteError as error:
            what = namespace or "the root"
            _log.error("The policies of %s stay as they were: %s", what, error)
        self._known[namespace] = (now_s, known)
        return known


def open_or_create(
    root: Root, topic: TopicName, options: Options | None, settings: Settings | None = None
) -> ManagedLedger:
    """The topic; made now, if there is none and its namespace lets that be, with these settings.

    It gets as many partitions as the options say, or else the namespace. TopicNotFoundError if it
    is not made.
    """
    check_domain(root, topic)
    if (ledger := root.known(topic) or root.open_found(topic)) is not None:
        return ledger
    return root.open_or_create(topic, check_creation(root, topic, options), settings)


def is_allowed(root: Root, topic: TopicName) -> bool:
    """True unless it is non-persistent, and its namespace or its root forbids such topics."""
    if topic.is_persistent:
        return True
    store = root.store
    known = (_polled_policies if store.remote else read_policies)(store, topic.namespace)
    return bool(topic_policies.applied({}, known)["non_persistent_topics"].value)


def check_domain(root: Root, topic: TopicName) -> None:
    """BrokerRefusedError if it is a non-persistent topic where these are forbidden."""
    if not is_allowed(root, topic):
        raise BrokerRefusedError(
            ServerError.NOT_ALLOWED_ERROR,
            f"Topic {topic} is non-persistent, and namespace {topic.namespace} has "
            "non_persistent_topics off. Use persistent://..., or allow them: pulsarlite namespaces "
            f"set-non-persistent-topics {topic.namespace} --enable",
        )


def receive_from(
    root: Root, topic: TopicName, options: Options | None, settings: Settings = KEPT
) -> ManagedLedger:
    """The topic, for somebody who comes before its first message: made as by `open_or_create`.

    What is published to it then stays until a durable subscription has had it. The log says that it
    was made, as a warning if the name looks like another one mistyped.
    """
    check_domain(root, topic)
    if (ledger := root.open_found(topic)) is not None:
        return ledger
    near, _ = root.near(topic)
    ledger = open_or_create(root, topic, options, settings)
    name, count = topic.partitioned_topic_name, ledger.state.partitions
    is_mistyped = _looks_mistyped(name, near)
    _log.log(
        logging.WARNING if is_mistyped else logging.INFO,
        "Topic %s did not exist, and was made to be read, with %s partition%s.%s",
        name, count, "" if count == 1 else "s",
        f" Did you mean {near}? Then delete it." if is_mistyped else "",
    )  # fmt: skip
    return ledger


def _looks_mistyped(name: str, near: str) -> bool:
    """True if a letter or two differ; `jobs-1` beside `jobs-2` is no mistake."""
    without_digits = [re.sub(r"\d", "", each) for each in (name, near)]
    return abs(len(name) - len(near)) <= 1 and without_digits[0] != without_digits[1]


def check_creation(root: Root, topic: TopicName, options: Options | None) -> int:
    """The number of partitions that a topic would get now.

    TopicNotFoundError if it is not made; TooManyTopicsError if its namespace is full.
    """
    if topic.is_system:
        raise root.absent(topic, "only Pulsarlite itself makes such a topic")
    if options is not None and not options["allowAutoTopicCreation"]:
        raise root.absent(topic, "the option allowAutoTopicCreation is false")
    counts = topic_policies.applied({}, read_policies(root.store, topic.namespace))
    if not counts["auto_topic_creation"].value:
        raise root.absent(topic, f"namespace {topic.namespace} has auto_topic_creation off")
    partitions = int(counts["auto_topic_partitions"].value)
    if options is not None and options.has("numPartitions"):
        partitions = int(options["numPartitions"])
    elif counts["auto_topic_type"].value == NON_PARTITIONED:
        partitions = 1
    check_room(root, topic, partitions)
    return partitions


def check_room(root: Root, topic: TopicName, more: int) -> None:
    """TooManyTopicsError if the namespace has no room for so many more topics.

    As in Pulsar each partition counts as a topic, system topics do not, and two that come at once
    may both find the last place.
    """
    namespace_policies = read_policies(root.store, topic.namespace)
    most = topic_policies.applied({}, namespace_policies)["max_topics_per_namespace"].value
    if not most or topic.is_system:
        return
    tenant, local = topic.namespace.tenant, topic.namespace.local_name
    found = chain(*(root.find(tenant, local, domain) for domain in (PERSISTENT, NON_PERSISTENT)))
    there = sum(_partitions(root, each) for each in found if not each.is_system)
    if there + more > most:
        raise TooManyTopicsError(
            f"Namespace {topic.namespace} may have {most} topics and has {there}, each partition "
            f"counted: there is no room for {more} of {topic.partitioned_topic_name}. Delete some, "
            f"or allow more: pulsarlite namespaces set-max-topics-per-namespace {topic.namespace} "
            f"-t {there + more}"
        )


def _partitions(root: Root, topic: TopicName) -> int:
    """The number of its partitions, 0 if it is missing; an unreadable topic counts as one."""
    try:
        ledger = root.open_found(topic)
    except DAMAGE:
        return 1
    return 0 if ledger is None else ledger.state.partitions


# -- what counts for a topic -----------------------------------------------------------------------


def policies_now(ledger: ManagedLedger) -> TopicPolicies:
    """The effective policies of a topic now."""
    namespace = TopicName.parse(ledger.topic).namespace
    return hosted_policies(ledger.state.settings, read_policies(ledger.store, namespace))


def max_producers(ledger: ManagedLedger) -> int:
    """The greatest number of producers of the topic; 0 is no limit. As of the last poll."""
    namespace_policies = _polled_policies(ledger.store, TopicName.parse(ledger.topic).namespace)
    return hosted_policies(ledger.state.settings, namespace_policies).max_producers_per_topic


def deduplicates(ledger: ManagedLedger, topic: TopicName, option: bool | None) -> bool:
    """True if the topic deduplicates: the sink's option says, else topic, else namespace."""
    return bool(_applied(ledger, topic, "deduplication")[0] if option is None else option)


def max_delivery_delay_ms(ledger: ManagedLedger, topic: TopicName) -> int:
    """The longest delay of a message in milliseconds; 0 is no limit."""
    waits, most_ms = _applied(ledger, topic, "delayed_delivery", "delayed_delivery_max_delay_ms")
    return int(most_ms) if waits else 0


def enforces_schemas(ledger: ManagedLedger, topic: TopicName) -> bool:
    """True if a producer without a schema is refused: the topic has one, and enforces it."""
    if not ledger.state.schemas.schemas:
        return False
    return bool(_applied(ledger, topic, "schema_validation_enforced")[0])


@dataclass(frozen=True, slots=True)
class SchemaPolicies:
    """A topic's demands on a new schema."""

    strategy: SchemaCompatibilityStrategy = DEFAULT_STRATEGY
    allow_auto_update: bool = True


def schema_policies(ledger: ManagedLedger, topic: TopicName) -> SchemaPolicies:
    """The topic's rules for a new schema."""
    strategy, allowed = _applied(
        ledger, topic, "schema_compatibility_strategy", "is_allow_auto_update_schema"
    )
    return SchemaPolicies(SchemaCompatibilityStrategy(strategy), allowed)


def _applied(ledger: ManagedLedger, topic: TopicName, *names: str) -> list[Any]:
    """The effective values of these. It reads the namespace's file only if it has to."""
    settings, store = ledger.state.settings, ledger.store
    is_reported = topic_policies.set_policies(settings).keys() >= {*names}
    read = _polled_policies if store.remote else read_policies
    found = topic_policies.applied(settings, {} if is_reported else read(store, topic.namespace))
    return [found[name].value for name in names]


def _polled_policies(store: ObjectStore, namespace: NamespaceName | None) -> Settings:
    """The policies of a namespace, or of the root, as of this process' last poll."""
    key = (os.getpid(), store)
    return _watches.setdefault(key, NamespaceWatch(store)).policies(namespace)


def policies_path(namespace: NamespaceName | None) -> str:
    """The file of a namespace: it is there if somebody made the namespace, or said something.

    None is the root, whose file lies beside its tenants' folders.
    """
    if namespace is None:
        return join(PERSISTENT, POLICIES_FILE)
    folder, _, _ = TopicName(PERSISTENT, namespace, "any").storage_path.rpartition("/")
    return join(folder, POLICIES_FILE)


_watches: dict[tuple[int, ObjectStore], NamespaceWatch] = {}
