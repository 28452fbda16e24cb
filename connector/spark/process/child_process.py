"""A child forked from Spark's worker, in which a user's function runs, so that it may die.

Invariants: results come back one by one, in order, each as soon as it is there, so when the child
dies it is known which piece of work it died of; a child that died, or was killed for taking too
long, is replaced at the next call; no child outlives its parent, or the end of the task.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Final, NoReturn

import pyarrow as pa

Work = Callable[[pa.RecordBatch, int, int], Iterator[bytes]]
"""(batch, first row, row behind the last) -> a result for each piece of work, b"" for «done»."""

_REQUEST: Final = struct.Struct("<QQQ")
_LENGTH: Final = struct.Struct("<I")
_LOOK_S: Final = 0.25
"""Seconds between two checks that the child lives: its own children may keep its pipe open."""
_PR_SET_PDEATHSIG: Final = 1


class ChildDiedError(Exception):
    """The child died, or was killed, over the piece of work whose result is missing."""


class ChildProcess(AbstractContextManager["ChildProcess"]):
    """Runs `work` in a child; a context manager, at whose end there is no child any more."""

    def __init__(self, work: Work, timeout_s: float | None = None) -> None:
        """Forks nothing yet. `timeout_s` is how long one piece of work may take."""
        self._work, self._timeout_s = work, timeout_s
        self.pid = 0
        """The process id of the child; 0 without one."""
        self._status: int | None = None
        self._requests = self._results = -1
        self._trace: IO[bytes] | None = None
        self._loaded: pa.RecordBatch | None = None

    def __exit__(self, *_: object) -> None:
        self.kill()

    def run(self, batch: pa.RecordBatch, start: int, stop: int) -> Iterator[bytes]:
        """The results for these rows, as they come; ChildDiedError instead of the next one."""
        try:
            self._send(batch, start, stop)
            yield from self._receive()
        except GeneratorExit:
            self.kill()  # it would go on with what nobody waits for
            raise

    def kill(self) -> None:
        """End the child, whatever it does."""
        if self.pid:
            self._reap()
            self._forget()

    # -- the parent ----------------------------------------------------------------------------

    def _send(self, batch: pa.RecordBatch, start: int, stop: int) -> None:
        if self.pid and self._exit_status() is not None:
            self._forget()  # it died of nothing that we had asked for
        if not self.pid:
            self._fork()
        data = b""
        if batch is not self._loaded:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            data = sink.getvalue().to_pybytes()
        try:
            _write_all(self._requests, _REQUEST.pack(len(data), start, stop) + data)
        except BrokenPipeError:
            raise self._died(self._reap()) from None
        self._loaded = batch

    def _receive(self) -> Iterator[bytes]:
        """Up to the end of the request, which the child marks with a length of 2**32 - 1."""
        buffer = bytearray()
        while True:
            buffer += self._read()
            place = 0
            while len(buffer) - place >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, place)
                if length == _END:
                    return
                end = place + _LENGTH.size + length
                if len(buffer) < end:
                    break
                yield bytes(buffer[place + _LENGTH.size : end])
                place = end
            del buffer[:place]

    def _read(self) -> bytes:
        """The child's output so far; waits for it."""
        since_s = time.monotonic()
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        while True:
            status = self._exit_status()
            # What it wrote before it died is read first.
            if poll.poll(0 if status is not None else _LOOK_S * 1000):
                data = os.read(self._results, 1 << 16)
                if data:
                    return data
                status = self._reap()
            if status is not None:
                raise self._died(status)
            if self._timeout_s is not None and time.monotonic() - since_s > self._timeout_s:
                self.kill()
                raise ChildDiedError(f"it took longer than {self._timeout_s:g} s, and was killed")

    def _exit_status(self) -> int | None:
        """None while it lives."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status

    def _reap(self) -> int:
        """Its exit status; killed, unless it is ending by itself."""
        if self._exit_status() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitpid(self.pid, 0)[1]
        assert self._status is not None
        return self._status

    def _died(self, status: int) -> ChildDiedError:
        """The error for a child that is reaped, with what Python wrote of a crash."""
        assert self._trace is not None
        self._trace.seek(0)
        trace = self._trace.read(2_000).decode(errors="replace").strip()
        self._forget()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            text = f"its process was killed by {signal.Signals(number).name}"
            if number == signal.SIGKILL:
                text += " (out of memory?)"
        else:
            text = f"its process exited with {os.WEXITSTATUS(status)}"
        return ChildDiedError(f"{text}: {trace}" if trace else text)

    def _forget(self) -> None:
        self.pid, self._status, self._loaded = 0, None, None
        for descriptor in (self._requests, self._results):
            with suppress(OSError):
                os.close(descriptor)
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    def _fork(self) -> None:
        requests, self._requests = os.pipe()
        self._results, results = os.pipe()
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _forget
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or both processes write what is in its buffer
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python warns where there are other threads: the child touches nothing of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os.close(self._requests)
            os.close(self._results)
            _be_child(self._work, requests, results, self._trace, parent)
        os.close(requests)
        os.close(results)
        self.pid = pid


# -- the child -----------------------------------------------------------------------------------

_END: Final = 2**32 - 1


def _be_child(work: Work, requests: int, results: int, trace: IO[bytes], parent: int) -> NoReturn:
    """Serve requests until there are no more. Never returns into the parent's code."""
    code = 70
    try:
        _prepare(trace, parent)
        batch: pa.RecordBatch | None = None
        asked = os.fdopen(requests, "rb")
        while header := asked.read(_REQUEST.size):
            length, start, stop = _REQUEST.unpack(header)
            if length:
                with pa.ipc.open_stream(asked.read(length)) as reader:
                    batch = reader.read_next_batch()
            for result in work(batch, start, stop):
                _write_all(results, _LENGTH.pack(len(result)) + result)
            _write_all(results, _LENGTH.pack(_END))
        code = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends here
        with suppress(BaseException):
            trace.write(f"{type(error).__name__}: {error}".encode(errors="replace"))
            trace.flush()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code)


def _prepare(trace: IO[bytes], parent: int) -> None:
    """Die with the parent; be the first to go when memory runs out; leave a trace of a crash."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(trace, all_threads=False)
    with suppress(OSError, AttributeError):  # on Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
