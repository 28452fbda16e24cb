"""Which partition each row of a sink goes to, as the sink's options say.

Invariants: rows of one key go to one partition while their number stays; rows without a key stay
in a partition for as many as fill an entry. Follows Pulsar's `PartitionedProducerImpl`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.hashing import java_string_hash_many, murmur3_32_hash_many
from pulsar_spark.message_router import (
    RoundRobinPartitionMessageRouter,
    SinglePartitionMessageRouter,
    partitions_of_keys,
)
from pulsar_spark.options import Options

_HASH_MANY = {"JavaStringHash": java_string_hash_many, "Murmur3_32Hash": murmur3_32_hash_many}


@dataclass(slots=True)
class MessageRouting:
    """The router of one task for one topic; counts the messages without a key."""

    options: Options
    partitions_count: int
    _unkeyed: int = 0
    _start: int = field(default_factory=lambda: random.randrange(1 << 30))  # noqa: S311

    def partitions(self, messages: pa.Table) -> NDArray[np.int32] | int:
        """One partition a row, shape (rows,); a number alone if all go to the same one."""
        if self.partitions_count == 1:
            return 0
        keys = messages["key"] if "key" in messages.column_names else None
        if keys is None or keys.null_count == len(keys):
            return self._without_key(len(messages))
        hashes = _HASH_MANY[self.options["hashingScheme"]](keys.combine_chunks())
        chosen = partitions_of_keys(hashes, self.partitions_count)
        if keys.null_count:
            unkeyed = pc.is_null(keys).to_numpy()
            others = self._without_key(int(unkeyed.sum()))
            chosen[unkeyed] = others
        return chosen

    def _without_key(self, count: int) -> NDArray[np.int32] | int:
        if self.options["messageRoutingMode"] == "SinglePartition":
            single = SinglePartitionMessageRouter(self._start % self.partitions_count)
            return single.choose_partition(self.partitions_count)
        batching = self.options["batchingEnabled"]
        router = RoundRobinPartitionMessageRouter(self._start, batching=False)
        if not batching:
            chosen = router.choose_partitions(
                self.partitions_count, count, message_number=self._unkeyed
            )
            self._unkeyed += count
            return chosen
        # Pulsar stays on a partition for 10 ms, so that a batch fills up. A task has its rows at
        # once: it stays for a batch of the largest size instead.
        most = self.options["batchingMaxMessages"]
        number = (self._start + (self._unkeyed + np.arange(count)) // most) % self.partitions_count
        self._unkeyed += count
        chosen_in_turn: NDArray[np.int32] = number.astype(np.int32)
        return chosen_in_turn
