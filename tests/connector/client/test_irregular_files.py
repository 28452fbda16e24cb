"""A topic whose log has something else than a file, or a file without end: it alone is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.connector.tools.doctor.finding import State
from pulsar_spark.connector.tools.doctor.root_checks import check_root
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.model.topic_name import TopicName
from tests.connector.client.clients import received
from tests.connector.irregular_files import IRREGULAR
from tests.connector.topics import ledger_of, send

BAD = TopicName.parse("bad")


@pytest.fixture(params=IRREGULAR)
def bad(request: pytest.FixtureRequest, root: Path) -> Path:
    """The root of two topics; in the log of one something else lies where a commit should be."""
    for topic in ("good", "bad"):
        send(root, topic, ["a"])
    IRREGULAR[request.param](root / BAD.storage_path / log_file(2))
    return root


def test_a_reader_and_a_producer_are_told_and_those_of_other_topics_go_on(bad: Path) -> None:
    with pulsar.Client(str(bad)) as client:
        for attempt in (
            lambda: client.create_producer("bad"),
            lambda: client.create_reader("bad", pulsar.MessageId.earliest),
        ):
            with pytest.raises((pulsar.ReadError, pulsar.ChecksumError), match=r"00002\.json"):
                attempt()
        client.create_producer("good").send(b"b")
        reader = client.create_reader("good", pulsar.MessageId.earliest)
        assert received(reader, 200) == [b"a", b"b"]


def test_the_commands_name_it_and_end(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--service-url", str(bad)]) == 0
    listed = capsys.readouterr().out
    assert "unreadable" in listed
    assert "good" in listed
    assert main(["topics", "verify", "--service-url", str(bad)]) == 1
    assert "00002.json" in capsys.readouterr().out
    problems = [each for each in check_root(Root(str(bad), {})) if each.state is State.PROBLEM]
    assert [each.subject for each in problems] == [str(BAD)]


def test_a_data_file_that_is_none_is_told(bad: Path) -> None:
    ledger = ledger_of(bad, "good")
    (file,) = ledger.state.files
    path = bad / ledger.folder / file
    path.unlink()
    os.mkfifo(path)
    with (
        pulsar.Client(str(bad)) as client,
        pytest.raises(pulsar.PulsarException, match="no regular file"),
    ):
        client.create_reader("good", pulsar.MessageId.earliest).read_next(5000)
