"""The contents of the pages of topics and subscriptions: counts, tables, and data for pictures.

Invariants: what Pulsar has a name for is counted by `statistics` and `views`; the cost of a page is
bounded by TOPICS_A_PAGE, PARTITIONS_A_PAGE and STRIP_MESSAGES, however much there is; a topic that
can't be read is a sentence in its place, and the others are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.delayed_messages import DELIVER_AT
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.statistics.pulsar_stats import Stats, partition_stats, total
from pulsar_spark.connector.inspect.views import state_rows
from pulsar_spark.connector.inspect.views.message_sets import delayed_of, unread
from pulsar_spark.connector.runtime.reading.dead_letters import may_have_dead_letters
from pulsar_spark.connector.runtime.system_topics.subscription_admin import message_states
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.tools.dashboard.followed_queue import FollowedQueue, Point
from pulsar_spark.errors import PulsarliteError, TopicNotFoundError
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.topic_name import TopicPartition

TOPICS_A_PAGE: Final = 100
PARTITIONS_A_PAGE: Final = 12
STRIP_MESSAGES: Final = 200_000
"""A strip ends with the ledger in which it has so many."""
BINS: Final = 48
"""As many dots for one reason as a lane of the time line has at most."""
DELAYED, REDELIVERED = "delayed by its producer", "to come again"
NOW_MS: Final = 10_000
"""A picture's «now» is rounded to this, so that it is not drawn anew at each look."""

Row = dict[str, Any]


@dataclass(slots=True)
class TopicRow:
    """A topic in the list: statistics, or why there are none."""

    name: str
    stats: Stats = field(default_factory=dict)
    partitions: int = 0
    fault: str = ""

    @property
    def backlog(self) -> int:
        return sum(each["msgBacklog"] for each in self.subscriptions.values())

    @property
    def subscriptions(self) -> dict[str, Stats]:
        found: dict[str, Stats] = self.stats.get("subscriptions", {})
        return found


@dataclass(slots=True)
class TopicPage:
    """All that is shown of one topic."""

    row: TopicRow
    messages: int
    has_dead_letters: bool
    quarantine: dict[TopicPartition, str]
    backlogs: list[Point]
    delays: dict[str, list[tuple[float, str]]]
    by_partition: list[Row]


@dataclass(slots=True)
class SubscriptionPage:
    """All that is shown of one subscription, of some of the topic's partitions."""

    topic: str
    name: str
    stats: Stats
    partitions: int
    first: int
    cursors: list[Row]
    consumers: list[Row]
    strips: list[tuple[str, NDArray[np.int8]]]
    rings: list[tuple[int, dict[str, list[tuple[int, int]]]]]
    redelivered: list[tuple[int, int]]
    """(how often, messages), of those that came again at least once."""
    delays: dict[str, list[tuple[float, str]]]


def topic_rows(queue: FollowedQueue, having: str, page: int) -> tuple[list[TopicRow], int]:
    """(one page of the topics that have that text in their names, how many there are)."""
    names = queue.topics(having)
    first = page * TOPICS_A_PAGE
    return [_row(queue, str(each)) for each in names[first : first + TOPICS_A_PAGE]], len(names)


def _row(queue: FollowedQueue, name: str) -> TopicRow:
    try:
        log = queue.open(name)
        return TopicRow(name, _stats(queue, log), log.state.partitions)
    except TopicNotFoundError:
        return TopicRow(name, fault="It is being made, or was deleted just now.")
    except (PulsarliteError, OSError) as error:
        return TopicRow(name, fault=str(error))


def topic_page(queue: FollowedQueue, name: str) -> TopicPage:
    """InvalidTopicNameError, TopicNotFoundError, CorruptFileError."""
    log = queue.open(name)
    now_ms = _now_ms(queue)
    parts = [log.state.partition(each) for each in range(log.state.partitions)]
    row = TopicRow(log.topic, _stats(queue, log), len(parts))
    backlogs = queue.backlogs(log.topic)
    if backlogs:
        now = {name: each["msgBacklog"] for name, each in row.subscriptions.items()}
        backlogs.append((max(now_ms, backlogs[-1][0]), now))
    delays: dict[str, list[tuple[float, str]]] = {}
    for number in range(min(len(parts), PARTITIONS_A_PAGE)):
        state = queue.state(TopicPartition(log.topic, number))
        if state is not None:
            for subscription, held in sorted(state.subscriptions.items()):
                delays.setdefault(subscription, []).extend(_delays(state, held, now_ms))
    return TopicPage(
        row,
        sum(each.messages for each in parts),
        may_have_dead_letters(log),
        queue.quarantine(log.topic),
        backlogs,
        {name: _thinned(held) for name, held in delays.items() if held},
        [_partition_row(number, each) for number, each in enumerate(islice(parts, 100))],
    )


def subscription_page(
    queue: FollowedQueue, topic: str, name: str, first: int = 0
) -> SubscriptionPage | None:
    """The subscription on the partitions from `first` on; None if no broker knows it."""
    log = queue.open(topic)
    stats = _stats(queue, log).get("subscriptions", {}).get(name)
    if stats is None:
        return None
    page = SubscriptionPage(
        log.topic, name, stats, log.state.partitions, first, [], [], [], [], [], {}
    )  # fmt: skip
    now_ms = _now_ms(queue)
    counts: Counter[int] = Counter()
    delays: list[tuple[float, str]] = []
    for number in range(first, min(first + PARTITIONS_A_PAGE, page.partitions)):
        state = queue.state(TopicPartition(log.topic, number))
        if state is None or name not in state.subscriptions:
            continue
        held = state.subscriptions[name]
        place = {"partition": number}
        page.cursors += [place | row for row in state_rows.cursors(state, held, _no_lease)]
        page.consumers += [place | row for row in state_rows.consumers(state, held, _no_lease)]
        page.strips.append((f"partition {number}", _strip(state, name)))
        if held.selector is not None and (owners := held.selector.ranges_of_all()):
            ranges = {c: [(low, high) for low, high in r] for c, r in owners.items()}
            page.rings.append((number, ranges))
        for count, messages in held.tracker.by_count(unread(state, held)):
            counts[count] += messages.count(state.ledgers) if count else 0
        delays += _delays(state, held, now_ms)
    page.redelivered = sorted((count, many) for count, many in counts.items() if many)
    page.delays = {name: _thinned(delays)} if delays else {}
    return page


def _stats(queue: FollowedQueue, log: ManagedLedger) -> Stats:
    now_ms = queue.root.clock.wall_ms()
    abouts = [TopicPartition(log.topic, each) for each in range(log.state.partitions)]
    return total([partition_stats(log, each, queue.state(each), now_ms) for each in abouts])


def _partition_row(number: int, part: Any) -> Row:
    ledgers = part.ledgers
    return {
        "partition": number,
        "messages": part.messages,
        "size_bytes": part.size_bytes,
        "ledgers": len(ledgers),
        "first": f"{ledgers[0].ledger_id}:0" if len(ledgers) else "",
        "last": str(ledgers[-1].last) if len(ledgers) else "",
    }


def _strip(state: BrokerState, name: str) -> NDArray[np.int8]:
    """The state of each message from the ledger of the mark-delete position on."""
    chosen = list(_window(state, name))
    states = message_states(state, name, chosen)
    return np.concatenate([np.empty(0, np.int8), *(states[each.ledger_id] for each in chosen)])


def _window(state: BrokerState, name: str) -> Iterator[LedgerInfo]:
    first = state.subscriptions[name].cursor.mark_delete_position.ledger_id
    messages = 0
    for each in state.ledgers:
        if each.ledger_id >= first and messages < STRIP_MESSAGES:
            messages += each.messages
            yield each


def _delays(state: BrokerState, held: Subscription, now_ms: int) -> list[tuple[float, str]]:
    """(seconds from now, why) of what is to come later, at most twice BINS of them."""
    rest = unread(state, held)
    waiting = [at for at, messages in held.waiting.items() if messages.intersection(rest)]
    times = [(at, REDELIVERED) for at in _binned(np.array(waiting, np.int64))]
    if rest.intersection(delayed_of(state, held)):
        groups = [each.rows[DELIVER_AT] for each in state.delayed.groups.values()]
        times += [(at, DELAYED) for at in _binned(np.concatenate(groups))]
    return [(max(at - now_ms, 0) / 1000, why) for at, why in times]


def _binned(times: NDArray[np.int64]) -> list[int]:
    """The first time of each of BINS equal stretches."""
    if not times.size:
        return []
    found = np.unique(times)
    edges = np.linspace(found[0], found[-1], BINS, endpoint=False)
    firsts = np.unique(np.searchsorted(found, edges))
    return [int(each) for each in found[firsts]]


def _thinned(delays: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """At most BINS for each reason."""
    kept = []
    for why in (DELAYED, REDELIVERED):
        times = np.array([round(at * 1000) for at, reason in delays if reason == why], np.int64)
        kept += [(at / 1000, why) for at in _binned(times)]
    return kept


def _now_ms(queue: FollowedQueue) -> int:
    return int(queue.root.clock.wall_ms() // NOW_MS * NOW_MS)


def _no_lease(_: object) -> None:
    """Pages tell of no leases."""
