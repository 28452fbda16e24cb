"""Programs that read without a subscription: a reader, and a table view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_spark import pulsar
from tests.client_torture.oracle import Position
from tests.client_torture.programs import Program
from tests.client_torture.turns import Process

if TYPE_CHECKING:
    from tests.client_torture.world import World


class ReaderProgram(Program):
    """Reads a topic from its beginning, and now and then from there again."""

    def __init__(self, world: World, process: Process, name: str, topic: str) -> None:
        super().__init__(world, process, name)
        self.topic = topic
        self.last: dict[int, Position] = {}
        """Partition -> what it read last, since it began or sought."""
        self.read: set[str] = set()

    def run(self) -> None:
        reader = None
        client = self.world.client(self.process)
        while not isinstance(reader, pulsar.Reader):
            reader = self.attempt("create_reader", lambda: client.create_reader(
                self.topic, pulsar.MessageId.earliest,
                receiver_queue_size=self.lots.draw_from(self.setting_queue),
            ))  # fmt: skip
            self.turns.sleep(0.1)
        while True:
            if not self.world.finishing and self.lots.one_in(20):
                self.attempt("seek", lambda: reader.seek(pulsar.MessageId.earliest))
                self.last, self.read = {}, set()
            found = self.attempt("read_next", lambda: reader.read_next(2_000))
            if isinstance(found, pulsar.Message):
                self._take(found)

    @property
    def setting_queue(self) -> tuple[int, ...]:
        return self.world.setting.queue

    def _take(self, message: pulsar.Message) -> None:
        held, value = message.message_id(), message.data().decode()
        position = held.ledger_id(), held.entry_id(), max(held.batch_index(), 0)
        partition = max(held.partition(), 0)
        if value in self.read or position <= self.last.get(partition, (-1, -1, -1)):
            self.oracle.fail("reader", f"{self.name} reads {value} behind {self.last}")
        self.last[partition] = position
        self.read.add(value)

    def missing(self) -> list[str]:
        """The messages that it has not read yet, a line each."""
        return [
            f"{self.name} has not read {each.value}"
            for each in self.oracle.published.values()
            if each.topic == self.topic and each.place and each.value not in self.read
        ]


class ViewProgram(Program):
    """Has a table view of a topic."""

    def __init__(self, world: World, process: Process, name: str, topic: str) -> None:
        super().__init__(world, process, name)
        self.topic = topic
        self.view: pulsar.TableView | None = None

    def run(self) -> None:
        client = self.world.client(self.process)
        while not isinstance(self.view, pulsar.TableView):
            self.view = self.attempt(
                "create_table_view", lambda: client.create_table_view(self.topic)
            )  # fmt: skip
            self.turns.sleep(0.1)

    def missing(self) -> list[str]:
        """The keys of which it has another value than the last one, a line each."""
        last: dict[str, tuple[Any, str]] = {}
        for each in self.oracle.published.values():
            if each.topic == self.topic and each.place and each.key:
                last[each.key] = max((each.position, each.value), last.get(each.key, ((), "")))
        view = self.view
        if not isinstance(view, pulsar.TableView):
            return [f"{self.name} has no view"]
        return [
            f"{self.name} has {view.get(key)} for {key}, not {value}"
            for key, (_, value) in last.items()
            if view.get(key) != value.encode()
        ]
