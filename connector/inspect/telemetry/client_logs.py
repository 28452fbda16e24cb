"""The log of a client: where `Client(..., logger=...)` has it written.

Invariants: Pulsarlite logs with Python's `logging`, below the logger `pulsar_spark`; what a client
says of the log counts for its whole process, and the last that says anything counts, as with
Pulsar's client. Follows `ConsoleLogger`, `FileLogger` and `LoggerLevel` of Pulsar's Python client.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import Any, Final

PACKAGE_LOGGER: Final = "pulsar_spark"
HANDLER: Final = "pulsarlite's client"
"""The name of the handler that a client sets."""
_FORMAT: Final = "%(asctime)s %(levelname)-5s [%(thread)d] %(name)s | %(message)s"


class LoggerLevel(Enum):
    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


_LEVELS: Final = {
    LoggerLevel.Debug: logging.DEBUG,
    LoggerLevel.Info: logging.INFO,
    LoggerLevel.Warn: logging.WARNING,
    LoggerLevel.Error: logging.ERROR,
}


class ConsoleLogger:
    """Writes the log from that level on to the standard output."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        _check_level(log_level)
        self.log_level = log_level


class FileLogger:
    """Writes the log from that level on to a file, behind what it has."""

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        _check_level(log_level)
        self.log_level, self.log_file = log_level, log_file


class _Forwarding(logging.Handler):
    """Hands each record to a logger of the program."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger.getEffectiveLevel())
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.handle(record)


def _check_level(level: object) -> None:
    if not isinstance(level, LoggerLevel):
        raise ValueError(  # noqa: TRY004 - as Pulsar's
            "Argument log_level is expected to be of type 'LoggerLevel' and not "
            f"{type(level).__name__!r}"
        )


def check_logger(logger: object) -> None:
    """ValueError if that is no logger."""
    if logger is not None and not isinstance(logger, (logging.Logger, ConsoleLogger, FileLogger)):
        raise ValueError(
            "Logger is expected to be either None, logger.Logger, pulsar.ConsoleLogger or "
            "pulsar.FileLogger"
        )


def set_logger(logger: Any) -> None:
    """Have the process's log written there from now on; None changes nothing."""
    package = logging.getLogger(PACKAGE_LOGGER)
    if logger is None:
        return
    if isinstance(logger, logging.Logger):
        if logger.name.partition(".")[0] == PACKAGE_LOGGER:  # it has the records already
            return
        handler: logging.Handler = _Forwarding(logger)
    else:
        if isinstance(logger, FileLogger):
            handler = logging.FileHandler(logger.log_file, encoding="utf-8", delay=True)
        else:
            handler = logging.StreamHandler(sys.stdout)
        handler.setLevel(_LEVELS[logger.log_level])
        handler.setFormatter(logging.Formatter(_FORMAT))
    handler.set_name(HANDLER)
    for before in [each for each in package.handlers if each.get_name() == HANDLER]:
        package.removeHandler(before)
        before.close()
    package.addHandler(handler)
    package.setLevel(handler.level)
