"""A local S3 server for the store's tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.request import Request, urlopen

import pytest

BUCKET = "pulsarlite"


@dataclass(frozen=True)
class S3Root:
    root: str
    options: dict[str, str]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server that lives as long as the tests."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with urlopen(Request(f"{address}/{BUCKET}", method="PUT")):
        pass
    yield address
    server.stop()


@pytest.fixture
def s3_root(s3_server: str) -> S3Root:
    """A fresh prefix on it, as a serviceUrl with its options."""
    return S3Root(
        f"s3://{BUCKET}/{uuid.uuid4().hex}/root",
        {
            "aws_endpoint": s3_server,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
            "allow_http": "true",
        },
    )
