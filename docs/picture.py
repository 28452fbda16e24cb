"""Draws the README's picture from a real subscription: `python -m docs.picture`.

It is stored as text (SVG), and has no background: it stands on light pages and on dark ones.
"""

from __future__ import annotations

from docs.generate import FOLDER
from pulsar_spark import pictures, pulsar
from pulsar_spark.testing import Place

FILE = FOLDER / "cursor.svg"
TITLE = "What a subscription knows of 32 messages: a column is a message"


def drawn() -> str:
    """The picture, as it is stored."""
    with Place() as place:
        client = place.client
        worker = client.subscribe(
            "jobs",
            "workers",
            pulsar.ConsumerType.Shared,
            receiver_queue_size=6,
            acknowledgments_group_time_millis=0,
            ack_receipt_enabled=True,
        )
        producer = client.create_producer("jobs")
        for number in range(32):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        story = []

        def note(what: str) -> None:
            story.append((what, client.topic_stats("jobs").subscription("workers")))

        held = [worker.receive() for _ in range(14)]
        note("handed out")
        worker.acknowledge(held[:5])
        note("5 done")
        worker.negative_acknowledge([held[6], held[11]], delay_millis=3_600_000)
        worker.acknowledge(held[7:11] + held[12:])
        note("6 more, 2 failed")
        held += [worker.receive() for _ in range(10)]
        worker.acknowledge([held[5], *held[14:]])
        note("11 more")
    return pictures.strip(story, TITLE).svg()


if __name__ == "__main__":
    FILE.write_text(drawn(), encoding="utf-8")
