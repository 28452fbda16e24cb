"""Where a schedule runs: one clock, one store, and whatever goes wrong with either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pulsar_spark.connector.storage.clock import Clock, ManualClock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectInfo, Output
from pulsar_spark.errors import StorageUnavailableError
from tests.simulation.lots import Lots

ADMIN = ""
"""Who is never in trouble: the schedule and its oracle."""
NO_FUSE = 1 << 30
NOTHING = "\0"
_SYSTEM = "persistent/pulsar/"

_RequestT = TypeVar("_RequestT")
_Answer = TypeVar("_Answer")


class Killed(BaseException):
    """The process is no more."""


class InjectedError(StorageUnavailableError):
    """The store fails because the schedule says so."""


class SharedClock(ManualClock):
    """One time for all; each actor's wall clock may be set apart from it."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.actor = ADMIN
        self.set_ahead_ms: dict[str, int] = {}
        self.stopped: set[str] = set()
        """Actors that stand still: nothing that they repeat is done."""
        self.renewing = False
        self.while_asleep: Callable[[], None] = lambda: None
        self._repeated_by: dict[str, list[Callable[[], None]]] = {}

    @property
    def elapsed_ms(self) -> int:
        """By the clock that nobody sets."""
        return int(self.monotonic_s() * 1000)

    @contextmanager
    def acting(self, actor: str) -> Iterator[None]:
        """What is done meanwhile is that actor's."""
        before, self.actor = self.actor, actor
        try:
            yield
        finally:
            self.actor = before

    def wall_ms(self) -> int:
        return super().wall_ms() + self.set_ahead_ms.get(self.actor, 0)

    def sleep(self, seconds: float) -> None:
        self.while_asleep()
        super().sleep(seconds)

    def repeat(
        self, every_s: float, action: Callable[[], None], name: str, *, coalesce: bool = False
    ) -> Callable[[], None]:
        del coalesce  # processes that live apart show life each for itself
        actor = self.actor

        def act() -> None:
            if actor not in self.stopped:
                before, self.renewing = self.renewing, True
                try:
                    with self.acting(actor):
                        action()
                finally:
                    self.renewing = before

        end = super().repeat(every_s, act, name)
        self._repeated_by.setdefault(actor, []).append(end)
        return end

    def end(self, actor: str) -> None:
        """Its process ends: nothing is repeated any more."""
        for end in self._repeated_by.pop(actor, []):
            end()


class TroubledStore(MemoryStore):
    """Fails as a disk or an object store does, and is where processes are killed."""

    def __init__(self, root: str, clock: Clock) -> None:
        """`clock` also knows who acts, as `SharedClock` does."""
        super().__init__(root, clock)
        self.time: Any = clock
        self.lots = Lots(0)
        self.one_fails_in = self.one_is_slow_in = 0
        """How often a call fails, or time passes meanwhile; 0 for never."""
        self.full_until_ms = 0
        self.away = NOTHING
        """Begins the paths that can't be read just now."""
        self.fuses: dict[str, int] = {}
        """Actor -> how many more changes it makes before it is killed."""
        self.published = 0
        """How many changes were made to logs of topics that are not the system's."""
        self.touched: dict[str, int] = {}
        """Path -> when it was touched last, by the clock that nobody sets."""
        self.order = Lots(0)
        """In which what is asked for at once is answered, over a network."""
        self.left: dict[str, list[Callable[[], object]]] = {}
        """Actor -> what its process does beside, and has not begun."""

    def get(self, path: str) -> bytes | None:
        self._before_reading(path)
        return super().get(path)

    def answers(
        self, request: Callable[[_RequestT], _Answer], paths: Iterable[_RequestT]
    ) -> Iterator[_Answer]:
        if not self.remote:
            return super().answers(request, paths)
        asked = list(paths)
        order = list(range(len(asked)))
        self.order.random.shuffle(order)
        found: dict[int, _Answer | Exception] = {}
        for each in order:
            try:
                found[each] = request(asked[each])
            except Exception as error:  # noqa: BLE001, PERF203 - the others are asked all the same
                found[each] = error
        return (_answer(found[each]) for each in range(len(asked)))

    def in_background(self, action: Callable[[], object]) -> None:
        if self.remote:
            self.left.setdefault(self.time.actor, []).append(action)
        else:
            super().in_background(action)

    def create(self, path: str, data: bytes) -> bool:
        fate = self._fate()
        if fate in ("refused", "denied") and "/data/" in path:
            raise InjectedError("A data file could not be written, says the schedule.")
        if fate == "refused":
            return False
        with self.time.acting(ADMIN):
            made = super().create(path, data)
        self.published += made and not path.startswith(_SYSTEM)
        self._after(fate)
        return made and fate != "denied"

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        fate = self._fate()
        if fate == "refused":
            return False
        with self.time.acting(ADMIN):  # it reads while it holds its lock
            made = super().compare_and_swap(path, token, data)
        self._after(fate)
        return made and fate != "denied"

    def touch(self, path: str, data: bytes) -> None:
        fate = self._fate()
        super().touch(path, data)
        self.touched[path] = self.time.elapsed_ms
        self._after(fate)

    def delete(self, path: str) -> None:
        fate = self._fate()
        super().delete(path)
        self._after(fate)

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        self._before_reading(folder)
        return super().files(folder)

    def open_input(self, path: str) -> Any:
        self._before_reading(path)
        return super().open_input(path)

    def open_output(self, path: str) -> Output:
        self._before_reading(path)
        return super().open_output(path)

    @contextmanager
    def nearby(self) -> Iterator[None]:
        """Meanwhile it is on a disk: who looks sees at once what is there."""
        before, self.remote = self.remote, False
        try:
            yield
        finally:
            self.remote = before

    # -- inside ----------------------------------------------------------------------------------

    def _before_reading(self, path: str) -> None:
        if self.time.actor == ADMIN:
            return
        self._pass_time()
        if path.startswith(self.away):
            raise InjectedError(f"{path} is away, says the schedule.")
        if self.one_fails_in and self.lots.one_in(self.one_fails_in * 8):
            raise InjectedError("Reading failed, says the schedule.")

    def _fate(self) -> str:
        """Of a change, which may be made or not, and be said to be made or not."""
        actor = self.time.actor
        if actor == ADMIN:
            return "fine"
        self._pass_time()
        if not self.time.renewing:
            left = self.fuses.get(actor, NO_FUSE)
            self.fuses[actor] = left - 1
            if left <= 0:
                if left < 0 or self.lots.one_in(2):
                    raise Killed(actor)
                return "killed"
        if self.time.elapsed_ms < self.full_until_ms:
            raise InjectedError("The disk is full, says the schedule.")
        if self.one_fails_in and self.lots.one_in(self.one_fails_in):
            fate = self.lots.draw_from(("failed", "ambiguous", "refused", "denied"))
            if fate == "failed":
                raise InjectedError("Writing failed, says the schedule.")
            return fate
        return "fine"

    def _after(self, fate: str) -> None:
        if fate == "killed":
            raise Killed(self.time.actor)
        if fate == "ambiguous":
            raise InjectedError("Writing seemed to fail, says the schedule.")

    def _pass_time(self) -> None:
        if self.one_is_slow_in and not self.time.renewing and self.lots.one_in(self.one_is_slow_in):
            self.time.advance(self.lots.draw(1, 2_000))


def _answer(found: _Answer | Exception) -> _Answer:
    if isinstance(found, Exception):
        raise found
    return found
