"""A process that publishes to a topic at a store: `python -m tests.stores.publisher JSON`."""

from __future__ import annotations

import json
import sys

from pulsar_spark import pulsar


def main(given: str) -> None:
    """Send the messages one by one, and print each that was confirmed."""
    reported = json.loads(given)
    with pulsar.Client(reported["root"], storage=reported["options"]) as client:
        producer = client.create_producer(reported["topic"], send_timeout_millis=300_000)
        for number in range(reported["messages"]):
            content = f"{reported['name']}-{number}"
            producer.send(content.encode())
            print(content, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
