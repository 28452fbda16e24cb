"""The broker's batches in a thread of this process, where `standalone` otherwise has Spark's query.

Invariants: an error ends it, and whoever hosts it decides whether it begins again; on a local disk
news begins a batch at once; who stops it waits for the batch that runs. What `Broker` asks of a
streaming query has Spark's names here too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pulsar_spark.connector.runtime.broker.embedded_broker import CHECKPOINT, EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import FolderWatch


class BrokerThread:
    """One run of a root's broker, whose host shows that it lives, and has claimed its term."""

    def __init__(self, root: Root, term: int) -> None:
        self._root, self._term = root, term
        self._watch = FolderWatch(root.store)
        self._over = threading.Event()
        self._error: Exception | None = None
        self._batches = 0
        self._thread = threading.Thread(target=self._serve, name="broker", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self._thread.is_alive()

    @property
    def status(self) -> Mapping[str, Any]:
        return {"message": "Waiting for news"}

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:  # noqa: N802 - Spark's name
        return {"batchId": self._batches - 1, "numInputRows": 1} if self._batches else None

    def exception(self) -> Exception | None:
        """The exception that ended it; None if it runs, or was stopped."""
        return self._error

    def stop(self) -> None:
        """End behind the batch that runs."""
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            broker = EmbeddedBroker(self._root, CHECKPOINT, term=self._term)
            while not self._over.is_set():
                if broker.run_once():
                    self._batches = broker.batches
                else:
                    self._wait(broker)
        except Exception as error:  # noqa: BLE001 - the host asks for it
            self._error = error

    def _wait(self, broker: EmbeddedBroker) -> None:
        if self._root.store.remote:
            self._over.wait(broker.pause_s())
        else:
            self._watch.rest(broker.watched, broker.pause_s())
