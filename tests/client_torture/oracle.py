"""The oracle: it compares what programs were handed with what they were promised.

A message is handed out when a call of the program returns it, or its listener is given it; what the
client queues does not count. The oracle knows which messages were published and confirmed, which
call was handed which message, which acknowledgements had a receipt, and when consumers sought, were
killed or stood still. A call that ended in an error may have taken effect: the oracle demands
nothing then, and counts that in `open_ends`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_spark import pulsar
from tests.client_torture.turns import Process
from tests.torture.oracle import ViolationError

if TYPE_CHECKING:
    from tests.client_torture.world import World

FOREVER = 1 << 60
SEEN_S = 1.0
"""The longest time until a consumer has received another's seek or acknowledgement."""
RESTART = "restart"
"""The end of a subscription, which begins anew with the first message that is stored."""
ENDS = ("latest", "end")
Place = tuple[str, int]
Position = tuple[int, int, int]
"""Ledger, entry, index in the batch."""


@dataclass(eq=False)
class Published:
    """A message, from when it is sent."""

    value: str
    topic: str
    key: str | None
    sent: int
    confirmed: int = FOREVER
    maybe: bool = False
    """Its send ended in an error, or its process was killed: it may be there."""
    place: Place | None = None
    position: Position = (0, 0, 0)


@dataclass(eq=False)
class Acknowledgment:
    """An acknowledgement of one handout; `receipt` is the moment at which its receipt came."""

    at: int
    at_ms: float
    receipt: int = FOREVER


@dataclass(eq=False)
class Handout:
    """A message that a call has returned."""

    published: Published
    seat: Seat
    began: int
    """The moment at which the call began that returned it."""
    at: int
    at_ms: float
    count: int
    place: Place
    position: Position
    message: Any
    acknowledged: list[Acknowledgment] = field(default_factory=list)
    rejected: list[tuple[int, float]] = field(default_factory=list)
    """The moment of each rejection, and the end of its delay in ms."""
    said: int = 0
    """The number of calls that acknowledged it, with those that ended in an error."""
    transactions: int = 0
    """The number of committed transactions that acknowledged it."""


@dataclass(eq=False)
class Seat:
    """A consumer of a program, from its `subscribe` to its end."""

    name: str
    followed: Followed
    process: Process
    receipts: bool
    is_shared: bool
    """Two threads receive with it."""
    opened: int
    opened_ms: float
    gone: int = FOREVER
    """The moment at which it began to close, or its process was killed."""
    in_call: bool = False
    held: dict[str, Handout] = field(default_factory=dict)
    """The messages that it was handed and has not settled, by value."""


@dataclass(eq=False)
class Sought:
    """A seek, or an end of the subscription; `done` is when the call returned."""

    at: int
    place: Place | None
    """The partition of the id that was sought; None: all partitions."""
    to: Position | str
    done: int = FOREVER
    topic: str | None = None
    """The topic that was deleted; None: it is no deletion."""

    def concerns(self, published: Published) -> bool:
        if self.topic is not None:
            return published.topic == self.topic
        return self.place is None or published.place == self.place

    def passes(self, published: Published) -> bool:
        """True if the message need not come any more, or if that cannot be known."""
        if self.to == RESTART:
            return False
        if self.done == FOREVER or self.to in ENDS:
            return published.sent <= self.done
        return isinstance(self.to, tuple) and published.position <= self.to


@dataclass(eq=False)
class Followed:
    """A subscription, and all that its consumers were handed."""

    name: str
    topics: tuple[str, ...]
    kind: str
    lease_ms: int
    ack_timeout_ms: int = 0
    group_ms: int = 0
    max_redeliver_count: int | None = None
    handouts: dict[str, list[Handout]] = field(default_factory=lambda: defaultdict(list))
    sought: list[Sought] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    """The moments at which consumers came or went."""
    deaths: int = 0
    """The number of times that a process of it was killed, or stood still for long."""
    dead: dict[str, int] = field(default_factory=dict)


class Oracle:
    """Watches the programs of one world."""

    def __init__(self, world: World, *, without: frozenset[str] = frozenset()) -> None:
        """`without`: rules that are not looked at, by name."""
        self.world, self.without = world, without
        self.followed: dict[str, Followed] = {}
        self.published: dict[str, Published] = {}
        self.seats: list[Seat] = []
        self.violation: ViolationError | None = None
        self.open_ends: Counter[str] = Counter()
        self.handed_out = 0
        self._moment = 0

    @property
    def seen_ms(self) -> float:
        return SEEN_S * 1000 * self.world.patience

    def now(self) -> int:
        self._moment += 1
        return self._moment

    def fail(self, rule: str, text: str) -> None:
        """Note the violation, in whichever thread: the schedule ends when its driver checks."""
        if rule in self.without or self.violation is not None:
            return
        self.violation = ViolationError(f"{rule}: {text}")
        raise self.violation

    # -- publishing ------------------------------------------------------------------------------

    def sent(self, value: str, topic: str, key: str | None) -> None:
        self.published[value] = Published(value, topic, key, self.now(), maybe=True)

    def confirmed(self, value: str) -> None:
        each = self.published[value]
        each.confirmed, each.maybe = self.now(), False

    # -- consumers -------------------------------------------------------------------------------

    def seated(
        self, name: str, followed: Followed, process: Process, *, receipts: bool, is_shared: bool
    ) -> Seat:
        seat = Seat(
            name, followed, process, receipts, is_shared, self.now(), self.world.turns.now_ms
        )  # fmt: skip
        self.seats.append(seat)
        followed.changed.append(seat.opened)
        return seat

    def leaves(self, seat: Seat) -> None:
        if seat.gone == FOREVER:
            seat.gone = self.now()
            seat.followed.changed.append(seat.gone)

    def has_left(self, seat: Seat) -> None:
        """It was closed in order: its acknowledgements have reached the broker."""
        at = self.now()
        for handouts in seat.followed.handouts.values():
            for each in handouts:
                if each.seat is seat:
                    for done in each.acknowledged:
                        done.receipt = min(done.receipt, at)

    def killed(self, process: Process) -> None:
        for seat in self.seats:
            if seat.process is process and seat.gone == FOREVER:
                self.leaves(seat)
                seat.followed.deaths += 1

    def stood_still(self, process: Process) -> None:
        for seat in self.seats:
            if seat.process is process and seat.gone == FOREVER:
                seat.followed.deaths += 1
                seat.followed.changed.append(self.now())

    def handed(self, seat: Seat, message: Any, began: int) -> Handout:
        """A call that began then has returned this message."""
        followed, value = seat.followed, message.data().decode()
        published = self.published.get(value)
        if published is None:
            self.fail("invented", f"{value} was handed out, and published by nobody")
        assert published is not None
        held = message.message_id()
        handout = Handout(
            published, seat, began, self.now(), self.world.turns.now_ms,
            message.redelivery_count(), (message.received.topic, max(held.partition(), 0)),
            (held.ledger_id(), held.entry_id(), max(held.batch_index(), 0)), message,
        )  # fmt: skip
        if "-RETRY" not in handout.place[0]:
            published.place, published.position = handout.place, handout.position
        before = followed.handouts[value]
        self.handed_out += 1
        self.world.note(f"{seat.name} is handed {value} ({handout.count})")
        # Suspects are reported in a group before any is handed out, so a death counts all of it.
        groups = 0 if followed.max_redeliver_count is None else followed.deaths
        if handout.count > len(before) + groups:
            self.fail("counted", f"{value} was handed out {len(before)} times, and its redelivery "
                      f"count is {handout.count}")  # fmt: skip
        for earlier in before:
            self._check_double(followed, earlier, handout)
        self._check_keys(followed, handout)
        self._check_order(followed, handout)
        before.append(handout)
        seat.held[value] = handout
        return handout

    def _check_double(self, followed: Followed, earlier: Handout, new: Handout) -> None:
        published = new.published
        is_copy = earlier.place != new.place  # a seek brings back a message and its retry message
        if any(each.concerns(published) and each.at <= new.at
               and (is_copy or each.done >= earlier.began)
               for each in followed.sought):  # fmt: skip
            return
        text = (f"{published.value}: to {earlier.seat.name} at {earlier.at_ms:.0f} ms, and to "
                f"{new.seat.name} at {new.at_ms:.0f} ms")  # fmt: skip
        slack = 0 if new.seat is earlier.seat else self.seen_ms
        timeout_ms = followed.ack_timeout_ms
        for each in earlier.acknowledged:
            if 0 < timeout_ms <= each.at_ms - earlier.at_ms:
                continue  # it may have been in a queue again before, as in Pulsar
            if each.receipt < new.began and new.at_ms - each.at_ms >= slack:
                self.fail("acknowledged", f"handed out again behind its receipt: {text}")
        if not self._is_explained(followed, earlier, new):
            self.fail("doubled", f"handed out twice: {text}")

    def _check_keys(self, followed: Followed, new: Handout) -> None:
        """Key_Shared: nobody else has a message of this key that is not settled."""
        key = new.published.key
        if followed.kind != "Key_Shared" or key is None:
            return
        for value, handouts in followed.handouts.items():
            last = handouts[-1] if handouts else new
            if (
                last.seat is not new.seat
                and last.place == new.place
                and last.published.key == key
                and value not in followed.dead
                and not last.said
                and not last.rejected
                and not self._is_over(followed, last, new)
            ):
                self.fail("keys", f"{last.seat.name} has {value}, and {new.seat.name} is handed "
                          f"{new.published.value} of the same key {key}")  # fmt: skip

    def _is_over(self, followed: Followed, earlier: Handout, new: Handout) -> bool:
        """True if that consumer may hold its message no more."""
        timeout_ms = followed.ack_timeout_ms
        return (
            earlier.seat.gone < new.at
            or self.world.away_ms(earlier.seat.process, earlier.at_ms) >= followed.lease_ms / 2
            or 0 < timeout_ms <= new.at_ms - earlier.at_ms
            or any(each.concerns(new.published) and each.done >= earlier.began
                   for each in followed.sought)
        )  # fmt: skip

    def _check_order(self, followed: Followed, new: Handout) -> None:
        """A message that comes for the first time comes before those behind it.

        In its partition, or under Key_Shared in its key. A call that two threads make at a time
        has no order.
        """
        if followed.kind == "Shared" or new.seat.is_shared or "-RETRY" in new.place[0]:
            return
        key = new.published.key
        if followed.kind == "Key_Shared" and key is None:
            return
        seeks = [each for each in followed.sought if each.concerns(new.published)]
        since = max((each.done for each in seeks), default=0)
        begun = max((each.at for each in seeks), default=0)
        was_handed = any(each.at > begun for each in followed.handouts[new.published.value])
        if new.count or since > new.began or was_handed:
            return
        for value, handouts in followed.handouts.items():
            for each in handouts:
                if (
                    since < each.began
                    and each.at < new.began
                    and each.place == new.place
                    and each.position > new.position
                    and (followed.kind != "Key_Shared" or each.published.key == key)
                    and not each.seat.is_shared
                ):
                    self.fail("order", f"{new.published.value} comes to {new.seat.name} behind "
                              f"{value}, which {each.seat.name} was handed")  # fmt: skip

    def _is_explained(self, followed: Followed, earlier: Handout, new: Handout) -> bool:
        if earlier.seat.gone < new.at:
            return True
        if self.world.away_ms(earlier.seat.process, earlier.at_ms) >= followed.lease_ms / 2:
            return True
        if any(at < new.at and new.at_ms >= due_ms for at, due_ms in earlier.rejected):
            return True
        if followed.kind == "Failover" and new.seat is not earlier.seat:
            return any(earlier.at < at <= new.at for at in followed.changed)
        timeout_ms = followed.ack_timeout_ms
        if not 0 < timeout_ms <= new.at_ms - earlier.at_ms:
            return False
        in_time_ms = timeout_ms - followed.group_ms - self.seen_ms
        return all(each.at_ms - earlier.at_ms > in_time_ms for each in earlier.acknowledged)

    def acknowledging(self, handouts: list[Handout]) -> list[Acknowledgment]:
        at, at_ms = self.now(), self.world.turns.now_ms
        made = []
        for each in handouts:
            each.said += 1
            each.acknowledged.append(Acknowledgment(at, at_ms))
            self._is_settled(each)
            made.append(each.acknowledged[-1])
        return made

    def _is_settled(self, handout: Handout) -> None:
        """It is held no more; what the seat was handed again since then still is."""
        held, value = handout.seat.held, handout.published.value
        if held.get(value) is handout:
            del held[value]

    def up_to(self, handout: Handout) -> list[Handout]:
        """The handouts that a cumulative acknowledgement of this one may take."""
        return [
            each
            for handouts in handout.seat.followed.handouts.values()
            for each in handouts
            if each.seat is handout.seat
            and each.place == handout.place
            and each.position <= handout.position
        ]

    def receipt(self, acknowledged: list[Acknowledgment]) -> None:
        at = self.now()
        for each in acknowledged:
            each.receipt = at

    def rejected(self, handouts: list[Handout], delay_ms: int) -> None:
        at, due_ms = self.now(), int(self.world.turns.now_ms) + delay_ms
        for each in handouts:
            each.rejected.append((at, due_ms))
            self._is_settled(each)

    def unacknowledged(self, seat: Seat) -> list[Handout]:
        """All that the consumer was handed and has not acknowledged, rejections among them."""
        return [
            each
            for handouts in seat.followed.handouts.values()
            for each in handouts
            if each.seat is seat and not each.acknowledged
        ]

    def committed(self, handouts: list[Handout]) -> None:
        """A transaction that acknowledged these has committed."""
        for each in handouts:
            each.transactions += 1
            others = [
                one for one in each.seat.followed.handouts[each.published.value]
                if one.transactions
            ]  # fmt: skip
            sought = any(one.at >= others[0].at for one in each.seat.followed.sought)
            if sum(one.transactions for one in others) > 1 and not sought:
                self.fail("conflict", f"two transactions have acknowledged {each.published.value}")

    def may_conflict(self, handouts: list[Handout]) -> bool:
        """True if one of these may have been acknowledged before, or passed by a seek."""
        return any(
            sum(one.said for one in followed.handouts[value]) > 1
            or value in followed.dead
            or any(one.concerns(each.published) and one.passes(each.published)
                   for one in followed.sought)
            for each in handouts
            for followed, value in [(each.seat.followed, each.published.value)]
        )  # fmt: skip

    def seeks(self, seat: Seat, place: Place | None, to: Position | str) -> Sought:
        made = Sought(self.now(), place, to)
        seat.followed.sought.append(made)
        return made

    def deletes(self, topic: str) -> Sought:
        """All that was sent to the topic before `done` need not come any more."""
        made = Sought(self.now(), None, "end", topic=topic)
        for followed in self.followed.values():
            followed.sought.append(made)
        return made

    def is_deleted(self, published: Published) -> bool:
        """True if it may have been sent to a topic that was deleted."""
        return any(
            each.topic == published.topic and each.passes(published)
            for followed in self.followed.values()
            for each in followed.sought
        )

    # -- the end ---------------------------------------------------------------------------------

    def stored(self, place: Place, position: Position, value: str) -> None:
        """A look at the topic has found it."""
        published = self.published.get(value)
        if published is None:
            self.fail("invented", f"{value} is stored, and was published by nobody")
            return
        is_elsewhere = (published.place, published.position) != (place, position)
        if published.place is not None and is_elsewhere and not self.is_deleted(published):
            self.fail("twice", f"{value} is stored twice: {published.position} and {position}")
        published.place, published.position = place, position

    def died(self, followed: Followed, value: str) -> None:
        """A dead letter has this value."""
        given = len(followed.handouts[value])
        followed.dead[value] = followed.dead.get(value, 0) + 1
        if not given:
            self.fail("letter", f"{value} is a dead letter, and was handed to nobody")
        most = followed.max_redeliver_count or 0
        if given + followed.deaths <= most:
            self.fail("letter", f"{value} is a dead letter, and was handed out {given} times")

    def waiting_too_long(self) -> list[str]:
        """The messages that only consumers were handed that are gone, by value."""
        return [
            value
            for followed in self.followed.values()
            for value, handouts in followed.handouts.items()
            if handouts and value not in followed.dead and not followed.sought
            and not any(each.acknowledged or each.seat.gone == FOREVER for each in handouts)
        ]  # fmt: skip

    def missing(self) -> list[str]:
        """The messages that are not done yet, a line each."""
        found = []
        for followed in self.followed.values():
            for value, each in self.published.items():
                if each.topic not in followed.topics or value in followed.dead:
                    continue
                if self.is_deleted(each):
                    self.open_ends["its topic was deleted"] += 1
                    continue
                if each.place is None:
                    if each.confirmed < FOREVER:
                        self.fail("unstored", f"{value} was confirmed, and is not there")
                    continue
                why = self._undone(followed, each)
                if why:
                    found.append(f"{followed.name}: {value} {each.place} {each.position} {why}")
        return found

    def _undone(self, followed: Followed, published: Published) -> str:
        handouts = followed.handouts[published.value]
        seeks = [each for each in followed.sought if each.concerns(published)]
        if seeks:
            back = [each for each in seeks if each.done < FOREVER and not each.passes(published)]
            rewound = max((each.at for each in back), default=0)
            if any(each.done > rewound and each.passes(published) for each in seeks):
                self.open_ends["a seek may have passed it"] += 1
                return ""
            handouts = [each for each in handouts if each.at > rewound]
        if not handouts:
            return "was handed to nobody" + (" behind the seek" if seeks else "")
        if not any(each.acknowledged for each in handouts):
            if any(each.said for each in handouts):
                self.open_ends["an acknowledgement that failed may have taken it"] += 1
                return ""
            names = [each.seat.name for each in handouts]
            return f"was handed to {names}, and nobody has settled it"
        return ""

    def is_calm_error(self, error: pulsar.PulsarException) -> bool:
        """An error that any call may end with while something goes wrong."""
        cause = error.__cause__
        return isinstance(error, (pulsar.Timeout, pulsar.ConnectError, pulsar.ReadError)) or (
            isinstance(cause, OSError)
        )
