"""Messages that fall due: nothing early, and a bound on the instants that are kept."""

from __future__ import annotations

from pulsar_spark.positions.position_map import PositionMap
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.subscriptions.due_messages import MAX_INSTANTS, DueMessages
from tests.core.broker_samples import entries, granted_to, ledger, run, subscribe


def test_where_there_would_be_too_many_instants_the_closest_two_become_the_later() -> None:
    assert not DueMessages().add(5, PositionSet())
    due = DueMessages(PositionMap({1_000 * n + 500: entries(0, n) for n in range(MAX_INSTANTS)}))
    due = due.add(1_501, entries(1, 0))
    due.check()
    assert len(due.instants) == MAX_INSTANTS
    early, _ = due.due(1_500)
    assert early == entries(0, 0)
    together, left = due.due(1_501)
    assert together == entries(0, 0, 1).union(entries(1, 0))
    assert left.next_due_ms == 2_500
    assert due.messages == entries(1, 0).union(entries(0, *range(MAX_INSTANTS)))


def test_the_last_entry_of_a_turn_is_cut_to_what_its_consumer_may_hold() -> None:
    state, ready = run(
        [[subscribe("a", permits=4), subscribe("b", permits=3)], [ledger(0, [3, 1, 3])]]
    )
    counts = {name: granted_to(ready, name).count(state.ledgers) for name in ("a", "b")}
    assert counts == {"a": 4, "b": 3}
    assert not granted_to(ready, "a").intersection(granted_to(ready, "b"))
