"""Checks of a managed cursor, step by step, against Pulsar and against an obvious model.

At every step three things stand beside each other: what Pulsar recorded, what `ManagedCursor` says,
and what `PlainCursor`, plain Python sets of the acknowledgements that were confirmed, says. The
last two must agree in every field, always. With Pulsar they must agree in every field unless its
record holds fewer acknowledgements than were confirmed to the client, for one of the reasons in
`differences`. From there on Pulsar must hold no more than we do and agree on what does not depend
on acknowledgements; once it agrees again in all (after a seek, say), every field counts again.
"""

from __future__ import annotations

from typing import Any

from pulsar_spark.errors import InvalidCursorPositionError
from pulsar_spark.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.managed_cursor import ManagedCursor, previous_position
from pulsar_spark.position import Position
from tests.vectors import differences
from tests.vectors.case import Case
from tests.vectors.plain_cursor import Message, PlainCursor

_FROM_ACKNOWLEDGEMENTS = frozenset(
    {
        "mark_delete",
        "persistent_mark_delete",
        "read_position",
        "individually_deleted",
        "ranges_open_closed",
        "non_contiguous_ranges",
        "backlog_precise",
        "backlog_imprecise",
        "entries_ahead_of_read",
        "has_more",
        "batch_ack_sets",
    }
)
_MARKED = (
    "ManagedLedgerException: org.apache.bookkeeper.mledger.impl."
    "ManagedCursorImpl$MarkDeletingMarkedPosition: "
)
_BEYOND = "Invalid mark deleted position"


class Ledgers:
    """What a managed ledger does with its ledgers: fills them, rolls over, reopens, trims."""

    def __init__(self, max_entries: int, batch_sizes: dict[Position, int]) -> None:
        self.max_entries = max_entries
        self.batch_sizes = batch_sizes
        self.next_id = 3
        self.sizes: dict[int, list[int]] = {}
        self.roll_over()

    def roll_over(self) -> None:
        self.current = self.next_id
        self.next_id += 1
        self.sizes[self.current] = []

    def add(self, count: int) -> list[list[int]]:
        added = []
        for _ in range(count):
            position = Position(self.current, len(self.sizes[self.current]))
            self.sizes[self.current].append(self.batch_sizes.get(position, 1))
            added.append([*position])
            if len(self.sizes[self.current]) >= self.max_entries:
                self.roll_over()
        return added

    def reopen(self) -> None:
        if not self.sizes[self.current]:
            del self.sizes[self.current]
        self.roll_over()

    def trim(self, mark_delete: Position) -> None:
        held = self.sizes.get(mark_delete.ledger_id, [])
        keep = mark_delete.ledger_id + (mark_delete.entry_id >= len(held) - 1)
        for ledger_id in [k for k in self.sizes if k < min(keep, self.current)]:
            del self.sizes[ledger_id]

    def list(self) -> LedgerList:
        return LedgerList(
            LedgerInfo(ledger_id, 0, "", 0, BatchSizes.of(sizes), 0, 0, 0)
            for ledger_id, sizes in sorted(self.sizes.items())
        )

    def state(self) -> dict[str, Any]:
        counts = {k: 0 if k == self.current else len(v) for k, v in sorted(self.sizes.items())}
        filled = [k for k, v in self.sizes.items() if v]
        last = max(filled, default=min(self.sizes))
        return {
            "ledgers": {str(k): v for k, v in counts.items()},
            "last_confirmed": [last, len(self.sizes[last]) - 1],
        }


def check_cursor(case: Case) -> None:
    case.take("name", None)
    config, steps = case.take("config"), case.take("steps")
    walk = _Walk(case, config, steps)
    for number, record in enumerate(steps):
        step = Case(f"step {number} {record.get('op')}", record)
        walk.step(step)
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]
        if case.problems:
            break


class _Walk:
    """One case being walked through."""

    def __init__(self, case: Case, config: dict[str, Any], steps: list[dict[str, Any]]) -> None:
        self.case = case
        self.trims = config.get("retention0") in (True, "true")
        self.by_index = config.get("deletion_at_batch_index_level", True)
        self.capped = any(name.startswith("maxUnackedRanges") for name in config)
        self.batch_sizes = _batch_sizes(steps)
        self.ledgers = Ledgers(config["max_entries_per_ledger"], self.batch_sizes)
        latest = config.get("initial_position", "Earliest") == "Latest"
        self.cursor = ManagedCursor.open(self.ledgers.list(), latest=latest)
        self.plain = PlainCursor(self.ledgers.sizes, self.cursor.cursor.mark_delete_position)
        self.diverged = False
        self.rolled_over = False
        self.reopened = False
        self.refused: set[str] = set()
        """Positions at which Pulsar refused to acknowledge a batch cumulatively."""
        self.shown: set[str] = set()
        """Positions of which Pulsar showed an ack set."""
        self.left_behind: list[list[int]] = []
        """Ranges that Pulsar showed below its mark-delete after a crash."""
        self.before_seek: set[Message] = set()
        """What was acknowledged when it was last sought, which forgot it."""

    def step(self, step: Case) -> None:
        op = step.take("op")
        run = getattr(self, f"_{op}", None)
        if run is None:
            step.problems.append("this op is not known")
            return
        before = self.plain.acknowledged()
        self.error: InvalidCursorPositionError | None = None
        run(step)
        self._compare_errors(step)
        if self.trims:
            self.ledgers.trim(self.cursor.cursor.mark_delete_position)
            self._published()
        state = step.take("state", None)
        self.cursor.cursor.check()
        ours, plain = _state_of(self.cursor), self.plain.state()
        for name, value in plain.items():
            step.compare(f"{name} by plain sets", value, ours[name])
        if state is not None:
            self._compare(Case("state", state), step, op, ours | self.ledgers.state(), before)

    # -- the operations --------------------------------------------------------------------

    def _subscribe(self, step: Case) -> None:
        pass

    def _add(self, step: Case) -> None:
        positions = step.take("positions")
        step.compare("positions", positions, self.ledgers.add(len(positions)))
        self._published()

    def _ack(self, step: Case) -> None:
        positions = _positions(step.take("positions"))
        self._both(step, "acknowledge", positions)

    def _ack_batch(self, step: Case) -> None:
        position, words = Position(*step.take("position")), step.take("ack_set")
        if self.by_index:
            self._both(step, "acknowledge_batch", position, words)
        else:  # then a broker waits for the ack of the whole entry
            self._both(step, "acknowledge", [])

    def _cumulative(self, step: Case) -> None:
        position = Position(*step.take("position"))
        self._both(step, "acknowledge_cumulative", position)

    def _cumulative_batch(self, step: Case) -> None:
        position, words = Position(*step.take("position")), step.take("ack_set")
        if self.by_index:
            self._both(step, "acknowledge_cumulative", position, words)
        else:
            target = previous_position(self.cursor.ledgers, position)
            self._both(step, "acknowledge_cumulative", target)

    def _skip(self, step: Case) -> None:
        count, include = step.take("n"), step.take("deleted_entries") == "Include"
        self._both(step, "skip", count, include_deleted=include)

    def _read(self, step: Case) -> None:
        count = step.take("max")
        self.cursor, found = self.cursor.read(count)
        step.compare("entries by plain sets", self.plain.read(count), found)
        recorded = _positions(step.take("entries"))
        if not self.diverged:
            step.compare("entries", recorded, found)

    def _rewind(self, step: Case) -> None:
        self.cursor = self.cursor.rewind()
        self.plain.rewind()

    def _replay(self, step: Case) -> None:
        positions = _positions(step.take("positions"))
        done, left = self.cursor.replay(positions)
        step.expect("returned_already_acked", [[*position] for position in done])
        step.expect("entries_sorted", [[*position] for position in left])
        # Pulsar calls back once entries were read; there are none if all are acknowledged.
        step.expect("callback_invoked", bool(left) or not positions)

    def _is_deleted(self, step: Case) -> None:
        step.expect("result", self.cursor.is_deleted(Position(*step.take("position"))))

    def _reset(self, step: Case) -> None:
        position = Position(*step.take("position"))
        self._seek(self.cursor.seek(position), position, None)

    _reset_pos = _reset

    def _reset_batch(self, step: Case) -> None:
        position, words = Position(*step.take("position")), step.take("ack_set")
        self._seek(self.cursor.seek(position, words), position, words)

    def _seek(self, cursor: ManagedCursor, position: Position, words: Any) -> None:
        self.before_seek |= self.plain.acknowledged()
        self.cursor = cursor
        self.plain.seek(position, words)

    def _trim(self, step: Case) -> None:
        pass

    def _reopen_clean(self, step: Case) -> None:
        self.reopened = True
        self.ledgers.reopen()
        self.plain.published(self.ledgers.sizes)
        self.plain.reopen()
        self.cursor = self.cursor.reopen(self.ledgers.list())

    _reopen_crash = _reopen_clean

    def _published(self) -> None:
        self.cursor = self.cursor.with_ledgers(self.ledgers.list())
        self.plain.published(self.ledgers.sizes)

    # -- the comparison ---------------------------------------------------------------------

    def _both(self, step: Case, name: str, *args: Any, **kwargs: Any) -> None:
        """Do it to the cursor and to the plain one; both refuse it or neither does."""
        refused = False
        try:
            getattr(self.plain, name)(*args, **kwargs)
        except InvalidCursorPositionError:
            refused = True
        try:
            self.cursor = getattr(self.cursor, name)(*args, **kwargs)
        except InvalidCursorPositionError as error:
            self.error = error
        step.compare("refused by plain sets", refused, self.error is not None)

    def _compare_errors(self, step: Case) -> None:
        recorded = step.take("error", None)
        if recorded is not None and "ack_set" in step.record:
            self.refused.add(str(Position(*step.record["position"])))
        if self.diverged or self.rolled_over:
            return  # the other mark-delete position refuses others
        ours = None
        if self.error is not None and self.error.message.startswith(_BEYOND):
            ours = f"ManagedLedgerException: {_BEYOND}"
        elif self.error is not None:
            ours = _MARKED + self.error.message
        step.compare("error", recorded, ours)

    def _compare(
        self, state: Case, step: Case, op: str, ours: dict[str, Any], before: set[Message]
    ) -> None:
        pulsar = self._held_by_pulsar(state.record)
        held = self.plain.acknowledged()
        lost = held - pulsar
        undone = (pulsar - held) & self.before_seek
        step.compare("acknowledged at Pulsar only", [], sorted(pulsar - held - undone))
        if undone and not self.diverged:
            step.compare("where acknowledgements come back", "reopen_crash", op)
            self.diverged = True
            self.case.on_purpose.add("seek_undone")
        if lost and not self.diverged:
            whole = {(a, b) for a, b, _ in lost if self.plain.is_done(Position(a, b))}
            rule = differences.rule_of(op, lost, before, whole, capped=self.capped)
            if rule is None:
                step.problems.append(f"Pulsar lacks {sorted(lost)[:3]}, for no reason in the table")
            else:
                self.diverged = True
                self.case.on_purpose.add(rule)
        recorded = dict(state.record)
        self.rolled_over = self._undo_rollover(recorded)
        self._drop_ranges_below(recorded, op)
        stale = self._stale(recorded)
        if stale:
            self.case.on_purpose.add("stale_ack_set")
            unexplained = stale - self.refused - (self.shown if self.reopened else set())
            step.compare("ack sets of nothing refused", set(), unexplained)
            left = {k: v for k, v in recorded["batch_ack_sets"].items() if k not in stale}
            recorded["batch_ack_sets"] = left
        self.shown |= state.record["batch_ack_sets"].keys()
        if self.diverged:
            self.diverged = any(recorded[name] != ours[name] for name in recorded)
        for name in recorded.keys() - (_FROM_ACKNOWLEDGEMENTS if self.diverged else set()):
            step.compare(name, recorded[name], ours.get(name, "not checked"))

    def _held_by_pulsar(self, state: dict[str, Any]) -> set[Message]:
        """The messages that a recorded state holds as acknowledged."""
        plain = PlainCursor(self.ledgers.sizes, Position(*state["mark_delete"]))
        for ledger_id, lower, _, upper in state["ranges_open_closed"]:
            plain.acknowledge([Position(ledger_id, e) for e in range(lower + 1, upper + 1)])
        for text, words in state["batch_ack_sets"].items():
            plain.acknowledge_batch(Position.parse(text), words)
        return plain.acknowledged()

    def _undo_rollover(self, state: dict[str, Any]) -> bool:
        """Turn a mark-delete before a ledger into that behind the last entry before."""
        place = Position(*state["mark_delete"])
        earlier = [k for k, v in self.ledgers.sizes.items() if k < place.ledger_id and v]
        if place.entry_id >= 0 or not earlier:
            return False
        self.case.on_purpose.add("rollover")
        last = max(earlier)
        same = state["persistent_mark_delete"] == state["mark_delete"]
        state["mark_delete"] = [last, len(self.ledgers.sizes[last]) - 1]
        if same:
            state["persistent_mark_delete"] = state["mark_delete"]
        return True

    def _drop_ranges_below(self, state: dict[str, Any], op: str) -> None:
        """Take out ranges below the mark-delete, which a seek left in what was persisted."""
        ranges = state["ranges_open_closed"]
        left = [part for part in ranges if part[2:] > state["mark_delete"]]
        if left != ranges and op == "reopen_crash" and self.before_seek:
            self.case.on_purpose.add("seek_undone")
            self.left_behind = [part for part in ranges if part not in left]
        if left != ranges and all(part in self.left_behind for part in ranges if part not in left):
            texts = (f"({a}:{b}..{c}:{d}]" for a, b, c, d in left)
            state["ranges_open_closed"] = left
            state["non_contiguous_ranges"] = len(left)
            state["individually_deleted"] = "[" + ",".join(texts) + "]"

    def _stale(self, state: dict[str, Any]) -> set[str]:
        """Ack sets that Pulsar shows for entries that are wholly acknowledged."""
        mark_delete = Position(*state["mark_delete"])
        ranges = [(Position(a, b), Position(c, d)) for a, b, c, d in state["ranges_open_closed"]]
        return {
            text
            for text in state["batch_ack_sets"]
            if Position.parse(text) <= mark_delete
            or any(lower < Position.parse(text) <= upper for lower, upper in ranges)
        }


def _batch_sizes(steps: list[dict[str, Any]]) -> dict[Position, int]:
    """A size for each entry that an ack set names; the sets don't say.

    One more than the highest index in any of them: the last one is acknowledged in all of them,
    so it changes nothing, and no set is of a batch of which nothing is acknowledged.
    """
    sizes: dict[Position, int] = {}
    for step in steps:
        sets = [(step["position"], step["ack_set"])] if "ack_set" in step else []
        for text, words in step.get("state", {}).get("batch_ack_sets", {}).items():
            sets.append(([*Position.parse(text)], words))
        for place, words in sets:
            bits = sum((word & (1 << 64) - 1) << 64 * i for i, word in enumerate(words))
            position = Position(*place)
            sizes[position] = max(sizes.get(position, 1), bits.bit_length() + 1)
    return sizes


def _positions(places: list[list[int]]) -> list[Position]:
    return [Position(*place) for place in places]


def _state_of(cursor: ManagedCursor) -> dict[str, Any]:
    """A managed cursor as the vectors record it."""
    persistent = cursor.persistent_mark_delete_position
    ranges = cursor.individually_deleted
    return {
        "mark_delete": [*cursor.cursor.mark_delete_position],
        "persistent_mark_delete": None if persistent is None else [*persistent],
        "read_position": [*cursor.read_position],
        "individually_deleted": str(ranges),
        "ranges_open_closed": [[*part.lower, *part.upper] for part in ranges],
        "non_contiguous_ranges": len(ranges),
        "backlog_precise": cursor.backlog,
        "backlog_imprecise": cursor.backlog,  # Pulsar's is a counter that may drift; ours can't
        "entries_ahead_of_read": cursor.entries_ahead_of_read,
        "has_more": cursor.has_more_entries,
        "batch_ack_sets": {str(k): v for k, v in cursor.batch_ack_sets.items()},
    }
