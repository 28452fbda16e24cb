"""What a soak leaves behind: looked over with what an operator has, and a small one made at once.

`look_over` is the last step of each soak. `write_left_behind` writes the root of a schedule of
`tests/torture`, whose publishers, consumers and brokers were killed at random and stopped halfway,
as files: what a soak of hours leaves, in seconds and without Spark.
"""

from __future__ import annotations

from pathlib import Path

import pulsar_spark
from pulsar_spark.connector.inspect.views.view_columns import VIEWS
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.tools.doctor.finding import State
from pulsar_spark.connector.tools.doctor.root_checks import check_root
from pulsar_spark.errors import PulsarliteError
from tests.connector.dashboard.browsing import all_pages
from tests.connector.dashboard.conftest import browser_of
from tests.torture.world import EVENTS, prepared


def look_over(folder: Path | str) -> list[str]:
    """What is not well with a root, by its views, dashboard, `doctor` and `verify`."""
    wrong = []
    for name, view in VIEWS.items():
        try:
            table = pulsar_spark.dataset(str(folder), view=name).to_table()
        except PulsarliteError as error:  # noqa: PERF203 - the others are looked at
            wrong.append(f"view {name}: {error}")
        else:
            if table.schema.names != view.schema.names:
                wrong.append(f"view {name} has other columns than it says")
    try:
        all_pages(browser_of(Root(str(folder), {})))
    except AssertionError as error:
        wrong.append(f"dashboard: {error}")
    findings = check_root(Root(str(folder), {}), deep=True)
    problems = (each for each in findings if each.state is State.PROBLEM)
    wrong += [f"doctor: {each.subject}: {each.text}" for each in problems]
    for topic in pulsar_spark.verify(str(folder), deep=True):
        wrong += [
            f"verify: {topic.topic}: {each.text}"
            for each in (*topic.differences, *topic.unverified)
        ]
    return wrong


def write_left_behind(seed: int, folder: Path) -> None:
    """The root of that schedule, in the middle of its work."""
    with prepared(seed) as make:
        world = make()
        for _ in range(EVENTS):
            world._event()
        assert isinstance(world.store, MemoryStore)
        for path, (data, _) in world.store._files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
