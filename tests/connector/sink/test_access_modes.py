"""Access modes between sinks: whose commit lands, and whose never does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.producer_connection import claim_of, connect
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import ProducerBusyError, ProducerFencedError
from pulsar_spark.log.producer_registry import FENCED_RUNS, ProducerRegistry
from pulsar_spark.options.options import Scope
from tests.connector.reading import messages
from tests.connector.topics import ledger_of, options_of, send, written
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("impatient")


class Sink:
    """A query as its commits see it: name and run."""

    def __init__(self, root: Path, name: str, mode: str | None, run: int = 1, **given: Any) -> None:
        mode_given = {} if mode is None else {"accessMode": mode}
        self.options = options_of(root, Scope.WRITE, {"topic": "t", **mode_given, **given})
        self.root = Root.of(self.options)
        self.name, self.batch = name, 100 * run
        self.claim = claim_of(self.options, name, f"{name}-{run}")

    def write(self, value: str) -> Any:
        return written(self.options, [value])

    def publish(self, value: str, files: Any = None) -> None:
        self.batch += 1
        managed_ledger._cache.clear()  # as another process
        application = (self.name, self.batch)
        publish(self.root, files or self.write(value), application, self.claim)


def values(root: Path) -> list[str]:
    return [message["value"].decode() for message in messages(root)]


def test_an_exclusive_sink_keeps_others_out_and_nothing_of_theirs_is_published(root: Path) -> None:
    Sink(root, "a", "Exclusive").publish("a1")
    for mode, error in (
        ("Exclusive", ProducerFencedError),
        ("Shared", ProducerBusyError),
        (None, ProducerBusyError),
    ):
        with pytest.raises(error, match=r"existing exclusive producer: a.*Nothing was published"):
            Sink(root, "b", mode).publish("b")
    assert values(root) == ["a1"]


def test_a_fenced_sink_s_commit_never_lands(root: Path) -> None:
    old = Sink(root, "old", "Exclusive")
    old.publish("old 1")
    files = old.write("old 2")
    new = Sink(root, "new", "ExclusiveWithFencing")
    new.publish("new 1")
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match=r"Fenced out: old.*WaitForExclusive waits"):
            old.publish("old 2", files)
    new.publish("new 2")
    assert values(root) == ["old 1", "new 1", "new 2"]


def test_a_sink_that_is_fenced_between_its_look_and_its_commit_loses_the_race(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Sink(root, "old", "Exclusive")
    old.publish("old 1")
    put = ManagedLedger._try
    fences = [Sink(root, "new", "ExclusiveWithFencing")]

    def fenced_just_before(self: ManagedLedger, proposal: Any) -> bool:
        if fences:
            fences.pop().publish("new 1")
        return put(self, proposal)

    files = old.write("old 2")
    monkeypatch.setattr(ManagedLedger, "_try", fenced_just_before)
    with pytest.raises(ProducerFencedError):
        old.publish("old 2", files)
    assert values(root) == ["old 1", "new 1"]


def test_a_sink_without_an_access_mode_can_t_slip_in_either(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, "t", ["0"])
    put = ManagedLedger._try
    owners = [Sink(root, "owner", "Exclusive")]

    def claimed_just_before(self: ManagedLedger, proposal: Any) -> bool:
        if owners:
            owners.pop().publish("owner 1")
        return put(self, proposal)

    monkeypatch.setattr(ManagedLedger, "_try", claimed_just_before)
    with pytest.raises(ProducerBusyError):
        Sink(root, "any", None).publish("any")
    assert values(root) == ["0", "owner 1"]


@pytest.mark.parametrize("mode", ["Exclusive", "ExclusiveWithFencing"])
def test_a_sink_that_is_fenced_on_one_of_its_topics_publishes_to_none(
    root: Path, mode: str
) -> None:
    old = Sink(root, "old", mode)
    topics = {"topic": ["a", "b", "c"]}

    def publish_all() -> None:
        old.batch += 1
        files = written(options_of(root, Scope.WRITE), ["1", "2", "3"], topics)
        publish(old.root, files, ("old", old.batch), old.claim)

    publish_all()
    new = Sink(root, "new", "ExclusiveWithFencing")
    publish(new.root, written(options_of(root, Scope.WRITE, {"topic": "b"}), ["new"], None),
            ("new", 0), new.claim)  # fmt: skip
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match=r"Nothing was published to .*/b"):
            publish_all()
    counts = {topic: len(messages(root, topic)) for topic in "abc"}
    assert counts == {"a": 1, "b": 2, "c": 1}


def test_a_fenced_sink_stays_so_after_a_hundred_runs_of_the_owner(root: Path) -> None:
    old = Sink(root, "old", "ExclusiveWithFencing")
    old.publish("old 1")
    ledger = ledger_of(root, "t")
    for run in range(FENCED_RUNS + 2):
        claim = Sink(root, "new", "ExclusiveWithFencing", run).claim
        assert claim is not None
        connect(ledger, claim)
    with pytest.raises(ProducerFencedError):
        old.publish("old 2")
    Sink(root, "new", "ExclusiveWithFencing", FENCED_RUNS + 1).publish("new 1")
    assert values(root) == ["old 1", "new 1"]


def test_a_run_that_repeats_what_was_published_fences_nobody(root: Path) -> None:
    old, new = Sink(root, "q", "ExclusiveWithFencing"), Sink(root, "q", "ExclusiveWithFencing", 2)
    new.batch = old.batch
    new.publish("1")
    old.publish("1")
    new.publish("2")
    assert values(root) == ["1", "2"]


def test_a_waiting_sink_publishes_when_the_owner_is_gone(root: Path) -> None:
    owner = Sink(root, "owner", "Exclusive")
    owner.publish("owner 1")
    waiting = Sink(root, "waiting", "WaitForExclusive")
    files = waiting.write("waiting 1")
    thread = threading.Thread(target=waiting.publish, args=("", files))
    thread.start()

    def waits() -> bool:
        ledger = ledger_of(root, "t")
        registry = ProducerRegistry.from_json_value(ledger.state.producers)
        return bool(registry.waiting)

    eventually(waits, what="the second sink waits")
    owner.publish("owner 2")
    assert owner.claim is not None
    publish(owner.root, owner.write("owner 3"), ("owner", 999), owner.claim, leaves=True)
    thread.join(120)
    assert not thread.is_alive()
    assert values(root) == ["owner 1", "owner 2", "owner 3", "waiting 1"]


def test_a_batch_has_the_topic_for_its_commit_only(root: Path) -> None:
    for name in "ab":
        sink = Sink(root, name, "Exclusive")
        publish(sink.root, sink.write(name), None, sink.claim, leaves=True)
    send(root, "t", ["c"])
    assert values(root) == ["a", "b", "c"]


def test_a_batch_that_was_published_before_leaves_the_topic_too(root: Path) -> None:
    for _ in range(2):
        sink = Sink(root, "job", "Exclusive")
        publish(sink.root, sink.write("a"), ("job", 1), sink.claim, leaves=True)
    send(root, "t", ["b"])
    assert values(root) == ["a", "b"]


def test_a_batch_that_fails_leaves_the_topic_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(root, "job", "Exclusive")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ManagedLedger, "append", fail)
        with pytest.raises(OSError, match="the disk is full"):
            publish(sink.root, sink.write("a"), None, sink.claim, leaves=True)
    send(root, "t", ["b"])
    assert values(root) == ["b"]


def test_an_owner_whose_lease_is_over_makes_room(root: Path) -> None:
    owner = Sink(root, "owner", "Exclusive", producerLease="1ms")
    owner.publish("owner 1")
    other = Sink(root, "other", "Exclusive")

    def has_it() -> bool:
        try:
            connect(ledger_of(root, "t"), other.claim)
        except ProducerFencedError:
            return False
        return True

    eventually(has_it, what="the lease is over")
    other.publish("other 1")
    with pytest.raises(ProducerFencedError):
        owner.publish("owner 2")
    assert values(root) == ["owner 1", "other 1"]


def test_the_snapshot_keeps_who_has_the_topic(root: Path) -> None:
    old = Sink(root, "old", "Exclusive")
    old.publish("1")
    new = Sink(root, "new", "ExclusiveWithFencing")
    new.publish("2")
    ledger = ledger_of(root, "t")
    ledger.write_snapshot()
    producers = ledger.state.producers
    managed_ledger._cache.clear()
    assert ledger_of(root, "t").state.producers == producers
    with pytest.raises(ProducerFencedError):
        old.publish("3")


RIVAL = """
import sys
from pathlib import Path
from pulsar_spark.errors import ProducerFencedError
from tests.connector.sink.test_access_modes import Sink
root, name, runs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for run in range(runs):
    sink = Sink(root, name, "ExclusiveWithFencing", run)
    try:
        for number in range(50):
            sink.publish(f"{name}-{run}")
    except ProducerFencedError:
        continue
"""


@pytest.mark.slow
def test_rivals_in_three_processes_never_publish_after_they_were_fenced(root: Path) -> None:
    """Each fences the others out and publishes until it is fenced itself, ten times over."""
    send(root, "t", ["0"])
    rivals = [
        subprocess.Popen([sys.executable, "-c", RIVAL, str(root), name, "10"]) for name in "abc"
    ]
    assert [rival.wait(120) for rival in rivals] == [0, 0, 0]
    owner, seen, handovers = None, set(), 0
    log = sorted((root / "persistent/public/default/t/_log").glob("*.json"))
    for commit in (json.loads(path.read_text()) for path in log if path.stem.isdecimal()):
        if "producers" in commit:
            topic = commit["producers"]["topic"]
            now = commit["producers"]["incarnations"].get(topic["exclusive_producer"])
            if now != owner:
                assert now not in seen, f"{now} is back after it was fenced out"
                seen.add(now)
                owner, handovers = now, handovers + 1
        application = commit["application"]
        if application and commit.get("ledgers"):
            run = application["version"] // 100
            assert f"{application['id']}-{run}" == owner, "a commit of one who was fenced out"
    assert handovers >= 3


def test_spark_s_queries_are_fenced_by_their_runs(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()

    def run(query: str, number: int, mode: str) -> None:
        (tmp_path / "in" / f"{query}{number}.json").write_text(
            json.dumps({"value": f"{query}{number}"})
        )
        frame = spark.readStream.schema("value string").json(str(tmp_path / "in" / f"{query}*"))
        writer = frame.writeStream.format("pulsarlite").options(topic="t", accessMode=mode)
        writer = writer.option("checkpointLocation", str(tmp_path / query))
        assert writer.trigger(availableNow=True).start(str(root)).awaitTermination(120)

    run("a", 1, "Exclusive")
    with pytest.raises(PySparkException, match="existing exclusive producer"):
        run("b", 1, "Exclusive")
    run("a", 2, "Exclusive")
    run("c", 1, "ExclusiveWithFencing")
    with pytest.raises(PySparkException, match="existing exclusive producer"):
        run("a", 3, "Exclusive")
    frame = spark.sql("select 'batch' as value").write.format("pulsarlite").mode("append")
    with pytest.raises(PySparkException, match="existing exclusive producer"):
        frame.options(topic="t").save(str(root))
    frame.options(topic="t", accessMode="ExclusiveWithFencing").save(str(root))
    assert values(root) == ["a1", "a2", "c1", "batch"]
