"""`pulsarlite topics ...`: what is printed, what is refused, and that no Spark is needed."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.policies import SchemaPolicies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import MESSAGE_SCHEMA, LedgerFileWriter
from pulsar_spark.connector.tools.command_line.command_line import main, pulsarlite_message
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.positions.ledger_info import BatchSizes
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.reading import messages
from tests.connector.sink.test_chunked_messages import send_rows
from tests.connector.topics import files_below

DAY_MS = 86_400_000


@pytest.fixture
def topics(root: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root with one topic of two partitions; two days of three messages each."""
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    topics = Root(str(root), {})
    ledger = topics.create(TopicName.parse("orders"), 2)
    for day in (1, 2):
        with LedgerFileWriter(ledger.store, ledger.folder) as writer:
            values = [f"order {day}.{number}\x1b[2J".encode() for number in range(3)]
            times = [dt.datetime.fromtimestamp(day * 86400, dt.timezone.utc)] * 3
            rows = pa.table(
                {
                    name: {"value": values, "publish_time": times}.get(name, [None] * 3)
                    for name in MESSAGE_SCHEMA.names
                },
                schema=MESSAGE_SCHEMA,
            )
            first_row = writer.write(rows, 0)
            writer.close()
        sizes = BatchSizes.of([2, 1])
        new = NewLedger(0, writer.path, first_row, sizes, 27, day * DAY_MS, day * DAY_MS)
        ledger.append([new])
    return topics


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def test_topics_are_listed_with_partitions_and_messages(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, _ = run(capsys, "topics", "list")
    assert status == 0
    assert lines[1].split() == ["persistent://public/default/orders", "2", "6"]
    assert run(capsys, "topics", "list", "public/other")[1][0].startswith("No topics in ")


def test_folders_without_a_topic_are_passed_over(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = run(capsys, "topics", "list")
    for stray in ("being-made/_log", "killed", "no%zztopic", "a b", "-partition-3"):
        Path(topics.service_url, "persistent/public/default", stray).mkdir(parents=True)
    Path(topics.service_url, "persistent/lost+found/x/y").mkdir(parents=True)
    assert run(capsys, "topics", "list") == listed
    assert run(capsys, "topics", "tidy", "orders")[0] == 0


def test_system_topics_are_listed_on_request_only(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    SystemTopic(topics, COMMANDS).open()
    topics.create(TopicName.parse("acme/eu/__change_events"), 1)
    assert len(run(capsys, "topics", "list")[1]) == 2
    assert run(capsys, "topics", "list", "pulsar/system")[1][0].startswith("No topics in ")
    listed = run(capsys, "topics", "list", "--include-system-topics")[1]
    assert [line.split()[0] for line in listed[1:]] == [
        "persistent://acme/eu/__change_events",
        "persistent://public/default/orders",
        "persistent://pulsar/system/__commands",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "create", "__new"],
        ["topics", "create", "pulsar/system/plain"],
        ["topics", "update", "pulsar/system/__commands", "-p", "2"],
        ["topics", "trim", "pulsar/system/__commands", "--before", "9"],
        ["topics", "compact", "pulsar/system/__commands"],
        ["topics", "set-deduplication", "pulsar/system/__commands", "--enable"],
        ["subscriptions", "create", "pulsar/system/__commands", "s"],
    ],
)
def test_users_cannot_create_or_change_system_topics(
    topics: Root, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    SystemTopic(topics, COMMANDS).open()
    before = files_below(Path(topics.service_url))
    status, lines, error = run(capsys, *command)
    assert (status, lines) == (1, [])
    assert "[INVALID_TOPIC_NAME]" in error
    assert "is a system topic" in error
    assert files_below(Path(topics.service_url)) == before


def test_system_topics_can_be_looked_into(topics: Root, capsys: pytest.CaptureFixture[str]) -> None:
    SystemTopic(topics, COMMANDS).append([Record(TopicPartition("orders", 0), "s", b"{}")])
    for command in ("stats", "peek", "tidy"):
        assert run(capsys, "topics", command, str(COMMANDS))[0] == 0


def test_a_topic_is_compacted_once(topics: Root, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = run(capsys, "topics", "compact", "orders", "--retain-null-key")
    assert (status, lines) == (0, ["partition 0: kept 6 of 6 messages, up to 1:1"])
    status, lines, _ = run(capsys, "topics", "compact", "orders")
    assert status == 0
    assert lines[0].startswith("Nothing was published to persistent://public/default/orders")


def test_a_folder_that_is_not_there_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines, _ = run(capsys, "topics", "list", "--service-url", str(tmp_path / "x"))
    assert lines[0].endswith("there is no such folder")


def test_a_topic_is_created_once_and_grows(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "topics", "create", "new", "-p", "3")[0] == 0
    status, lines, error = run(capsys, "topics", "create", "new", "-p", "3")
    assert (status, lines) == (1, [])
    assert error.startswith("pulsarlite: [TOPIC_EXISTS]")
    assert error.count("\n") == 1
    assert run(capsys, "topics", "update", "new", "-p", "2")[0] == 1
    assert run(capsys, "topics", "update", "new", "-p", "5")[0] == 0
    assert topics.open(TopicName.parse("new")).state.partitions == 5


def test_stats_count_by_partition(topics: Root, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = run(capsys, "topics", "stats", "orders", "--table")
    assert lines[2].split() == ["0", "2", "4", "6", "54", "B", "2", "0:0", "1:1"]
    assert lines[3].split() == ["1", "0", "0", "0", "0", "B", "0", "-", "-"]
    assert lines[4].startswith("6 messages in 2 files of ")


def test_peek_prints_ids_and_nothing_that_plays_with_the_terminal(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines, _ = run(capsys, "topics", "peek", "orders", "-n", "4")
    assert [line.split()[0] for line in lines[0:8:2]] == [
        "0:0:0:0",
        "0:0:0:1",
        "0:1:0:0",
        "1:0:0:0",
    ]
    assert lines[1] == "    order 1.0\\x1b[2J"
    assert lines[8] == "partition 1 is empty"
    _, lines, _ = run(capsys, "topics", "peek", "orders-partition-0", "-n", "2", "--last")
    assert [line.split()[0] for line in lines[0::2]] == ["1:0:0:1", "1:1:0:0"]


def test_trim_by_time_drops_what_is_wholly_older(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ["topics", "trim", "orders", "--before-time"]
    assert "Nothing" in run(capsys, *before, "1970-01-01")[1][0]
    assert "Dropped 3 messages" in run(capsys, *before, "1970-01-02T12:00:00Z")[1][0]
    assert topics.open(TopicName.parse("orders")).state.partition(0).messages == 3


def test_what_housekeeping_did_is_told_to_programs(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    def reported(command: str, *arguments: str) -> Any:
        _, lines, _ = run(capsys, "topics", command, "orders", *arguments, "--json")
        return json.loads("".join(lines))

    topic = "persistent://public/default/orders"
    assert reported("compact", "--retain-null-key") == [
        {"partition": 0, "kept": 6, "read": 6, "horizon": "1:1"}
    ]
    assert reported("compact") == []
    found = reported("schemas")
    assert (found["topic"], found["schemas"]) == (topic, [])
    tidied = reported("tidy")
    assert (tidied["merged"], tidied["waiting"]) == (2, 2)
    assert reported("trim", "--before", "1") == {"topic": topic, "messages": 3, "ledgers": 1}
    assert reported("trim", "--before", "1") == {"topic": topic, "messages": 0, "ledgers": 0}


def test_a_trim_leaves_the_chunks_of_a_message_that_stays(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    send_rows(root, ("p", -1, 0, "plain"))
    send_rows(root, ("x", 0, 3, "a"))
    send_rows(root, ("x", 1, 3, "b"), ("x", 2, 3, "c"))
    assert "Dropped 1 messages" in run(capsys, "topics", "trim", "t", "--before", "2")[1][0]
    assert [each["value"] for each in messages(root)] == [b"abc"]


def test_trim_by_id_drops_ledgers_before_it(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Nothing" in run(capsys, "topics", "trim", "orders", "--before", "0:1:0")[1][0]
    assert "Nothing" in run(capsys, "topics", "trim", "orders", "--before", "1:0:1")[1][0]
    assert "Dropped 3 messages" in run(capsys, "topics", "trim", "orders", "--before", "1")[1][0]


def test_tidy_deletes_what_killed_consumers_have_left_of_their_leases(
    topics: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.store.touch("_leases/.tmp-1", b"half")
    topics.store.touch("_leases/s~c~1", b"{}")
    run(capsys, "topics", "tidy", "orders")
    assert topics.store.exists("_leases/.tmp-1"), "its writer may be at work"
    run(capsys, "topics", "tidy", "orders", "--orphan-age", "0ms")
    assert [item.path for item in topics.store.files("_leases")] == ["_leases/s~c~1"]


def test_tidy_merges_and_then_deletes(topics: Root, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = run(capsys, "topics", "tidy", "orders", "--grace", "0ms")
    assert lines[0].startswith("merged     2 small files into 1")
    assert lines[2].startswith("deleted    2 files")
    assert len(run(capsys, "topics", "peek", "orders-partition-0", "-n", "9")[1]) == 12


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("stats", "ordres"), "Did you mean persistent://public/default/orders?"),
        (("stats", "a/b"), "[INVALID_TOPIC_NAME]"),
        (("peek", "orders", "-n", "0"), "--count 0"),
        (("peek", "orders-partition-7"), "there is no partition 7"),
        (("verify", "--regex", "["), "--regex [: it takes a regular expression"),
        (("stats", "orders-partition-7"), "there is no partition 7"),
        (("stats-internal", "orders-partition-7"), "there is no partition 7"),
        (("reset-cursor", "orders", "-s", "s", "-t", "5x"), "a number alone is seconds"),
        (("expire-messages", "orders", "-s", "s", "-t", "soon"), "a number alone is seconds"),
        (("trim", "orders", "--before", "x"), "--before"),
        (("trim", "orders", "--before", ""), "--before"),
        (("trim", "orders", "--before", "1:0"), "--before"),
        (("trim", "orders", "--before-time", "soon"), "--before-time"),
        (("tidy", "orders", "--grace", "5x"), "--grace 5x"),
        (("tidy", "orders", "--inactive-age", "soon"), "--inactive-age soon"),
        (("create", "orders-partition-1"), "name of a partition"),
        (("create", "x", "-p", "0"), "1 to 10000 partitions"),
        (("list", "--storage", "x"), "NAME=VALUE"),
        (("list", "--service-url", "ftp://x"), "scheme 'ftp'"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    topics: Root, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], part: str
) -> None:
    status, lines, error = run(capsys, "topics", *arguments)
    assert (status, lines) == (1, [])
    assert part in error
    assert error.count("\n") == 1


def test_without_a_service_url_it_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PULSARLITE_SERVICE_URL", raising=False)
    status, _, error = run(capsys, "topics", "list")
    assert status == 1
    assert "--service-url" in error


def test_without_a_command_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)[0] == 0
    assert run(capsys, "topics")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("topcis",), ("topics", "peak"), ("topics", "trim", "x"), ("standalone", "--cores", "two"),
        ("standalone", "--cores", "0"), ("standalone", "--state-partitions", "0"),
    ],
)  # fmt: skip
def test_bad_usage_has_status_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topcis",), "there is no command topcis. Did you mean topics?"),
        (("topics", "crate", "t"), "there is no command crate. Did you mean create?"),
        (("topics", "set-retenton", "t"), "Did you mean set-retention?"),
        (("topics", "xyzzy"), "there is no command xyzzy. pulsarlite topics --help lists them."),
        (("topics", "create", "t", "--partitons", "3"), "Did you mean --partitions?"),
    ],
)
def test_a_mistyped_command_or_option_has_the_nearest_and_not_the_list_of_all(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    last = capsys.readouterr().err.splitlines()[-1]
    assert (stopped.value.code, last.endswith(said)) == (2, True), last


def test_topics_start_no_spark(topics: Root) -> None:
    code = (
        "import sys; from pulsar_spark.connector.tools.command_line.command_line import main;"
        "status = main(['topics', 'list']); assert 'py4j' not in sys.modules; sys.exit(status)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_interrupt_has_status_130(
    topics: Root, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pulsar_spark.connector.tools.command_line.noun.root_of", interrupted)
    status, _, error = run(capsys, "topics", "list")
    assert status == 130
    assert "interrupted" in error


def test_what_spark_has_wrapped_is_found_again() -> None:
    ours = "pulsar_spark.errors.DataLossError: [DATA_LOSS] gone. Do."
    wrapped = f"[STREAM_FAILED] x\n  File y\n{ours}\n== Plan"
    assert pulsarlite_message(wrapped) == "[DATA_LOSS] gone. Do."
    assert pulsarlite_message("java.lang.Exception") is None


def test_a_topic_s_schemas_are_listed(topics: Root, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = run(capsys, "topics", "schemas", "orders")
    assert (status, lines[1]) == (0, "no schemas: values are bytes")
    assert lines[0].endswith("compatibility FULL")
    definition = '{"type":"record","name":"r","fields":[{"name":"id","type":"long"}]}'
    orders = TopicName.parse("orders")
    schema = SinkSchema(SchemaInfo(SchemaType.AVRO, definition), SchemaPolicies())
    register(topics.open(orders), orders, schema)
    run(capsys, "topics", "set-is-allow-auto-update-schema", "orders", "--disable")
    lines = run(capsys, "topics", "schemas", "orders", "--definition")[1]
    assert lines[0].endswith("FULL, and no producer may add one")
    assert [line.split() for line in lines[1:3]] == [
        ["version", "type", "fields"], ["0", "AVRO", "id"],
    ]  # fmt: skip
    assert lines[3] == f"version 0: {definition}"
    run(capsys, "namespaces", "set-schema-validation-enforce", "public/default", "--enable")
    lines = run(capsys, "topics", "schemas", "orders")[1]
    assert lines[0].endswith("FULL, and no producer may add one, and none may go without")
