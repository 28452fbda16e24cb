"""`pulsarlite produce`, `consume` and `read`: what they print, and what becomes of the messages."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.connector.tools.message_commands import received_messages
from pulsar_spark.connector.tools.message_commands.received_messages import printable
from pulsar_spark.model.topic_name import TopicName
from tests.connector.topics import send
from tests.recorded.record_pulsar_client_tools import PAYLOAD
from tests.waiting import eventually

RECORDED = Path(__file__).parents[1] / "recorded"
MEMORY = "command-line"


class PatientClock(ManualClock):
    """Stands still, but for who sleeps; nobody should for an hour."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.at_sleep: Any = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.at_sleep is not None:
            self.at_sleep()
        assert self.wall_ms() < 1_000_000 + 3_600_000, "it waits for ever"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[PatientClock]:
    clock = PatientClock()
    MemoryStore.named(MEMORY, clock)
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", f"memory://{MEMORY}")
    yield clock
    MemoryStore.forget(MEMORY)


@pytest.fixture
def served(clock: PatientClock) -> Iterator[pulsar.Client]:
    """A client that serves the root meanwhile, as a broker that runs does."""
    with pulsar.Client(f"memory://{MEMORY}") as client:
        yield client


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def fed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def consumed(capsys: pytest.CaptureFixture[str], topic: str, number: int) -> list[Any]:
    arguments = ["consume", topic, "-s", "s", "-p", "Earliest", "-n", str(number), "--json"]
    status, lines, error = run(capsys, *arguments)
    assert (status, error) == (0, f"pulsarlite: {number} messages successfully consumed\n")
    return [json.loads(line) for line in lines]


def stories() -> list[list[str]]:
    """Of each story its arguments, and the lines that Pulsar's own tool printed."""
    text = (RECORDED / "pulsar-client-tools.txt").read_text("utf-8")
    return [story.splitlines() for story in text.removeprefix("$ ").split("\n$ ")]


def test_the_same_is_printed_as_by_pulsars_own_tool(
    clock: PatientClock,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "payload.txt").write_bytes(PAYLOAD)
    assert stories()
    for command, *recorded in stories():
        try:
            status, lines, _ = run(capsys, *command.split(" "))
        except SystemExit as error:
            status, lines = int(str(error.code)), []
        if recorded[-1:] == ["[255]"]:
            assert (command, status) in [(command, 1), (command, 2)]
        elif recorded[-1:] == ["[2]"]:
            assert (command, bool(status), lines) == (command, True, [])
        else:
            times = re.compile(r"publishTime:\[\d+\]")
            printed = [times.sub("publishTime:[TIME]", line) for line in lines]
            assert (command, *map(in_any_order, printed)) == (
                command,
                *map(in_any_order, recorded),
            )
            assert status == 0


def in_any_order(line: str) -> str:
    """The line, a record's fields sorted: Java prints them in the order of its hashes."""
    head, brace, fields = line.partition("content:{")
    return head + brace + "".join(sorted(fields))


@pytest.mark.parametrize("command", ["produce", "consume", "read", "perf produce", "perf consume"])
def test_each_option_of_pulsars_tool_is_here_or_said_to_be_missing(command: str) -> None:
    from docs.command_line_page import MISSING, options_of

    recorded = json.loads((RECORDED / "pulsar-client-tools-4.0.json").read_text("utf-8"))
    ours = {name: each for each in options_of(command) for name in each.option_strings}
    missing = {name for names, _ in MISSING for name in names.split(", ")}
    for theirs in recorded["commands"][command]:
        here = [ours[name] for name in theirs["names"] if name in ours]
        if not here:
            assert missing & set(theirs["names"]), theirs
            continue
        each = here[0]
        topic_partition = (command, *theirs["names"])
        assert set(theirs["names"]) <= {*each.option_strings, "-v", "--version"}, topic_partition
        assert bool(theirs["takes"]) == (each.nargs != 0), topic_partition
        assert theirs["required"] == each.required, topic_partition
        if "no effect" not in str(each.help) and each.dest not in {"help", "service_url"}:
            default = {"[sub]": "sub", "\\n": "\\n"}.get(theirs["default"], theirs["default"])
            said = "earliest" if each.default is pulsar.MessageId.earliest else each.default
            number = re.sub(r"\.0$", "", str(default).lower())
            assert number == re.sub(r"\.0$", "", str(said).lower()), topic_partition


def test_each_line_of_standard_input_is_a_message(
    clock: PatientClock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed(monkeypatch, b"one\r\n\ntwo\xff\n")
    assert run(capsys, "produce", "t", "-f", "-", "--lines")[1] == [
        "3 messages successfully produced"
    ]
    contents = [each.get("content", each.get("contentBase64")) for each in consumed(capsys, "t", 3)]
    assert contents == ["one", "", base64.b64encode(b"two\xff").decode()]


def test_standard_input_is_one_message_that_comes_out_as_it_went_in(
    clock: PatientClock,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = bytes(range(256))
    fed(monkeypatch, content)
    assert main(["produce", "t", "-f", "-"]) == 0
    assert main(["consume", "t", "-s", "s", "-p", "Earliest"]) == 0
    printed = capsysbinary.readouterr().out
    assert b"content:" + content + b"\n1 messages successfully consumed\n" in printed


def test_a_terminal_gets_no_control_characters() -> None:
    assert printable(b"a\x1b[2J\tb\nc\x00\xff") == "a\\x1b[2J\tb\nc\\x00\N{REPLACEMENT CHARACTER}"


def test_what_was_not_printed_goes_back_to_the_subscription(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "produce", "t", "-m", "one,two,three")

    class Broken(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if b"content:two" in bytes(data):
                raise BrokenPipeError
            return super().write(data)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout := io.TextIOWrapper(Broken()))
        patch.setattr(os, "dup2", lambda *_: None)
        patch.setattr(stdout, "fileno", lambda: 1, raising=False)
        assert main(["consume", "t", "-s", "s", "-p", "Earliest", "-n", "0"]) == 0
    assert [each["content"] for each in consumed(capsys, "t", 2)] == ["two", "three"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_consumer_in_order(
    served: pulsar.Client,
    clock: PatientClock,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    status: int,
) -> None:
    run(capsys, "produce", "t", "-m", "one,two")
    handler = signal.getsignal(number)
    clock.at_sleep = lambda: os.kill(os.getpid(), number)
    ended = run(capsys, "consume", "t", "-s", "s", "-p", "Earliest", "-n", "0", "--hide-content")
    clock.at_sleep = None
    assert ended[:2] == (status, ["2 messages successfully consumed"])
    assert signal.getsignal(number) is handler
    run(capsys, "produce", "t", "-m", "three")
    assert [each["content"] for each in consumed(capsys, "t", 1)] == ["three"]


def test_a_signal_while_a_message_is_written_waits_for_it(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "produce", "t", "-m", "one,two,three")

    class Signalled(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if b"content:two" in bytes(data):
                os.kill(os.getpid(), signal.SIGTERM)
            return super().write(data)

    with monkeypatch.context() as patch:
        written = Signalled()
        patch.setattr(sys, "stdout", io.TextIOWrapper(written))
        assert main(["consume", "t", "-s", "s", "-p", "Earliest", "-n", "0"]) == 143
        sys.stdout.flush()
        assert b"content:two\n2 messages successfully consumed\n" in written.getvalue()
    assert "interrupted" in capsys.readouterr().err
    assert [each["content"] for each in consumed(capsys, "t", 1)] == ["three"]


def test_a_rate_is_kept(clock: PatientClock, capsys: pytest.CaptureFixture[str]) -> None:
    begun_ms = clock.wall_ms()
    run(capsys, "produce", "t", "-m", "one", "-n", "21", "-r", "2")
    assert clock.wall_ms() - begun_ms >= 10_000
    assert len(consumed(capsys, "t", 21)) == 21


def test_a_message_that_cannot_be_published_ends_it_and_the_others_are_counted(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = '{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'
    arguments = ["-m", '{"n":1};{"n":"x"};{"n":3}', "-s", ";", "-vs", f"json:{definition}"]
    status, lines, error = run(capsys, "produce", "t", *arguments)
    assert (status, lines) == (1, ["1 messages successfully produced"])
    assert error.startswith("pulsarlite: [INVALID_MESSAGE]")
    assert "--value-schema" in error
    assert [each["content"] for each in consumed(capsys, "t", 1)] == ['{"n":1}']


def test_a_message_that_is_too_large_goes_in_chunks_if_told_to(
    clock: PatientClock, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = b"0123456789abcdef" * (6 << 16)
    (tmp_path / "large").write_bytes(content)
    arguments = ["produce", "t", "-f", str(tmp_path / "large")]
    status, lines, error = run(capsys, *arguments)
    assert (status, lines) == (1, ["0 messages successfully produced"])
    assert "maxMessageSize" in error
    assert run(capsys, *arguments, "-c")[1] == ["1 messages successfully produced"]
    assert consumed(capsys, "t", 1)[0]["content"].encode() == content


def test_a_file_that_is_not_there_is_named(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run(capsys, "produce", "t", "-f", "nowhere.txt")
    assert status == 1
    assert "--files nowhere.txt: No such file" in error


def test_ids_are_printed_as_json_and_read_begins_behind_or_at_one(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines, _ = run(capsys, "produce", "t", "-m", "one,two,three", "--json")
    second = json.loads(lines[1])["messageId"]
    read = ["read", "t", "-m", second, "-n", "1", "--json"]
    assert json.loads(run(capsys, *read)[1][0])["content"] == "three"
    assert json.loads(run(capsys, *read, "-i")[1][0])["content"] == "two"


def test_a_pattern_has_the_messages_of_all_its_topics(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in ("eu-1", "eu-2", "us-1"):
        run(capsys, "produce", topic, "-m", topic)
    arguments = ["consume", "eu-.*", "--regex", "-s", "s", "-p", "Earliest", "-n", "2", "--json"]
    found = [json.loads(line)["content"] for line in run(capsys, *arguments)[1]]
    assert sorted(found) == ["eu-1", "eu-2"]
    status, _, error = run(capsys, "consume", "eu-[", "--regex", "-s", "s")
    assert (status, "TOPIC eu-[: it takes a regular expression" in error) == (1, True)


def test_a_time_says_where_a_consumer_begins_and_ends(
    served: pulsar.Client, clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    times = []
    for content in ("one", "two", "three"):
        clock.advance(1000)
        times.append(clock.wall_ms())
        run(capsys, "produce", "t", "-m", content)
    between = ["-stp", str(times[1]), "-etp", str(times[1] + 500)]
    arguments = ["consume", "t", "-s", "s", "-p", "Earliest", "-n", "0", "--json", *between]
    found = [json.loads(line)["content"] for line in run(capsys, *arguments)[1]]
    assert found == ["two"]


def test_numbers_are_shown_by_the_topics_schema(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    from pulsar_spark.connector.tools.message_commands.produce_command import EncodedSchema
    from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

    with pulsar.Client(f"memory://{MEMORY}") as client:
        schema = EncodedSchema(SchemaInfo(SchemaType.INT16))
        client.create_producer("t", schema=schema).send(b"\x01\x02")
    line = run(capsys, "read", "t", "-m", "earliest", "-st", "auto_consume")[1][1]
    assert line.endswith("content:{value=258, type=class java.lang.Short}")
    line = run(capsys, "read", "t", "-m", "earliest", "-st", "auto_consume", "--json")[1][0]
    assert json.loads(line)["content"] == 258


def test_a_message_of_a_time_that_python_has_not_is_printed_too(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    last = pa.array([(1 << 63) - 1], pa.timestamp("us", "UTC"))
    send(f"memory://{MEMORY}", "t", ["a"], columns={"event_time": last})
    status, lines, _ = run(capsys, "read", "t", "-m", "earliest", "--print-metadata")
    assert status == 0
    assert "event-time:294247-01-10T04:00:54.775Z" in lines[1]


def test_a_process_that_is_read_no_more_ends_quietly_and_has_loaded_no_spark(root: Path) -> None:
    store = ["--service-url", str(root)]
    program = (
        "import sys; from pulsar_spark.__main__ import main; status = main(); "
        "sys.exit(status or 'pyspark' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    lines = b"".join(b"line %d\n" % each for each in range(20_000))
    produce = [*command, "produce", "t", "-f", "-", "--lines", *store]
    made = subprocess.run(produce, input=lines, capture_output=True, check=True)
    assert made.stdout == b"20000 messages successfully produced\n"
    consume = [*command, "consume", "t", "-s", "s", "-p", "Earliest", "-n", "0", *store]
    with subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"----- got message -----\n"
        process.stdout.close()
        reported = process.stderr.read().decode().splitlines()
        assert process.wait() == 0
    assert reported == [
        f"pulsarlite: No broker of {root} runs: this process serves it until it ends."
    ]


def test_a_signal_ends_a_producer_that_waits_for_input_and_what_it_read_is_published(
    root: Path,
) -> None:
    command = [sys.executable, "-m", "pulsar_spark", "produce", "t", "-f", "-", "--lines"]
    arguments = [*command, "--service-url", str(root)]
    topics = Root(str(root), {})
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        name = TopicName.parse("t")
        eventually(
            lambda: (t := topics.open_found(name)) and t.state.partition(0).messages == 2,
            what="both lines are published",
        )
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"2 messages successfully produced\n"
        assert process.wait() == 143


def turning(broker: EmbeddedBroker) -> Callable[[], None]:
    def run_once() -> None:
        broker.run_once()

    return run_once


# -- which broker ------------------------------------------------------------------------------


def test_this_process_serves_a_root_that_nobody_serves_and_says_so(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--service-url", str(root)]
    run(capsys, "produce", "t", "-m", "hello", *store)
    status, lines, error = run(capsys, "consume", "t", "-s", "s", "-p", "Earliest", *store)
    assert (status, lines[-1]) == (0, "1 messages successfully consumed")
    assert error == f"pulsarlite: No broker of {root} runs: this process serves it until it ends.\n"


def test_who_wants_a_broker_that_runs_learns_at_once_that_none_does(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["consume", "t", "-s", "s", "--broker", "running", "--service-url", str(root)]
    status, _, error = run(capsys, *arguments)
    assert status == 1
    assert error.startswith("pulsarlite: [BROKER_ABSENT]")
    assert "pulsarlite standalone --service-url" in error


def test_a_broker_that_runs_is_used_and_not_replaced(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--service-url", str(root)]
    run(capsys, "produce", "t", "-m", "hello", *store)
    with EmbeddedBroker(Root(str(root), {})) as broker:
        stop = Root(str(root), {}).clock.repeat(0.01, turning(broker), "broker")
        try:
            arguments = ["consume", "t", "-s", "s", "-p", "Earliest", *store]
            status, lines, error = run(capsys, *arguments)
            assert (status, lines[-1], error) == (0, "1 messages successfully consumed", "")
            status, _, error = run(capsys, *arguments, "--broker", "embedded")
            assert status == 1
            assert "A broker serves" in error
        finally:
            stop()


def test_a_broker_that_goes_is_said_to_be_gone_once(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = []
    monkeypatch.setattr(received_messages, "DEAD_AFTER_MS", 0)

    def note(text: str) -> None:
        reported.append(text)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(received_messages, "note", note)
    store = ["--service-url", str(root)]
    run(capsys, "produce", "t", "-m", "hello", *store)
    broker = EmbeddedBroker(Root(str(root), {}))
    stop = Root(str(root), {}).clock.repeat(0.01, turning(broker), "broker")

    class Ending(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if b"content:" in bytes(data):
                stop()
                broker.close()
            return super().write(data)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(Ending()))
        assert main(["consume", "t", "-s", "s", "-p", "Earliest", "-n", "0", *store]) == 143
    assert len(reported) == 1
    assert reported[0].startswith(
        f"The broker of {root} shows no life: waiting for one (pulsarlite "
    )
