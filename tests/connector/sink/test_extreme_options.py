"""No option bricks a topic: an extreme value is refused by name, or written and readable."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructType

from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one, publish
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import change_policies, read_policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import begin
from pulsar_spark.connector.spark.data_source import PulsarliteDataSource
from pulsar_spark.connector.spark.functions.batch_transaction import transaction
from pulsar_spark.connector.spark.stream_writer import MessageSink
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import InvalidOptionError, PulsarliteError, UnreadableRecordError
from pulsar_spark.log.transaction_attempt import Transaction
from pulsar_spark.model.topic_name import MAX_PARTITIONS, NamespaceName
from pulsar_spark.options.options import OPTIONS, Options, Scope
from tests.connector.reading import Run
from tests.connector.topics import options_of, send, written

NUMBERS = (
    "0", "1", "-1", "7", "10000", "10001", str(2**31), str(2**53), str(2**63 - 1), str(2**63),
    "1" + "0" * 20, "1" + "0" * 400, "9" * 5000, "1e400", "nan", "-0", "٣", "1_000", "0x10", " 5 ",
)  # fmt: skip
UNITS = ("", "ms", "s", "d", "k", "g", "GiB")
WORDS = (
    "", " ", "true", "FALSE", "a", "x" * 300, "x" * 70_000, "\0", "\ud800", "é", "a/b", "../..",
    "{}", "a{99999999999999999999}", "(" * 3000, "[", "0-65535", "5-70000", "9-0", "1s,60s,2",
    "1s,1d,nan", "1s,2s,inf", "2026-01-31T12:00:00Z", "9999-12-31T23:59:59.9999Z", "0001-01-01",
    "10000-01-01", "os:getcwd", "JSON", '{"type":"record","name":"r","fields":[]}',
)  # fmt: skip
EXTREMES = [*WORDS, *(number + unit for number in NUMBERS for unit in UNITS)]
TEXTS = st.sampled_from(EXTREMES) | st.text(max_size=20) | st.integers().map(str)
CHOICES = {
    option.name: [word.strip() for word in expects.replace(" or ", ", ").split(",")]
    for option in OPTIONS
    for expects in [option.kind.expects]
    if expects[0] in string.ascii_letters and " " not in expects.split(",")[0]
}


def values(name: str) -> st.SearchStrategy[str]:
    known = CHOICES.get(name)
    return TEXTS | st.sampled_from(known) if known else TEXTS


def some_of(scope: Scope) -> st.SearchStrategy[dict[str, str]]:
    names = [
        option.name
        for option in OPTIONS
        if option.scope & scope and option.name not in ("serviceUrl", "path")
    ]
    chosen = st.lists(st.sampled_from(names), max_size=3, unique=True)
    return chosen.flatmap(
        lambda given: st.fixed_dictionaries({name: values(name) for name in given})
    )


def is_readable(root: str, topic: str = "t") -> list[bytes]:
    """What a new process reads of the topic, if it is there; that it can."""
    folder = f"persistent/public/default/{topic}"
    ManagedLedger.open_anew(open_store(root), folder)
    run = Run(root, topic=topic, startingOffsets="earliest")
    return [message["value"] for batch in run.all() for message in batch.messages]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(options=some_of(Scope.WRITE))
@example(options={"txnAppId": "a", "txnVersion": "1" + "0" * 20, "transactional": "true"})
@example(options={"numPartitions": "100000000"})
@example(options={"deliverAfter": "9" * 18 + "d"})
@example(options={"deliverAt": "9" * 17})
@example(options={"batchingMaxMessages": str(2**63 - 1), "batchingMaxBytes": str(2**50)})
@example(options={"producerName": "\ud800"})
def test_a_sink_with_any_options_is_refused_or_its_topic_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, str]
) -> None:
    root = str(tmp_path_factory.getbasetemp() / uuid4().hex)
    send(root, "t", ["before"])
    try:
        parsed = PulsarliteDataSource({"serviceUrl": root, "topic": "t", **options}).parsed
        parsed.check_scope(Scope.BATCH_WRITE)
        if parsed.has("subscriptionName"):
            return
        rows = StructType().add("value", BinaryType())
        MessageSink(parsed, Root.of(parsed), rows)
        application = (parsed["txnAppId"], parsed["txnVersion"]) if "txnAppId" in options else None
        place, timeout_ms = Root.of(parsed), parsed["transactionTimeout"]
        txn = begin(place.store, application, timeout_ms) if parsed["transactional"] else None
        publish(place, written(parsed, ["after"]), application, transaction=txn)
    except PulsarliteError:
        assert is_readable(root) == [b"before"]
    else:
        assert b"before" in is_readable(root)
    send(root, "t", ["behind"])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(options=some_of(Scope.READ))
def test_a_source_with_any_options_is_refused_by_name_or_reads(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, str]
) -> None:
    root = str(tmp_path_factory.getbasetemp() / uuid4().hex)
    send(root, "t", ["a"])
    topic = {} if options.keys() & {"topic", "topics", "topicsPattern"} else {"topic": "t"}
    try:
        source = PulsarliteDataSource({"serviceUrl": root, **topic, **options})
        schema = source.schema()
        if not source.parsed.has("subscriptionName"):
            source.parsed.check_scope(Scope.BATCH_READ)
            reader = source.reader(schema)
            for partition in reader.partitions():
                list(reader.read(partition))
    except PulsarliteError:
        pass
    assert is_readable(root) == [b"a"]


@pytest.mark.parametrize("batch_id", [-1, 2**63, 10**20, 10**400])
def test_a_transaction_of_a_batch_id_that_can_not_be_is_refused(batch_id: int, root: Path) -> None:
    with pytest.raises(InvalidOptionError, match="batch_id"):
        transaction(batch_id=batch_id, application="a", service_url=str(root))


@pytest.mark.parametrize("version", [0, 2**63 - 1])
def test_a_transaction_of_any_batch_id_that_can_be_is_readable(version: int, root: Path) -> None:
    options = options_of(root, Scope.WRITE, {"topic": "t", "transactional": "true"})
    commit_as_one(Root.of(options), written(options, ["a"]), [], ("q", version), 60_000)
    assert is_readable(str(root)) == [b"a"]


def test_what_could_not_be_read_back_is_not_put_wherever_it_comes_from(root: Path) -> None:
    send(root, "t", ["a"])
    ledger = Root(str(root), {}).open(COMMANDS.parse("t"))
    beyond = Transaction(f"{'0' * 32}/{10**20}", "me", 1)
    for wrong in (
        {"application": ("q", 1), "transaction": beyond},
        {"application": ("q", 10**5000)},
        {"application": (7, 3)},
    ):
        broken: Any = wrong
        with pytest.raises(UnreadableRecordError, match="Nothing was stored"):
            ledger.append([], **broken)
    with pytest.raises(UnreadableRecordError, match="Nothing was stored"):
        ledger.change_settings(lambda known: {**known, "deduplication": float("nan")})
    with pytest.raises(UnreadableRecordError, match="nobody could read it again"):
        change_policies(ledger.store, NamespaceName("public", "default"), deduplication="perhaps")
    assert "deduplication" not in read_policies(ledger.store, NamespaceName("public", "default"))
    assert is_readable(str(root)) == [b"a"]
    send(root, "t", ["b"])
    assert is_readable(str(root)) == [b"a", b"b"]


@pytest.mark.parametrize("partitions", [0, -1, MAX_PARTITIONS + 1, 10**8])
def test_a_topic_has_no_more_partitions_than_fit(partitions: int, root: Path) -> None:
    store = open_store(str(root))
    with pytest.raises(InvalidOptionError, match="1 to 10000 partitions"):
        ManagedLedger.create(store, "persistent/public/default/t", partitions)
    assert not list(store.files("persistent/public/default/t/_log"))
    ledger = ManagedLedger.create(store, "persistent/public/default/t", 1)
    with pytest.raises(InvalidOptionError, match="1 to 10000 partitions"):
        ledger.grow(partitions)
    with pytest.raises(InvalidOptionError, match="numPartitions"):
        Options.parse({"serviceUrl": str(root), "numPartitions": str(partitions)})
    assert is_readable(str(root)) == []
    assert ledger.grow(MAX_PARTITIONS) is not None
    ledger.write_snapshot()
    assert ManagedLedger.open_anew(store, ledger.folder).state.partitions == MAX_PARTITIONS
