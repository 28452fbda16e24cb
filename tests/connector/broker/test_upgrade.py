"""What an older Pulsarlite has left goes on: topics, the broker's state, consumers' offsets.

`tests/golden/root-v1` was written by the last version whose records had no checksums: a root with
ten messages, what its broker said, and four consumers in the middle of it with their offsets.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.topic_log.topics import Root
from tests.connector.reading import Run
from tests.connector.topics import send

GOLDEN = Path(__file__).parents[2] / "golden" / "root-v1"
TURNS = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "root", tmp_path / "root"))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_consumer_of_an_older_version_goes_on_where_it_was(root: Path, kind: str) -> None:
    held: dict[str, Any] = json.loads((GOLDEN / "consumers.json").read_text())[kind]
    broker = EmbeddedBroker(Root(str(root), {}))
    run = Run(
        root, topic="t", subscriptionName=f"s-{kind}", subscriptionType=kind, consumerName="c",
        maxMessagesPerTrigger=4, leaseTimeout="600s", start=held["offset"],
    )  # fmt: skip
    send(root, "t", ["new"])
    seen = held["seen"]
    for _ in range(TURNS):
        batch = run.next()
        seen += [] if batch is None else batch.values
        broker.until_quiet()
    assert sorted(seen) == sorted([*(f"a{number}" for number in range(10)), "new"])
