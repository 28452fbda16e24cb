"""A client of a place in memory, whose clock moves when it is waited for."""

from __future__ import annotations

import pytest

from pulsar_spark import pulsar
from pulsar_spark.testing import Place


@pytest.fixture
def url(pulsarlite: Place) -> str:
    return pulsarlite.service_url


@pytest.fixture
def client(pulsarlite: Place) -> pulsar.Client:
    return pulsarlite.client
