"""The client for asyncio: its calls are awaited, and who is cancelled loses nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pulsar_spark import aio, pulsar
from pulsar_spark.pulsar.schema import StringSchema

_numbers = itertools.count()
Work = Callable[[aio.Client], Coroutine[Any, Any, None]]


def run(work: Work) -> None:
    async def with_client() -> None:
        async with aio.Client(f"memory://aio-{next(_numbers)}") as client:
            await asyncio.wait_for(work(client), 60)

    asyncio.run(with_client())


def test_what_is_sent_at_once_shares_a_commit_and_each_gets_its_id() -> None:
    async def work(client: aio.Client) -> None:
        consumer = await client.subscribe("t", "s", schema=StringSchema())
        producer = await client.create_producer("t", schema=StringSchema())
        ids = await asyncio.gather(*(producer.send(str(number)) for number in range(30)))
        messages = [await consumer.receive() for _ in ids]
        assert [each.value() for each in messages] == [str(number) for number in range(30)]
        assert [each.message_id() for each in messages] == ids
        for message in messages:
            await consumer.acknowledge(message)
        assert len({each.ledger_id() for each in ids}) < len(ids)
        assert producer.topic() == "persistent://public/default/t"
        assert repr(producer).startswith("Producer(topic='persistent://public/default/t'")
        assert "Exclusive" in consumer._repr_html_()
        assert await consumer.get_last_message_id() == max(ids)
        await producer.flush()
        await producer.close()
        await consumer.close()
        assert not consumer.is_connected()

    run(work)


def test_who_is_cancelled_loses_no_message() -> None:
    async def work(client: aio.Client) -> None:
        consumer = await client.subscribe("t", "s")
        producer = await client.create_producer("t")
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await producer.send(b"a")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await consumer.receive()).data() == b"a"

    run(work)


def test_who_is_cancelled_in_a_batch_loses_none_of_it() -> None:
    async def work(client: aio.Client) -> None:
        policy = pulsar.ConsumerBatchReceivePolicy(4, 0, 60_000)
        consumer = await client.subscribe("t", "s", batch_receive_policy=policy)
        producer = await client.create_producer("t")
        for number in range(3):
            await producer.send(str(number).encode())
        taken: list[pulsar.Message | None] = []
        take = consumer.sync.reserve

        def taking() -> pulsar.Message | None:
            taken.append(take())
            return taken[-1]

        consumer.sync.reserve = taking  # type: ignore[method-assign]
        waiting = asyncio.create_task(consumer.batch_receive())
        while len(taken) < 3:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await producer.send(b"3")
        assert [each.data() for each in await consumer.batch_receive()] == [b"0", b"1", b"2", b"3"]

    run(work)


def test_a_batch_ends_when_its_time_is_over() -> None:
    async def work(client: aio.Client) -> None:
        policy = pulsar.ConsumerBatchReceivePolicy(4, 0, 50)
        consumer = await client.subscribe("t", "s", batch_receive_policy=policy)
        producer = await client.create_producer("t")
        assert await consumer.batch_receive() == []
        await producer.send(b"a")
        found = await consumer.batch_receive() or await consumer.batch_receive()
        assert [each.data() for each in found] == [b"a"]

    run(work)


def test_a_refusal_is_raised_where_it_is_awaited() -> None:
    async def work(client: aio.Client) -> None:
        producer = await client.create_producer("t")
        with pytest.raises(pulsar.MessageTooBig, match="maxMessageSize"):
            await producer.send(b"x" * (6 << 20))
        await client.subscribe("t", "s")
        with pytest.raises(pulsar.ConsumerBusy):
            await client.subscribe("t", "s")
        await producer.close()
        with pytest.raises(pulsar.AlreadyClosed):
            await producer.send(b"a")

    run(work)


def test_readers_tables_and_transactions_are_awaited_too() -> None:
    async def work(client: aio.Client) -> None:
        producer = await client.create_producer("t", schema=StringSchema())
        consumer = await client.subscribe("t", "s", schema=StringSchema())
        async with client.new_transaction() as transaction:
            await producer.add(transaction, "1", "a")
            await producer.add(transaction, "2", "b")
        async with client.new_transaction() as transaction:
            consumer.acknowledge_in(transaction, await consumer.receive())
        aborted = client.new_transaction()
        await producer.add(aborted, "3")
        aborted.abort()
        consumer.redeliver_unacknowledged_messages()
        assert (await consumer.receive()).value() == "2"
        reader = await client.create_reader("t", pulsar.MessageId.earliest, StringSchema())
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).value())
        assert found == ["1", "2"]
        view = await client.create_table_view("t", schema=StringSchema())
        assert (len(view), view.get("a")) == (2, "1")
        await view.close()
        await reader.close()
        assert await client.get_topic_partitions("t") == ["persistent://public/default/t"]

    run(work)
