"""A wrong argument raises what Pulsar's client raises, and changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.pulsar import schema as schemas
from tests.connector.client.clients import received, subscribe

FILE = Path(__file__).resolve().parents[2] / "recorded/wrong_arguments.json"
RECORDED = json.loads(FILE.read_text(encoding="utf-8"))["calls"]
OTHERWISE = {
    'client.create_producer("w", schema=None)': None,
    'client.subscribe("w", "s", schema=None)': None,
    'client.create_reader("w", EARLIEST, schema=None)': None,
    'client.create_table_view("w", schema=None)': None,
    'client.subscribe(("w", "v"), "s")': None,
    'client.subscribe("w", "s", unacked_messages_timeout_ms=1)':
        "Consumer Config Exception: Unacknowledged message timeout should be 1 second or more.",
    'client.create_producer("w", schema=StringSchema)':
        "Argument schema is expected to be of type 'Schema' and not 'ABCMeta'",
    'producer.send(b"a", event_timestamp=-1)': None,
    "pulsar.Client(7)": "Argument service_url is expected to be of type 'str' and not 'int'",
    "pulsar.Client(None)":
        "Argument service_url is expected to be of type 'str' and not 'NoneType'",
    'client.subscribe("w", "s", dead_letter_policy=7)':
        "Argument dead_letter_policy is expected to be either None or of type "
        "'ConsumerDeadLetterPolicy'",
}  # fmt: skip
"""Calls that differ on purpose (docs/from-pulsar-client.md): the ValueError's text, or None where
the call is taken."""
MORE_IS_REFUSED = [
    'client.create_producer("w", message_router=7)',
    'client.subscribe("w", "s", message_listener=7)',
    'client.create_reader("w", EARLIEST, reader_listener=7)',
    'client.subscribe(["w", 7], "s")',
    "Policy(KeyShared.Sticky, False, [(5, 1)])",
    "pulsar.Client(URL, operation_timeout_seconds=-1)",
    'client.create_producer("w", send_timeout_millis=-1)',
    'client.create_producer("w", initial_sequence_id=-2)',
    'client.subscribe("w", "s", negative_ack_redelivery_delay_ms=-1)',
    'client.subscribe("w", "s", pattern_auto_discovery_period=-1)',
]
"""Calls that Pulsar's client takes, and then does nothing of use with: here ValueErrors."""


@pytest.fixture
def names(client: pulsar.Client, url: str) -> dict[str, Any]:
    known = {name: getattr(schemas, name) for name in dir(schemas) if name[0].isupper()}
    return known | {
        "pulsar": pulsar, "re": re, "URL": url, "client": client,
        "producer": client.create_producer("t"),
        "strings": client.create_producer("u", schema=schemas.StringSchema()),
        "consumer": subscribe(client),
        "reader": client.create_reader("t", pulsar.MessageId.earliest),
        "MessageId": pulsar.MessageId, "EARLIEST": pulsar.MessageId.earliest,
        "KeyShared": pulsar.KeySharedMode, "Policy": pulsar.ConsumerKeySharedPolicy,
    }  # fmt: skip


def test_each_wrong_argument_raises_what_pulsar_s_client_raises(names: dict[str, Any]) -> None:
    wrong = {}
    for call, kind, text in RECORDED:
        if kind == "none" or call in OTHERWISE:
            continue
        found = raised(call, names)
        if found[0] != kind or (text and found[1] != text):
            wrong[call] = found, (kind, text)
    assert not wrong, json.dumps(wrong, indent=1)
    assert received(names["consumer"]) == [], "something was sent"


@pytest.mark.parametrize("call", MORE_IS_REFUSED)
def test_what_would_be_of_no_use_is_refused_too(names: dict[str, Any], call: str) -> None:
    assert raised(call, names)[0] == "ValueError"


def test_what_differs_is_as_it_is_told(names: dict[str, Any]) -> None:
    for call, text in OTHERWISE.items():
        assert raised(call, names) == (("none", "") if text is None else ("ValueError", text)), call


def raised(call: str, names: dict[str, Any]) -> tuple[str, str]:
    try:
        made = eval(call, names)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return type(error).__name__, str(error)
    if hasattr(made, "close"):
        made.close()
    return "none", ""
