"""What commits say of schemas is read for ever, as it was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.policies import read_policies
from pulsar_spark.topic_name import NamespaceName
from tests.connector.topic_log.make_golden_schemas import SCHEMAS
from tests.connector.topic_log.stores import FOLDER, assert_is_rewritten_as_it_was

GOLDEN = Path(__file__).parents[2] / "golden"
VERSIONS = ["schemas-v3", "schemas-v4"]
COMMITS = sorted(GOLDEN.glob(f"schemas-v*/{FOLDER}/_log/0*[0-9].json"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("from_snapshot", [True, False])
def test_schemas_and_policies_are_read(tmp_path: Path, from_snapshot: bool, version: str) -> None:
    golden = shutil.copytree(GOLDEN / version, tmp_path / "golden")
    if not from_snapshot:
        (golden / FOLDER / "_log" / "pointer.json").unlink()
    store = open_store(str(golden))
    state = ManagedLedger.open_anew(store, FOLDER).state
    assert list(state.schemas.schemas) == SCHEMAS
    assert [info.definition for info in state.schemas.schemas] == [
        info.definition for info in SCHEMAS
    ]
    assert read_policies(store, NamespaceName("public", "default")) == {
        "schema_compatibility_strategy": "BACKWARD_TRANSITIVE",
        "is_allow_auto_update_schema": False,
    }


@pytest.mark.parametrize("path", COMMITS, ids=lambda path: f"{path.parts[-6]}-{path.stem[-1]}")
def test_a_commit_is_written_as_it_was(path: Path) -> None:
    assert_is_rewritten_as_it_was(path)
