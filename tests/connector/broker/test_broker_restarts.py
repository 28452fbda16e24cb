"""A broker whose query fails begins again, unless what ended it can't pass."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.connector.runtime.broker.broker_heartbeat import BrokerHeartbeat
from pulsar_spark.connector.runtime.broker.broker_sink import claim_term
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    OFFSET_RECORD,
    BrokerOffset,
    PartitionBatch,
    Quarantined,
)
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.standalone_command import watch
from pulsar_spark.errors import (
    BrokerFencedError,
    PulsarliteError,
    SparkNotReadyError,
    StaleCheckpointError,
    StorageError,
)
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import Broker, _discard, standalone
from tests.connector.reading import Run
from tests.connector.topics import send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT = TopicPartition("persistent://public/default/t", 0)


class Query:
    """What a broker sees of a StreamingQuery."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.isActive = error is None
        self.status = {"message": "Waiting for data to arrive"}
        self.lastProgress: dict[str, Any] | None = None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def fail(self, error: Exception) -> None:
        self.error = error
        self.isActive = False


class Queries:
    """Begins one after the other; each outcome is an error to begin with, or None."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.begun: list[Query] = []
        self._outcomes = list(outcomes)

    def __call__(self) -> Any:
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if isinstance(outcome, OSError):
            raise outcome
        self.begun.append(Query(outcome))
        return self.begun[-1]


def served(
    root: Path,
    queries: Queries,
    first_restart_s: float = 0.001,
    discard: Callable[[], None] | None = None,
) -> Broker:
    place = Root(str(root), {})
    heartbeat = BrokerHeartbeat(place)
    heartbeat.begin()
    heartbeat.keep()
    spark: Any = object()
    pauses = {"check_s": 0.01, "first_restart_s": first_restart_s}
    return Broker(spark, place, 1, heartbeat, queries, discard=discard, **pauses)


def dispatched(root: Path, offset: BrokerOffset) -> None:
    """A batch of the broker, as far as its status shows it."""
    record = Record(TopicPartition(str(DISPATCH), 0), OFFSET_RECORD, offset.to_json())
    SystemTopic(Root(str(root), {}), DISPATCH).append([record])


def test_a_query_that_fails_is_begun_again_and_counted(root: Path) -> None:
    gone = StorageError("the network is away")
    queries = Queries(None, OSError("Spark is busy"), gone, None)
    with served(root, queries) as broker:
        queries.begun[0].fail(RuntimeError("Python worker failed to connect back."))
        eventually(lambda: broker.await_termination(0) or broker.status()["restarts"] == 2)
        assert len(queries.begun) == 3
        status = broker.status()
        assert status["is_active"]
        assert status["error"] is None
        assert status["restart_error"] == str(gone)
        assert id(broker.query) == id(queries.begun[-1])
        assert "is_active=True" in repr(broker)
        assert str(root) in broker._repr_html_()
        assert not broker.await_termination(0.01)
        assert (root / "_broker" / "alive.json").exists()
    assert broker.await_termination(1)
    assert not broker.status()["is_active"]
    assert not queries.begun[-1].isActive
    assert not (root / "_broker" / "alive.json").exists()


def test_what_can_t_pass_ends_it_for_all_who_wait(root: Path) -> None:
    queries = Queries()
    with served(root, queries) as broker:
        queries.begun[0].fail(StaleCheckpointError("another has served since"))
        with pytest.raises(StaleCheckpointError):
            broker.await_termination()
        status = broker.status()
        assert (status["is_active"], status["restarts"]) == (False, 0)
        assert "another has served since" in status["error"]
        assert not (root / "_broker" / "alive.json").exists(), "another may begin at once"
        with pytest.raises(PulsarliteError, match=r"The broker ended: .*STALE_CHECKPOINT"):
            watch(broker, threading.Event(), every_s=0.01)


def test_a_driver_that_lacks_the_package_ends_it_and_says_what_to_install(root: Path) -> None:
    queries = Queries()
    with served(root, queries) as broker:
        queries.begun[0].fail(RuntimeError("ModuleNotFoundError: No module named 'pulsar_spark'"))
        with pytest.raises(SparkNotReadyError, match="install it where its server runs"):
            broker.await_termination(10)
        assert broker.status()["restarts"] == 0


def test_an_old_checkpoint_is_deleted_by_who_has_the_sign_and_the_term(
    root: Path, tmp_path: Path
) -> None:
    place, folder, queries = Root(str(root), {}), tmp_path / "checkpoint", Queries()
    folder.mkdir()
    term, signs = claim_term(place), list[bool]()

    def discard() -> None:
        signs.append((root / "_broker" / "alive.json").exists())
        _discard(place, term, str(folder))

    with served(root, queries, discard=discard) as broker:
        queries.begun[0].fail(StaleCheckpointError("another has served since"))
        eventually(lambda: len(queries.begun) == 2)
        assert broker.status()["is_active"]
        assert signs == [True]
        assert not folder.exists()
        queries.begun[1].fail(StaleCheckpointError("and that, of the new one"))
        with pytest.raises(StaleCheckpointError):
            broker.await_termination()


def test_an_old_checkpoint_stays_once_another_has_the_term(root: Path, tmp_path: Path) -> None:
    place, folder, queries = Root(str(root), {}), tmp_path / "checkpoint", Queries()
    folder.mkdir()
    discard = partial(_discard, place, claim_term(place), str(folder))
    with served(root, queries, discard=discard) as broker:
        claim_term(place)
        queries.begun[0].fail(StaleCheckpointError("another has served since"))
        with pytest.raises(BrokerFencedError, match="leaves the checkpoint "):
            broker.await_termination()
        with pytest.raises(BrokerFencedError):  # so one on standby waits again
            watch(broker, threading.Event(), every_s=0.01)
    assert folder.exists()
    assert len(queries.begun) == 1


def test_a_broker_is_stopped_while_it_waits_to_begin_again(root: Path) -> None:
    queries = Queries()
    with served(root, queries, 3600.0) as broker:
        queries.begun[0].fail(RuntimeError("it is busy"))
        eventually(lambda: broker.restart_error)
    assert len(queries.begun) == 1
    assert broker.await_termination(1)


def test_the_command_says_that_the_query_began_again_and_what_is_set_aside(root: Path) -> None:
    queries, lines, stop = Queries(), list[str](), threading.Event()
    with served(root, queries) as broker:
        said = threading.Thread(target=watch, args=(broker, stop, lines.append, 0.01))
        said.start()
        queries.begun[0].fail(RuntimeError("Python worker failed to connect back.\nat a.scala"))
        eventually(lambda: lines)
        why = Quarantined(0, "[CORRUPT_FILE] why")
        quarantined = PartitionBatch((-1, -1), quarantined=why)
        dispatched(root, BrokerOffset(now_ms=1, parts={ABOUT: quarantined}))
        eventually(lambda: len(lines) == 2)
        assert broker.status()["quarantined"] == {
            "persistent://public/default/t-partition-0": "[CORRUPT_FILE] why"
        }
        again = PartitionBatch((-1, 0), again=why)
        dispatched(root, BrokerOffset(now_ms=2, parts={ABOUT: again}))
        eventually(lambda: len(lines) == 3)
        stop.set()
        said.join()
    topic = "persistent://public/default/t-partition-0"
    begun_again = "The query failed and has begun again, 1 times so far"
    assert lines == [
        f"{begun_again}: Python worker failed to connect back.",
        f"Set aside, and tried again from time to time: {topic}: [CORRUPT_FILE] why",
        f"No longer set aside: {topic}",
    ]


def read_of(process: int, name: str) -> str:
    """Of what Linux tells of a process; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process}/{name}").read_text()
    return ""


def workers() -> list[int]:
    """The Python processes of Spark below this one, but for the daemons that start them."""
    everybody = [int(each.name) for each in Path("/proc").glob("[0-9]*")]
    parents = {
        each: int(stat.rpartition(")")[2].split()[1])
        for each in everybody
        if (stat := read_of(each, "stat"))
    }
    below = {os.getpid()}
    while new := {each for each, parent in parents.items() if parent in below} - below:
        below |= new
    python = {each: text for each in below if "\0pyspark." in (text := read_of(each, "cmdline"))}
    return [each for each in python if parents[each] in python or "daemon" not in python[each]]


def test_a_broker_whose_workers_are_killed_serves_again_and_consumers_go_on(
    spark: SparkSession, root: Path
) -> None:
    send(root, "t", ["a"])
    consumer = Run(
        root, topic="t", subscriptionName="s", subscriptionType="Shared", consumerName="c",
        subscriptionInitialPosition="Earliest",
    )  # fmt: skip

    def reads(value: str) -> bool:
        batch = consumer.next()
        return batch is not None and value in batch.values

    with standalone(spark, str(root)) as broker:
        eventually(lambda: reads("a"), what="the consumer is served")
        for number, value in enumerate("bc", 1):
            found = workers()
            assert found
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            eventually(lambda number=number: broker.restarts >= number)  # type: ignore[misc]
            send(root, "t", [value])
            eventually(lambda value=value: reads(value), what="it is served again")  # type: ignore[misc]
        status = broker.status()
        assert status["is_active"]
        assert status["error"] is None
        assert status["restart_error"]
        assert broker.term == 1
    assert broker.await_termination(1)
