"""Checks of chunks."""

from __future__ import annotations

import pyarrow as pa

from pulsar_spark.connector.runtime.publishing.message_chunking import in_chunks, payload_chunk_size
from pulsar_spark.options.options import Options
from tests.vectors.case import Case

CHUNKING = {"serviceUrl": ".", "chunkingEnabled": "true", "batchingEnabled": "false"}


def check_chunking(case: Case) -> None:
    payload, most = case.take("payload_bytes"), case.take("chunk_max_message_size")
    room = case.take("max_message_size") - case.take("metadata_bytes")
    if room <= 0:  # metadata take no room here
        refusal = "InvalidMessageException: metadata exceeds max message size"
        case.compare("error", case.take("error", None), refusal)
        return
    case.expect("error", None)
    most = most if most > 0 else None
    case.expect("payload_chunk_size", payload_chunk_size(room, most))
    values = pa.chunked_array([pa.array([bytes(payload)], pa.binary())])
    names = {"producer_name": ["producer-1"], "sequence_id": [7]}
    messages = pa.table({"value": values, "payload_size": [payload], **names})
    options = {"maxMessageSize": str(room)} | ({"chunkMaxMessageSize": str(most)} if most else {})
    chunks = in_chunks(messages, Options.parse({**CHUNKING, **options}))
    case.expect("num_chunks", len(chunks))
    case.expect("chunk_payload_sizes", [len(each) for each in chunks["value"].to_pylist()])
    case.expect("uuid_if_seq_7", chunks["uuid"][0].as_py())
    numbers = [None] if len(chunks) == 1 else list(range(len(chunks)))
    case.compare("chunk ids", numbers, chunks["chunk_id"].to_pylist())
