"""A place in memory whose queue is a story, told once for all tests that only look."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.dashboard.web_app import make_app
from pulsar_spark.testing import Place
from tests.connector.dashboard import story

KEY = "the key"


def browser_of(root: Root, *, allow_changes: bool = False) -> FlaskClient:
    """Who has opened the URL with the key."""
    client = make_app(root, allow_changes=allow_changes, key=KEY).test_client()
    assert client.get("/", query_string={"key": KEY}).status_code == 303
    return client


@pytest.fixture(scope="module")
def reported() -> Iterator[Place]:
    with Place() as place:
        kept = story.busy(place.client)
        yield place
        del kept


@pytest.fixture
def browser(reported: Place) -> FlaskClient:
    return browser_of(reported.root)


@pytest.fixture
def client(pulsarlite: Place) -> pulsar.Client:
    return pulsarlite.client


@pytest.fixture
def url(pulsarlite: Place) -> str:
    return pulsarlite.service_url
