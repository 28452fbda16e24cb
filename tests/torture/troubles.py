"""What may happen to a schedule besides that everybody does his work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pulsar_spark.broker.protocol.commands import Seek, SkipMessages
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.position import EARLIEST, LATEST
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.broker_query import QueryCheckpoint
from tests.connector.reading import Run
from tests.torture.client import Client
from tests.torture.queries import Checkpoint

if TYPE_CHECKING:
    from tests.torture.queries import Consumer
    from tests.torture.world import World

Trouble = Callable[["World"], None]


def a_process_is_killed(world: World) -> None:
    """Between two steps; it starts again when it is its turn."""
    query = world.lots.draw_from(world.actors())
    if query.is_running:
        world.kill(query)


def a_process_will_be_killed(world: World) -> None:
    """At a change of the store, before it or behind it."""
    actor = world.lots.draw_from([*world.consumers, *world.publishers, "broker", "broker"])
    world.store.fuses[actor] = world.lots.draw(0, 6)
    world.note(f"{actor} is to be killed in {world.store.fuses[actor]} changes")


def a_process_stands_still(world: World) -> None:
    """With all that it repeats; when it goes on, it does not know."""
    actor = world.lots.draw_from([*world.consumers, "broker"])
    until_ms = world.clock.elapsed_ms + world.lots.draw(1, 2 * world.lease_ms)
    world.asleep_until_ms[actor] = until_ms
    world.clock.stopped.add(actor)
    world.note(f"{actor} stands still")


def a_lease_is_not_renewed(world: World) -> None:
    """Its consumer works on."""
    actor = world.lots.draw_from(list(world.consumers))
    world.clock.stopped.add(actor)
    world.note(f"{actor} renews no more")


def a_process_stays_away(world: World) -> None:
    """It is killed, and stays away for longer than its lease."""
    query = world.lots.draw_from(list(world.consumers.values()))
    if query.is_running:
        world.kill(query)
    away_ms = world.lots.draw(world.lease_ms, 2 * world.lease_ms)
    world.asleep_until_ms[query.name] = world.clock.elapsed_ms + away_ms
    world.note(f"{query.name} stays away for {away_ms} ms")


def much_time_passes(world: World) -> None:
    """In one go, or with the broker looking."""
    rest_ms = world.lots.draw(1, 2 * world.lease_ms)
    pace_ms = world.lots.draw_from((500, 1_000, 4_000, rest_ms))
    world.note(f"{rest_ms} ms pass, by {pace_ms}")
    while rest_ms > 0:
        world.clock.advance(min(pace_ms, rest_ms))
        rest_ms -= pace_ms
        if "broker" not in world.asleep_until_ms:
            world.run_once()


def a_checkpoint_is_lost(world: World) -> None:
    consumer = _any(world)
    world.kill(consumer)
    lose_checkpoint(world, consumer)


def it_acknowledges_otherwise(world: World) -> None:
    """Its ackMode is changed: its checkpoint is refused, and it begins with a new one."""
    consumer = _any(world)
    if isinstance(consumer, Client):
        return
    changed = {name: value for name, value in consumer.given.items() if name not in _MANUAL}
    if not consumer.manual:
        changed["ackMode"] = "manual"
    world.kill(consumer)
    last = consumer.checkpoint.offsets.get(consumer.checkpoint.last)
    if last is not None:
        run = Run(world.root.service_url, start=last, **changed)
        try:
            run.planned()
        except InvalidOptionError as error:
            world.note(f"{consumer.name} is refused: {error}")
        else:
            world.oracle.fail(f"{consumer.name} changed its ackMode and kept its checkpoint")
    consumer.given = changed
    world.oracle.followed[consumer.subscription].ordered = False
    lose_checkpoint(world, consumer)


_MANUAL = ("ackMode", "negativeAckRedeliveryDelay", "ackTimeout")


def an_old_copy_is_restored(world: World) -> None:
    """Of a checkpoint. What its sink had from there on, the sink has forgotten too."""
    consumer = _any(world)
    if consumer.copies:
        world.kill(consumer)
        world.oracle.gone(consumer)
        copy = world.lots.draw_from(consumer.copies).copy()
        consumer.lost += 1
        copy.query_id = f"{consumer.name}-query-{consumer.lost}"
        world.oracle.restored(consumer.checkpoint, copy)
        consumer.checkpoint = copy
        consumer.copies = []
        world.note(f"{consumer.name} has an old copy of its checkpoint, of batch {copy.last}")


def it_runs_available_now(world: World) -> None:
    """From its next start on, until it is at its end; or no more."""
    consumer = _any(world)
    if consumer.is_running:
        world.kill(consumer)
    consumer.available_now = not consumer.available_now
    world.leaving.add(consumer.name)
    world.note(f"{consumer.name} runs AvailableNow: {consumer.available_now}")


def the_broker_is_killed(world: World) -> None:
    world.note("the broker is killed")
    world.end_broker()
    if world.spark is not None and world.lots.one_in(2):
        world.cuts_off = world.lots.draw_from(world.topics)
        world.note("it is killed again before Spark commits, and then can't read a topic once")


def the_brokers_checkpoint_is_lost(world: World) -> None:
    world.note("the broker's checkpoint is lost")
    world.end_broker()
    if world.spark is None:
        world.store.delete("_broker/broker")
    else:
        world.spark = QueryCheckpoint(f"{world.spark.query_id}-anew")


def a_rival_begins(world: World) -> None:
    """It takes over, and the broker that was there finds out."""
    if world.setting.rivals and not world.store.one_fails_in:
        world.note("a rival of the broker begins")
        EmbeddedBroker(world.root).close()


def a_topic_grows(world: World) -> None:
    grow(world, world.lots.draw_from(world.topics))


def grow(world: World, topic: str) -> None:
    ledger = world.root.open(TopicName.parse(topic))
    if ledger.state.partitions < 5:
        ledger.grow(ledger.state.partitions + 1)
        world.note(f"{topic} grows to {ledger.state.partitions}")


def an_admin_seeks(world: World) -> None:
    """Back to the beginning, mostly."""
    seek = Seek("s", world.lots.draw_from((EARLIEST, EARLIEST, LATEST)))
    if world.lots.one_in(3):
        seek = Seek("s", timestamp_ms=world.clock.wall_ms() - world.lots.draw(0, 20_000))
    commands = {(TopicPartition(*place), "s"): seek for place in world.partitions(world.topics)}
    world.oracle.sought("s", world.say(commands), seek, world.partitions(world.topics))
    world.note(f"{seek}")


def an_admin_skips(world: World) -> None:
    """All of the backlog, or its beginning."""
    skip = SkipMessages("s", world.lots.draw_from((None, 1, 3)))
    commands = {(TopicPartition(*place), "s"): skip for place in world.partitions(world.topics)}
    world.oracle.skipped("s", world.say(commands), world.partitions(world.topics))
    world.note(f"{skip}")


def a_policy_is_changed(world: World) -> None:
    """Of one topic; of what limits consumers nothing where a message's chunks need room."""
    name, value = world.lots.draw_from(POLICIES)
    if name.startswith("max_unacked") and world.setting.chunks:
        return

    def change(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**settings, "policies": {**settings.get("policies", {}), name: value}}

    topic = world.lots.draw_from(world.topics)
    world.oracle.policy_changes(topic, name, value)
    world.root.open(TopicName.parse(topic)).change_settings(change)
    world.note(f"{name} of {topic} is {value}")


POLICIES: tuple[tuple[str, Any], ...] = (
    ("retention_time_ms", 0),
    ("retention_time_ms", -1),
    ("retention_size_bytes", -1),
    ("message_ttl_ms", 0),
    ("message_ttl_ms", 9_000),
    ("delayed_delivery", False),
    ("max_unacked_messages_per_consumer", 4),
    ("max_unacked_messages_per_consumer", 50_000),
    ("max_unacked_messages_per_subscription", 6),
    ("max_unacked_messages_per_subscription", 200_000),
    ("dispatcher_max_round_robin_batch_size", 1),
    ("key_shared_look_ahead", 3),
    ("key_shared_consistent_hashing", False),
    ("key_shared_consistent_hashing", True),
)


def files_are_tidied(world: World) -> None:
    ledger = world.root.open(TopicName.parse(world.lots.draw_from(world.topics)))
    store = LedgerStore(ledger, grace_ms=world.lots.draw_from((5_000, 600_000)))
    store.merge_small_files()
    store.reclaim_orphans(older_than_ms=120_000)
    store.sweep()
    world.note("files are tidied")


def a_clock_is_set(world: World) -> None:
    """Of one machine, by minutes."""
    actor = world.lots.draw_from([*world.consumers, *world.publishers, "broker"])
    ahead_ms = world.lots.draw(-120_000, 120_000)
    if world.clock.set_ahead_ms.get(actor):
        ahead_ms = 0
    world.clock.set_ahead_ms[actor] = ahead_ms
    world.most_ahead_ms = max(world.most_ahead_ms, ahead_ms, -ahead_ms)
    world.note(f"the clock of {actor} is set by {ahead_ms} ms")


def the_store_fails(world: World) -> None:
    world.store.one_fails_in = 0 if world.store.one_fails_in else world.lots.draw_from((10, 40))
    world.note(f"one change in {world.store.one_fails_in} fails")


def the_store_is_slow(world: World) -> None:
    slow = world.store.one_is_slow_in
    world.store.one_is_slow_in = 0 if slow else world.lots.draw_from((10, 100))
    world.note(f"one call in {world.store.one_is_slow_in} is slow")


def the_disk_is_full(world: World) -> None:
    world.store.full_until_ms = world.clock.elapsed_ms + world.lots.draw(1, 20_000)
    world.note("the disk is full")


def lose_checkpoint(world: World, consumer: Consumer) -> None:
    world.oracle.gone(consumer)
    consumer.lost += 1
    consumer.checkpoint = Checkpoint(f"{consumer.name}-query-{consumer.lost}")
    consumer.copies = []
    world.note(f"{consumer.name} loses its checkpoint")


def _any(world: World) -> Consumer:
    return world.lots.draw_from(list(world.consumers.values()))


TROUBLES: tuple[Trouble, ...] = (
    a_process_is_killed,
    a_process_is_killed,
    a_process_is_killed,
    a_process_will_be_killed,
    a_process_will_be_killed,
    a_process_stands_still,
    a_lease_is_not_renewed,
    a_process_stays_away,
    much_time_passes,
    much_time_passes,
    a_checkpoint_is_lost,
    it_acknowledges_otherwise,
    an_old_copy_is_restored,
    it_runs_available_now,
    the_broker_is_killed,
    the_brokers_checkpoint_is_lost,
    a_rival_begins,
    a_topic_grows,
    an_admin_seeks,
    an_admin_skips,
    a_policy_is_changed,
    files_are_tidied,
    a_clock_is_set,
    the_store_fails,
    the_store_is_slow,
    the_disk_is_full,
)

GENTLE: tuple[Trouble, ...] = (
    a_process_is_killed,
    a_process_is_killed,
    a_process_will_be_killed,
    it_runs_available_now,
    the_broker_is_killed,
    the_brokers_checkpoint_is_lost,
    a_topic_grows,
    files_are_tidied,
    the_store_fails,
    the_store_is_slow,
)
"""Those after which every key's messages still come in order."""
