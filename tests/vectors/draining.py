"""Checks of slots that drain: a Key_Shared subscription in the broker's step.

A recorded case calls Pulsar's tracker directly, one call a step. Here each call is what brings it
about: a consumer that loses a slot while it holds messages of it, one to whom a message of a slot
would go, one that acknowledges or gives back. Consumers name their slots (STICKY), so a slot moves
when two of them subscribe anew.

What the tracker refuses, nobody can do here; that is tried, and must change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pulsar_spark.broker.dispatchers.dispatcher_sticky_key import StickyKeyRun
from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    InitialPosition,
    LedgerAdded,
    RedeliverUnacknowledgedMessages,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import (
    INFINITE,
    KeySharedMode,
    KeySharedPolicy,
    TopicPolicies,
)
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet
from tests.vectors.case import Case

_KEPT: Final = TopicPolicies(retention_time_ms=INFINITE, retention_size_bytes=INFINITE)
_NO_KEY: Final = 0
_OTHER: Final = "another"
"""To whom a slot goes that a consumer loses."""
_PERMITS: Final = 1_000


def check_draining_hashes(case: Case) -> None:
    steps = case.take("steps")
    walk = _Walk(steps)
    for number, record in enumerate(steps):
        recorded = Case(f"step {number} {record.get('op')}", record)
        walk.step(recorded, number)
        case.problems += [f"{recorded.name}: {text}" for text in recorded.close().problems]


class _Walk:
    """One case being walked through."""

    def __init__(self, steps: Sequence[dict[str, Any]]) -> None:
        self.steps = steps
        hashes = sorted({each["hash"] for each in steps} - {_NO_KEY})
        self.slots = {_NO_KEY: _NO_KEY} | {each: place for place, each in enumerate(hashes, 1)}
        """By recorded hash."""
        self.group = _Group({each["consumer"] for each in steps}, len(hashes))
        self.waiting: dict[int, PositionSet] = {}
        """By slot, messages that were not granted because it drained."""

    def step(self, recorded: Case, number: int) -> None:
        op, name, sticky_hash = (recorded.take(each) for each in ("op", "consumer", "hash"))
        slot = self.slots[sticky_hash]
        self.error: str | None = None
        self.is_unblocked = False
        if op == "add_entry":
            self._add(name, slot, number)
        elif op == "reduce_ref_count":
            self._reduce(recorded, name, slot, closing=recorded.take("closing"))
        elif op == "should_block":
            recorded.expect("blocked", self._is_blocked(name, slot))
        else:
            recorded.problems.append("this op is not known")
        recorded.compare("error", recorded.take("error", None), self.error)
        recorded.expect("unblock_notifications", [sticky_hash] if self.is_unblocked else [])
        holders = self.group.draining()
        draining = {str(h): holders[each] for h, each in self.slots.items() if each in holders}
        recorded.expect("draining", draining)
        recorded.compare("read back", True, self.group.comes_back())

    def _add(self, name: str, slot: int, number: int) -> None:
        """A consumer loses a slot, and holds messages of it."""
        holder = self.group.draining().get(slot)
        if slot == _NO_KEY:
            if self.group.has_no_slot_without_key():
                self.error = "IllegalArgumentException"
        elif holder is None:
            self.group.move(slot, name)
            self.group.publish(slot, self._added_from(number))
            self.group.deliver(name)
            self.group.move(slot, _OTHER)
        elif holder != name:
            self.group.move(slot, name)
            messages, granted = self.group.publish(slot, 1)
            if not granted:
                self.error = "IllegalStateException"
            self.group.acknowledge(messages)

    def _added_from(self, number: int) -> int:
        """How many messages the consumer of a step holds until the slot drains no more.

        All are granted before the slot drains: while it does, nobody gets any.
        """
        name, slot = self.steps[number]["consumer"], self.steps[number]["hash"]
        held = total = 0
        for each in self.steps[number:]:
            if (each["consumer"], each["hash"]) != (name, slot):
                continue
            if each["op"] == "should_block":
                break
            held += 1 if each["op"] == "add_entry" else -1
            total += each["op"] == "add_entry"
            if not held:
                break
        return total

    def _reduce(self, recorded: Case, name: str, slot: int, *, closing: bool) -> None:
        """A consumer acknowledges one message, or gives it back: that does one that closes."""
        holder = self.group.draining().get(slot)
        if holder is None:
            return
        held = self.group.held(holder, slot)
        if holder != name:
            self.group.give_back(name, held)
            if self.group.held(holder, slot) == held:
                self.error = "IllegalStateException"
            return
        one = held.prefix(1, self.group.state.ledgers)
        ready = self.group.give_back(name, one) if closing else self.group.acknowledge(one)
        went_on = _granted(ready).intersection(self.waiting.get(slot, PositionSet()))
        recorded.compare("left", held.difference(one), self.group.held(name, slot))
        self.group.acknowledge(one)
        if slot in self.group.draining():
            recorded.compare("granted while it drains", PositionSet(), went_on)
            return
        waited = self.waiting.pop(slot, PositionSet())
        recorded.compare("granted once it drains no more", waited, went_on)
        self.group.acknowledge(waited)
        # What a consumer leaves, Pulsar dispatches anyway, without being told.
        self.is_unblocked = bool(waited) and not closing

    def _is_blocked(self, name: str, slot: int) -> bool:
        """A message comes of a slot that is this consumer's now."""
        if slot == _NO_KEY:
            return not self.group.has_no_slot_without_key()
        self.group.move(slot, name)
        messages, granted = self.group.publish(slot, 1)
        if not granted:
            self.waiting[slot] = self.waiting.get(slot, PositionSet()).union(messages)
            return True
        self.group.acknowledge(self.group.held(name, slot))
        self.waiting.pop(slot, None)
        return False


class _Group:
    """A subscription, and its consumers as they talk to the broker."""

    def __init__(self, names: set[str], slots: int) -> None:
        """With so many slots, from 1 on, that messages have."""
        self.state = BrokerState("persistent://public/default/vectors", policies=_KEPT)
        everybody = sorted({*names, _OTHER})
        self._own = {name: {place} for place, name in enumerate(everybody, slots + 1)}
        """By consumer, its slots: one that no message has, and those that came to it."""
        self._own[_OTHER].update(range(1, slots + 1))
        self._runs = dict.fromkeys(self._own, 0)
        self._said = 0
        for name in self._own:
            self._tell(self._subscription_of(name))

    def draining(self) -> dict[int, str]:
        """By slot, the consumer from which it drains."""
        return {
            slot: name
            for name in self._own
            for slot in np.unique(self._run_of(self._consumer(name).draining).slots).tolist()
        }

    def held(self, name: str, slot: int) -> PositionSet:
        """What a consumer holds of a slot."""
        run = self._run_of(self._consumer(name).held)
        return run.take(np.flatnonzero(run.slots == slot))

    def has_no_slot_without_key(self) -> bool:
        """Whether messages without a key are never those of a slot of their own."""
        selector = self.state.subscriptions["s"].selector
        return selector is not None and _NO_KEY not in selector.slots_of(np.array([_NO_KEY]))

    def move(self, slot: int, name: str) -> None:
        """Give a slot to another consumer: both subscribe anew, and go on with what they hold."""
        owner = next(each for each, slots in self._own.items() if slot in slots)
        if owner == name:
            return
        self._own[owner].remove(slot)
        self._own[name].add(slot)
        for each in (owner, name):
            self._runs[each] += 1
        self._tell(self._subscription_of(owner), self._subscription_of(name))

    def publish(self, slot: int, messages: int) -> tuple[PositionSet, bool]:
        """(the new messages of a slot, whether they were granted at once)."""
        ledger_id = len(self.state.ledgers)
        ledger = LedgerInfo(ledger_id, 0, "", 0, BatchSizes(((1, messages),)), 0, 0, 0)
        hashes = np.full(messages, slot, np.int32)
        ready = self._tell(LedgerAdded(ledger, sticky_key_hashes=hashes))
        added = PositionSet.of_range(ledger_id, 0, messages - 1)
        return added, _granted(ready).intersection(added) == added

    def deliver(self, name: str) -> None:
        """A consumer plans all that it was granted, and says so."""
        held = self._consumer(name)
        self._said += 1
        self._tell(
            Report(
                "s", name, held.incarnation, sequence=self._said, permits=_PERMITS,
                delivered=dict(held.pending.items()), revision=held.revision,
            )
        )  # fmt: skip

    def acknowledge(self, messages: PositionSet) -> Ready:
        return self._tell(Report("s", epoch=None, acknowledged=Cursor().acknowledge(messages)))

    def give_back(self, name: str, messages: PositionSet) -> Ready:
        """A consumer wants them to be delivered again, whether it holds them or not."""
        self._said += 1
        attempts = {0: messages}  # nothing is granted for a second time here
        run = self._consumer(name).incarnation
        return self._tell(RedeliverUnacknowledgedMessages("s", name, run, 0, self._said, attempts))

    def comes_back(self) -> bool:
        """Whether the state is the same once it was stored and read; it goes on from there."""
        shards = to_shards(self.state)
        self.state = from_shards(shards)
        return to_shards(self.state) == shards

    # -- inside ------------------------------------------------------------------------------

    def _tell(self, *commands: Command) -> Ready:
        self.state, ready = step(self.state, commands, 0)
        self.state.check()
        for reply in ready.replies:
            assert reply.error is None, reply.message
        return ready

    def _subscription_of(self, name: str) -> Subscribe:
        ranges = tuple((slot, slot) for slot in sorted(self._own[name]))
        return Subscribe(
            "s", name, self._runs[name], SubscriptionType.KEY_SHARED,
            initial_position=InitialPosition.EARLIEST, permits=_PERMITS, resumes=True,
            key_shared_policy=KeySharedPolicy(KeySharedMode.STICKY, ranges=ranges), request_id=0,
        )  # fmt: skip

    def _consumer(self, name: str) -> Consumer:
        return self.state.subscriptions["s"].consumers[name]

    def _run_of(self, messages: PositionSet) -> StickyKeyRun:
        selector = self.state.subscriptions["s"].selector
        assert selector is not None
        return StickyKeyRun.of(messages, self.state, selector)


def _granted(ready: Ready) -> PositionSet:
    """What was granted for the first time."""
    return PositionSet.union_of(each.messages for each in ready.grants if not each.again)
