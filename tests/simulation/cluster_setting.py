"""What is drawn once for a cluster: topics, who reads which of them, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.lots import Lots

NAMESPACE = "persistent://public/default/"
KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")


@dataclass(frozen=True)
class ClusterSetting:
    """Of one schedule."""

    topics: tuple[str, ...]
    partitions: int
    """Of each topic, at first."""
    parts: tuple[str | None, ...]
    """The topics of each consumer; None with a pattern."""
    by_pattern: bool
    refuses: bool
    """The first consumer has one topic, the second wants both, the third the other one."""
    poison: bool
    """Some messages end the query that gets them; then nobody dies of anything else in a batch."""
    manual: bool
    """A query's sink acknowledges what its micro-batch has, just before it is committed."""
    grows_unseen: bool
    """All subscribe, then a topic grows, then the broker looks for the first time."""
    lease_ms: int
    latest: bool
    options: Mapping[str, str]


def drawn_cluster(lots: Lots) -> ClusterSetting:
    kind = lots.draw_from(KINDS)
    lease_ms = lots.draw_from((5_000, 10_000, 30_000))
    refuses = kind == "Exclusive" and lots.one_in(2)
    by_pattern = not refuses and lots.one_in(3)
    poison, latest = lots.one_in(5), lots.one_in(2)
    topics = tuple(NAMESPACE + each for each in ("tu" if refuses or lots.one_in(3) else "t"))
    given = {
        "subscriptionName": "s",
        "subscriptionType": kind,
        "subscriptionInitialPosition": "Latest" if latest else "Earliest",
        "leaseTimeout": str(lease_ms),
        "topicDiscoveryInterval": "1000",
    }
    if by_pattern:
        given["topicsPattern"] = f"{NAMESPACE}.*"
    if poison:
        given["maxRedeliverCount"] = str(lots.draw(1, 2))
        given["maxBatchAttempts"] = str(lots.draw(1, 3))
    if lots.one_in(2):
        given["maxMessagesPerTrigger"] = str(lots.draw_from((1, 3)))
    if manual := lots.one_in(3):
        given["ackMode"] = "manual"
    all_of_them = None if by_pattern else ",".join(topics)
    parts: tuple[str | None, ...] = (all_of_them,) * (1 if kind == "Exclusive" else lots.draw(1, 3))
    if refuses:
        parts = (topics[0], all_of_them, topics[1])
    return ClusterSetting(
        topics, lots.draw(1, 2), parts, by_pattern, refuses, poison, manual, lots.one_in(4),
        lease_ms, latest, given,
    )  # fmt: skip
