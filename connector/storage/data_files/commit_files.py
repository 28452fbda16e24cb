"""The data files of a commit: small ones inside it, the others stored before it names them.

Invariants: up to a limit nothing is opened in the store; beyond it all goes there, in order; a
commit names no file that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from pulsar_spark.connector.storage.object_store import ObjectStore, Output, join
from pulsar_spark.errors import CorruptFileError, FileReclaimedError
from pulsar_spark.log.publication import NewLedger, embedded_files

MOST_EMBEDDED_BYTES: Final = 1 << 20
"""A commit contains small data files of so many bytes at most."""


class HeldOutput:
    """An output that opens the store's with the first byte beyond `most_bytes`."""

    def __init__(self, open_output: Callable[[], Output], most_bytes: int) -> None:
        self._open_output, self._most_bytes = open_output, most_bytes
        self._bytes = bytearray()
        self._output = None if most_bytes else open_output()

    @property
    def held(self) -> bytes | None:
        """The bytes; None if they are in the store."""
        return bytes(self._bytes) if self._output is None else None

    def write(self, data: Any) -> None:
        if self._output is None:
            self._bytes += data
            if len(self._bytes) <= self._most_bytes:
                return
            self._output, data = self._open_output(), bytes(self._bytes)
            self._bytes.clear()
        self._output.sink.write(data)

    def close(self) -> int:
        """Make it durable and visible, unless it is held; its size in bytes. Errors of `Output`."""
        return len(self._bytes) if self._output is None else self._output.close()

    def abort(self) -> None:
        """Forget what was written to the store. Harmless after `close`."""
        if self._output is not None:
            self._output.abort()


def stored_apart(
    store: ObjectStore, folder: str, ledgers: Sequence[NewLedger]
) -> Sequence[NewLedger]:
    """The ledgers, with small files of their own where a commit would be too large with them."""
    files = embedded_files(ledgers)
    if sum(map(len, files.values())) <= MOST_EMBEDDED_BYTES:
        return ledgers
    for _ in store.answers(
        lambda file: store.put_if_absent(join(folder, file), files[file]), files
    ):
        pass
    return [replace(each, embedded=None) for each in ledgers]


def check_files(store: ObjectStore, folder: str, topic: str, files: Iterable[str]) -> None:
    """FileReclaimedError if a file is not there: it may have been given up long ago."""
    named = list(files)
    sizes = store.answers(store.size, [join(folder, file) for file in named])
    for file, size in zip(named, sizes, strict=True):
        if size is None:
            raise FileReclaimedError(
                f"File {file} of topic {topic} is not there, so it can't be "
                "committed: it was given up, or never written. Write the messages again, or "
                "start the clean-up that made it once more."
            )
        if not size:
            raise CorruptFileError(f"File {file} of topic {topic} is empty and can't be committed.")
