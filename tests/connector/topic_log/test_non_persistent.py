"""Non-persistent topics: who is connected gets each message once, nothing is kept for others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.broker.machine.retention import NON_PERSISTENT_KEPT_MS
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
from pulsar_spark.connector.storage.clock import SystemClock
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import InvalidOptionError
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Run
from tests.connector.subscription.test_subscription_reader import turns
from tests.connector.topic_log.state_check import check_state
from tests.connector.topics import files_below, ledger_of, options_of, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.connector.conftest import MakeQuery

TICKS = "non-persistent://public/default/ticks"

pytestmark = pytest.mark.usefixtures("impatient")

Move = Callable[[int], None]


class Ahead(SystemClock):
    """The machine's clock, and so many milliseconds."""

    by_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.by_ms


@pytest.fixture
def clock(root: Path) -> Move:
    """Moves the root's clock on by some milliseconds."""
    ahead = open_store(str(root)).clock = Ahead()

    def move(by_ms: int) -> None:
        ahead.by_ms += by_ms

    return move


# -- Readers -------------------------------------------------------------------------------------


def test_a_reader_gets_what_is_published_while_it_is_connected(root: Path) -> None:
    send(root, TICKS, ["before"])
    run = Run(root, topic=TICKS)
    assert run.values() == []
    send(root, TICKS, ["a"])
    send(root, TICKS, ["b", "c"])
    assert run.values() == ["a", "b", "c"]


def test_what_was_published_while_it_was_away_is_not_for_it(root: Path) -> None:
    send(root, TICKS, ["before"])
    run = Run(root, topic=TICKS)
    run.next()
    send(root, TICKS, ["a"])
    assert run.values() == ["a"]
    send(root, TICKS, ["missed"])
    again = Run(root, topic=TICKS, start=run.offset)
    assert again.values() == []
    send(root, TICKS, ["b"])
    assert again.values() == ["b"]


def test_a_micro_batch_that_is_repeated_has_what_is_still_there(root: Path) -> None:
    send(root, TICKS, ["before"])
    run = Run(root, topic=TICKS)
    run.next()
    send(root, TICKS, ["a"])
    batch = run.planned()
    assert batch is not None
    run.read(batch)
    assert batch.values == ["a"]
    again = Run(root, topic=TICKS, start=batch.start)
    again.read(batch)
    assert batch.values == ["a"]


def test_a_reader_that_is_too_slow_goes_on_without_an_error(root: Path, clock: Move) -> None:
    send(root, TICKS, ["before"])
    run = Run(root, topic=TICKS)
    run.next()
    send(root, TICKS, ["a"])
    late = run.planned()
    assert late is not None
    for _ in range(3):
        clock(3 * NON_PERSISTENT_KEPT_MS)
        send(root, TICKS, ["x"])
    assert run.read(late) == []
    run.commit(late)
    assert run.values() == ["x"]


def test_a_pattern_finds_non_persistent_topics_only_if_it_says_so(root: Path) -> None:
    send(root, TICKS, ["before"])
    send(root, "ticks", ["kept"])
    both = Run(root, topicsPattern="ticks", startingOffsets="earliest")
    assert both.values() == ["kept"]
    ticks = Run(root, topicsPattern="non-persistent://public/default/t.*")
    ticks.next()
    send(root, TICKS, ["a"])
    assert ticks.values() == ["a"]


def test_a_batch_can_not_read_what_nobody_keeps(root: Path) -> None:
    send(root, TICKS, ["before"])
    options = options_of(root, given={"topic": TICKS})
    reader = PulsarliteReader(options, Root.of(options), read_schema(include_properties=False))
    with pytest.raises(InvalidOptionError, match=r"Read it with spark\.readStream"):
        reader.partitions()


# -- publishing ----------------------------------------------------------------------------------


def test_what_is_old_is_deleted_by_who_publishes(root: Path, clock: Move) -> None:
    for _ in range(12):
        clock(NON_PERSISTENT_KEPT_MS)
        send(root, TICKS, ["x"])
    state = ledger_of(root, TICKS).state
    assert 1 <= state.partition(0).messages <= 3
    data = [path for path in files_below(root) if "/data/" in path]
    assert state.partition(0).messages <= len(data) <= 6


def test_nothing_of_it_waits_for_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send(root, TICKS, ["before"])
    send(root, "t", ["before"])
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    send(root, TICKS, ["a"])
    assert synced == []
    send(root, "t", ["a"])
    assert synced


@pytest.mark.parametrize("damage", [b"", bytes(200), b'{"version":1,"numb'])
@pytest.mark.parametrize("commits", [[3], [2, 3], [2]])
def test_what_a_machine_that_stopped_has_lost_does_not_end_it(
    root: Path, damage: bytes, commits: list[int]
) -> None:
    for value in ("a", "b", "c"):
        send(root, TICKS, [value])
    log = root / "non-persistent/public/default/ticks/_log"
    for number in commits:
        (log / f"{number:020}.json").write_bytes(damage)
    managed_ledger._cache.clear()  # as after the machine's start
    run = Run(root, topic=TICKS)
    assert run.values() == []
    send(root, TICKS, ["d"])
    assert run.values() == ["d"]
    state = ledger_of(root, TICKS).state
    check_state(state)
    assert state.number == 4
    assert ledger_of(root, TICKS).commits(0, 4) is None


def test_what_it_can_t_be_opened_without_is_durable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    )
    send(root, TICKS, ["a"])
    log = str(root / "non-persistent/public/default/ticks/_log")
    assert [path for path in synced if path.startswith(f"{log}/")], "the first commit"
    synced.clear()
    ledger_of(root, TICKS).write_snapshot()
    assert len([path for path in synced if path.startswith(f"{log}/")]) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunkingEnabled": True, "batchingEnabled": False}, "option chunkingEnabled can't be"),
        ({"transactional": True}, "option transactional can't be had"),
    ],
)
def test_what_needs_messages_to_be_kept_is_refused_before_anything_is_stored(
    root: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        send(root, TICKS, ["a"], **given)
    assert files_below(root) == {}


def test_it_is_listed_and_can_not_be_compacted(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(root, TICKS, ["a"])
    assert main(["topics", "list", "--service-url", str(root)]) == 0
    assert TICKS in capsys.readouterr().out
    assert main(["topics", "compact", TICKS, "--service-url", str(root)]) != 0
    assert "is non-persistent" in capsys.readouterr().err


# -- subscriptions -------------------------------------------------------------------------------


@pytest.fixture
def broker(root: Path, tmp_path: Path) -> PlainBroker:
    return PlainBroker(root, "_broker/broker")


def consumer(root: Path, **given: Any) -> Run:
    chosen = {"subscriptionName": "s", "subscriptionType": "Shared"} | given
    return Run(root, topic=TICKS, subscriptionInitialPosition="Earliest", **chosen)


def values(run: Run, broker: PlainBroker) -> list[str]:
    return [value for batch in turns(run, broker) for value in batch.values]


def test_a_consumer_gets_what_is_published_while_it_is_connected(
    root: Path, broker: PlainBroker
) -> None:
    send(root, TICKS, ["before"])
    run = consumer(root)
    assert values(run, broker) == []
    send(root, TICKS, ["a", "b"], columns={"deliver_at": [None, None]})
    assert values(run, broker) == ["a", "b"]


def test_a_subscription_is_gone_with_its_last_consumer(root: Path, broker: PlainBroker) -> None:
    send(root, TICKS, ["before"])
    run = consumer(root)
    assert values(run, broker) == []
    run.reader._client.close()  # type: ignore[union-attr]
    broker.until_quiet()
    send(root, TICKS, ["missed"])
    other = consumer(root, subscriptionType="Failover")
    assert values(other, broker) == []
    send(root, TICKS, ["a"])
    assert values(other, broker) == ["a"]


def test_two_consumers_share_what_comes(root: Path, broker: PlainBroker) -> None:
    send(root, TICKS, ["before"])
    one, two = (consumer(root, consumerName=name) for name in ("one", "two"))
    for run in (one, two):
        assert values(run, broker) == []
    for number in range(4):
        send(root, TICKS, [str(number)])
    got = [value for run in (one, two) for value in values(run, broker)]
    assert sorted(got) == ["0", "1", "2", "3"]


# -- on Spark ------------------------------------------------------------------------------------


@pytest.mark.spark
def test_on_spark_a_stream_reads_while_it_is_connected(
    spark: SparkSession, root: Path, query: MakeQuery
) -> None:
    def publish(value: bytes) -> None:
        frame = spark.createDataFrame([(value,)], "value binary")
        sink = frame.write.format("pulsarlite").option("topic", TICKS).mode("append")
        sink.save(str(root))

    publish(b"before")
    source = query(topic=TICKS)
    running = source.start()
    try:
        eventually(lambda: bool(source.batches), what="the query is connected")
        publish(b"a")
        source.wait_for({"a"})
    finally:
        running.stop()
    publish(b"missed")
    assert source.values() == []
