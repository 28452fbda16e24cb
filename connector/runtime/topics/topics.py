"""Topics below a root: opened by name, found by pattern, made when first written to.

Invariants: a name is parsed before anything is looked up, so it can't lead out of the root; a
topic's folder is found by its name alone, never by a search; only `find` lists folders.
Follows Pulsar's `NamespaceService` and `TopicsImpl`.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.connector.storage.service_url import check_url, open_store
from pulsar_spark.errors import (
    DAMAGE,
    InvalidTopicNameError,
    TopicDeletedError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_spark.model.topic_name import (
    DEFAULT_NAMESPACE,
    NON_PERSISTENT,
    PERSISTENT,
    PUBLIC_TENANT,
    TopicName,
)
from pulsar_spark.options.options import SERVICE_URL_VARIABLE, STORAGE_PREFIX, Options, Scope

ANY_DOMAIN: Final = f"(?:{PERSISTENT}|{NON_PERSISTENT})"
"""The domain of a pattern that finds persistent and non-persistent topics."""


def options_of(given: Mapping[str, str], scope: Scope = Scope.ANY) -> Options:
    """Options as a user gave them; the environment's serviceUrl stands in for none.

    InvalidOptionError names what is wrong.
    """
    return Options.parse(given, scope, environment=os.environ)


def service_url_of(given: str | None) -> str | None:
    """The given URL, else the environment's."""
    return given or os.environ.get(SERVICE_URL_VARIABLE)


def root_options(service_url: str | None, storage: Mapping[str, str] | None) -> dict[str, str]:
    """The options that name a root: its URL, if one is given, and the object store's options."""
    given = {} if service_url is None else {"serviceUrl": service_url}
    return given | {f"{STORAGE_PREFIX}{name}": value for name, value in (storage or {}).items()}


@dataclass(frozen=True, slots=True)
class Root:
    """The place of the topics: a folder or an object store, and the store's options. Pickles."""

    service_url: str
    storage: Mapping[str, str]

    @staticmethod
    def of(options: Options) -> Root:
        """A relative folder is taken from the present working folder, once and for all."""
        url = str(options["serviceUrl"])
        check_url(url)
        if "://" not in url and not url.startswith("file:"):
            url = str(Path(url).expanduser().absolute())
        return Root(url, dict(options.storage))

    @staticmethod
    def at(service_url: str | None = None, storage: Mapping[str, str] | None = None) -> Root:
        """The root of that URL, else the environment's. InvalidOptionError if it can't be one."""
        return Root.of(options_of(root_options(service_url, storage)))

    @property
    def options(self) -> dict[str, str]:
        """The options that name it."""
        return root_options(self.service_url, self.storage)

    @property
    def store(self) -> ObjectStore:
        """This process's client of the root."""
        return open_store(self.service_url, self.storage)

    @property
    def clock(self) -> Clock:
        return self.store.clock

    def open(self, topic: TopicName) -> ManagedLedger:
        """The topic, brought up to date. TopicNotFoundError offers names that are near.

        TopicDeletedError if it was deleted, and not made again.
        """
        try:
            name = topic.partitioned_topic_name
            return ManagedLedger.open(self.store, topic.storage_path, topic=name)
        except TopicDeletedError:
            raise
        except TopicNotFoundError:
            raise self.absent(topic) from None

    def known(self, topic: TopicName) -> ManagedLedger | None:
        """The topic as of this process's last look, where a look costs a request; else None.

        For who commits to it, and by that learns what is new.
        """
        return ManagedLedger.known(self.store, topic.storage_path)

    def absent(self, topic: TopicName, why_not_made: str = "") -> TopicNotFoundError:
        """The error that there is no such topic, with the name that is nearest."""
        name = topic.partitioned_topic_name
        near, any_there = self.near(topic)
        offer = f"Did you mean {near}? " if near else ""
        if not any_there:
            offer = "There is no topic in that namespace: is serviceUrl the right one? "
        why = f", and {why_not_made}" if why_not_made else ""
        first = "Create it" if why_not_made else "Publish to it first, or create it"
        return TopicNotFoundError(
            f"Topic {name} does not exist in {self.store.root}{why}. {offer}{first}: pulsarlite "
            f"topics create {shlex.quote(name)} --partitions 4 "
            f"--service-url {shlex.quote(self.service_url)}"
        )

    def near(self, topic: TopicName) -> tuple[str, bool]:
        """The name of a topic beside it that is much like its own, or ""; and if any are there."""
        whole = topic.partitioned_topic
        found = self.find(topic.tenant, topic.namespace.local_name, topic.domain)
        present = {each.local_name: each for each in found if not each.is_system and each != whole}
        close = difflib.get_close_matches(whole.local_name, present, n=3, cutoff=0.6)
        there = (str(present[each]) for each in close if self.exists(present[each]))
        return next(there, ""), bool(present)

    def open_found(self, topic: TopicName) -> ManagedLedger | None:
        """The topic, brought up to date; None if there is none, or its first commit is missing."""
        with suppress(TopicNotFoundError):
            return ManagedLedger.open(
                self.store, topic.storage_path, topic=topic.partitioned_topic_name
            )
        return None

    def exists(self, topic: TopicName) -> bool:
        """True if there is such a topic; one whose log can't be read is there too."""
        try:
            return self.open_found(topic) is not None
        except DAMAGE:
            return True

    def open_log(self, topic: TopicName) -> ManagedLedger | None:
        """As `open_found`, and also the log of a topic that is deleted."""
        if (ledger := self.open_found(topic)) is not None:
            return ledger
        with suppress(TopicNotFoundError):
            name = topic.partitioned_topic_name
            return ManagedLedger.open_log(self.store, topic.storage_path, topic=name)
        return None

    def open_or_create(
        self, topic: TopicName, partitions: int, settings: Mapping[str, Any] | None = None
    ) -> ManagedLedger:
        """The topic; made now, with so many partitions, if there was none."""
        if (ledger := self.open_found(topic)) is not None:
            return ledger
        with suppress(TopicExistsError):  # another process was quicker
            self.create(topic, partitions, settings)
        return self.open(topic)

    def create(
        self, topic: TopicName, partitions: int, settings: Mapping[str, Any] | None = None
    ) -> ManagedLedger:
        """A new topic. TopicExistsError if it is there already."""
        name = topic.partitioned_topic_name
        return ManagedLedger.create(
            self.store, topic.storage_path, partitions, settings, topic=name
        )

    def find(
        self, tenant: str | None = None, namespace: str | None = None, domain: str = PERSISTENT
    ) -> Iterator[TopicName]:
        """The topics of a tenant and namespace, or of all, of one domain, by name.

        A topic that is being made is among them, and one that was deleted: `open_found` tells. A
        folder that can't be a topic's is left out.
        """
        store = self.store

        def within(folder: str, requested: str | None) -> list[str]:
            found = store.folders(folder)
            return [join(folder, n) for n in found if requested in (None, n.replace("%2E", "."))]

        for tenants in within(domain, tenant):
            for topics in within(tenants, namespace):
                yield from filter(None, map(_topic_in, within(topics, None)))

    def matching(self, pattern: str) -> list[TopicName]:
        """The topics whose whole full name matches; a short pattern means `public/default`.

        A pattern with slashes but no domain begins with tenant and namespace, as a name does; only
        one that begins with `non-persistent://`, or with ANY_DOMAIN, matches such topics. System
        topics never match.
        """
        if "://" not in pattern:
            pattern = whole_pattern(pattern, PERSISTENT)
        given = pattern.partition("://")[0]
        domains: tuple[str, ...] = (NON_PERSISTENT if given == NON_PERSISTENT else PERSISTENT,)
        if given == ANY_DOMAIN:
            domains = (PERSISTENT, NON_PERSISTENT)
        return [
            topic
            for domain in domains
            for topic in self.find(domain=domain)
            if not topic.is_system and re.fullmatch(pattern, str(topic))
        ]


def whole_pattern(pattern: str, domain: str) -> str:
    """The pattern of full names in that domain, whichever domain it has itself."""
    _, has_domain, local = pattern.partition("://")
    local = local if has_domain else pattern
    within = "" if "/" in local else f"{PUBLIC_TENANT}/{DEFAULT_NAMESPACE}/"
    return f"{domain}://{within}(?:{local})"


def partitions_of(ledger: ManagedLedger, name: TopicName) -> Sequence[int]:
    """The numbers of the topic's partitions: all, or the one that the name has.

    TopicNotFoundError if the topic has no such partition.
    """
    there = range(ledger.state.partitions)
    if not name.is_partition:
        return there
    if name.partition_index not in there:
        raise TopicNotFoundError(
            f"Topic {ledger.topic} has {len(there)} partitions, numbered from 0: there is no "
            f"partition {name.partition_index}. Name another, or the whole topic."
        )
    return [name.partition_index]


def _topic_in(folder: str) -> TopicName | None:
    """The topic that has that folder below the root; None if none can have it."""
    domain, tenant, namespace, encoded = folder.split("/")
    above = "/".join(part.replace("%2E", ".") for part in (tenant, namespace))
    with suppress(InvalidTopicNameError):
        topic = TopicName.from_persistence_naming(f"{above}/{domain}/{encoded}")
        if topic.storage_path == folder:
            return topic
    return None
