"""Which topics may have news: whoever is about to commit to one says so, in a file of its own.

Invariants: a commit takes effect within ANNOUNCED_S after a file was written that names its topic,
or such a file is written after it; a watcher counts a topic as busy for BUSY_S after it saw its
file change, by its own clock, and for as long again after it has deleted the file. So a watcher of
a thousand topics lists one folder, and asks the logs of those few in which something happens. What
slips through (a writer that stood still and was killed then, one of an older version) a slow round
over all topics finds. Followers of one log need none of this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256
from itertools import islice
from math import inf
from typing import Final
from urllib.parse import quote, unquote

from pulsar_spark.connector.storage.object_store import ObjectStore, join

NEWS: Final = "_news"
ANNOUNCED_S: Final = 20.0
"""How long an announcement holds for the commits that follow."""
BUSY_S: Final = 3 * ANNOUNCED_S
KEPT_S: Final = 2 * BUSY_S
"""How long an announcement stays at least: who looks once a minute sees it too."""
FEW: Final = 8
"""So many topics are asked one by one: on an object store a listing costs as much."""
ROUND_S: Final = 60.0
"""How long a round over all topics takes, on a local disk, unless they are more than MOST_A_SECOND
has time for, ..."""
MOST_A_SECOND: Final = 20.0
REMOTE_ROUND_S: Final = 3600.0
"""... and over a network."""
LONGEST_NAME: Final = 150
"""Characters of a file's name; what is longer is cut, and has its hash behind CUT."""
CUT: Final = "+"
"""In no other name: there it is quoted."""


def news_file(topic: str) -> str:
    """The file by which that topic is announced; its content is the topic's name."""
    name = quote(topic, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}{CUT}{sha256(topic.encode()).hexdigest()}"
    return join(NEWS, name)


class Announcer:
    """Of one topic, in one process."""

    def __init__(self, store: ObjectStore, topic: str) -> None:
        self._store, self._topic = store, topic
        self._said_s = -inf

    def announce(self) -> None:
        """Say that a commit follows, or has just been made, unless it was said a moment ago."""
        now_s = self._store.clock.monotonic_s()
        if now_s - self._said_s >= ANNOUNCED_S:
            self._store.touch(news_file(self._topic), self._topic.encode())
            self._said_s = now_s


class NewsWatch:
    """Who is busy, as one watcher sees it."""

    def __init__(
        self, store: ObjectStore, *, deletes: bool = False, round_s: float | None = None
    ) -> None:
        """One of the watchers of a root `deletes` what has been quiet for long."""
        self._store, self._clock, self._deletes = store, store.clock, deletes
        self.folders: list[str] = []
        """Where announcements appear that concern it: nowhere, as long as its topics are few."""
        self._listed: dict[str, int] = {}
        """File -> when it was written last, as of the last look."""
        self._seen: dict[str, tuple[int | None, float]] = {}
        """The same, None once it was deleted, and when that was seen."""
        self._topics: dict[str, str] = {}
        self._round: Iterator[str] = iter(())
        """Who is still to come in the slow round, how many they are, ..."""
        self._left = 0
        self._least_round_s = round_s or (REMOTE_ROUND_S if store.remote else ROUND_S)
        self._share = 0.0
        """... and how many of them come in a second."""
        self._round_s = self._clock.monotonic_s()

    def has_changed(self) -> bool:
        """Whether anything was announced since the last look; on a local disk, where it is cheap.

        For any thread.
        """
        return bool(self.folders) and not self._store.remote and self._listing() != self._listed

    def busy(self, topics: Collection[str], unfinished: Collection[str] = ()) -> set[str]:
        """Those of the topics to look at now: in which something happens, or whose turn it is.

        What was announced of the `unfinished` stays: who begins anew is to look at them too.
        """
        self.folders = [] if len(topics) <= FEW else [NEWS]
        if not self.folders:
            return set(topics)
        now_s = self._clock.monotonic_s()
        self._listed = self._listing()
        for path, written_ms in self._listed.items():
            if path not in self._seen or self._seen[path][0] != written_ms:
                self._seen[path] = written_ms, now_s
        warm = set()
        for path, (known_ms, since_s) in list(self._seen.items()):
            if now_s - since_s < BUSY_S:
                warm.add(self._topic(path))
            elif path not in self._listed:
                del self._seen[path]
                self._topics.pop(path, None)
            elif now_s - since_s < KEPT_S or self._topic(path) in unfinished:
                continue
            elif self._deletes and known_ms is not None:
                self._store.delete(path)  # with an announcement of just now, perhaps
                self._seen[path] = None, now_s
                warm.add(self._topic(path))
        return {each for each in warm | self._turn(topics, now_s) if each in topics}

    def _listing(self) -> dict[str, int]:
        return {each.path: each.modified_ms for each in self._store.files(NEWS)}

    def _topic(self, path: str) -> str:
        if (known := self._topics.get(path)) is not None:
            return known
        name = path.rpartition("/")[2]
        topic = (self._store.get(path) or b"").decode() if CUT in name else unquote(name)
        self._topics[path] = topic
        return topic

    def _turn(self, topics: Collection[str], now_s: float) -> set[str]:
        """The next ones of the slow round, as many as the time since the last turn makes."""
        if not self._left:
            self._round, self._left = iter(sorted(topics)), len(topics)
            self._share = min(self._left / self._least_round_s, MOST_A_SECOND)
        count = min(int((now_s - self._round_s) * self._share), self._left)
        if not count:
            return set()
        self._left -= count
        self._round_s = self._round_s + count / self._share if self._left else now_s
        return {*islice(self._round, count)}
