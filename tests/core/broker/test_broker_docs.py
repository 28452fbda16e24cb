"""What docs/broker.md draws from the code is what the code says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from pulsar_spark.broker.dispatchers.dispatcher_single_active import TRANSITIONS
from pulsar_spark.broker.machine.step import HANDLERS
from pulsar_spark.broker.protocol.ready import Ready

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "broker.md").read_text(encoding="utf-8")


def test_the_table_of_roles_is_that_of_the_dispatcher() -> None:
    drawn = TEXT.split("<!-- transitions -->")[1].split("<!-- /transitions -->")[0]
    rows = [
        f"| {role.value} | {event.value} | {after.value} |"
        for (role, event), after in TRANSITIONS.items()
    ]
    assert drawn.strip().splitlines()[2:] == rows


def test_every_command_is_described() -> None:
    for command in HANDLERS:
        assert f"`{command.__name__}`" in TEXT, command


def test_every_field_of_ready_is_described_in_its_order() -> None:
    section = TEXT.split("## Ready")[1].split("## Where")[0]
    names = [each.name for each in fields(Ready) if each.compare]
    places = [section.index(f"`{name}`") for name in names]
    assert places == sorted(places)
