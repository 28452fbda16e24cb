"""One schedule of several topics and partitions under one broker, and of queries on all of them.

What runs is what users run: the source of a consumer, the embedded broker, and leases by a clock
that stands until the schedule moves it. Topics grow, clocks are set, nobody looks for a while,
consumers are refused on a part, and messages end the query that gets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pulsar_spark.connector.runtime.broker.broker_heartbeat import HEARTBEAT_FILE
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.model.topic_name import TopicPartition
from tests.simulation.cluster_oracle import ClusterOracle
from tests.simulation.cluster_setting import NAMESPACE, drawn_cluster
from tests.simulation.lots import Lots
from tests.simulation.place import Message, Place
from tests.simulation.query import Query
from tests.torture.place import SharedClock

STARTED_MS = 1_700_000_000_000
BROKER = "broker"
CHECKPOINT = "_broker/broker"
MOST_PARTITIONS, MOST_TOPICS = 4, 3
MOST_ROUNDS = 80
"""Of the end, in which nothing goes wrong any more."""


class Cluster(Lots):
    """What one schedule has; `run` runs it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.setting = drawn_cluster(self)
        self.clock = SharedClock(STARTED_MS)
        self.place = Place(self.clock)
        self.oracle = ClusterOracle(self)
        self.broker: EmbeddedBroker | None = None
        self.poison: set[Message] = set()
        self.queries: list[Query] = []
        self.is_ending = False
        for topic in self.setting.topics:
            self.place.create(topic, self.setting.partitions)
        for number, topics in enumerate(self.setting.parts):
            self.queries.append(Query(self, f"c{number}", topics, self.setting.options))

    @property
    def dispatch(self) -> object:
        """What the broker has said."""
        return self.place.dispatch.stored

    # -- the schedule ----------------------------------------------------------------------------

    def run(self, events: int) -> None:
        with self.place.entered():
            if self.one_in(2):
                self.publish()
            self._begin()
            for _ in range(events):
                self._event()
            self._finish()

    def _begin(self) -> None:
        """All subscribe; where one is to be refused on a part, one after the other."""
        for query in self.queries[: 2 if self.setting.refuses else None]:
            for _ in range(3):  # it is named, logged, committed; then it subscribes
                self.turn_of(query)
            if self.setting.refuses:
                self.run_once()
                self.turn_of(query)
        if self.setting.grows_unseen:
            all_begin_anew_while_a_topic_grows(self)

    def _event(self) -> None:
        happens = self.random.random()
        if happens < 0.40:
            query = self.draw_from(self.queries)
            for _ in range(self.draw(1, 3)):
                self.turn_of(query)
        elif happens < 0.65:
            self.run_once()
        elif happens < 0.78:
            self.publish()
        elif happens < 0.86:
            self.clock.advance(self.draw_from((1, 400, 1_500)))
        else:
            trouble = self.draw_from(TROUBLES)
            trouble(self)

    def turn_of(self, query: Query) -> None:
        if not query.is_running:
            query.start()
        query.step()

    def run_once(self) -> bool:
        """One look of the broker's; whether it did anything."""
        with self.clock.acting(BROKER):
            if self.broker is None:
                self.broker = EmbeddedBroker(self.place, CHECKPOINT)  # type: ignore[arg-type]
            did = self.broker.run_once()
        self.oracle.turned(self.broker)
        return did

    def until_quiet(self) -> None:
        while self.run_once():
            pass

    def publish(self) -> None:
        topic = self.draw_from(list(self.place.topics.values()))
        topic_partition = TopicPartition(
            topic.state.topic, self.draw(0, topic.state.partitions - 1)
        )
        sizes = [self.draw_from((1, 1, 2)) for _ in range(self.draw(1, 3))]
        keys = [self.draw(0, 3) * 7_919_173 for _ in range(sum(sizes))]
        ledger_id = topic.publish(topic_partition.partition, sizes, keys, self.clock.wall_ms())
        messages = [
            (topic_partition, ledger_id, entry_id, index)
            for entry_id, size in enumerate(sizes)
            for index in range(size)
        ]
        if self.setting.poison and len(self.poison) < 2 and self.one_in(2):
            self.poison.add(self.draw_from(messages))
        self.oracle.published(topic_partition, messages)

    # -- who may be in trouble -------------------------------------------------------------------

    def may_die(self, _query: Query) -> bool:
        """In a micro-batch: but each such death is counted against what the batch has."""
        return not (self.is_ending or self.setting.poison) and self.one_in(8)

    def may_die_unlogged(self, _query: Query) -> bool:
        """After its report, before Spark has written the offset down."""
        return not self.is_ending and self.one_in(10)

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        """All live, nothing goes wrong any more, and all has to be done within a bound."""
        self.is_ending = True
        self.clock.set_ahead_ms.clear()
        if self.setting.refuses:
            stays_away(self, self.queries[1])
        live = [each for each in self.queries if not self.setting.refuses or each.name != "c1"]
        for number in range(MOST_ROUNDS):
            for query in live:
                self.turn_of(query)
                if query.is_running and query.is_in_batch:
                    query.step()
            self.until_quiet()
            if not self.oracle.missing() and not any(each.is_in_batch for each in live):
                self.oracle.finished()
                return
            self.clock.advance(300 if number % 4 else 1_500)
        self.oracle.fail(f"never done: {self.oracle.missing()} are not acknowledged")


# -- troubles ------------------------------------------------------------------------------------

Trouble = Callable[[Cluster], None]


def is_killed(cluster: Cluster) -> None:
    query = cluster.draw_from(cluster.queries)
    if not (cluster.setting.poison and query.is_in_batch):
        query.kill()


def loses_its_checkpoint(cluster: Cluster) -> None:
    query = cluster.draw_from(cluster.queries)
    if not cluster.setting.poison:
        query.lose()
        cluster.oracle.lost_its_checkpoint(query)


def dies_for_good(cluster: Cluster) -> None:
    if not cluster.setting.poison:
        stays_away(cluster, cluster.draw_from(cluster.queries))


def stays_away(cluster: Cluster, query: Query) -> None:
    """Until the broker must have noticed, however rarely it looks."""
    lease_ms = cluster.setting.lease_ms
    query.kill()
    every_ms = cluster.draw_from((1_100, 6_000, lease_ms // 2, 3 * lease_ms))
    counted_ms = min(every_ms, lease_ms // 2)
    cluster.until_quiet()
    for _ in range(math.ceil(lease_ms / counted_ms) + 2):
        cluster.clock.advance(every_ms)
        if cluster.one_in(8):
            _set_clock(cluster, BROKER)
        cluster.until_quiet()
        if cluster.one_in(3):
            others = [each for each in cluster.queries if each is not query and each.is_running]
            if others:
                cluster.draw_from(others).step()
    cluster.oracle.check_is_gone(query)


def nobody_looks(cluster: Cluster) -> None:
    """The broker's looks lie far apart, and all consumers live meanwhile."""
    for _ in range(cluster.draw(1, 4)):
        cluster.clock.advance(cluster.draw_from((5_500, 20_000, 70_000)))
        cluster.run_once()


def all_stand_still(cluster: Cluster) -> None:
    """A machine sleeps, with all that runs on it; the broker is the first to look."""
    cluster.until_quiet()
    cluster.clock.stopped = {each.name for each in cluster.queries}
    cluster.clock.advance(cluster.draw_from((5_000, 100_000)))
    cluster.run_once()
    cluster.clock.stopped = set()
    cluster.clock.advance(cluster.setting.lease_ms / 4)
    cluster.run_once()


def a_clock_is_set(cluster: Cluster) -> None:
    """Once or twice, and the broker looks."""
    actor = cluster.draw_from([BROKER, BROKER, *(each.name for each in cluster.queries)])
    for _ in range(cluster.draw(1, 2)):
        _set_clock(cluster, actor)
        cluster.clock.advance(1_000)
        cluster.run_once()


def _set_clock(cluster: Cluster, actor: str) -> None:
    before_ms = cluster.clock.set_ahead_ms.get(actor, 0)
    cluster.clock.set_ahead_ms[actor] = before_ms + cluster.draw(-200_000, 200_000)


def the_broker_is_killed(cluster: Cluster) -> None:
    """Its checkpoint is lost with it, or not."""
    cluster.broker = None
    cluster.place.store.delete(HEARTBEAT_FILE)  # of a process that is no more
    if cluster.one_in(2):
        cluster.place.store.delete(CHECKPOINT)


def a_topic_grows(cluster: Cluster) -> None:
    topic = cluster.draw_from(list(cluster.place.topics.values()))
    if topic.state.partitions < MOST_PARTITIONS:
        topic.commit(partitions=topic.state.partitions + 1)
        cluster.publish()


def all_begin_anew_while_a_topic_grows(cluster: Cluster) -> None:
    """Whoever comes first to the new partitions is new itself, but the subscription is not."""
    if cluster.setting.poison or cluster.setting.refuses:
        return
    a_topic_grows(cluster)
    for query in cluster.queries:
        query.lose()
        cluster.oracle.lost_its_checkpoint(query)
    for _ in range(cluster.draw(0, 2)):
        cluster.run_once()


def a_topic_is_new(cluster: Cluster) -> None:
    if cluster.setting.by_pattern and len(cluster.place.topics) < MOST_TOPICS:
        topic = f"{NAMESPACE}n{len(cluster.place.topics)}"
        cluster.place.create(topic, cluster.draw(1, 2))
        cluster.oracle.created(topic)
        cluster.publish()


TROUBLES: tuple[Trouble, ...] = (
    is_killed,
    is_killed,
    loses_its_checkpoint,
    dies_for_good,
    nobody_looks,
    all_stand_still,
    a_clock_is_set,
    a_clock_is_set,
    the_broker_is_killed,
    a_topic_grows,
    a_topic_grows,
    all_begin_anew_while_a_topic_grows,
    a_topic_is_new,
)


def run_cluster(seed: int, events: int = 28) -> Cluster:
    """One schedule from its seed. ViolationError if a promise is broken."""
    cluster = Cluster(seed)
    many = cluster.draw(4, events) if cluster.one_in(4) else cluster.draw(3, events // 2)
    cluster.run(many)
    return cluster
