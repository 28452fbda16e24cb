"""A look for news over a network: what it asks for in any case it asks for at once.

Invariants: a second round follows the first only if that found something; it begins when all of
the first is answered. So what it finds of one log is from behind what the first found of another,
and a pointer that it reads vouches for the commits of the first. What can't be read counts as not
asked for: whoever needs it asks again, and meets the error where only its own topic suffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol

from pulsar_spark.connector.runtime.topics.log_pointer import LogPointer
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import DAMAGE, PulsarliteError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.model.positions.ledger_info import LedgerInfo


class Prefetcher(Protocol):
    """A source of activity that is polled by one request, or by several concurrent ones."""

    def ask(self) -> bool:
        """Look, for what follows; whether there is news."""

    def prefetch_more(self) -> None:
        """Somebody has found something: ask for what comes next, or look again."""

    def forget(self) -> None:
        """Nothing has followed."""


@contextmanager
def prefetched(
    store: ObjectStore, askers: Iterable[Prefetcher], *in_background: Callable[[], object]
) -> Iterator[None]:
    """A context in which these know what they ask for first.

    What is to be done `in_background` it is done in any case.
    """
    asking = list(askers) if store.remote else []
    try:
        first: list[Callable[[], object]] = [
            *(partial(answer_of, each, each.ask) for each in asking),
            *in_background,
        ]
        found = [*store.answers(lambda do: do(), first)][: len(asking)]
        if any(found):
            store.at_once(partial(answer_of, each, each.prefetch_more) for each in asking)
        yield
    finally:
        for each in asking:
            each.forget()


def answer_of(asker: Prefetcher, request: Callable[[], bool | None]) -> bool:
    """The answer of its request: nothing, if the file can't be read."""
    try:
        return bool(request())
    except DAMAGE:
        asker.forget()
        return False


class LogTail(NamedTuple):
    """The commits from the `first` number on, as they are stored, and whether they end there.

    The pointer, where it is known, was read when they had been.
    """

    first: int
    commits: list[bytes]
    pointer: LogPointer | None = None
    is_end: bool = False

    def ledgers(self, path: Callable[[int], str]) -> list[LedgerInfo]:
        """All that they name; a commit that can't be read, at that `path`, names none."""
        found: list[LedgerInfo] = []
        for number, data in enumerate(self.commits, self.first):
            with suppress(PulsarliteError):
                found += Commit.from_json(data, path(number), number).ledgers
        return found
