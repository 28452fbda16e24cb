"""The example `work_queue`: retries, rate limits, an outage, a poison job, a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from examples.work_queue import worker
from pulsar_spark import pulsar
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.testing import Place
from tests.architecture.sources import REPOSITORY
from tests.waiting import eventually

JOBS = [f"job {number}" for number in range(60)]
POISON = JOBS[17]


class Api:
    """An API that is down at first, limits the rate, and never takes one job."""

    def __init__(self, place: Place, down: timedelta, poison: str = "") -> None:
        self.place, self.poison, self.up_at = place, poison, place.now() + down
        self.called, self.attempts = Counter[str](), 0

    def call(self, body: bytes) -> None:
        self.attempts += 1
        if self.place.now() < self.up_at:
            raise ConnectionError("down")
        if body.decode() == self.poison:
            raise OSError("400: no such customer")
        if self.attempts % 20 == 0:
            raise worker.TooManyRequests(wait_s=5)
        self.called[body.decode()] += 1


def work(place: Place, api: Api) -> None:
    """All jobs, by one worker, with a breaker."""
    root = ["--service-url", place.service_url]
    assert main(["topics", "create", worker.TOPIC, *root]) == 0
    assert main(["topics", "set-breaker", worker.TOPIC, "--threshold", "50", *root]) == 0
    producer = place.client.create_producer(worker.TOPIC)
    for job in JOBS:
        producer.send(job.encode())
    consumer = worker.subscribe(place.client)

    def sleep(seconds: float) -> None:
        place.clock.advance(seconds=seconds)

    worker.work(consumer, api.call, 0.2, sleep, timeout_millis=600_000)
    assert place.backlog(worker.TOPIC, worker.SUBSCRIPTION) == 0


def test_each_job_is_done_once_and_a_poison_becomes_a_dead_letter(pulsarlite: Place) -> None:
    api = Api(pulsarlite, timedelta(0), POISON)
    work(pulsarlite, api)
    assert api.called == Counter(set(JOBS) - {POISON})
    (dead,) = pulsarlite.messages("charges-callers-DLQ")
    assert (dead.data().decode(), dead.properties()["ERROR"]) == (
        POISON, "OSError: 400: no such customer"
    )  # fmt: skip


def test_an_api_that_is_down_costs_no_job_and_is_called_seldom(pulsarlite: Place) -> None:
    api = Api(pulsarlite, timedelta(minutes=20))
    work(pulsarlite, api)
    assert api.called == Counter(JOBS)
    assert pulsarlite.messages("charges-callers-DLQ") == []
    assert api.attempts < 2 * len(JOBS)


@contextmanager
def serving(answers: list[int], taken: list[str]) -> Iterator[str]:
    """The URL of an API that answers so at first, and then takes everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            status = answers.pop(0) if answers else 200
            if status == 200:
                taken.append(body)
            self.send_response_only(status)
            self.send_header("Retry-After", "0.1")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_the_program_works_and_ends_in_order(tmp_path: Path) -> None:
    taken: list[str] = []
    with (
        serving([429, 500], taken) as api,
        pulsar.Client(str(tmp_path), broker="embedded") as client,
    ):
        producer = client.create_producer(worker.TOPIC)
        for job in ("a", "b", "c"):
            producer.send(job.encode())
        program = REPOSITORY / "examples" / "work_queue" / "worker.py"
        command = [sys.executable, str(program), "--service-url", str(tmp_path), "--api", api]
        process = subprocess.Popen([*command, "--per-second", "100"], cwd=REPOSITORY)
        try:
            eventually(lambda: len(taken) == 3, 60, "all jobs are called")
            eventually(
                lambda: client.topic_stats(worker.TOPIC).subscription("callers").backlog == 0, 60
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
    assert sorted(taken) == ["a", "b", "c"]
