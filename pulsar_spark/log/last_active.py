"""When applications and producers published last to a topic, by the clocks of its log.

Invariants: a time never falls, and none is above the latest time of any commit, so a writer whose
clock is behind is not taken for absent; nobody is forgotten unless a commit says so. Follows the
inactive producers of Pulsar's `MessageDeduplication`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_spark.log.ledger_commit import Commit


@dataclass(slots=True)
class LastActive:
    """The times by application and by producer. Mutable, as a topic's state is."""

    latest_ms: int = 0
    """The latest time of any commit."""
    applications: dict[str, int] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)

    def take_in(self, commit: Commit) -> None:
        self.latest_ms = max(self.latest_ms, commit.timestamp_ms)
        if commit.application:
            self.applications[commit.application.id] = self.latest_ms
        for by_producer in (*commit.sequence_ranges.values(), *commit.sequence_ids.values()):
            self.producers.update(dict.fromkeys(by_producer, self.latest_ms))
        for application in commit.inactive_applications:
            self.applications.pop(application, None)
        for producer in commit.inactive_producers:
            self.producers.pop(producer, None)

    def inactive(
        self, since_ms: int, present: Collection[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Applications, and producers without a ledger (not `present`), not seen since then."""
        applications = [name for name, seen_ms in self.applications.items() if seen_ms < since_ms]
        producers = [name for name, seen_ms in self.producers.items() if seen_ms < since_ms]
        return tuple(applications), tuple(name for name in producers if name not in present)

    def to_json_value(self) -> dict[str, Any]:
        """The times as JSON; empty if there are none."""
        value = {"application_times": self.applications, "producer_times": self.producers}
        return {name: dict(times) for name, times in value.items() if times}

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> LastActive:
        """Read the times of a snapshot."""
        seen = dict(value.get("application_times", {}))
        sent = dict(value.get("producer_times", {}))
        latest_ms = max(int(value["timestamp_ms"]), *seen.values(), *sent.values(), 0)
        return LastActive(latest_ms, seen, sent)
