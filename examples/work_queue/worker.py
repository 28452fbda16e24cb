"""A worker that calls an API for each job, no more often than the API allows."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from pulsar_spark import pulsar

TOPIC, SUBSCRIPTION = "charges", "callers"


class TooManyRequests(Exception):  # noqa: N818 - the name that HTTP gives it
    """The API is to be called again after `wait_s`."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


def subscribe(client: pulsar.Client) -> pulsar.Consumer:
    """A consumer that shares the jobs with all others."""
    return client.subscribe(
        TOPIC,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=10,  # jobs that wait here can't be done elsewhere
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=5),
        options={"negativeAckRedeliveryBackoff": "1s,5m,2"},
    )


def work(
    consumer: pulsar.Consumer,
    call: Callable[[bytes], object],
    every_s: float,
    sleep: Callable[[float], object] = time.sleep,
    timeout_millis: int | None = None,
) -> None:
    """Do one job after the other; until no job has come for that time, if one is given."""
    while True:
        try:
            message = consumer.receive(timeout_millis)
        except pulsar.Timeout:
            return
        sleep(every_s)
        try:
            while True:
                try:
                    call(message.data())
                    break
                except TooManyRequests as error:  # no failure of the job: it waits here
                    sleep(error.wait_s)
        except OSError as error:  # urllib's errors are OSErrors
            consumer.negative_acknowledge(message, error=error)
        else:
            consumer.acknowledge(message)


def post(url: str, body: bytes) -> None:
    """Call the API. TooManyRequests if it asks for patience, else urllib's errors."""
    try:
        with urllib.request.urlopen(url, data=body, timeout=30):  # noqa: S310 - your own URL
            pass
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise TooManyRequests(float(error.headers.get("Retry-After") or 1)) from error
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service-url", required=True, help="a folder, or s3://bucket/prefix")
    parser.add_argument("--api", required=True, help="the URL that each job is posted to")
    parser.add_argument("--per-second", type=float, default=5.0, help="calls of this worker")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the jobs in hand go to others at once
    with pulsar.Client(arguments.service_url) as client:
        consumer = subscribe(client)
        work(consumer, lambda body: post(arguments.api, body), 1 / arguments.per_second)


if __name__ == "__main__":
    main()
