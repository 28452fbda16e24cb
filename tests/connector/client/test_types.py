"""A wrong argument fails in mypy, where the program is written, and not only when it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY

PROGRAM = """
from datetime import timedelta

import pulsar_spark
from pulsar_spark import pulsar

client = pulsar_spark.Client("memory://shop", operation_timeout_seconds=5)
client = pulsar.Client("memory://shop", broker="remote")  # arg-type
client = pulsar.Client(7)  # arg-type
producer = client.create_producer("orders", batching_enabled=True)
producer = client.create_producer("orders", batching=True)  # call-arg
producer = client.create_producer("orders", compression_type="LZ4")  # arg-type
producer.send(b"2 apples", partition_key="ann", deliver_after=timedelta(seconds=5))
producer.send(b"2 apples", deliver_after=5)  # arg-type
producer.send(b"2 apples", properties={"colour": 5})  # dict-item
number: int = producer.send(b"2 apples")  # assignment
consumer = client.subscribe("orders", "billing", pulsar.ConsumerType.Shared)
consumer = client.subscribe("orders", "billing", "Shared")  # arg-type
consumer = client.subscribe("orders")  # call-arg
message = consumer.receive(timeout_millis=100)
message = consumer.receive("soon")  # arg-type
consumer.acknowledge([message, message.message_id()])
consumer.acknowledge(message.data())  # arg-type
consumer.negative_acknowledge(message, delay_millis="1s")  # arg-type
consumer.acknowledge_all()  # attr-defined
"""


@pytest.mark.slow
def test_a_wrong_argument_fails_in_mypy_and_a_right_one_does_not(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    said, errors, _ = api.run([f"--config-file={REPOSITORY / 'pyproject.toml'}", str(program)])
    assert not errors
    found = re.findall(r"program\.py:(\d+): error: .*\[([a-z-]+)\]$", said, re.MULTILINE)
    lines = enumerate(PROGRAM.splitlines(), 1)
    requested = [(str(number), line.split("# ")[1]) for number, line in lines if "# " in line]
    assert found == requested, said
