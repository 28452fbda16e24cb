"""The broker as a query on real Spark: `standalone`, and `pulsarlite standalone`."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.broker.protocol.commands import (
    InitialPosition,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.ready import Grant
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import BrokerBusyError, InvalidOptionError, SparkNotReadyError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import check_spark, default_checkpoint, standalone
from tests.connector.topics import send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT = TopicPartition("persistent://public/default/t", 0)


def tell(place: Root, command: Any) -> None:
    SystemTopic(place, COMMANDS).append([Record.of(ABOUT, "s", command)])


def subscribe(place: Root) -> None:
    tell(place, Subscribe("s", "c", 1, SubscriptionType.SHARED, permits=100,
                          initial_position=InitialPosition.EARLIEST))  # fmt: skip


def granted(place: Root) -> list[tuple[int, int]]:
    """Every entry that was granted, as often as it was."""
    dispatch = SystemTopic(place, DISPATCH)
    found = dispatch.read(0, dispatch.refresh(), keep=lambda _, name: name == "s")
    items = [each.record.item() for each in found]
    return [
        (position.ledger_id, position.entry_id)
        for item in items
        if isinstance(item, Grant)
        for position, _ in item.messages.entries()
    ]


def until(place: Root, expected: list[tuple[int, int]], alive: Callable[[], bool]) -> None:
    def reached() -> bool:
        assert alive(), "the broker ended"
        return sorted(granted(place)) == expected

    eventually(reached, 240, f"{expected} are granted")  # a busy machine starts Spark in 100 s


def test_a_broker_serves_is_restarted_and_goes_on_where_it_was(
    spark: SparkSession, root: Path
) -> None:
    place = Root(str(root), {})
    send(root, "t", "a")
    with pytest.raises(InvalidOptionError, match="state_partitions is 0"):
        standalone(spark, str(root), state_partitions=0)
    with standalone(spark, str(root), state_partitions=2) as broker:
        subscribe(place)
        until(place, [(0, 0)], lambda: broker.query.isActive)
        with pytest.raises(BrokerBusyError, match=f"process {os.getpid()}"):
            standalone(spark, str(root))
        status = broker.status()
        assert status["is_active"]
        assert status["term"] == 1
    assert not broker.status()["is_active"]
    send(root, "t", "b")
    tell(place, Report("s", "c", 1, permits=100,
                       acknowledged=Cursor().acknowledge(PositionSet.of([(0, 0)]))))  # fmt: skip
    with standalone(spark, str(root)) as broker:  # the checkpoint's number stays
        until(place, [(0, 0), (1, 0)], lambda: broker.query.isActive)
        assert broker.term == 2
        assert not broker.await_termination(0.01)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


@pytest.mark.slow
@pytest.mark.parametrize("host", [(), ("--embedded",)], ids=["of Spark", "embedded"])
def test_brokers_on_standby_take_over_from_one_that_is_killed_stands_still_or_stops(
    tmp_path: Path, host: tuple[str, ...]
) -> None:
    place = Root(str(tmp_path / "root"), {})
    send(tmp_path / "root", "t", "a")
    subscribe(place)
    expected = [(0, 0)]
    with ExitStack() as all_ended:
        begin = partial(_Standby.begin, tmp_path, all_ended, host)

        def serves(broker: _Standby) -> None:
            until(place, expected, broker.is_alive)
            broker.eventually_says("runs (process")
            expected.append((len(expected), 0))
            send(tmp_path / "root", "t", "b")  # and the next one grants that, if this does not

        first = begin()
        serves(first)
        second = begin()
        second.eventually_says("stands by")
        first.kill()
        serves(second)
        third = begin()
        third.eventually_says("stands by")
        os.kill(second.process.pid, signal.SIGSTOP)
        serves(third)
        os.kill(second.process.pid, signal.SIGCONT)
        second.eventually_says("stands by")
        assert third.ends_in_order()
        second.eventually_says("runs (process", times=2)
        until(place, expected, second.is_alive)
        assert second.ends_in_order()
        assert "term 3" in third.said()
        assert "term 4" in second.said()
        assert "pulsar_spark/" not in third.said(), "a trace was printed"


class _Standby:
    """A process `pulsarlite standalone --standby`, whose output is in a file."""

    def __init__(self, folder: Path, host: tuple[str, ...]) -> None:
        self._output = Path(tempfile.mkstemp(dir=folder)[1])
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pulsar_spark",
                 "standalone", "--standby", "--service-url", "root", *host],
                cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @staticmethod
    def begin(folder: Path, all_ended: ExitStack, host: tuple[str, ...]) -> _Standby:
        broker = _Standby(folder, host)
        all_ended.callback(broker.kill)
        return broker

    def said(self) -> str:
        return self._output.read_text()

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def eventually_says(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.said().count(text) >= times, what=f"{text!r} is said")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ends_in_order(self) -> bool:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(timeout=180) == 0


def test_what_spark_lacks_is_said_before_the_broker_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    with pytest.raises(SparkNotReadyError, match=r"can't be written.*checkpoint="):
        check_spark(spark, str(blocked / "checkpoint"))
    with monkeypatch.context() as patch:
        patch.setattr(spark._sc, "pythonExec", "/another/python3")
        with pytest.raises(SparkNotReadyError, match="set PYSPARK_PYTHON="):
            check_spark(spark, str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(SparkNotReadyError, match="pip install protobuf"):
            check_spark(spark, str(tmp_path))


def test_on_a_cluster_with_a_root_in_a_bucket_a_checkpoint_for_all_machines_is_asked_for(
    tmp_path: Path,
) -> None:
    def on(master: str) -> Any:
        return SimpleNamespace(conf={"spark.master": master}, _sc=object())

    bucket, folder = Root("s3://a-bucket/topics", {}), Root(str(tmp_path), {})
    remote: Any = SimpleNamespace(conf={"spark.master": "local[2]"})
    for elsewhere in (on("spark://host:7077"), remote):
        with pytest.raises(SparkNotReadyError, match="--checkpoint"):
            default_checkpoint(bucket, elsewhere)
    assert str(Path.home()) in default_checkpoint(bucket, on("local[2]"))
    assert str(tmp_path) in default_checkpoint(folder, on("spark://host:7077"))
