"""`pulsarlite topics verify`: what is printed, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line import noun
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.model.topic_name import TopicPartition
from tests.command_line.test_progress_bar import terminal
from tests.connector.topics import ledger_of, send

ORDERS = "persistent://public/default/orders"


@pytest.fixture
def orders(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A topic of three ledgers, with a subscription."""
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    for value in "abc":
        send(root, "orders", [value])
    there = Root(str(root), {})
    topic_partition = TopicPartition(ORDERS, 0)
    SystemTopic(there, COMMANDS).append(
        [Record.of(topic_partition, "billing", CreateSubscription("billing"))]
    )
    with EmbeddedBroker(there) as broker:
        broker.until_quiet()
    return root


def lose_a_file(root: Path) -> str:
    ledger = ledger_of(root, "orders")
    file = ledger.ledgers(0)[1].file
    Path(root, ledger.folder, file).unlink()
    return file


def test_a_sound_topic_s_account_is_printed_and_the_status_is_0(
    orders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", "verify", "orders"]) == 0
    first, heads, row, last = capsys.readouterr().out.splitlines()
    assert first == f"ok      {ORDERS}: 3 messages published, 3 there, 0 removed; commit 3"
    assert heads.split() == [
        "subscription", "partition", "published", "=", "acknowledged", "+", "backlog", "+",
        "removed",
    ]  # fmt: skip
    assert row.split() == ["billing", "0", "3", "0", "3", "0"]
    assert last == "1 topics are as they were published; --deep reads their files too"


def test_without_a_name_it_is_all_topics_and_those_of_the_system(
    orders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", "verify", "--deep"]) == 0
    out = capsys.readouterr().out
    assert out.count("ok      ") == 3
    assert "pulsar/system/__dispatch" in out


@pytest.mark.parametrize("deep", [False, True])
def test_what_differs_is_named_with_what_to_do_and_the_status_is_1(
    orders: Path, deep: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lose_a_file(orders)
    assert main(["topics", "verify", *(["--deep"] if deep else [])]) == 1
    captured = capsys.readouterr()
    assert f"DIFFERS {ORDERS}" in captured.out
    assert f"partition 0, file {file}: {file} is not there" in captured.out
    assert "-> Bring the file back from a copy." in captured.out
    assert captured.out.count("ok      ") == 2, "the others are looked at all the same"
    assert "[VERIFICATION] 1 differences in 3 topics. Nothing was changed" in captured.err


def test_as_json_each_topic_is_a_line(orders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = lose_a_file(orders)
    assert main(["topics", "verify", "--regex", "orders", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    topic = json.loads(line)
    (difference,) = topic.pop("differences")
    assert difference.pop("remedy").startswith("Bring the file back")
    assert difference == {
        "check": "file", "text": f"{file} is not there", "partition": 0, "subscription": None,
        "ledger_id": 1, "file": file,
    }  # fmt: skip
    assert topic == {
        "topic": ORDERS, "deep": False, "commit": 3, "ok": False, "unnamed_files": 0,
        "unverified": [],
        "partitions": [{
            "partition": 0, "published": 3, "messages": 3, "removed": 0, "ledgers": 3,
            "subscriptions": [
                {"subscription": "billing", "acknowledged": 0, "backlog": 3, "removed": 0}
            ],
        }],
    }  # fmt: skip


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("what", ["data", "log"])
def test_what_can_not_be_read_is_not_verified_and_no_difference(
    orders: Path, deep: bool, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ledger_of(orders, "orders")
    file = ledger.ledgers(0)[1].file if what == "data" else log_file(2)
    name = Path(orders, ledger.folder, file)
    name.unlink()
    name.symlink_to(name)  # whoever opens it is refused
    given = ["--deep"] if deep else []
    assert main(["topics", "verify", *given]) == 1
    captured = capsys.readouterr()
    assert f"UNREAD  {ORDERS}" in captured.out
    assert "DIFFERS" not in captured.out
    assert "-> Look at the rights to it, and at the disk; then verify again." in captured.out
    assert captured.out.count("ok      ") == 2, "the others are looked at all the same"
    assert "0 differences in 3 topics, and 1 of them could not be verified" in captured.err
    assert main(["topics", "verify", "orders", *given, "--json"]) == 1
    topic = json.loads(capsys.readouterr().out)
    assert (topic["ok"], topic["differences"]) == (False, [])
    assert {each["check"] for each in topic["unverified"]} == {"unread"}


def test_a_topic_that_is_not_there_is_status_1_and_bad_usage_2(
    orders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", "verify", "order"]) == 1
    assert "Did you mean" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["topics", "verify", "--deepest"])
    assert ended.value.code == 2


def test_reading_all_files_has_a_bar_on_a_terminal(
    orders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(noun, "SHORT_SECONDS", 0)
    with terminal(monkeypatch) as sent:
        assert main(["topics", "verify", "--deep"]) == 0
    shown = b"".join(sent).decode()
    assert f"reading {ORDERS}" in shown
    assert not shown.rsplit("\r", 2)[-2].strip()
    assert "\r" not in capsys.readouterr().out


@pytest.mark.parametrize("chosen", [[], ["--regex", "ord.*"]], ids=["all", "a pattern"])
def test_where_there_is_no_topic_nothing_is_called_sound(
    tmp_path: Path, chosen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", "verify", "--service-url", str(tmp_path / "typo"), *chosen]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nothing was verified. Is --service-url the right one?" in captured.err
