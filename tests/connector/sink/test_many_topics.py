"""What one micro-batch publishes to many topics: together where it waits, each by itself."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pulsar_spark.errors import StorageError
from tests.connector.reading import messages
from tests.connector.topics import send

pytestmark = pytest.mark.usefixtures("impatient")

TOPICS = [f"t{number}" for number in range(12)]
VALUES = [f"{topic}, {number}" for number in range(3) for topic in TOPICS]
EXPECTED = {topic: [f"{topic}, {number}" for number in range(3)] for topic in TOPICS}


def publish_to_all(root: Path, batch: tuple[str, int] = ("query", 0)) -> None:
    send(root, "t", VALUES, columns={"topic": TOPICS * 3}, application=batch)


def of_each(root: Path) -> dict[str, list[str]]:
    return {topic: [each["value"].decode() for each in messages(root, topic)] for topic in TOPICS}


@pytest.mark.parametrize("folder", ["data", "_log"])
def test_many_topics_wait_for_the_disk_together(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for topic in TOPICS:
        send(root, topic, ["so that it is there"])
    two_wait, sync = threading.Barrier(2), os.fsync
    met = threading.Event()

    def waits_for_another(descriptor: int) -> None:
        if (
            f"/{folder}/" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
            and not met.is_set()
        ):
            with suppress(threading.BrokenBarrierError):
                two_wait.wait(timeout=30)
                met.set()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", waits_for_another)
    publish_to_all(root)
    assert met.is_set()


def test_each_topic_has_its_messages_in_order_once_however_often_it_is_tried(root: Path) -> None:
    publish_to_all(root)
    publish_to_all(root)
    assert of_each(root) == EXPECTED


def test_a_commit_that_fails_is_an_error_and_the_repeated_batch_is_published_once_everywhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_to_all(root)
    link = os.link

    def fails_for_one(source: str, target: str, **given: object) -> None:
        if "/t5/_log/" in target:
            raise OSError(errno.ENOSPC, "no space left", target)
        link(source, target, **given)  # type: ignore[arg-type]

    again = ("query", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", fails_for_one)
        with pytest.raises(StorageError, match="t5"):
            publish_to_all(root, again)
    publish_to_all(root, again)
    assert of_each(root) == {topic: 2 * values for topic, values in EXPECTED.items()}
