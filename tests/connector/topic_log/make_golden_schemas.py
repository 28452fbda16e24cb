"""Writes the golden topic `tests/golden/schemas-v3`, once: run only to make a new version's.

It has schemas in commits before and after a snapshot, and policies of its namespace.

python -m tests.connector.topic_log.make_golden_schemas FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pulsar_spark.connector.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.policies import SchemaPolicies, change_policies
from pulsar_spark.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.schema.schema_registry import SchemaCompatibilityStrategy
from pulsar_spark.topic_name import NamespaceName, TopicName
from tests.connector.topic_log.stores import FOLDER, Clock, with_clock

TOPIC = TopicName.parse("any")
RECORD = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
SCHEMAS = [
    SchemaInfo(SchemaType.JSON, RECORD),
    SchemaInfo(SchemaType.AVRO, RECORD),
    SchemaInfo(SchemaType.INT32),
]


def main() -> None:
    (root,) = sys.argv[1:]
    if Path(root).exists():
        raise SystemExit(f"{root} exists: a golden file is never written again")
    names = (f"{number:032x}" for number in range(100))
    with patch("uuid.uuid4", side_effect=(SimpleNamespace(hex=name) for name in names)):
        store = with_clock(open_store(root), Clock(1_700_000_000_000))
        default = NamespaceName("public", "default")
        change_policies(store, default, schema_compatibility_strategy="BACKWARD_TRANSITIVE")
        change_policies(store, default, is_allow_auto_update_schema=False)
        ledger = ManagedLedger.create(store, FOLDER, 1)
        policies = SchemaPolicies(SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE)
        for schema in SCHEMAS[:2]:
            register(ledger, TOPIC, SinkSchema(schema, policies))
        ledger.write_snapshot()
        register(ledger, TOPIC, SinkSchema(SCHEMAS[2], policies))


if __name__ == "__main__":
    main()
