"""One process without Spark of the soak of subscriptions: `python -m tests.soak.clients ROLE ...`.

ROLE is client-publisher, a consumer's name, or a host of the broker: `command`, which is
`pulsarlite standalone --embedded`, or `client`. Behind it FOLDER and ROUND, and for a consumer
perhaps the seconds of its lease. The publisher goes on
behind the last sequence id that it published. A consumer keeps what it received in files, as the
streaming ones do, and then acknowledges it with a receipt; it notes both in the layout of Spark's
checkpoint, which tells what may come again when it is killed between the two.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_spark import pulsar
from pulsar_spark.connector.tools.command_line import command_line
from tests.soak.query import Place, end_with
from tests.soak.subscribers import (
    FIRST_SEEN,
    KEPT,
    LEASE_S,
    MAX_REDELIVER_COUNT,
    REJECTED,
    SUBSCRIPTIONS,
    seen,
    subscription_of,
)

PUBLISHER: Final = "client-publisher"
SENT_AT_ONCE: Final = 500
MOST_AT_ONCE: Final = 2_000
PATIENCE_S: Final = 600
"""The broker may have been killed, and Spark takes its time."""
HOSTS: Final = ("command", "client")


def publisher(client: pulsar.Client, place: Place) -> None:
    """Its sequence ids are the flights' numbers, so a flight that is sent again is dropped."""
    producer = client.create_producer(
        place.topic,
        producer_name=PUBLISHER,
        batching_enabled=True,
        batching_max_messages=SENT_AT_ONCE,
        options={"enableDeduplication": "true"},
    )
    begun = producer.last_sequence_id() + 1
    flights = pq.read_table(place.sent_by_client).slice(begun)
    for number, (key, value) in enumerate(zip(*flights.to_pydict().values(), strict=True), begun):
        producer.send_async(value.encode(), None, partition_key=key, sequence_id=number)
        if number % SENT_AT_ONCE == SENT_AT_ONCE - 1:
            producer.flush()
            place.ready(PUBLISHER).touch()
            (place.mark(PUBLISHER, "commits") / str(number // SENT_AT_ONCE)).touch()
            time.sleep(0.5)  # slowly: most of it is to happen while consumers die
    producer.close()
    place.sent.touch()


def consumer(client: pulsar.Client, place: Place, name: str, lease_s: float) -> None:
    subscription = subscription_of(name)
    folder = seen(place, name)
    folder.mkdir(parents=True, exist_ok=True)
    planned, committed = (place.mark(name, each) for each in ("offsets", "commits"))
    manual = subscription == "shared"
    dead_letters = pulsar.ConsumerDeadLetterPolicy(MAX_REDELIVER_COUNT) if manual else None
    held = client.subscribe(
        place.topic,
        subscription,
        pulsar.ConsumerType[SUBSCRIPTIONS[subscription].kind.replace("_", "")],
        initial_position=pulsar.InitialPosition.Earliest,
        consumer_name=name,
        negative_ack_redelivery_delay_ms=1_000,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(MOST_AT_ONCE, -1, 1_000),
        dead_letter_policy=dead_letters,
        ack_receipt_enabled=True,
        options={"leaseTimeout": f"{round(lease_s * 1000)}ms"},
    )
    number = 1 + max((int(each.name) for each in planned.iterdir()), default=-1)
    while True:
        place.ready(name).touch()
        messages = held.batch_receive()
        if not messages:
            continue
        (planned / str(number)).touch()
        keep(messages, folder, number)
        good, bad = list[pulsar.Message](), list[pulsar.Message]()
        for each in messages:
            (bad if manual and REJECTED.encode() in each.data() else good).append(each)
        held.negative_acknowledge(bad)
        held.acknowledge(good)
        (committed / str(number)).touch()
        number += 1


def host(role: str, url: str) -> NoReturn:
    """Serve the root until it is killed."""
    if role == "command":
        sys.exit(command_line.main(["standalone", "--embedded", "--service-url", url]))
    with pulsar.Client(url, broker="embedded"):
        while True:
            time.sleep(60)


def keep(messages: list[pulsar.Message], folder: Path, number: int) -> None:
    """One file, which is there whole or not at all."""
    rows = [row_of(each) for each in messages]
    table = pa.Table.from_pylist(rows, SCHEMA)
    moment = {FIRST_SEEN: str(time.time_ns()).encode()}
    temporary = folder / f".{number}"
    pq.write_table(table.replace_schema_metadata(moment), temporary)
    temporary.replace(folder / f"{number}.parquet")


def row_of(message: pulsar.Message) -> dict[str, Any]:
    held = message.message_id()
    values = (
        message.topic_name(), held.partition(), held.ledger_id(), held.entry_id(),
        held.batch_index(), message.partition_key() or None, message.data(), 0,
        message.redelivery_count(),
    )  # fmt: skip
    return dict(zip(KEPT, values, strict=True))


SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        ("key", pa.string()),
        ("value", pa.binary()),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("redelivery_count", pa.int32(), nullable=False),
    ]
)
"""As Spark has it in the files of the streaming consumers."""


def main() -> None:
    role, folder, number, *lease_s = sys.argv[1:]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    place = Place(Path(folder), int(number))
    if role in HOSTS:
        host(role, str(place.root))
    client = pulsar.Client(str(place.root), operation_timeout_seconds=PATIENCE_S)
    if role == PUBLISHER:
        publisher(client, place)
    else:
        consumer(client, place, role, float(lease_s[0]) if lease_s else LEASE_S)


if __name__ == "__main__":
    main()
