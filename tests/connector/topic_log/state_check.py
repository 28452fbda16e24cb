"""What holds in every state of a topic."""

from __future__ import annotations

from itertools import pairwise

from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.ledger_info import LedgerSum


def check_state(state: TopicState) -> None:
    """Raise AssertionError if the counts don't agree with the ledgers."""
    files: dict[str, int] = {}
    for number, part in enumerate(map(state.partition, range(state.partitions))):
        ledgers = list(part.ledgers)
        assert [each.ledger_id for each in ledgers] == part.column.ids[part.start :]
        assert all(a.ledger_id < b.ledger_id for a, b in pairwise(ledgers))
        assert all(each.partition == number for each in ledgers)
        assert part.messages == sum(each.messages for each in ledgers)
        assert part.size_bytes == sum(each.size_bytes for each in ledgers)
        if part.published is not None:
            assert part.published == sum(map(LedgerSum.of, ledgers), LedgerSum()) + part.removed
        assert part.chunks.keys() <= {each.ledger_id for each in ledgers}
        assert list(part.chunks) == sorted(part.chunks)
        held, hidden_in = part.hidden._read()
        assert hidden_in == sorted(held), "so that a look may bisect"
        assert held.keys() <= set(part.column.ids)
        for each in ledgers:
            files[each.file] = files.get(each.file, 0) + 1
        for file in part.compacted_files:
            files[file] = files.get(file, 0) + 1
    assert files == state.files
    assert not files.keys() & state.tombstones.keys()
