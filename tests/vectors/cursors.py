"""Checks of a managed cursor, step by step, against Pulsar and against an obvious model.

At every step three things stand beside each other: what Pulsar recorded, what `CursorSubject` says,
and what `PlainCursor`, plain Python sets of the acknowledgements that were confirmed, says. The
last two must agree in every field that the subject has, always: how far a read came, and what was
persisted last, are Pulsar's alone, and the plain cursor's. With Pulsar they must agree in every
field unless its record holds fewer acknowledgements than were confirmed to the client, for one of
the reasons in `differences`. From there on Pulsar must hold no more than we do and agree on what
does not depend on acknowledgements; once it agrees again in all (after a seek, say), every field
counts again.

What is refused counts always, to the letter: Pulsar's errors by the mark-delete position that it
showed before, ours by the same rule and our own position.
"""

from __future__ import annotations

from typing import Any

from pulsar_spark.errors import InvalidCursorPositionError
from pulsar_spark.model.positions.position import Position
from tests.vectors import differences
from tests.vectors.case import Case
from tests.vectors.cursor_subject import CursorSubject
from tests.vectors.plain_cursor import Message, PlainCursor
from tests.vectors.recorded_ledgers import RecordedLedgers

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
_BEYOND = "Invalid mark deleted position"
_MARKED = "Mark deleting an already mark-deleted position."
_REFUSED = "ManagedLedgerException: "
_REFUSED_MARKED = (
    f"{_REFUSED}org.apache.bookkeeper.mledger.impl.ManagedCursorImpl$MarkDeletingMarkedPosition: "
)
_CONFIG: dict[str, tuple[Any, ...]] = {
    "max_entries_per_ledger": (),
    "deletion_at_batch_index_level": (True, False),
    "initial_position": ("Earliest", "Latest"),
    "retention0": ("true", "false", True, False),
    "maxUnackedRangesToPersist": (),
    "maxUnackedRangesToPersistInMetadataStore": (),
    "persistentUnackedRangesWithMultipleEntriesEnabled": ("true", "false"),
}
"""The keys of a case's configuration, and what each may be; any number where nothing is said."""


def check_cursor(case: Case) -> None:
    case.take("name", None)
    config, steps = case.take("config"), case.take("steps")
    case.problems += _unknown(config)
    walk = _Walk(case, config, steps)
    for number, record in enumerate(steps):
        step = Case(f"step {number} {record.get('op')}", record)
        walk.step(step)
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]
        if case.problems:
            break


def _unknown(config: dict[str, Any]) -> list[str]:
    """What the configuration says that nobody here knows."""
    problems = []
    for name, value in config.items():
        allowed = _CONFIG.get(name)
        if allowed is None:
            problems.append(f"configuration: {name} is not known")
        elif not (value in allowed if allowed else str(value).isdecimal()):
            problems.append(f"configuration: {name} can't be {value!r}")
    return problems


class _Walk:
    """One case being walked through."""

    def __init__(self, case: Case, config: dict[str, Any], steps: list[dict[str, Any]]) -> None:
        self.case = case
        self.trims = config.get("retention0") in (True, "true")
        self.by_index = config.get("deletion_at_batch_index_level", True)
        self.latest = config.get("initial_position") == "Latest"
        self.capped = any(name.startswith("maxUnackedRanges") for name in config)
        self.ledgers = RecordedLedgers(config["max_entries_per_ledger"], steps)
        self.subject: CursorSubject
        self.plain: PlainCursor
        self.pulsar_mark_delete: Position
        self.subscribed = False
        """By the first step that is no «add»; till then there is no cursor."""
        self.diverged = False
        self.reopened = False
        self.refused: set[str] = set()
        """Positions at which Pulsar refused to acknowledge a batch cumulatively."""
        self.refused_in_part: set[Message] = set()
        """What Pulsar had taken in of commands that it then refused."""
        self.shown: set[str] = set()
        """Positions of which Pulsar showed an ack set."""
        self.left_behind: list[list[int]] = []
        """Ranges that Pulsar showed below its mark-delete after a crash."""
        self.before_seek: set[Message] = set()
        """What was acknowledged when it was last sought, which forgot it."""
        self.named: set[Position] = set()
        """All that anybody wanted to acknowledge."""
        self.too_early: set[Position] = set()
        """Entries that Pulsar had acknowledged before they existed."""

    def step(self, step: Case) -> None:
        op = step.take("op")
        run = getattr(self, f"_do_{op}", None)
        if run is None:
            step.problems.append("this op is not known")
            return
        if not self.subscribed and op == "add" and "state" not in step.record:
            step.compare("error", step.take("error", None), None)
            self._add(step)
            return
        if not self.subscribed:
            self._subscribe(step)
        before, mark_delete = self.plain.acknowledged(), self.plain.mark_delete
        if op.startswith(("ack", "cumulative")):
            places = step.record.get("positions") or [step.record["position"]]
            self.named |= {Position(*place) for place in places}
        self.error: InvalidCursorPositionError | None = None
        self.target: Position | None = None
        self.deleted: list[Position] = []
        run(step)
        self._compare_errors(step, mark_delete)
        state = step.take("state", None)
        if state is not None:
            self._trim(step, state)
        self.subject.check()
        plain = self.plain.state()
        ours = plain | self.subject.state(self.plain.read_position)
        for name, value in plain.items():
            step.compare(f"{name} by plain sets", value, ours[name])
        if state is not None:
            self.pulsar_mark_delete = Position(*state["mark_delete"])
            self._compare(Case("state", state), step, op, ours | self.ledgers.state(), before)

    def _subscribe(self, step: Case) -> None:
        ids = [int(ledger_id) for ledger_id in step.record.get("state", {}).get("ledgers", ())]
        if self.trims and ids and step.record["state"]["mark_delete"] == [min(ids), -1]:
            # Nobody was subscribed, so nothing kept what was closed.
            self.ledgers.trim([k for k in self.ledgers.sizes if k < min(ids)])
        self.subject = CursorSubject(self.ledgers.sizes, latest=self.latest, by_index=self.by_index)
        self.plain = PlainCursor(
            self.ledgers.sizes, self.subject.mark_delete, by_index=self.by_index
        )
        self.pulsar_mark_delete = self.subject.mark_delete
        self.subscribed = True

    def _trim(self, step: Case, state: dict[str, Any]) -> None:
        """Let go of the ledgers that Pulsar has let go of; it may have, and after «trim» must."""
        gone = [k for k in self.ledgers.sizes if str(k) not in state["ledgers"]]
        allowed = self.ledgers.may_trim(Position(*state["mark_delete"])) if self.trims else []
        step.compare("trimmed too early", [], [k for k in gone if k not in allowed])
        if step.record["op"] == "trim":
            step.compare("not trimmed", [], [k for k in allowed if k not in gone])
        if not self.diverged:
            step.compare("not released here", [], self.subject.not_released(gone))
        self.ledgers.trim(gone)
        self._published()

    # -- the operations --------------------------------------------------------------------

    def _do_subscribe(self, step: Case) -> None:
        pass

    def _do_add(self, step: Case) -> None:
        self._add(step)
        self._published()

    def _add(self, step: Case) -> None:
        positions = step.take("positions")
        step.compare("positions", positions, self.ledgers.add(len(positions)))

    def _published(self) -> None:
        self.subject.published(self.ledgers.sizes)
        self.plain.published(self.ledgers.sizes)

    def _do_ack(self, step: Case) -> None:
        self.deleted = [Position(*place) for place in step.take("positions")]
        self._both(step, "acknowledge", self.deleted)

    def _do_ack_pos(self, step: Case) -> None:
        one = "position" in step.record
        places = [step.take("position")] if one else step.take("positions")
        self.deleted = [Position(*place) for place in places]
        self._both(step, "acknowledge", self.deleted)

    def _do_ack_batch(self, step: Case) -> None:
        position, words = Position(*step.take("position")), step.take("ack_set")
        self.deleted = [position]
        self._both(step, "acknowledge_batch", position, words)

    def _do_cumulative(self, step: Case) -> None:
        self.target = Position(*step.take("position"))
        self._both(step, "acknowledge_cumulative", self.target)

    def _do_cumulative_batch(self, step: Case) -> None:
        position, words = Position(*step.take("position")), step.take("ack_set")
        self.target = self.ledgers.place_before(position)
        self._both(step, "acknowledge_cumulative", position, words)

    def _do_clear_backlog(self, step: Case) -> None:
        last = max(self.plain.last, self.plain.mark_delete)
        self._both(step, "acknowledge_cumulative", last)

    def _do_skip(self, step: Case) -> None:
        count, deleted = step.take("n"), step.take("deleted_entries")
        if deleted not in ("Include", "Exclude"):
            step.problems.append(f"deleted_entries can't be {deleted!r}")
        target = self.plain.after_skipping(count, include_deleted=deleted == "Include")
        self._both(step, "acknowledge_cumulative", target)

    def _do_read(self, step: Case) -> None:
        start = self.plain.read_position
        plain, stop = self.plain.read(step.take("max")), self.plain.read_position
        found = [each for each in self.subject.unread() if start <= each < stop]
        step.compare("entries by plain sets", plain, found)
        recorded = [Position(*place) for place in step.take("entries")]
        if not self.diverged:
            step.compare("entries", recorded, found)

    def _do_rewind(self, step: Case) -> None:
        self.plain.rewind()

    def _do_replay(self, step: Case) -> None:
        positions = [Position(*place) for place in step.take("positions")]
        done, left = self.subject.replay(positions)
        step.expect("returned_already_acked", [[*position] for position in done])
        step.expect("entries_sorted", [[*position] for position in left])
        # Pulsar calls back once entries were read; there are none if all are acknowledged.
        step.expect("callback_invoked", bool(left) or not positions)

    def _do_is_deleted(self, step: Case) -> None:
        step.expect("result", self.subject.is_deleted(Position(*step.take("position"))))

    def _do_reset(self, step: Case) -> None:
        self._seek(Position(*step.take("position")), None)

    _do_reset_pos = _do_reset

    def _do_reset_batch(self, step: Case) -> None:
        position, words = Position(*step.take("position")), step.take("ack_set")
        self._seek(position, words if self.by_index else None)

    def _seek(self, position: Position, words: list[int] | None) -> None:
        self.before_seek |= self.plain.acknowledged()
        self.subject.seek(position, words)
        self.plain.seek(position, words)

    def _do_trim(self, step: Case) -> None:
        pass

    def _do_reopen_clean(self, step: Case) -> None:
        self.reopened = True
        self.ledgers.reopen()
        self.plain.published(self.ledgers.sizes)
        self.plain.reopen()
        self.subject.reopen(self.ledgers.sizes)

    _do_reopen_crash = _do_reopen_clean

    # -- the comparison ---------------------------------------------------------------------

    def _both(self, step: Case, name: str, *args: Any, **kwargs: Any) -> None:
        """Do it to the subject and to the plain cursor; both refuse it or neither does."""
        refused = False
        try:
            getattr(self.plain, name)(*args, **kwargs)
        except InvalidCursorPositionError:
            refused = True
        try:
            getattr(self.subject, name)(*args, **kwargs)
        except InvalidCursorPositionError as error:
            self.error = error
        step.compare("refused by plain sets", refused, self.error is not None)

    def _compare_errors(self, step: Case, mark_delete: Position) -> None:
        recorded = step.take("error", None)
        if recorded is not None and "ack_set" in step.record:
            self.refused.add(str(Position(*step.record["position"])))
        if recorded is not None and self.deleted:
            beyond = [p > self.ledgers.last_confirmed for p in self.deleted].index(True)
            self.refused_in_part |= self.plain.messages(self.deleted[:beyond])
        step.compare("error", recorded, self._refusal(self.pulsar_mark_delete))
        ours = None
        if self.error is not None and self.error.message.startswith(_BEYOND):
            ours = f"{_REFUSED}{_BEYOND}"
        elif self.error is not None:
            ours = _REFUSED_MARKED + self.error.message
        step.compare("error by our mark-delete position", self._refusal(mark_delete), ours)

    def _refusal(self, mark_delete: Position) -> str | None:
        """What Pulsar says to this step's acknowledgement where the cursor stands there."""
        last, target = self.ledgers.last_confirmed, self.target
        if any(position > last for position in self.deleted):
            return f"{_REFUSED}{_BEYOND}"
        if target is None:
            return None
        later = [ledger_id for ledger_id in self.ledgers.sizes if ledger_id > last.ledger_id]
        if target > last and not (later and mark_delete >= last and target == (min(later), -1)):
            return f"{_REFUSED}{_BEYOND}"
        if target >= mark_delete:
            return None
        return (
            f"{_REFUSED_MARKED}{_MARKED} Current mark-delete: {mark_delete} -- attempted mark "
            f"delete: {target}"
        )

    def _compare(
        self, state: Case, step: Case, op: str, ours: dict[str, Any], before: set[Message]
    ) -> None:
        pulsar = self._held_by_pulsar(state.record)
        held = self.plain.acknowledged()
        lost = held - pulsar
        undone = (pulsar - held) & self.before_seek
        never = self._never_published(state.record)
        self.too_early |= never
        if never and not self.diverged:
            self.diverged = True
            self.case.on_purpose.add("never_published")
        kept = (pulsar - held) & (self.refused_in_part | self.plain.messages([*self.too_early]))
        step.compare("acknowledged at Pulsar only", [], sorted(pulsar - held - undone - kept))
        if kept & self.refused_in_part:
            self.diverged = True
            self.case.on_purpose.add("refused_in_part")
        if undone and not self.diverged:
            step.compare("where acknowledgements come back", "reopen_crash", op)
            self.diverged = True
            self.case.on_purpose.add("seek_undone")
        if lost and not self.diverged:
            whole = {(a, b) for a, b, _ in lost if self.plain.is_done(Position(a, b))}
            rule = differences.rule_of(
                op, lost, before, whole, capped=self.capped, by_index=self.by_index
            )
            if rule is None:
                step.problems.append(f"Pulsar lacks {sorted(lost)[:3]}, for no reason in the table")
            else:
                self.diverged = True
                self.case.on_purpose.add(rule)
        recorded = dict(state.record)
        self._undo_rollover(recorded, ours)
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
            if Position.parse(text) <= plain.last:
                plain.acknowledge_batch(Position.parse(text), words)
        return plain.acknowledged()

    def _never_published(self, state: dict[str, Any]) -> set[Position]:
        """Entries that a recorded state holds as acknowledged by name, and nobody ever wrote."""
        places = {Position(*state["mark_delete"]), *map(Position.parse, state["batch_ack_sets"])}
        places |= {Position(*part[2:]) for part in state["ranges_open_closed"]}
        ever = self.ledgers.ever
        return {p for p in places & self.named if p.entry_id >= len(ever.get(p.ledger_id, ()))}

    def _undo_rollover(self, state: dict[str, Any], ours: dict[str, Any]) -> None:
        """Turn a mark-delete before a ledger into that behind the last entry before."""
        place = Position(*state["mark_delete"])
        if place.entry_id >= 0 or state["mark_delete"] == ours["mark_delete"]:
            return
        before = self.ledgers.last_entry_before(place.ledger_id)
        if before is None and ours["mark_delete"][1] >= 0:
            return
        self.case.on_purpose.add("rollover")
        same = state["persistent_mark_delete"] == state["mark_delete"]
        state["mark_delete"] = ours["mark_delete"] if before is None else [*before]
        if same:
            state["persistent_mark_delete"] = state["mark_delete"]

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
