"""What is raised where a program asks for what can't be."""

import os
from collections.abc import Callable

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription")
producer = client.create_producer(TOPIC)


def attempt(what: str, call: Callable[[], object]) -> None:
    try:
        call()
        print(what, "is taken")
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ != "builtins"]
        print(what, kinds or type(error).__name__)


attempt("a text as content", lambda: producer.send("text"))
attempt("no content", lambda: producer.send(None))
attempt("a number as content", lambda: producer.send(1))
attempt("a property that is a number", lambda: producer.send(b"", properties={"a": 1}))
attempt("a key that is bytes", lambda: producer.send(b"", partition_key=b"key"))
attempt("a sequence id that is a text", lambda: producer.send(b"", sequence_id="1"))
attempt("6,000,000 bytes", lambda: producer.send(b"x" * 6_000_000))
attempt("a topic that is a number", lambda: client.create_producer(1))
attempt("an empty topic", lambda: client.create_producer(""))
attempt("a name that is none", lambda: client.create_producer("a://b://c"))
attempt("no subscription", lambda: client.subscribe(TOPIC, None))
attempt("an empty subscription", lambda: client.subscribe(TOPIC, ""))
attempt("a type that is a text", lambda: client.subscribe(TOPIC, "s", "Shared"))
attempt(
    "another type", lambda: client.subscribe(TOPIC, "my-subscription", pulsar.ConsumerType.Shared)
)
attempt("a queue below nothing", lambda: client.subscribe(TOPIC, "s", receiver_queue_size=-1))
attempt("to wait for a text", lambda: consumer.receive("1"))
attempt("to acknowledge a text", lambda: consumer.acknowledge("1"))
attempt("to seek to a text", lambda: consumer.seek("1"))
attempt("to deserialize nonsense", lambda: pulsar.MessageId.deserialize(b"nonsense"))
shared = client.subscribe(TOPIC, "shared", pulsar.ConsumerType.Shared)
attempt(
    "to acknowledge shared up to one", lambda: shared.acknowledge_cumulative(producer.send(b""))
)
shared.close()
attempt("to receive what is closed", shared.receive)
attempt("to acknowledge what is closed", lambda: shared.acknowledge(pulsar.MessageId.earliest))
attempt("to unsubscribe what is closed", shared.unsubscribe)
client.close()
attempt("to send when all is closed", lambda: producer.send(b""))
attempt("to make what is closed make more", lambda: client.create_producer(TOPIC))
attempt("to close all twice", client.close)
