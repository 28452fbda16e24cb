"""A user's function in a child process: it may crash, be killed or hang, and its task goes on.

Invariants: the child is forked from the task's process, so the function needs no pickling, and is
used until it dies; what became of a message is told as soon as it is known, so the first message
without an outcome is the one that killed the child; a child never outlives its task. A function of
whole Arrow batches that fails on a batch is given its halves, down to the message that it fails on.
Pulsar's functions run in a process or a container of their own (`ProcessRuntime`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql import Row

from pulsar_spark.outcome import Outcome

RowFunction = Callable[[Row], Any]
BatchFunction = Callable[[pa.RecordBatch], Any]

_HEADER_BYTES: Final = 8
_CHUNK_BYTES: Final = 1 << 16
_PR_SET_PDEATHSIG: Final = 1
_DIED: Final = -1
_LOOK_EVERY_S: Final = 1.0
"""Whether the child lives: a process that it has forked may hold its pipe open."""


@dataclass(frozen=True)
class Work:
    """What is done with each message. `result_type` None: what the function returns is dropped."""

    function: Callable[[Any], Any]
    by_batch: bool = False
    result_type: pa.DataType | None = None

    def outcomes(self, batch: pa.RecordBatch) -> Iterator[Outcome]:
        """Of each message, in order, as it is done."""
        names = batch.schema.names
        make = Row(*names)
        columns = [_values(batch.column(name)) for name in names]
        for values in zip(*columns, strict=True):
            yield self.outcome(make(*values))

    def outcome(self, message: Row) -> Outcome:
        try:
            result = self.function(message)
            if self.result_type is None:
                return Outcome()
            return Outcome(result=pa.scalar(result, self.result_type).as_py())
        except BaseException as error:  # noqa: BLE001 - whatever a user's function raises
            return Outcome.of_error(error)

    def whole(self, batch: pa.RecordBatch) -> list[Outcome] | Outcome:
        """Of all messages of the batch; or one failure, which may be that of any of them."""
        try:
            result = self.function(batch)
            if self.result_type is None:
                return [Outcome()] * batch.num_rows
            held = pa.array(result, self.result_type) if isinstance(result, list) else result
            values = held.cast(self.result_type).to_pylist()
            if len(values) != batch.num_rows:
                text = f"it returned {len(values)} results for {batch.num_rows} messages"
                return Outcome.failed(f"ValueError: {text}")
            return [Outcome(result=value) for value in values]
        except BaseException as error:  # noqa: BLE001 - whatever a user's function raises
            return Outcome.of_error(error)


class FunctionProcess:
    """Runs a function on messages, batch by batch. A context manager, which ends the child."""

    def __init__(self, work: Work, timeout_s: float | None = None) -> None:
        """`timeout_s` is how long a message may take, or, by batch, a call; None: for ever."""
        self._work, self._timeout_s = work, timeout_s
        self._child: _Child | None = None

    def run(self, batch: pa.RecordBatch) -> list[Outcome]:
        """What became of each message."""
        if self._work.by_batch:
            return list(self._halving(batch))
        done: list[Outcome] = []
        while len(done) < batch.num_rows:
            child = self._started(batch.slice(len(done)))
            while len(done) < batch.num_rows:
                told = child.receive(self._timeout_s)
                if told is None:
                    done.append(self._obituary())
                    break
                done.append(told)
        return done

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> FunctionProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _halving(self, batch: pa.RecordBatch) -> Iterator[Outcome]:
        told = self._started(batch).receive(self._timeout_s)
        if isinstance(told, list):
            yield from told
            return
        failure = self._obituary() if told is None else told
        if batch.num_rows == 1:
            yield failure
            return
        half = batch.num_rows // 2
        yield from self._halving(batch.slice(0, half))
        yield from self._halving(batch.slice(half))

    def _started(self, batch: pa.RecordBatch) -> _Child:
        """A child that works on the batch."""
        data = _to_bytes(batch)
        if self._child is None or not self._child.send(data):
            self.close()  # it may have died between two batches
            self._child = _Child(self._work)
            self._child.send(data)
        return self._child

    def _obituary(self) -> Outcome:
        assert self._child is not None
        child, self._child = self._child, None
        if child.is_late:
            child.kill()
            return Outcome.failed(
                f"The function took longer than the timeout of {self._timeout_s:g} s: its process "
                "was killed"
            )
        return Outcome.failed(f"The function ended its process: {_how(child.kill())}")


class _Child:
    """A forked process, and the two pipes to it."""

    def __init__(self, work: Work) -> None:
        requests, self._to_child = os.pipe()
        self._from_child, outcomes = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of threads, which the child does not have: it touches no lock of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if self._process == 0:
            os.close(self._to_child)
            os.close(self._from_child)
            _serve(work, requests, outcomes)
        os.close(requests)
        os.close(outcomes)
        self._held = bytearray()
        self.is_late = False
        self._ended, self._status = False, _DIED

    def send(self, data: bytes) -> bool:
        """Whether it could be sent: not, if the child has died."""
        try:
            _write(self._to_child, data)
        except BrokenPipeError:
            return False
        return True

    def receive(self, timeout_s: float | None) -> Any:
        """The next thing it says; None if it has died, or (`is_late`) says nothing in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if len(self._held) >= _HEADER_BYTES:
                stop = _HEADER_BYTES + int.from_bytes(self._held[:_HEADER_BYTES], "little")
                if len(self._held) >= stop:
                    told = pickle.loads(self._held[_HEADER_BYTES:stop])  # noqa: S301 - our child's
                    del self._held[:stop]
                    return told
            left_s = _LOOK_EVERY_S
            if deadline is not None:
                left_s = max(0.0, min(left_s, deadline - time.monotonic()))
            if not select.select([self._from_child], [], [], left_s)[0]:
                if deadline is not None and time.monotonic() >= deadline:
                    self.is_late = True
                    return None
                if self._has_died():
                    return None
                continue
            data = os.read(self._from_child, _CHUNK_BYTES)
            if not data:
                return None
            self._held += data

    def kill(self) -> int:
        """End it if it has not ended; its wait status."""
        os.close(self._to_child)
        if self.is_late:
            _kill(self._process)
        end = time.monotonic() + 1.0
        while not self._has_died():
            if time.monotonic() > end:  # it was not reading: it is in the user's function
                _kill(self._process)
            time.sleep(0.001)
        os.close(self._from_child)
        return self._status

    def _has_died(self) -> bool:
        if not self._ended:
            try:
                found, status = os.waitpid(self._process, os.WNOHANG)
                self._ended, self._status = bool(found), status
            except ChildProcessError:  # somebody else has waited for it
                self._ended, self._status = True, _DIED
        return self._ended


def _serve(work: Work, requests: int, outcomes: int) -> NoReturn:
    """The child's life: until its task closes the pipe, or a message ends it."""
    status = 0
    try:
        _die_with_parent()
        while (data := _read_frame(requests)) is not None:
            batch = _from_bytes(data)
            if work.by_batch:
                _write(outcomes, pickle.dumps(work.whole(batch)))
            else:
                for outcome in work.outcomes(batch):
                    _write(outcomes, pickle.dumps(outcome))
    except BrokenPipeError:
        pass
    except BaseException:  # noqa: BLE001 - a fork must never come back into the task's code
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _die_with_parent() -> None:
    """Linux: no orphan stays behind a task that was killed; and of the two, memory is taken here.

    Elsewhere the child ends at its next read.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _how(status: int) -> str:
    if status == _DIED:
        return "it is gone"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else "unknown"
    hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({name}{hint})"


# -- what goes through the pipes -----------------------------------------------------------------


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(len(data).to_bytes(_HEADER_BYTES, "little") + data)
    while view:
        view = view[os.write(pipe, view) :]


def _read_frame(pipe: int) -> bytes | None:
    header = _read(pipe, _HEADER_BYTES)
    return None if header is None else _read(pipe, int.from_bytes(header, "little"))


def _read(pipe: int, size: int) -> bytes | None:
    held = bytearray()
    while len(held) < size:
        data = os.read(pipe, min(size - len(held), 1 << 20))
        if not data:
            return None
        held += data
    return bytes(held)


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_bytes(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _values(column: pa.Array) -> Sequence[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if each is None else dict(each) for each in values]
    return values
