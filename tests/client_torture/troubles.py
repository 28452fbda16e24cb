"""The troubles of a schedule: kills, stops, stores that fail, topics that change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pulsar_spark.connector.tools.admin.topics import Topics
from pulsar_spark.errors import TopicExistsError
from pulsar_spark.model.topic_name import TopicName
from tests.client_torture.turns import Process
from tests.torture.place import NOTHING

if TYPE_CHECKING:
    from tests.client_torture.world import World


def _any(world: World, begins: str = "") -> Process | None:
    chosen = [
        each for each in world.by_name.values()
        if not each.dead and not each.stopped and each.name.startswith(begins)
    ]  # fmt: skip
    return world.lots.draw_from(chosen) if chosen else None


def somebody_is_killed(world: World) -> None:
    process = _any(world)
    if process is not None:
        world.kill(process)


def a_consumer_is_killed(world: World) -> None:
    process = _any(world, "c")
    if process is not None:
        world.kill(process)


def a_consumer_stands_still(world: World) -> None:
    """For longer than its lease."""
    process = _any(world, "c")
    if process is not None:
        world.stop(process)
        world.wait(2.5 * world.setting.lease_ms / 1000)
        world.go_on(process)


def the_host_sleeps(world: World) -> None:
    """For so long that another takes over."""
    process = world.serving
    if process is not None and not process.stopped:
        world.stop(process)
        world.wait(25)
        world.go_on(process)


def the_store_is_away(world: World) -> None:
    """For some seconds, with all that it has."""
    world.trouble_begins("store")
    world.store.away = ""
    world.note("the store is away")
    world.wait(world.lots.draw(1, 10))
    world.store.away = NOTHING
    world.trouble_ends("store")


def somebody_stands_still(world: World) -> None:
    process = _any(world)
    if process is not None:
        world.stop(process)


def the_host_stands_still(world: World) -> None:
    process = _any(world, "host")
    if process is not None:
        world.stop(process)


def the_store_fails(world: World) -> None:
    store = world.store
    if store.one_fails_in:
        store.one_fails_in = 0
        world.trouble_ends("store")
    else:
        store.one_fails_in = world.lots.draw_from((3, 10, 40))
        world.trouble_begins("store")
    world.note(f"one change in {store.one_fails_in} fails")


def the_store_is_slow(world: World) -> None:
    slow = world.store.one_is_slow_in
    world.store.one_is_slow_in = 0 if slow else world.lots.draw_from((30, 100))
    world.note(f"one call in {world.store.one_is_slow_in} is slow")


def a_topic_grows(world: World) -> None:
    ledger = world.root.open(TopicName.parse(world.lots.draw_from(world.topics)))
    if ledger.state.partitions < 5:
        ledger.grow(ledger.state.partitions + 1)
        world.note(f"{ledger.topic} grows to {ledger.state.partitions}")


def a_topic_is_made_again(world: World) -> None:
    """It is deleted first; in between others may make it, or miss it."""
    topic = world.lots.draw_from(world.topics)
    world.remade = True
    world.trouble_begins("remade")
    deleted = world.oracle.deletes(topic)
    world.note(f"{topic} is deleted")
    Topics(world.root).delete(topic, force=True)
    if world.lots.one_in(2):
        world.wait(world.lots.draw(1, 3_000) / 1000)
    with suppress(TopicExistsError):
        world.create(topic)
        world.note(f"{topic} is made again")
    deleted.done = world.oracle.now()
    world.trouble_ends("remade")


def much_time_passes(world: World) -> None:
    world.wait(world.lots.draw(1, 30))


TROUBLES: dict[str, Callable[[World], None]] = {
    "kill": somebody_is_killed,
    "kill_consumer": a_consumer_is_killed,
    "stop": somebody_stands_still,
    "stop_consumer": a_consumer_stands_still,
    "away": the_store_is_away,
    "sleep": the_host_sleeps,
    "host": the_host_stands_still,
    "store": the_store_fails,
    "slow": the_store_is_slow,
    "grow": a_topic_grows,
    "remake": a_topic_is_made_again,
    "time": much_time_passes,
}
