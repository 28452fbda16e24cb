"""Azurite and Versity's S3 gateway as processes, each with a folder of its own.

No registry has a server of Google's XML protocol with conditional writes (fake-gcs-server 1.56
refuses XML writes), so that is the tests' own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.request import Request, urlopen

from tests.connector.storage.object_service import serving
from tests.waiting import eventually

INSTALLED = Path(sys.prefix, "stores")
BUCKET = "pulsarlite"
S3_KEYS = ("test", "testtest")
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own account, the same everywhere: no secret."""


@dataclass(frozen=True)
class Server:
    """A running server: the root of a store on it, and the store's options."""

    root: str
    port: int
    options: dict[str, str]
    address_option: str

    def behind(self, port: int) -> dict[str, str]:
        """The options of a store that reaches the server at another port."""
        address = self.options[self.address_option].replace(f":{self.port}", f":{port}")
        return {**self.options, self.address_option: address}


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Azure Blob Storage."""
    port = _free_port()
    command = INSTALLED / "node_modules" / ".bin" / "azurite-blob"
    arguments = (
        "--blobPort",
        str(port),
        "--location",
        str(folder),
        "--silent",
        "--skipApiVersionCheck",
    )
    with _running([str(command), *arguments], port):
        address = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        _make_container(address)
        options = {
            "azure_storage_account_name": AZURE_ACCOUNT, "azure_storage_account_key": AZURE_KEY,
            "azure_storage_endpoint": address, "allow_http": "true",
        }  # fmt: skip
        yield Server(f"az://{BUCKET}/root", port, options, "azure_storage_endpoint")


@contextmanager
def versity(folder: Path) -> Iterator[Server]:
    """S3."""
    port = _free_port()
    (folder / BUCKET).mkdir()
    access, secret = S3_KEYS
    command = [
        str(INSTALLED / "bin" / "versitygw"), "--access", access, "--secret", secret,
        "--port", f"127.0.0.1:{port}", "--region", "us-east-1", "posix", str(folder),
    ]  # fmt: skip
    with _running(command, port):
        options = {
            "aws_endpoint": f"http://127.0.0.1:{port}", "aws_access_key_id": access,
            "aws_secret_access_key": secret, "aws_region": "us-east-1", "allow_http": "true",
        }  # fmt: skip
        yield Server(f"s3://{BUCKET}/root", port, options, "aws_endpoint")


@contextmanager
def google(folder: Path) -> Iterator[Server]:
    """Google Cloud Storage's protocol, by the tests' own server, in memory."""
    del folder
    with serving("gs") as service:
        port = int(service.address.rpartition(":")[2])
        yield Server(service.root(), port, service.options, "google_service_account_key")


SERVERS = {"azure": azurite, "s3": versity, "google": google}


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: _listens(port), 60, f"{command[0]} listens")
        yield
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _make_container(address: str) -> None:
    """Create the container by a request that is signed with the account's key."""
    now = datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = f"x-ms-date:{now}\nx-ms-version:2021-08-06"
    path = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    signed = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{headers}\n{path}".encode()
    key = base64.b64decode(AZURE_KEY)
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    request = Request(f"{address}/{BUCKET}?restype=container", data=b"", method="PUT")
    request.add_header("x-ms-date", now)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Content-Length", "0")
    request.add_unredirected_header("Content-Type", "")
    request.add_header("Authorization", f"SharedKey {AZURE_ACCOUNT}:{signature}")
    with urlopen(request):
        pass
