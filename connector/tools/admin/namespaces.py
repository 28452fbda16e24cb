"""Namespaces and tenants looked after: named, made, deleted.

Invariants: a topic makes its namespace and tenant, as nobody has to be asked for leave; one that
was made by itself has a file that says so, and is there without topics; who deletes one deletes its
topics first, one by one, so that a process which is killed leaves whole topics. Follows Pulsar's
`Namespaces` and `Tenants`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Final

from pulsar_spark.connector.runtime.topics.policies import (
    POLICIES_FORMAT,
    change_settings,
    policies_path,
    read_policies,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.connector.tools.admin.subscriptions import Subscriptions
from pulsar_spark.connector.tools.admin.topics import DOMAINS, Topics
from pulsar_spark.errors import (
    DAMAGE,
    InvalidTopicNameError,
    NamespaceNotFoundError,
    PulsarliteError,
    TopicExistsError,
    TopicInUseError,
)
from pulsar_spark.model.records.stored_record import StoredFormat
from pulsar_spark.model.topic_name import PERSISTENT, SYSTEM_NAMESPACE, NamespaceName, TopicName
from pulsar_spark.options.topic_policies import properties, with_properties

TENANT_FILE: Final = "~tenant.json"
"""The file in a tenant's folder, whose namespaces' names have no `~`."""
TENANT_FORMAT: Final = StoredFormat(
    "File",
    checked=True,
    fields=frozenset({"admin_roles", "allowed_clusters"}),
    remedy="Restore it from a copy, or delete it.",
)


class Namespaces:
    """The namespaces of one root, by their names `tenant/namespace`."""

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self._root, self._topics = root, Topics(root)

    def list(self, tenant: str | None = None) -> Sequence[str]:
        """The namespaces of a tenant, or all: those that were made, and those that have topics."""
        tenants = folders(self._root) if tenant is None else [checked_tenant(tenant)]
        names = (NamespaceName(e, each) for e in tenants for each in folders(self._root, e))
        return [str(each) for each in names if self._exists(each)]

    def topics(
        self, namespace: str, *, system: bool = False, domains: Sequence[str] = DOMAINS
    ) -> Sequence[str]:
        """The full names of its topics; `system`: also of those that Pulsarlite writes itself.

        NamespaceNotFoundError if there is no such namespace.
        """
        self._there(namespace)
        return self._topics.list(namespace, system=system, domains=domains)

    def create(self, namespace: str) -> None:
        """Make it, without topics and policies. TopicExistsError if it is there."""
        name = NamespaceName.parse(namespace)
        if self._exists(name):
            raise TopicExistsError(f"Namespace {name} exists already.")
        self._root.store.put_if_absent(policies_path(name), POLICIES_FORMAT.encode({}))

    def delete(self, namespace: str, *, force: bool = False) -> Sequence[str]:
        """Delete it and its policies; the topics that went with it.

        TopicInUseError if it has topics, unless `force`: they are deleted too, with whatever uses
        them.
        """
        name = NamespaceName.parse(namespace)
        if str(name) == SYSTEM_NAMESPACE:
            raise InvalidTopicNameError(f"Namespace {name} is Pulsarlite's own, and stays.")
        self._there(namespace)
        topics = self._topics.list(namespace)
        if topics and not force:
            raise TopicInUseError(
                f"Namespace {name} has {len(topics)} topics, such as {topics[0]}. Delete them "
                "first, or say --force: then they are deleted with their subscriptions."
            )
        for topic in topics:
            self._topics.delete(topic, force=True)
        self._root.store.delete(policies_path(name))
        return topics

    def clear_backlog(
        self, namespace: str, subscription: str | None = None, *, force: bool = False
    ) -> Sequence[str]:
        """Acknowledge all messages for a subscription, or for all, on each topic; on which.

        TopicInUseError if one of them has a backlog, unless `force`. A topic that can't be read is
        an error too, once all others are done.
        """
        found, damaged = self._subscribed(namespace, subscription)
        admin = Subscriptions(self._root)
        behind = (
            f"{each.name} on {topic}"
            for topic, name in found
            for each in admin.stats(topic)
            if each.name == name and each.backlog
        )
        if not force and (first := next(behind, None)):
            raise TopicInUseError(
                f"Not all is acknowledged, such as by {first}. Say --force if whoever has not "
                "got it is to go without."
            )
        for topic, name in found:
            admin.clear_backlog(topic, name)
        _raise_first(damaged)
        return sorted({topic for topic, _ in found})

    def unsubscribe(
        self, namespace: str, subscription: str, *, force: bool = False
    ) -> Sequence[str]:
        """Delete a subscription of each topic that has it; of which. Errors as for one topic.

        A topic that can't be read is an error too, once all others are done.
        """
        found, damaged = self._subscribed(namespace, subscription)
        admin = Subscriptions(self._root)
        for topic, name in found:
            admin.delete(topic, name, force=force)
        _raise_first(damaged)
        return sorted({topic for topic, _ in found})

    def get_properties(self, namespace: str) -> dict[str, str]:
        """The names and texts that its owner has given it. NamespaceNotFoundError if none is."""
        return properties(read_policies(self._root.store, self._there(namespace)))

    def set_properties(self, namespace: str, given: Mapping[str, str]) -> None:
        """Give it these beside those that it has. InvalidOptionError if they are too long."""
        self._change_properties(namespace, given)

    def remove_property(self, namespace: str, name: str) -> str | None:
        """Take one from it; the text that it was, None if it had none."""
        before = self.get_properties(namespace).get(name)
        self._change_properties(namespace, {}, {name})
        return before

    def clear_properties(self, namespace: str) -> None:
        """Take all from it."""
        self._change_properties(namespace, {}, self.get_properties(namespace))

    # -- inside --------------------------------------------------------------------------------

    def _change_properties(
        self, namespace: str, given: Mapping[str, str], without: Collection[str] = ()
    ) -> None:
        name = self._there(namespace)
        change_settings(
            self._root.store, name, lambda known: with_properties(known, given, without)
        )

    def _there(self, namespace: str) -> NamespaceName:
        name = NamespaceName.parse(namespace)
        if not self._exists(name):
            raise NamespaceNotFoundError(
                f"There is no namespace {name} in {self._root.store.root}."
            )
        return name

    def _subscribed(
        self, namespace: str, only: str | None
    ) -> tuple[Sequence[tuple[str, str]], Mapping[str, PulsarliteError]]:
        """(topic, subscription) of the namespace, or of one name; and what can't be read."""
        admin = Subscriptions(self._root)
        found: tuple[tuple[str, str], ...] = ()
        damaged: dict[str, PulsarliteError] = {}
        for topic in self._topics.list(namespace):
            try:
                found += tuple((topic, each) for each in admin.list(topic) if only in (None, each))
            except DAMAGE as error:  # noqa: PERF203 - each for itself
                damaged[topic] = error
        return found, damaged

    def _exists(self, name: NamespaceName) -> bool:
        if self._root.store.exists(policies_path(name)):
            return True
        found = (self._root.find(name.tenant, name.local_name, domain) for domain in DOMAINS)
        return any(self._root.exists(each) for each in chain.from_iterable(found))


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """The settings of a tenant. They are stored and returned; no rights depend on them."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


class Tenants:
    """The tenants of one root."""

    def __init__(self, root: Root) -> None:
        """Opens nothing."""
        self._root, self._namespaces = root, Namespaces(root)

    def list(self) -> Sequence[str]:
        """The tenants that were made, and those that have namespaces."""
        return [each for each in folders(self._root) if self._exists(each)]

    def create(
        self, tenant: str, admin_roles: Iterable[str] = (), allowed_clusters: Iterable[str] = ()
    ) -> None:
        """Make it. TopicExistsError if it is there."""
        if self._exists(checked_tenant(tenant)):
            raise TopicExistsError(f"Tenant {tenant} exists already.")
        self._write(tenant, TenantInfo(tuple(admin_roles), tuple(allowed_clusters)))

    def get(self, tenant: str) -> TenantInfo:
        """The settings of a tenant. NamespaceNotFoundError if there is none."""
        self._check_exists(tenant)
        path = _tenant_path(tenant)
        data = self._root.store.get(path)
        stored = {} if data is None else TENANT_FORMAT.decode(data, path)
        return TenantInfo(**{name: tuple(each) for name, each in stored.items()})

    def update(
        self, tenant: str, admin_roles: Iterable[str] = (), allowed_clusters: Iterable[str] = ()
    ) -> None:
        """Say something else of it, all anew. NamespaceNotFoundError if there is none."""
        self._check_exists(tenant)
        self._write(tenant, TenantInfo(tuple(admin_roles), tuple(allowed_clusters)))

    def delete(self, tenant: str, *, force: bool = False) -> Sequence[str]:
        """Delete it; the namespaces that went with it.

        TopicInUseError if it has namespaces, unless `force`: they are deleted with their topics.
        """
        self._check_exists(tenant)
        if tenant == SYSTEM_NAMESPACE.partition("/")[0]:
            raise InvalidTopicNameError(f"Tenant {tenant} is Pulsarlite's own, and stays.")
        namespaces = self._namespaces.list(tenant)
        if namespaces and not force:
            raise TopicInUseError(
                f"Tenant {tenant} has the namespaces {', '.join(namespaces)}. Delete them first, "
                "or say --force: then they are deleted with their topics."
            )
        for each in namespaces:
            self._namespaces.delete(each, force=True)
        self._root.store.delete(_tenant_path(tenant))
        return namespaces

    # -- inside --------------------------------------------------------------------------------

    def _write(self, tenant: str, info: TenantInfo) -> None:
        stored = {name: list(each) for name, each in asdict(info).items()}
        self._root.store.replace(_tenant_path(tenant), lambda _: TENANT_FORMAT.encode(stored))

    def _exists(self, tenant: str) -> bool:
        return self._root.store.exists(_tenant_path(tenant)) or bool(self._namespaces.list(tenant))

    def _check_exists(self, tenant: str) -> None:
        if not self._exists(checked_tenant(tenant)):
            raise NamespaceNotFoundError(f"There is no tenant {tenant} in {self._root.store.root}.")


def _raise_first(damaged: Mapping[str, PulsarliteError]) -> None:
    """Raise the first of what could not be read."""
    for topic, error in damaged.items():
        rest = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise type(error)(
            f"The other topics are done; {topic}{rest} can't be read, and was left as it is: "
            f"{error.message}"
        )


def folders(root: Root, tenant: str = "") -> Sequence[str]:
    """The names that have a folder: tenants, or namespaces of one."""
    above = _tenant_folder(tenant) if tenant else ""
    found = (root.store.folders(join(domain, above)) for domain in DOMAINS)
    names = {each.replace("%2E", ".") for each in chain.from_iterable(found)}
    return sorted(each for each in names if not each.startswith(("~", "_")))


def checked_tenant(tenant: str) -> str:
    """The name itself; InvalidTopicNameError if it is none."""
    return NamespaceName(tenant, "any").tenant


def _tenant_folder(tenant: str) -> str:
    """Its name on disk."""
    return TopicName(PERSISTENT, NamespaceName(tenant, "any"), "any").storage_path.split("/")[1]


def _tenant_path(tenant: str) -> str:
    return join(PERSISTENT, _tenant_folder(tenant), TENANT_FILE)
