"""The broker in Spark's state store: one key a topic partition, one step a key and micro-batch.

Invariants: the store holds shards of at most `shards.MAX_SHARD_BYTES`, and only those that changed
are written; a worker remembers the states that it made, and uses one only if the store says that
it is the very one that it wrote; no timers: `__dispatch` says when to step again.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pulsar_spark.broker.hosting.broker_rows import OFFSET, InputRow, OutputRow
from pulsar_spark.broker.hosting.hosted_broker import OFFSET_KEY, HostedBroker, run

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

REMEMBERED: Final = 256
"""Brokers whose state a worker keeps between micro-batches."""

_SHARD_KEY = StructType([StructField("key", StringType())])
_SHARD = StructType([StructField("data", BinaryType())])
_MARK = StructType([StructField("mark", LongType())])
_OUTPUT: Final = Row(*OutputRow._fields)
_marks = random.SystemRandom()

_remembered: OrderedDict[tuple[str, int], tuple[int, HostedBroker]] = OrderedDict()
"""(topic, partition) -> the mark that was stored with it, and the broker."""


class BrokerProcessor(StatefulProcessor):
    """Hosts `broker.step` in `transformWithState`.

    `spare` is called when a process has imported what it needs, and again at each task's end.
    """

    def __init__(self, spare: Callable[[], None]) -> None:
        self._spare = spare

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._spare()  # one of the processes that Spark keeps for a query gets no further than here
        self._shards = handle.getMapState("shards", _SHARD_KEY, _SHARD)
        self._mark = handle.getValueState("mark", _MARK)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803 - Spark's name
    ) -> Iterator[Row]:
        topic, partition = key
        held = [InputRow(*row) for row in rows]
        if topic == OFFSET_KEY:
            for row in held:
                yield _OUTPUT(topic, partition, OFFSET, "", bytes(row.data))
            return
        batch = run(self._stored((topic, partition)), held)
        for shard in batch.deleted:
            self._shards.removeKey((shard,))
        for shard, data in batch.written.items():
            self._shards.updateValue((shard,), (data,))
        mark = _marks.getrandbits(62)
        self._mark.update((mark,))
        _remember((topic, partition), mark, batch.broker)
        for out in batch.rows:
            yield _OUTPUT(*out)

    def close(self) -> None:
        self._spare()

    def _stored(self, topic_partition: tuple[str, int]) -> HostedBroker:
        stored = self._mark.get()
        if stored is None:
            return HostedBroker()
        known = _remembered.get(topic_partition)
        if known is not None and known[0] == stored[0]:
            return known[1]
        pairs: Iterator[Any] = self._shards.iterator()
        return HostedBroker({key: bytes(data) for (key,), (data,) in pairs})


def _remember(topic_partition: tuple[str, int], mark: int, broker: HostedBroker) -> None:
    _remembered[topic_partition] = (mark, broker)
    _remembered.move_to_end(topic_partition)
    while len(_remembered) > REMEMBERED:
        _remembered.popitem(last=False)
