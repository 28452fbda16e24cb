"""Topic names: parsing, parts, partitions, and the folder of a name.

Invariants: a `TopicName` is valid once it exists, and `TopicName.parse(str(name)) == name`; two
names have the same `storage_path` only if they are partitions of one topic, and that path never
leaves the root. Follows Pulsar's `TopicName`, `NamespaceName`, `NamedEntity` and
`RetryMessageUtil` of 4.3: no V1 names; of `SystemTopicNames` the beginning that all have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote_plus, unquote_plus

from pulsar_spark.errors import InvalidTopicNameError

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
PUBLIC_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"
SYSTEM_NAMESPACE: Final = "pulsar/system"
SYSTEM_TOPIC_PREFIX: Final = "__"
PARTITIONED_TOPIC_SUFFIX: Final = "-partition-"
MAX_FOLDER_NAME_BYTES: Final = 255
"""The greatest length that common file systems allow for one part of a path."""

MAX_PARTITIONS: Final = 10_000
"""The greatest number of partitions of a topic. Each costs memory where the topic is open, and a
place in every offset."""

NAMES_KEPT: Final = 1024
"""The number of parsed names that a process remembers, as Pulsar does."""

_NAMED_ENTITY = re.compile(r"[-=:.\w]*", re.ASCII)
_MAX_INT: Final = 2**31 - 1
_NO_BREAK_SPACES: Final = "\u0085\u00a0\u2007\u202f"
_RESERVED_SUBSCRIPTION = "pulsar.dedup"
_REPLICATOR_PREFIX = "pulsar.repl"
_INVALID_DOMAIN: Final = (
    f"Invalid topic domain: '{{}}'. It is {PERSISTENT} or {NON_PERSISTENT}, as in "
    f"{PERSISTENT}://TENANT/NAMESPACE/TOPIC."
)


class TopicPartition(NamedTuple):
    """One partition of one topic; `topic` is the full name, without a partition suffix."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-partition-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`."""

    tenant: str
    local_name: str

    def __post_init__(self) -> None:
        if not self.tenant or not self.local_name:
            raise InvalidTopicNameError(f"Invalid namespace format. namespace: {self}")
        for name in (self.tenant, self.local_name):
            if not _NAMED_ENTITY.fullmatch(name):
                raise InvalidTopicNameError(f"Invalid named entity: {name}")

    @staticmethod
    def parse(text: str) -> NamespaceName:
        """Read `tenant/namespace`. InvalidTopicNameError says what it should have been."""
        if not text:
            raise InvalidTopicNameError(f"Invalid null namespace: {text}")
        parts = text.rstrip("/").split("/")  # Java's split drops empty parts at the end
        try:
            tenant, local_name = parts
            return NamespaceName(tenant, local_name)
        except ValueError as error:
            raise InvalidTopicNameError(
                "Invalid namespace format. expected <tenant>/<namespace> but got: " + text
            ) from error

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local_name}"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """`domain://tenant/namespace/local name`; one of a partition ends in `-partition-N`."""

    domain: str
    namespace: NamespaceName
    local_name: str
    partition_index: int = field(init=False, compare=False, default=-1)
    """The N of `-partition-N`; -1 if the name is not that of a partition."""

    def __post_init__(self) -> None:
        if self.domain not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicNameError(_INVALID_DOMAIN.format(self.domain))
        if _is_blank(self.local_name):
            raise InvalidTopicNameError(
                f"Invalid topic name: {self}. Topic local name must not be blank."
            )
        if "/" in self.local_name:
            raise InvalidTopicNameError(f"Invalid topic name: {self}. '/' in the local name.")
        if not _is_unicode(self.local_name):
            raise InvalidTopicNameError("Invalid topic name: it holds a lone surrogate.")
        object.__setattr__(self, "partition_index", _partition_index(self.local_name))
        if self.is_partition and _is_blank(_without_partition(self.local_name)):
            raise InvalidTopicNameError(
                f"Invalid topic name: {self}. It names a partition of a topic without a name."
            )

    @staticmethod
    @lru_cache(maxsize=NAMES_KEPT)
    def parse(text: str) -> TopicName:
        """Read `topic`, `tenant/namespace/topic` or `domain://tenant/namespace/topic`.

        InvalidTopicNameError says what is wrong with any other text.
        """
        complete = text if "://" in text else _complete(text)
        domain, rest = complete.split("://", 1)
        known = domain.lower()
        if known not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicNameError(_INVALID_DOMAIN.format(domain))
        parts = rest.split("/", 3)
        if len(parts) > 3:
            raise InvalidTopicNameError(
                "V1 topic names (with cluster component) are no longer supported. Please use the "
                f"V2 format: '<domain>://tenant/namespace/topic'. Got: {complete}"
            )
        if len(parts) < 3:
            raise InvalidTopicNameError(
                f"Invalid topic name: {complete}. With a domain it takes all its parts: "
                f"{known}://TENANT/NAMESPACE/TOPIC."
            )
        tenant, namespace, local_name = parts
        return TopicName(known, NamespaceName(tenant, namespace), local_name)

    @staticmethod
    def from_persistence_naming(text: str) -> TopicName:
        """Read what `persistence_naming` gave: `tenant/namespace/domain/encoded name`."""
        parts = text.split("/")
        if len(parts) != 4:
            raise InvalidTopicNameError(f"Invalid managedLedger name: {text}")
        tenant, namespace, domain, encoded = parts
        return TopicName(domain, NamespaceName(tenant, namespace), unquote_plus(encoded))

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local_name}"

    @property
    def tenant(self) -> str:
        return self.namespace.tenant

    @property
    def is_persistent(self) -> bool:
        """True if its messages are kept for those who are not connected."""
        return self.domain == PERSISTENT

    @property
    def is_system(self) -> bool:
        """True if the product makes it for itself (Pulsar's `isSystemTopic`).

        >>> TopicName.parse("acme/eu/__change_events").is_system
        True
        """
        reserved = self.local_name.startswith(SYSTEM_TOPIC_PREFIX)
        return reserved or str(self.namespace) == SYSTEM_NAMESPACE

    @property
    def is_partition(self) -> bool:
        """True if the name is that of one partition (Pulsar's `isPartitioned`)."""
        return self.partition_index >= 0

    @property
    def partitioned_topic_name(self) -> str:
        """The name without its partition; the name itself if there is none."""
        return _without_partition(str(self)) if self.is_partition else str(self)

    @property
    def partitioned_topic(self) -> TopicName:
        """The topic that this is a partition of; itself if it is none."""
        return TopicName.parse(self.partitioned_topic_name) if self.is_partition else self

    def partition(self, index: int) -> TopicName:
        """Partition `index` of this topic; -1 gives the topic itself."""
        if index == -1 or self.local_name.endswith(f"{PARTITIONED_TOPIC_SUFFIX}{index}"):
            return self
        if not 0 <= index <= _MAX_INT:
            raise InvalidTopicNameError(f"{self} has no partition {index}")
        local_name = f"{self.local_name}{PARTITIONED_TOPIC_SUFFIX}{index}"
        return TopicName(self.domain, self.namespace, local_name)

    @property
    def encoded_local_name(self) -> str:
        """As Java's `URLEncoder.encode(text, UTF_8)`: space is `+`, `*` stays, `~` does not."""
        return quote_plus(self.local_name, safe="*").replace("~", "%7E")

    @property
    def persistence_naming(self) -> str:
        """`tenant/namespace/domain/encoded name`, Pulsar's name of the managed ledger."""
        return f"{self.namespace}/{self.domain}/{self.encoded_local_name}"

    @property
    def storage_path(self) -> str:
        """The topic's folder below the root; partitions share their topic's.

        `.` and `..`, which a tenant, a namespace and a topic may be called, are written with
        `%2E`, which no other name gives. InvalidTopicNameError if a part is too long for a
        folder's name.
        """
        topic = self.partitioned_topic
        parts = (topic.domain, topic.tenant, topic.namespace.local_name, topic.encoded_local_name)
        return "/".join(_folder_name(part) for part in parts)


def is_persistent(topic: str) -> bool:
    """True if a topic of that full name keeps messages for those who are not connected.

    >>> is_persistent("non-persistent://public/default/ticks")
    False
    """
    return not topic.startswith(f"{NON_PERSISTENT}://")


def check_user_topic(topic: TopicName, what: str) -> TopicName:
    """The topic; InvalidTopicNameError if it is a system topic, and `what` can't be done with it.

    >>> str(check_user_topic(TopicName.parse("flights"), "created"))
    'persistent://public/default/flights'
    """
    if topic.is_system:
        raise InvalidTopicNameError(
            f"Topic {topic} is a system topic, and can't be {what}: names that begin with "
            f"{SYSTEM_TOPIC_PREFIX}, and the namespace {SYSTEM_NAMESPACE}, are kept for topics "
            "that Pulsarlite makes and writes itself. Choose another name."
        )
    return topic


def check_subscription_name(name: str) -> None:
    """InvalidTopicNameError if a subscription can't be called that."""
    if _is_blank(name):
        raise InvalidTopicNameError("Empty subscription name")
    if not _is_unicode(name):
        raise InvalidTopicNameError(f"Subscription name {name!r} holds a lone surrogate.")
    if name == _RESERVED_SUBSCRIPTION or name.startswith(_REPLICATOR_PREFIX):
        raise InvalidTopicNameError(
            f"Subscription name {name!r} is reserved: choose one that is not "
            f"{_RESERVED_SUBSCRIPTION!r} and doesn't start with {_REPLICATOR_PREFIX!r}"
        )


def _is_unicode(name: str) -> bool:
    """True if it can be stored: whatever a shell hands over that is no UTF-8 has surrogates."""
    return not any("\ud800" <= mark <= "\udfff" for mark in name)


def default_retry_letter_topic(topic: str, subscription: str) -> str:
    """The topic of retries when the user names none. `topic` is a full name, used as it is."""
    return f"{topic}-{subscription}-RETRY"


def default_dead_letter_topic(topic: str, subscription: str) -> str:
    """The topic of dead letters when the user names none. `topic` is a full name."""
    return f"{topic}-{subscription}-DLQ"


def _complete(short: str) -> str:
    parts = [part for part in short.split("/") if part]
    if len(parts) == 3:
        return f"{PERSISTENT}://{short}"
    if len(parts) == 1:
        return f"{PERSISTENT}://{PUBLIC_TENANT}/{DEFAULT_NAMESPACE}/{parts[0]}"
    raise InvalidTopicNameError(
        f"Invalid short topic name '{short}', it should be in the format of "
        "<tenant>/<namespace>/<topic> or <topic>"
    )


def _partition_index(local_name: str) -> int:
    """N if the text after the last `-partition-` is N in its one decimal form, else -1."""
    _, suffix, number = local_name.rpartition(PARTITIONED_TOPIC_SUFFIX)
    if not suffix or not number.isascii() or not number.isdecimal() or len(number) > 10:
        return -1
    index = int(number)
    return index if str(index) == number and index <= _MAX_INT else -1


def _without_partition(text: str) -> str:
    return text.rpartition(PARTITIONED_TOPIC_SUFFIX)[0]


def _folder_name(part: str) -> str:
    if part in (".", ".."):
        return part.replace(".", "%2E")
    if len(part) > MAX_FOLDER_NAME_BYTES:  # all parts are ASCII by now
        raise InvalidTopicNameError(
            f"Invalid topic name: {part[:40]}... takes {len(part)} bytes as a folder's name, of "
            f"which there may be {MAX_FOLDER_NAME_BYTES}: choose a shorter one"
        )
    return part


def _is_blank(text: str) -> bool:
    """Java's `isBlank`: no-break spaces are no white space there."""
    return all(mark.isspace() and mark not in _NO_BREAK_SPACES for mark in text)
