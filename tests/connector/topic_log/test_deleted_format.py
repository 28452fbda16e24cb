"""The commit that deletes a topic says nothing else."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState


@pytest.mark.parametrize(
    ("commit", "why"),
    [
        (Commit(1, "c", 0, deleted=True, partitions=2), "says something else"),
        (Commit(1, "c", 0, deleted=True, settings={}), "says something else"),
    ],
)
def test_a_deletion_says_nothing_else(commit: Commit, why: str) -> None:
    state = TopicState("t")
    state.apply(Commit(0, "c", 0, partitions=1))
    with pytest.raises(CorruptFileError, match=why):
        state.apply(commit)
    state.apply(Commit(1, "c", 0, deleted=True))
    with pytest.raises(CorruptFileError, match="deleted before"):
        state.apply(Commit(2, "c", 0, deleted=True))
    with pytest.raises(CorruptFileError, match="not true"):
        Commit.from_json(Commit(1, "c", 0, deleted=1).to_json(), "f")  # type: ignore[arg-type]
