"""Checks of chunks and of deduplication by sequence id."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.producing.chunking import Chunks
from tests.vectors.case import Case
from tests.vectors.message_deduplication import MessageDeduplication, MessageDupStatus

PERSIST_FAILURE = "persist_failure_reset_pushed"


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


def check_deduplication(case: Case) -> None:
    state = MessageDeduplication()
    inflight: list[dict[str, Any]] = []
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        op = step.take("op")
        if op == "publish":
            state = _publish(step, state, inflight)
        elif op == "persisted":
            state = state.record_persisted(**inflight.pop(step.take("which_inflight")))
        elif op.startswith(PERSIST_FAILURE):
            inflight.clear()
            state = state.reset_pushed()
        else:
            step.problems.append("this op is not known")
        step.expect("pushed", dict(state.highest_sequenced_pushed))
        step.expect("persisted_map", dict(state.highest_sequenced_persisted))
        reset = state.reset_pushed()
        step.compare("read back", reset, state.from_json_value(state.to_json_value()))
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]


def _publish(
    step: Case, state: MessageDeduplication, inflight: list[dict[str, Any]]
) -> MessageDeduplication:
    message = {
        "producer": step.take("producer"),
        "sequence_id": step.take("sequence_id"),
        "highest_sequence_id": step.take("highest_sequence_id"),
        "chunk_id": step.take("chunk_id", -1),
        "num_chunks": step.take("num_chunks", -1),
    }
    after, status = state.is_duplicate(**message)
    step.expect("status", status.value)
    if message["chunk_id"] == -1 and message["highest_sequence_id"] == 0:
        many, taken = state.fresh(message["producer"], np.array([message["sequence_id"]]))
        step.compare(
            "by the form for many",
            (after, [status is MessageDupStatus.NOT_DUP]),
            (
                many,
                taken.tolist(),
            ),
        )
    if status is MessageDupStatus.NOT_DUP:
        inflight.append(message)
    step.expect("inflight_index_if_accepted", len(inflight) - 1)
    return after
