"""Checks of chunks."""

from __future__ import annotations

from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.producing.chunking import Chunks
from tests.vectors.case import Case


def check_chunking(case: Case) -> None:
    payload = case.take("payload_bytes")
    try:
        chunks = Chunks.of(
            payload,
            case.take("metadata_bytes"),
            case.take("max_message_size"),
            case.take("chunk_max_message_size"),
        )
    except InvalidMessageError as error:
        refusal = f"InvalidMessageException: {error.message}"
        case.compare("error", case.take("error", None), refusal)
        return
    case.expect("error", None)
    case.expect("payload_chunk_size", chunks.payload_chunk_size)
    case.expect("num_chunks", chunks.count)
    case.expect("chunk_payload_sizes", chunks.sizes)
    case.expect("uuid_if_seq_7", chunks.uuid("producer-1", 7))
    case.compare("sum of sizes", payload, sum(chunks.sizes))
    last = chunks.slice(chunks.count - 1)
    case.compare("last chunk", (payload - chunks.sizes[-1], payload), (last.start, last.stop))
