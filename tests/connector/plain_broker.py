"""An embedded broker for tests of those who talk to one: turn by turn, or in a thread.

Invariant: a failure in its thread is raised where it is stopped.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root

TURN_S = 0.005


class PlainBroker:
    """Serves one root. `with PlainBroker(...)` runs it in a thread."""

    def __init__(self, root: Path | str, checkpoint: str) -> None:
        self._root, self._checkpoint = Root(str(root), {}), checkpoint
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._broker: EmbeddedBroker | None = None
        self.batches = 0

    def until_quiet(self) -> None:
        """Turns until there is nothing to do, in the caller's thread."""
        self._broker = self._broker or EmbeddedBroker(self._root, self._checkpoint)
        self.batches += self._broker.until_quiet()

    def start(self) -> PlainBroker:
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._broker is not None:
            self._broker.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> PlainBroker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with EmbeddedBroker(self._root, self._checkpoint) as broker:
                while not self._stopped.is_set():
                    if broker.run_once():
                        self.batches += 1
                    else:
                        self._stopped.wait(TURN_S)
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self._failure = error
