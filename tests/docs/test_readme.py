"""What the README shows is what happens: its examples run, its picture is drawn from the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_spark
from docs import picture
from pulsar_spark import pulsar
from tests.architecture.sources import REPOSITORY
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
QUEUE, SUBSCRIPTION, STREAMS = re.findall(
    r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL
)
COLOURS = r"(?:fill|stroke): (#[0-9a-f]{6})"


def run(example: str, folder: Path, **given: Any) -> None:
    """Run it with its folder in that one."""
    program = re.sub('"(topics|checkpoints)(?=["/])', rf'"{folder}/\1', example)
    exec(compile(program, "README.md", "exec"), {"__name__": "__main__", **given})


def test_the_queue_of_the_readme_hands_out_its_job_and_has_it_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(QUEUE, tmp_path)
    assert capsys.readouterr().out == "b'2 apples'\n"
    with pulsar.Client(str(tmp_path / "topics")) as client:
        assert client.topic_stats("jobs").subscription("workers").backlog == 0


@pytest.mark.slow
def test_a_query_shares_the_subscription_of_the_readme_and_streams_read_what_is_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(QUEUE, tmp_path)
    with pulsar_spark.Client(str(tmp_path / "topics")) as client:
        sent = client.create_producer("jobs").send(b"3 pears")

        def is_done() -> bool:
            done = client.topic_stats("jobs").subscription("workers").mark_delete_position
            return done == f"{sent.ledger_id()}:{sent.entry_id()}"

        waiting = SUBSCRIPTION.replace("query.awaitTermination()", "eventually(is_done, 180)")
        assert waiting != SUBSCRIPTION
        try:
            run(waiting, tmp_path, eventually=eventually, is_done=is_done)
        finally:
            for query in spark.streams.active:
                query.stop()
        flights = spark.createDataFrame([("UA", "1545 to IAH")], "key string, value string")
        run(STREAMS, tmp_path, spark=spark, flights=flights)
        assert client.topic_stats("flights").messages == 1


def test_the_picture_of_the_readme_is_drawn_from_the_code_and_has_no_background() -> None:
    stored = picture.FILE.read_text(encoding="utf-8")
    again = picture.drawn()
    assert picture.drawn() == again
    # Where matplotlib's release is another, letters may be; cells and colours are not.
    assert re.findall(COLOURS, stored) == re.findall(COLOURS, again), "python -m docs.picture"
    assert re.search(r'id="patch_1">\s*<path [^>]*style="fill: none"', stored)


def test_the_readme_leads_to_every_notebook() -> None:
    named = re.findall(r"\(notebooks/([\w-]+\.ipynb)\)", README)
    there = sorted(path.name for path in (REPOSITORY / "notebooks").glob("*.ipynb"))
    assert named == there, "give each notebook a row in README.md, in their order"
