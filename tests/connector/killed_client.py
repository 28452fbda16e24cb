"""A program of the client that is killed at every change of the disk; its broker lives.

    python -m tests.connector.killed_client FOLDER [EVERY [FIRST]]

With EVERY it kills at every so-manieth change only, from the FIRST on. The program sends by a name
whose sequence ids go on, receives and acknowledges with receipts; it notes what it was told. It is
killed, begun again, and then everything is there once, nothing of what was confirmed is lost, and
no message comes again that the broker has confirmed as acknowledged. Prints one line, `ok` and what
was done, or fails with an assertion.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import local_store
from tests.connector.topic_log.killed_writers import KilledAt, confirm, fork

VALUES = [str(number) for number in range(4)]


def prepare(folder: Path) -> None:
    """A subscription that is done with nothing, so that all messages stay to be counted."""
    with pulsar.Client(str(folder / "root"), operation_timeout_seconds=120) as client:
        client.subscribe("t", "keeper", initial_position=pulsar.InitialPosition.Earliest).close()


def program(folder: Path) -> None:
    """Send what the topic lacks, then receive and acknowledge what is left."""
    with pulsar.Client(str(folder / "root"), operation_timeout_seconds=120) as client:
        named = {"enableDeduplication": "true"}
        producer = client.create_producer("t", "p", options=named)
        for number in range(producer.last_sequence_id() + 1, len(VALUES)):
            producer.send(VALUES[number].encode(), sequence_id=number)
            confirm(folder / "sent", VALUES[number])
        producer.close()
        consumer = client.subscribe(
            "t", "s", initial_position=pulsar.InitialPosition.Earliest, consumer_name="c",
            ack_receipt_enabled=True,
        )  # fmt: skip
        while _backlog(client.root) != 0:
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            value = message.data().decode()
            confirm(folder / "received", value)
            consumer.acknowledge(message)
            confirm(folder / "acknowledged", value)


def _backlog(root: Root) -> int | None:
    """As the broker last said; None if it has said nothing."""
    return next((each.backlog for each in subscriptions(root) if each.name == "s"), None)


def run(program: Callable[[], None], broker: EmbeddedBroker) -> int:
    """Its exit status, or minus the signal that killed it; the broker works meanwhile."""
    process = fork(program)
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if not broker.run_once():
            broker.root.clock.sleep(0.001)


def noted(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().split() if path.exists() else []


def killed_at(step: int, folder: Path) -> bool:
    """Kill it at that change, and begin it again; whether it had got that far."""

    def killed() -> None:
        setattr(local_store, "os", KilledAt(step))  # noqa: B010 - mypy minds it otherwise
        program(folder)

    with EmbeddedBroker(Root(str(folder / "root"), {})) as broker:
        assert run(lambda: prepare(folder), broker) == 0
        finished = run(killed, broker) == 0
        sent, acknowledged = noted(folder, "sent"), noted(folder, "acknowledged")
        before = len(noted(folder, "received"))
        assert run(lambda: program(folder), broker) == 0, f"it failed after step {step}"
    with pulsar.Client(str(folder / "root")) as client:
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        kept = [reader.read_next(0).data().decode() for _ in iter(reader.fetch, False)]
    assert kept == VALUES, f"lost or doubled at step {step}: {kept}"
    received = noted(folder, "received")
    assert set(received) == set(VALUES), f"lost at step {step}: {received}"
    assert not set(received[before:]) & set(acknowledged), f"again after step {step}: {received}"
    assert sent == VALUES[: len(sent)], f"after step {step}: {sent}"
    assert len(received) <= len(VALUES) + 1, f"after step {step}: {received}"
    return not finished


def main() -> None:
    given = [int(each) for each in sys.argv[2:4]]
    folder, every, first = Path(sys.argv[1]), *(given + [1, 0][len(given) :])
    step = first
    while True:
        (mine := folder / str(step)).mkdir(parents=True)
        if not killed_at(step, mine):
            break
        shutil.rmtree(mine)
        step += every
    print(f"ok: killed at {(step - first) // every} changes of the disk")


if __name__ == "__main__":
    main()
