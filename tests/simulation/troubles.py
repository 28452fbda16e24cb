"""What may happen to a schedule besides publishing and consuming.

In a calm one consumers only come, go, restart from their checkpoints and change what they may
hold, and admins do what must make no difference to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsar_spark.broker.protocol.commands import (
    LeaseLapsed,
    Rejection,
    Report,
    Seek,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.simulation.source import Source

if TYPE_CHECKING:
    from tests.simulation.world import World

Trouble = Callable[["World"], None]


def closes(world: World) -> None:
    """A consumer goes."""
    source = _alive(world)
    if source is not None:
        source.close()
        if not world.setting.alone:
            world.sources.remove(source)


def ends_its_run(world: World) -> None:
    """A query under AvailableNow is at its end; the next one begins behind it."""
    source = _alive(world)
    if source is not None:
        source.close()


def is_too_far_behind(world: World) -> None:
    """What was said to it is trimmed: it asks again."""
    source = _alive(world)
    if source is not None and source.consumer is not None:
        source.subscribe(anew=False)


def an_old_copy_is_restored(world: World) -> None:
    """Of its checkpoint."""
    source = _troubled(world)
    if source is not None:
        source.restore()


def acknowledges_otherwise(world: World) -> None:
    """With another ackMode, which needs a new checkpoint."""
    source = _troubled(world)
    if source is not None:
        source.manual = not source.manual
        world.goes_on_alone = False
        source.crash(keep_checkpoint=False)


def restarts(world: World) -> None:
    """A process dies, and takes up from its checkpoint."""
    source = _any(world)
    if source is not None:
        source.crash(keep_checkpoint=True)


def changes_its_permits(world: World) -> None:
    source = _any(world)
    if source is not None:
        source.permits = world.draw(0, 9)


def asks_for_a_receipt(world: World) -> None:
    """Its acknowledgements are confirmed; the oracle looks at what comes after."""
    source = _alive(world)
    if source is not None and source.connected:
        source.report(certain=True, request_id=world.next_number())


def an_admin_changes_the_limits(world: World) -> None:
    """What is held already may be more than is allowed from now on."""
    world.change_policies(
        max_unacked_messages_per_consumer=world.draw_from((50_000, 3, 1)),
        max_unacked_messages_per_subscription=world.draw_from((200_000, 5, 1)),
    )


def forgets_everything(world: World) -> None:
    """A process dies with its checkpoint."""
    source = _troubled(world)
    if source is not None:
        source.crash(keep_checkpoint=False)


def stalls(world: World) -> None:
    """It shows no life, and its lease lapses; nobody tells it."""
    source = _troubled(world)
    if source is not None:
        source.stalled = True
        world.send(LeaseLapsed(source.subscription, source.name, source.incarnation))
        world.oracle.gone(source)


def wakes_up(world: World) -> None:
    source = _troubled(world)
    if source is not None:
        source.stalled = False


def gives_back(world: World) -> None:
    source = _troubled(world)
    if source is not None:
        world.goes_on_alone = False
        source.give_back()


def somebody_seeks(world: World) -> None:
    """To a message, into a batch, to a time, or to an end."""
    if world.setting.calm:
        return
    if world.one_in(4):
        world.send(Seek("s", timestamp_ms=world.now_ms - world.draw(-1, 4_000)))
        return
    choices = [EARLIEST, LATEST]
    choices += [Position(each.ledger_id, each.entries // 2) for each in world.log_ledgers]
    position, index = world.draw_from(choices), -1
    if position in world.sizes:
        index = world.draw(-1, world.sizes[position] - 1)
    world.send(Seek("s", position, index))


def all_leave_and_others_come(world: World) -> None:
    """Whoever comes next says of what type the subscription is."""
    if world.setting.calm:
        return
    for source in world.sources:
        source.stalled = False
        if not source.is_alive:
            source.crash(keep_checkpoint=True)
        source.close()
    world.sources = []
    world.setting.kind = world.draw_from(tuple(SubscriptionType))
    world.ordered = False
    if world.one_in(3):
        world.send(Unsubscribe("s"))


def unsubscribes(world: World) -> None:
    """Refused unless it is alone; then everything begins anew."""
    source = _troubled(world)
    if source is not None and source.connected:
        world.goes_on_alone = False
        source.unsubscribe()


def another_acknowledges(world: World) -> None:
    """A sink, or a consumer whose messages they aren't, acknowledges or rejects what is held."""
    source = _troubled(world)
    if source is None or not source.unsettled:
        return
    attempt, messages = world.draw_from(sorted(source.unsettled.items()))
    chosen = world.made(world.sample(world.plain(messages)) if messages else ())
    epoch = source.epoch
    how = world.draw(0, 2)
    if how == 0:
        world.send(Report("s", epoch=epoch, acknowledged=Cursor().acknowledge(chosen)))
    elif how == 1:
        world.send_badly(Report("s", epoch=epoch, acknowledged=Cursor().acknowledge(chosen)))
    else:
        world.oracle.rejected(chosen)
        world.send(Report("s", epoch=epoch, rejected=(Rejection(attempt, chosen, 0),)))
        left = {a: held.difference(chosen) for a, held in source.unsettled.items()}
        source.unsettled = {a: held for a, held in left.items() if held}


def nonsense_arrives(world: World) -> None:
    """Requests that are refused, and change nothing."""
    beyond = PositionSet.of([(10_000, 0)])
    epoch = world.oracle.epoch
    acknowledged = Cursor().acknowledge(beyond)
    number = world.next_number()
    world.send(Report("s", epoch=epoch, acknowledged=acknowledged, request_id=number))
    world.send(Report("s", "nobody", 1, epoch, request_id=world.next_number()))
    world.send(LeaseLapsed("s", "nobody", 1))
    world.send(Unsubscribe("s", "nobody", 1))


def _any(world: World) -> Source | None:
    return world.draw_from(world.sources) if world.sources else None


def _alive(world: World) -> Source | None:
    alive = [source for source in world.sources if source.is_alive]
    return world.draw_from(alive) if alive else None


def _troubled(world: World) -> Source | None:
    return None if world.setting.calm else _any(world)


TROUBLES: tuple[Trouble, ...] = (
    closes,
    restarts,
    changes_its_permits,
    forgets_everything,
    stalls,
    wakes_up,
    somebody_seeks,
    gives_back,
    all_leave_and_others_come,
    closes,
    restarts,
    ends_its_run,
    is_too_far_behind,
    an_old_copy_is_restored,
    acknowledges_otherwise,
    another_acknowledges,
    another_acknowledges,
    stalls,
    wakes_up,
    somebody_seeks,
    gives_back,
    unsubscribes,
    asks_for_a_receipt,
    an_admin_changes_the_limits,
    nonsense_arrives,
)
