"""A program with asyncio: it awaits messages, and is cancelled now and then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsar_spark import pulsar
from pulsar_spark.connector.client import aio
from tests.client_torture.oracle import Seat
from tests.client_torture.place import TurnsLoop

if TYPE_CHECKING:
    from tests.client_torture.programs import ConsumerProgram


def run_in_loop(program: ConsumerProgram, consumer: pulsar.Consumer, seat: Seat) -> None:
    """Receive with an event loop of its own, until the consumer is left."""
    loop = TurnsLoop(program.turns)
    loop.run_until_complete(_receive_all(program, aio.Consumer(consumer), seat))
    loop.close()


async def _receive_all(program: ConsumerProgram, consumer: aio.Consumer, seat: Seat) -> None:
    world, lots = program.world, program.lots
    while not program._is_leaving(seat):
        if program.busy:
            await asyncio.sleep(1)
            continue
        if not await _receive_once(program, consumer, seat):
            return
        if world.finishing:
            await asyncio.to_thread(program.settle_held, consumer.sync, seat)
        elif lots.one_in(program.setting.doing_one_in):
            client = world.client(program.process)
            await asyncio.to_thread(program._in_background, client, consumer.sync, seat)


async def _receive_once(program: ConsumerProgram, consumer: aio.Consumer, seat: Seat) -> bool:
    """Make one call, and cancel it if it takes long; True if the consumer is still of use."""
    world, lots = program.world, program.lots
    began = program.oracle.now()
    by_batch = lots.one_in(2) and not world.finishing
    call = consumer.batch_receive() if by_batch else consumer.receive()
    patience_s = 0.4 if world.finishing else lots.draw_from((0.005, 0.05, 0.4))
    task = asyncio.ensure_future(call)
    done, _ = await asyncio.wait([task], timeout=patience_s)
    if not done:
        task.cancel()
        await asyncio.wait([task])
    if task.cancelled():
        pass
    elif (error := task.exception()) is not None:
        if not isinstance(error, pulsar.PulsarException):
            raise error
        program.oracle_hears("await receive", error)
        if program._ends_with(consumer.sync, seat, error):
            return False
    else:
        found = task.result()
        messages = found if isinstance(found, list) else [found]
        handouts = [program.oracle.handed(seat, each, began) for each in messages]
        for each in handouts:
            await asyncio.to_thread(program.settle, consumer.sync, seat, each)
    return True
