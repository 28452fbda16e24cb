"""Programs written against Pulsar's Python client print here what they printed with a Pulsar."""

from __future__ import annotations

import sys

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.pulsar import asyncio
from tests.recorded.programs import PROGRAMS, printed, recorded


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_printed_with_pulsar(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PULSAR_URL", "PULSAR_TOPIC"):
        monkeypatch.setenv(variable, "")  # and as it was before, afterwards
    modules = {"": pulsar, ".asyncio": asyncio, ".schema": pulsar.schema}
    for module, stands_in in modules.items():
        monkeypatch.setitem(sys.modules, f"pulsar{module}", stands_in)
    try:
        assert printed(name, f"memory://{name}") == recorded(name)
    finally:
        MemoryStore.forget(name)
