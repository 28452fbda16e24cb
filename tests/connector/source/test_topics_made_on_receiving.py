"""A consumer or a Reader may come before its topic: it is made as on sending, or refused."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StructType

from pulsar_spark import Admin, pulsar
from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.runtime.system_topics.subscription_admin import ask, subscriptions
from pulsar_spark.connector.runtime.topics.policies import Policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.data_source import PulsarliteDataSource
from pulsar_spark.connector.spark.schema_types import definition_of
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
from pulsar_spark.errors import (
    BrokerRefusedError,
    InvalidOptionError,
    PulsarliteError,
    TopicNotFoundError,
)
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Scope
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Run
from tests.connector.topics import ledger_of, options_of, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.connector.conftest import MakeQuery

pytestmark = pytest.mark.usefixtures("impatient")
NAMESPACE = "public/default"


@pytest.fixture
def broker(root: Path) -> EmbeddedBroker:
    return EmbeddedBroker(Root(str(root), {}), "_broker/broker")


@pytest.fixture
def policies(root: Path) -> Policies:
    return Admin(str(root)).policies(NAMESPACE)


def consumer(root: Path, **given: Any) -> Run:
    """Interested in what comes from now on, as a consumer is by default."""
    where = {} if given.keys() & {"topics", "topicsPattern"} else {"topic": "t"}
    return Run(root, **({"subscriptionName": "s", "consumerName": "c"} | where | given))


def turns(run: Run, broker: EmbeddedBroker) -> list[str]:
    """By turns until neither has anything to do; what came."""
    values: list[str] = []
    while True:
        batch = run.next()
        values += [] if batch is None else batch.values
        if not broker.until_quiet() and batch is None:
            return sorted(values)


def exists(root: Path, topic: str) -> bool:
    return Root(str(root), {}).open_found(TopicName.parse(topic)) is not None


# -- who comes first -------------------------------------------------------------------------------


def test_a_reader_of_what_comes_may_come_first_and_misses_nothing(root: Path) -> None:
    run = Run(root, topic="t")
    send(root, "t", "a")  # before its first plan, which pins what «latest» is
    assert run.values() == ["a"]
    send(root, "t", "b")
    assert run.values() == ["b"]


def test_a_consumer_may_come_first_and_misses_nothing(root: Path, broker: EmbeddedBroker) -> None:
    run = consumer(root)
    send(root, "t", "a")  # before the broker has heard of the subscription
    assert turns(run, broker) == ["a"]
    send(root, "t", "b")
    assert turns(run, broker) == ["b"]


def test_a_topic_of_a_list_is_made_too_and_read_from_its_beginning(
    root: Path, broker: EmbeddedBroker
) -> None:
    send(root, "there", ["old"])
    run = consumer(root, topics="there,new")
    send(root, "new", "a")
    assert turns(run, broker) == ["a"], "of the one that was there it is interested in what comes"
    send(root, "there", "b")
    assert turns(run, broker) == ["b"]


@pytest.mark.parametrize("kills", [False, True])
def test_a_topic_that_is_new_to_a_pattern_without_any_is_read_from_its_beginning(
    root: Path, broker: EmbeddedBroker, *, kills: bool
) -> None:
    pattern: dict[str, Any] = {"topicsPattern": "t.*", "topicDiscoveryInterval": 0}
    run = consumer(root, **pattern)
    assert turns(run, broker) == []
    if kills:  # its checkpoint was made before the topic was there
        run = consumer(root, **pattern, start=run.offset)
    send(root, "t1", "a")
    if kills:
        run = consumer(root, **pattern, start=run.offset)
    assert turns(run, broker) == ["a"]


def test_a_topic_that_is_new_to_a_readers_checkpoint_is_read_from_its_beginning(root: Path) -> None:
    send(root, "a", ["old"])
    first = Run(root, topic="a")
    assert first.values() == []
    again = Run(root, topics="a,b", start=first.offset)
    send(root, "b", ["new"])
    assert again.values() == ["new"]


def test_letter_topics_may_be_read_before_there_is_a_letter(
    root: Path, broker: EmbeddedBroker
) -> None:
    dead_letters = Run(root, topic="t-s-DLQ")
    assert dead_letters.values() == []
    send(root, "t", "a")
    run = consumer(
        root, subscriptionInitialPosition="Earliest", subscriptionType="Shared",
        enableRetry=True, includeProperties=True,
    )  # fmt: skip
    assert turns(run, broker) == ["a"]
    assert exists(root, "t-s-RETRY")
    assert ledger_of(root, "t-s-DLQ").state.settings["policies"]["keep_without_subscription"]


def test_the_client_makes_topics_as_spark_does(policies: Policies, root: Path) -> None:
    policies.set(auto_topic_partitions=3)
    with pulsar.Client(str(root), broker="embedded") as client:
        client.subscribe("t", "s").close()
        client.create_reader("u-partition-0", pulsar.MessageId.earliest).close()
    assert [ledger_of(root, name).state.partitions for name in "tu"] == [3, 3]


def test_a_list_with_a_topic_that_has_no_schema_yet_is_read_by_the_schema_of_the_others(
    root: Path,
) -> None:
    place, order = Root(str(root), {}), StructType().add("id", LongType())
    info = SchemaInfo(SchemaType.JSON, definition_of(order))
    given: dict[str, Any] = {"valueSchema": "auto", "startingOffsets": "earliest"}

    def publish(topic: str, value: str) -> None:
        name = TopicName.parse(topic)
        register(place.open_or_create(name, 1), name, SinkSchema(info))
        send(root, topic, [value])

    publish("there", '{"id":1}')
    options = {"serviceUrl": str(root), "topics": "there,new", **given}
    schema = PulsarliteDataSource(options).schema()
    assert schema["value"].dataType == order
    run = Run(root, schema=schema, topics="there,new", **given)
    assert [each["value"] for batch in run.all() for each in batch.messages] == [{"id": 1}]
    again = Run(root, schema=schema, topics="there,new", start=run.offset, valueSchema="auto")
    publish("new", '{"id":2}')
    assert [each["value"] for batch in again.all() for each in batch.messages] == [{"id": 2}]


@pytest.mark.spark
@pytest.mark.parametrize("subscription", [{}, {"subscriptionName": "s"}])
def test_a_query_may_be_started_before_its_topic_is_there(
    root: Path, query: MakeQuery, subscription: dict[str, str]
) -> None:
    with PlainBroker(root, "_broker/broker"):
        mine = query(topic="t", **subscription)
        running = mine.start()
        try:
            eventually(lambda: exists(root, "t"))
            send(root, "t", "ab")
            mine.wait_for({"a", "b"})
        finally:
            running.stop()
        assert query("another", topic="u", **subscription).run() == []


# -- how it is made --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "partitions"),
    [
        ({}, 1),
        ({"auto_topic_partitions": 4}, 4),
        ({"auto_topic_type": "partitioned", "auto_topic_partitions": 4}, 4),
        ({"auto_topic_type": "non-partitioned"}, 1),
    ],
)
def test_the_namespace_says_of_what_type_it_is(
    root: Path, policies: Policies, said: dict[str, Any], partitions: int
) -> None:
    if said:
        policies.set(**said)
    Run(root, topic="t")
    assert ledger_of(root, "t").state.partitions == partitions


def test_a_topic_that_is_not_partitioned_has_no_partitions(policies: Policies) -> None:
    policies.set(auto_topic_type="non-partitioned")
    with pytest.raises(InvalidOptionError, match="do not go together"):
        policies.set(auto_topic_partitions=4)


def test_a_topic_that_is_made_is_no_warning_unless_its_name_looks_mistyped(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for topic in ("orders", "orders-eu", "jobs-1", "jobs-2"):
        Run(root, topic=topic).values()
    assert not caplog.records
    run = Run(root, topic="ordres")
    run.values()
    Run(root, topic="ordres").values()
    (line,) = [each.getMessage() for each in caplog.records]
    assert "ordres did not exist, and was made to be read, with 1 partition." in line
    assert "Did you mean persistent://public/default/orders? Then delete it." in line


# -- where it is not made --------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["namespace", "option"])
@pytest.mark.parametrize("subscription", [{}, {"subscriptionName": "s"}])
def test_where_topics_are_not_made_the_error_names_the_one_that_is_near(
    root: Path, policies: Policies, who: str, subscription: dict[str, str]
) -> None:
    send(root, "orders", "a")
    given: dict[str, Any] = {**subscription, "topic": "ordres"}
    if who == "namespace":
        policies.set(auto_topic_creation=False)
    else:
        given["allowAutoTopicCreation"] = "false"
    for made in (
        lambda: Run(root, **given),
        lambda: PulsarliteDataSource({"serviceUrl": str(root), **given}).schema(),
    ):
        with pytest.raises(TopicNotFoundError, match=r"Did you mean .*/orders\?.*topics create"):
            made()
    assert not exists(root, "ordres")


def test_a_sink_makes_no_topic_where_its_option_says_so(root: Path) -> None:
    with pytest.raises(TopicNotFoundError, match="the option allowAutoTopicCreation is false"):
        send(root, "t", "a", allowAutoTopicCreation=False)


def test_a_batch_makes_no_topic(root: Path) -> None:
    send(root, "orders", "a")
    options = options_of(root, Scope.BATCH_READ, {"topic": "ordres"})
    reader = PulsarliteReader(options, Root.of(options), read_schema(include_properties=False))
    with pytest.raises(TopicNotFoundError, match="Did you mean"):
        reader.partitions()
    with pytest.raises(InvalidOptionError, match="no meaning here"):
        options_of(root, Scope.BATCH_READ, {"topic": "t", "allowAutoTopicCreation": True})
    assert not exists(root, "ordres")


def test_looking_at_a_dataframes_columns_makes_no_topic(root: Path) -> None:
    source = PulsarliteDataSource({"serviceUrl": str(root), "topic": "t"})
    assert source.schema() == read_schema(include_properties=False)
    assert not exists(root, "t")


@pytest.mark.parametrize(
    ("topic", "why"),
    [("__dispatch", "only Pulsarlite itself"), ("t-partition-0", "does not exist")],
)
def test_neither_a_system_topic_nor_a_partition_alone_is_made(
    root: Path, topic: str, why: str
) -> None:
    with pytest.raises(TopicNotFoundError, match=why):
        Run(root, topic=topic)


@pytest.mark.parametrize("subscription", [{}, {"subscriptionName": "s", "consumerName": "c"}])
def test_a_topic_that_the_checkpoint_has_read_is_not_made_again(
    root: Path, broker: EmbeddedBroker, subscription: dict[str, Any]
) -> None:
    send(root, "t", "a")
    run = Run(root, topic="t", **subscription)
    turns(run, broker)
    for path in sorted((root / "persistent/public/default/t").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = Run(root, topic="t", start=run.offset, **subscription)
    with pytest.raises(TopicNotFoundError, match="the checkpoint has read it: it was deleted"):
        again.next()
    assert not exists(root, "t")


# -- subscriptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["topic", "namespace"])
def test_where_subscriptions_are_not_made_a_consumer_is_refused(
    root: Path, broker: EmbeddedBroker, level: str
) -> None:
    send(root, "t", "a")
    name = "t" if level == "topic" else NAMESPACE
    Admin(str(root)).policies(name).set(auto_subscription_creation=False)
    run = consumer(root)
    with pytest.raises(BrokerRefusedError, match=r"SubscriptionNotFound.*subscriptions create"):
        turns(run, broker)
    assert subscriptions(broker.root) == []


def test_where_subscriptions_are_not_made_a_client_gets_pulsars_error() -> None:
    with pulsar.Client(f"memory://{uuid.uuid4().hex}") as client:
        Admin(client.root.service_url).policies(NAMESPACE).set(auto_subscription_creation=False)
        with pytest.raises(pulsar.SubscriptionNotFound):
            client.subscribe("t", "s")
        client.create_reader("t", pulsar.MessageId.earliest).close()


def test_a_subscription_that_was_made_by_hand_lets_its_consumers_in(
    root: Path, broker: EmbeddedBroker
) -> None:
    send(root, "t", "a")
    Admin(str(root)).policies("t").set(auto_subscription_creation=False)
    topic_partition = TopicPartition("persistent://public/default/t", 0)
    with pytest.raises(PulsarliteError):  # nobody answers while the test does not let it
        ask(broker.root, {topic_partition: CreateSubscription("s")}, timeout_s=0)
    broker.until_quiet()
    assert turns(consumer(root), broker) == ["a"]
    not_kept = consumer(root, subscriptionName="passing", subscriptionMode="NonDurable")
    assert turns(not_kept, broker) == [], "one that does not stay is let in, as in Pulsar"
