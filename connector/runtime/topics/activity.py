"""The topics that may have new commits: a writer announces each in a file of its own.

Invariants: a commit takes effect within ANNOUNCED_S after a file was written that names its topic,
or such a file is written after it; a watcher counts a topic as busy for BUSY_S after it saw its
file change, by its own clock, and for as long again after it has deleted the file. So a watcher of
a thousand topics lists one folder, and asks the logs of those few in which something happens. What
slips through (a writer that stood still and was killed then) a slow round
over all topics finds. Followers of one log need none of this.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from itertools import islice
from math import inf
from typing import Any, Final
from urllib.parse import quote, unquote

from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.storage.object_store import ObjectStore, join

ACTIVITY: Final = "_activity"
NEWEST: Final = "_newest"
"""The file that each announcement overwrites, over a network: who watches asks for it alone."""
ANNOUNCED_S: Final = 20.0
"""Seconds for which an announcement holds for the commits that follow, on a local disk."""
REMOTE_ANNOUNCED_S: Final = 40.0
"""The same over a network, where an announcement is two requests."""
BUSY_S: Final = 3 * ANNOUNCED_S
REMOTE_BUSY_S: Final = 3 * REMOTE_ANNOUNCED_S
KEPT_S: Final = 2 * BUSY_S
"""The least seconds for which an announcement stays: a poll once a minute finds it too."""
FEW: Final = 8
"""So many topics are asked one by one on a local disk."""
ROUND_S: Final = 60.0
"""Seconds of a round over all topics, on a local disk, unless they are more than MOST_A_SECOND
covers."""
MOST_A_SECOND: Final = 20.0
REMOTE_ROUND_S: Final = 24 * 3600.0
"""The same over a network, where a poll is one request for each topic."""
TURN_S: Final = 600.0
"""Seconds between two polls of one topic, where topics are few, and of the broker's own."""
NEWEST_EVERY_S: Final = 1.0
"""The least seconds between two requests for NEWEST: logs of busy topics are polled more often."""
LIST_EVERY_S: Final = 20.0
"""The least seconds between two listings of announcements over a network."""
LONGEST_NAME: Final = 150
"""Characters of a file's name; what is longer is cut, and has its hash behind CUT."""
CUT: Final = "+"
"""In no other name: there it is quoted."""


def activity_file(topic: str) -> str:
    """The file by which that topic is announced; its content is the topic's name."""
    name = quote(topic, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}{CUT}{sha256(topic.encode()).hexdigest()}"
    return join(ACTIVITY, name)


class Announcer:
    """The announcer of one topic, in one process."""

    def __init__(self, store: ObjectStore, topic: str) -> None:
        self._store, self._topic = store, topic
        self._holds_s = REMOTE_ANNOUNCED_S if store.remote else ANNOUNCED_S
        self._reported_s = -inf

    @property
    def is_due(self) -> bool:
        """True if it has to be said before a commit."""
        return self._quiet_s >= self._holds_s

    @property
    def is_late(self) -> bool:
        """True if it may as well be said behind one."""
        return self._quiet_s >= self._holds_s / 2

    def announce(self) -> None:
        """Say that a commit follows, or has just been made, unless it was said a moment ago."""
        if self.is_due:
            self.renew()

    def renew(self) -> None:
        """Say it in any case."""
        now_s = self._store.clock.monotonic_s()
        announcements = [(activity_file(self._topic), self._topic)]
        if self._store.remote:
            announcements.append((NEWEST, f"{self._topic} {uuid.uuid4().hex}"))
        for _ in self._store.answers(self._announce, announcements):
            pass
        self._reported_s = now_s

    @property
    def _quiet_s(self) -> float:
        return self._store.clock.monotonic_s() - self._reported_s

    def _announce(self, announcements: tuple[str, str]) -> None:
        path, text = announcements
        self._store.touch(path, text.encode())


class ActivityWatch:
    """The busy topics, as one watcher observes them."""

    def __init__(
        self, store: ObjectStore, *, deletes: bool = False, round_s: float | None = None
    ) -> None:
        """One of the watchers of a root `deletes` what has been quiet for long."""
        self._store, self._clock, self._deletes = store, store.clock, deletes
        self._busy_s = REMOTE_BUSY_S if store.remote else BUSY_S
        self._kept_s = 2 * REMOTE_BUSY_S if store.remote else KEPT_S
        self._newest: bytes | None = b"never seen"
        """The content of NEWEST."""
        self.newest_s = -inf if not store.remote else self._clock.monotonic_s()
        """When NEWEST was seen to change; never, on a local disk."""
        self._listed_s = self._list_s = self._relist_s = -inf
        """When announcements were listed, when they are next, and again, as some come later."""
        self._is_requested = False
        """True if NEWEST was looked at for this look, if that was due, ..."""
        self._ask_s = -inf
        """The time of the last poll of NEWEST."""
        self._system_s = self.newest_s
        self._folders: list[str] = []
        """The folder of announcements on a local disk; none as long as its topics are few."""
        self._listed: dict[str, int] = {}
        """File -> when it was written last, as of the last look."""
        self._seen: dict[str, tuple[int | None, float]] = {}
        """The same, None once it was deleted, and when that was seen."""
        self._topics: dict[str, str] = {}
        self._round: Iterator[str] = iter(())
        """The topics that the slow round has still to poll, and their number."""
        self._left = 0
        self._least_round_s = round_s or ROUND_S
        self._share = 0.0
        """The number of topics that the slow round polls in a second."""
        self._round_s = self._clock.monotonic_s()

    @property
    def watched(self) -> list[Watched]:
        """The folder of announcements that concern it; on a local disk, where a poll is cheap."""
        return [Watched(each, lambda: self._listing() != self._listed) for each in self._folders]

    def busy(self, topics: Collection[str], unfinished: Collection[str] = ()) -> set[str]:
        """The topics to poll now: the active ones, and those of the slow round.

        What was announced of the `unfinished` stays: who begins anew is to look at them too.
        """
        is_remote = self._store.remote
        self._folders = [] if is_remote or len(topics) <= FEW else [ACTIVITY]
        if not self._folders and not is_remote:
            return set(topics)
        now_s = self._clock.monotonic_s()
        self._take_in(now_s)
        warm = set()
        for path, (known_ms, since_s) in list(self._seen.items()):
            if now_s - since_s < self._busy_s:
                warm.add(self._topic(path))
            elif path not in self._listed:
                del self._seen[path]
                self._topics.pop(path, None)
            elif now_s - since_s < self._kept_s or self._topic(path) in unfinished:
                continue
            elif self._deletes and known_ms is not None:
                self._store.delete(path)  # with an announcement of just now, perhaps
                self._listed = {each: at for each, at in self._listed.items() if each != path}
                self._seen[path] = None, now_s
                warm.add(self._topic(path))
        return {each for each in warm | self._turn(topics, now_s) if each in topics}

    def _take_in(self, now_s: float) -> None:
        """Take in what was announced."""
        if not self._store.remote:
            self._listed = self._listing()
        elif not self._is_requested:
            self.ask()
        self._is_requested = False
        for path, written_ms in self._listed.items():
            if path not in self._seen or self._seen[path][0] != written_ms:
                self._seen[path] = written_ms, now_s

    def ask(self) -> bool:
        """Look at NEWEST, for the `busy` that follows: beside other requests."""
        if not self._store.remote:
            return False
        now_s = self._clock.monotonic_s()
        self._is_requested = True
        if now_s < self._ask_s:
            return False
        asked: list[Callable[[], Any]] = [lambda: self._store.get(NEWEST)]
        if now_s >= min(self._list_s, self._relist_s):
            asked.append(self._listing)
        newest, *listed = self._store.answers(lambda each: each(), asked)
        self._ask_s = now_s + NEWEST_EVERY_S
        if listed:
            self._listed, self._listed_s, self._list_s = listed[0], now_s, inf
            self._relist_s = self._relist_s if now_s < self._relist_s else inf
        if newest != self._newest:
            self._newest, self.newest_s = newest, now_s
            if newest is not None:
                self._seen[activity_file(_text(newest).rpartition(" ")[0])] = -1, now_s
            self._list_s = min(self._list_s, max(now_s, self._listed_s + LIST_EVERY_S))
            self._relist_s = now_s + REMOTE_ANNOUNCED_S
        return False  # of the logs

    def prefetch_more(self) -> None:
        """Note that the answer is complete."""

    def forget(self) -> None:
        """No `busy` has followed."""
        self._is_requested = False

    @property
    def is_quiet(self) -> bool:
        """True if nobody has committed to anything for a while, system topics included.

        Of those it is said to be otherwise each TURN_S, for what nobody has announced.
        """
        now_s = self._clock.monotonic_s()
        was_seen = now_s - self._system_s < TURN_S
        return self._store.remote and now_s - self.newest_s >= self._busy_s and was_seen

    def system_polled(self) -> None:
        """The logs of the system topics are looked at now."""
        self._system_s = self._clock.monotonic_s()

    def _listing(self) -> dict[str, int]:
        return {each.path: each.modified_ms for each in self._store.files(ACTIVITY)}

    def _topic(self, path: str) -> str:
        if (known := self._topics.get(path)) is not None:
            return known
        name = path.rpartition("/")[2]
        topic = _text(self._store.get(path) or b"") if CUT in name else unquote(name)
        self._topics[path] = topic
        return topic

    def _turn(self, topics: Collection[str], now_s: float) -> set[str]:
        """The next ones of the slow round, as many as the time since the last turn makes."""
        if not self._left:
            self._round, self._left = iter(sorted(topics)), len(topics)
            round_s = self._least_round_s
            if self._store.remote:
                round_s = min(REMOTE_ROUND_S, TURN_S * max(self._left, 1))
            self._share = min(self._left / round_s, MOST_A_SECOND)
        count = min(int((now_s - self._round_s) * self._share), self._left)
        if not count:
            return set()
        self._left -= count
        self._round_s = self._round_s + count / self._share if self._left else now_s
        return {*islice(self._round, count)}


def _text(announcements: bytes) -> str:
    """The text of a file; a damaged one names no existing topic."""
    return announcements.decode(errors="replace")
