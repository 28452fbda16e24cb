"""What the cluster's tests need of others, and their processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.processes import Machine
from tests.connector.s3_server import s3_root, s3_server

__all__ = ["machine", "s3_root", "s3_server"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """All that it ran is killed at the test's end."""
    with ExitStack() as all_ended:
        yield Machine(tmp_path, all_ended)
