"""A consumer's sign of life: a small file that it writes again and again while it lives.

Invariants: a run of a consumer has a file of its own, named after subscription, consumer and
incarnation, and writes it before it subscribes; who has not written it for longer than its
lease is given up by the broker. No command of the broker's log is spent on it.
Stands for the TCP connection and keep-alive of Pulsar's `ServerCnx`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from pulsar_spark.connector.clock import Repeated
from pulsar_spark.connector.object_store import ObjectStore, join
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.stream_offset import TopicPartition

LEASES: Final = "_leases"
VERSION: Final = 1
RENEWALS: Final = 4
"""A lease is renewed so many times before it would lapse."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """Who lives, for how long without a further sign, and where it is subscribed."""

    subscription: str
    consumer: str
    incarnation: int
    lease_ms: int
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def path(self) -> str:
        name = f"{quote(self.subscription, safe='')}~{quote(self.consumer, safe='')}"
        return join(LEASES, f"{name}~{self.incarnation}")

    def to_json(self) -> bytes:
        value = {
            "version": VERSION,
            "subscription": self.subscription,
            "consumer": self.consumer,
            "incarnation": self.incarnation,
            "lease_ms": self.lease_ms,
            "partitions": [list(each) for each in self.partitions],
        }
        return json.dumps(value, sort_keys=True).encode()

    @staticmethod
    def from_json(data: bytes) -> Lease | None:
        """None if it is not one: then nobody is given up on account of it."""
        try:
            value = json.loads(data)
            return Lease(
                value["subscription"], value["consumer"], value["incarnation"], value["lease_ms"],
                tuple(TopicPartition(topic, number) for topic, number in value["partitions"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError):
            return None


def leases(store: ObjectStore) -> Iterator[tuple[str, int]]:
    """(path, when it was written last in ms) of each lease below the root."""
    for item in store.files(LEASES):
        if "~" in item.path:
            yield item.path, item.modified_ms


def read_lease(store: ObjectStore, path: str) -> Lease | None:
    """None if it is gone."""
    data = store.get(path)
    return None if data is None else Lease.from_json(data)


class LeaseKeeper:
    """Writes a lease again and again, from the first `keep` until `stop`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lease: Lease | None = None
        self._renewing: Repeated | None = None

    def keep(self, lease: Lease, partitions: Iterable[TopicPartition]) -> None:
        """Written when this returns; and from now on, with those partitions."""
        held = replace(lease, partitions=tuple(sorted(partitions)))
        if held == self._lease:
            return
        self._store.touch(held.path, held.to_json())
        self._lease = held
        if self._renewing is None:
            every_s = held.lease_ms / 1000 / RENEWALS
            self._renewing = self._store.clock.repeat(every_s, self._renew, "lease")

    def stop(self, *, remove: bool = False) -> None:
        """Show no more life; `remove` when the broker has been told that the consumer is gone."""
        if self._renewing is not None:
            self._renewing.stop()
        if remove and self._lease is not None:
            self._store.delete(self._lease.path)

    def _renew(self) -> None:
        assert self._lease is not None
        try:
            self._store.touch(self._lease.path, self._lease.to_json())
        except (PulsarliteError, OSError) as error:
            _log.warning("The lease of %s was not renewed: %s", self._lease.consumer, error)
