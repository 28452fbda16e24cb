"""Checks of topic names and message ids."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from pulsar_spark.errors import InvalidTopicNameError
from pulsar_spark.model.positions.message_id import EARLIEST, LATEST, Client, MessageId
from pulsar_spark.model.topic_name import (
    NamespaceName,
    TopicName,
    default_dead_letter_topic,
    default_retry_letter_topic,
)
from tests.vectors import java
from tests.vectors.case import Case, run, run_all


def topic_name_cases(document: dict[str, Any]) -> Iterator[Case]:
    yield from run_all("cases", document.get("cases", []), _check_topic_name)
    yield from run_all("namespaces", document.get("namespaces", []), _check_namespace)
    yield from run_all("retry_dlq", document.get("retry_dlq_defaults", []), _check_retry_names)


def message_id_cases(document: dict[str, Any]) -> Iterator[Case]:
    sections: dict[str, Callable[[Case], None]] = {
        "cases": _check_java_id,
        "java_pair_compare": _check_java_pair,
        "java_parse": _check_java_parse,
        "python_cases": _check_python_id,
        "python_parse": _check_python_parse,
        "python_compare": _check_python_compare,
    }
    for section, check in sections.items():
        yield from run_all(section, document.get(section, []), check)
    if "java_ordering" in document:
        yield run("java_ordering", document["java_ordering"], _check_java_ordering)
    for name, record in document.get("python_named", {}).items():
        check_named = functools.partial(_check_python_named, name=name)
        yield run(f"python_named {name}", record, check_named)


def _check_topic_name(case: Case) -> None:
    text = case.take("input")
    _expect_error(case, "to_full_topic_name", lambda: java.to_full_topic_name(text))
    name = _parsed(case, functools.partial(TopicName.parse, text), "IllegalArgumentException: ")
    if name is None:
        return
    case.expect("full", str(name))
    case.expect("domain", name.domain)
    case.expect("tenant", name.tenant)
    case.expect("namespace", str(name.namespace))
    case.expect("namespace_portion", name.namespace.local_name)
    case.expect("local_name", name.local_name)
    case.expect("encoded_local_name", name.encoded_local_name)
    case.expect("partition_index", name.partition_index)
    case.expect("partitioned_topic_name", name.partitioned_topic_name)
    case.expect("persistence_naming", name.persistence_naming)
    looked_up = f"{name.domain}/{name.namespace}/{name.encoded_local_name}"
    case.expect("lookup_name", looked_up)
    case.expect("rest_path", looked_up)
    case.expect("persistent", name.is_persistent)
    case.expect_call(
        "schema_name", lambda: f"{name.namespace}/{name.partitioned_topic.encoded_local_name}"
    )
    recorded = case.take("get_partition", {})
    found = {index: str(name.partition(int(index))) for index in recorded}
    case.compare("get_partition", recorded, found)
    back = TopicName.from_persistence_naming(name.persistence_naming)
    case.expect("roundtrip_persistence_naming", str(back))
    case.compare("parsed back", str(name), str(TopicName.parse(str(name))))


def _check_namespace(case: Case) -> None:
    name = _parsed(case, functools.partial(NamespaceName.parse, case.take("input")), "")
    if name is not None:
        case.expect("tenant", name.tenant)
        case.expect("local", name.local_name)
        case.expect("str", str(name))


def _check_retry_names(case: Case) -> None:
    topic, subscription = TopicName.parse(case.take("consumer_topic")), case.take("subscription")
    base = topic.partitioned_topic_name
    case.expect("retry_topic_default", default_retry_letter_topic(base, subscription))
    case.expect("dlq_topic_default", default_dead_letter_topic(base, subscription))
    case.expect(
        "retry_topic_if_built_by_partition_consumer",
        default_retry_letter_topic(str(topic), subscription),
    )
    case.expect(
        "dlq_topic_if_built_by_partition_consumer",
        default_dead_letter_topic(str(topic), subscription),
    )
    # A sentence on the names of Pulsar 2.7, which Pulsarlite never wrote.
    legacy = f"persistent namespace of topic + '/' + '{subscription}-RETRY'"
    case.expect("legacy_retry_topic_2_7", legacy)


def _parsed(case: Case, parse: Callable[[], Any], prefix: str) -> Any:
    valid = case.take("valid")
    try:
        value = parse()
    except InvalidTopicNameError as error:
        case.compare("valid", valid, False)
        said = prefix + error.message
        case.expect("error", said[: len(case.record.get("error", said))])  # then what to do
        return None
    case.compare("valid", valid, True)
    return value


def _expect_error(case: Case, name: str, call: Callable[[], str]) -> None:
    try:
        value: str | None = call()
    except InvalidTopicNameError as error:
        case.expect(f"{name}_error", f"IllegalArgumentException: {error.message}")
        case.compare(name, case.take(name, None), None)
    else:
        case.expect(name, value)
        case.compare(f"{name}_error", case.take(f"{name}_error", None), None)


def _class_of(message_id: MessageId) -> str:
    if message_id.first_chunk is not None:
        return "ChunkMessageIdImpl"
    return "BatchMessageIdImpl" if message_id.batched else "MessageIdImpl"


def _expect_parts(case: Case, message_id: MessageId, *, batch_size: bool = True) -> None:
    case.expect("class", _class_of(message_id))
    case.expect("ledger", message_id.ledger_id)
    case.expect("entry", message_id.entry_id)
    case.expect("partition", message_id.partition)
    case.expect("batch_index", message_id.batch_index)
    if batch_size:
        case.expect("batch_size", message_id.batch_size)


def _check_java_id(case: Case) -> None:
    named = case.take("named", None)
    first_chunk = case.take("first_chunk", None)
    message_id = MessageId(
        case.take("ledger"),
        case.take("entry"),
        case.take("partition"),
        case.take("batch_index"),
        case.take("batch_size"),
        MessageId.parse(first_chunk) if first_chunk else None,
        batched=case.take("class") == "BatchMessageIdImpl",
    )
    if named is not None:
        constant = {"earliest": EARLIEST, "latest": LATEST}[named]
        case.compare("named", message_id, constant)
        message_id = constant
    _expect_parts(case, message_id)
    case.expect("str", str(message_id))
    case.expect("java_hashCode", java.hash_code(message_id))
    case.expect("serialized_hex", message_id.to_bytes().hex())
    back = MessageId.from_bytes(bytes.fromhex(case.record["serialized_hex"]), "java")
    case.expect("roundtrip_equal", back == message_id)
    case.expect("roundtrip_str", str(back))
    strict = MessageId.from_bytes(bytes.fromhex(case.record["serialized_hex"]))
    case.compare("read by protobuf's rule", back, strict)
    parsed = MessageId.parse(case.record["str"])
    case.compare("parsed", (message_id, str(message_id)), (parsed, str(parsed)))


def _check_java_pair(case: Case) -> None:
    one, two = (_described(case.take(side)) for side in ("a", "b"))
    case.expect("equals", one == two)
    case.expect("compare", (one > two) - (one < two))
    case.expect("hash_equal", java.hash_code(one) == java.hash_code(two))


def _described(text: str) -> MessageId:
    class_name, _, rest = text.partition(" ")
    message_id = MessageId.parse(rest)
    if class_name == "TopicMessageIdImpl":
        return MessageId(*message_id.order, topic="a topic")
    return message_id


def _check_java_parse(case: Case) -> None:
    data = bytes.fromhex(case.take("hex"))
    message_id = _read(case, data, "java")
    if message_id is not None:
        _expect_parts(case, message_id)
        case.expect("str", str(message_id))
        case.expect("java_hashCode", java.hash_code(message_id))
        if message_id.first_chunk is not None:
            case.expect("first_chunk", str(message_id.first_chunk))


def _read(case: Case, data: bytes, client: Client) -> MessageId | None:
    """The id, or None if it can't be read; compares that with what is recorded."""
    recorded = case.take("error", None)
    try:
        message_id = MessageId.from_bytes(data, client)
    except ValueError as error:
        ours = "ValueError: Failed to parse serialized message id"
        if client == "java":
            lacks = " (missing required field)" if "lacks" in str(error) else ""
            ours = f"IOException{lacks}"
        case.compare("error", recorded, ours)
        return None
    case.compare("error", recorded, None)
    return message_id


def _check_java_ordering(case: Case) -> None:
    unsorted = [MessageId.parse(text) for text in case.take("unsorted")]
    case.expect("sorted", [str(message_id) for message_id in sorted(unsorted)])
    case.take("rule")  # the sentence that the lists show


def _check_python_id(case: Case) -> None:
    batch_index = case.take("batch_index")
    place = (case.take("ledger"), case.take("entry"), case.take("partition"))
    message_id = MessageId(*place, batch_index)
    getters = {
        "ledger": message_id.ledger_id,
        "entry": message_id.entry_id,
        "batch_index": message_id.batch_index,
        "partition": message_id.partition,
    }
    case.expect("getters", getters)
    case.expect("str", message_id.text("cpp"))
    case.expect("serialized_hex", message_id.to_bytes("cpp").hex())
    back = MessageId.from_bytes(bytes.fromhex(case.record["serialized_hex"]))
    case.compare("read back", message_id, back)
    found = {
        "ledger": back.ledger_id,
        "entry": back.entry_id,
        "batch_index": back.batch_index,
        "partition": back.partition,
        "str": back.text("cpp"),
    }
    case.expect("roundtrip", found)
    case.compare("parsed", message_id, MessageId.parse(case.record["str"]))


def _check_python_parse(case: Case) -> None:
    message_id = _read(case, bytes.fromhex(case.take("hex")), "cpp")
    if message_id is not None:
        _expect_parts(case, message_id)
        case.expect("str", message_id.text("cpp"))


def _check_python_compare(case: Case) -> None:
    one, two = MessageId.parse(case.take("a")), MessageId.parse(case.take("b"))
    case.expect("eq", one == two)
    # C++ has no partition in `<`, and its `<=` is `<` or equal.
    orders = [(each.ledger_id, each.entry_id, each.batch_index) for each in (one, two)]
    case.expect("lt", orders[0] < orders[1])
    case.expect("le", orders[0] < orders[1] or one == two)


def _check_python_named(case: Case, name: str) -> None:
    message_id = {"earliest": EARLIEST, "latest": LATEST}[name]
    case.expect("str", message_id.text("cpp"))
    case.expect("serialized_hex", message_id.to_bytes("cpp").hex())
