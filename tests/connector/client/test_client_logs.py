"""The log of a client, where the program has it written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.inspect.telemetry.client_logs import HANDLER, PACKAGE_LOGGER

PACKAGE = logging.getLogger(PACKAGE_LOGGER)
LOG = logging.getLogger(f"{PACKAGE_LOGGER}.anything")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    level = PACKAGE.level
    yield
    PACKAGE.setLevel(level)
    for each in [each for each in PACKAGE.handlers if each.get_name() == HANDLER]:
        PACKAGE.removeHandler(each)
        each.close()


def test_a_file_and_the_console_get_the_log_from_a_level_on(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.log"
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(file))
    pulsar.Client(url, logger=logger).close()
    LOG.info("not this")
    LOG.warning("but this")
    pulsar.Client(url).close()  # says nothing of it
    LOG.error("and this")
    pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Debug)).close()
    LOG.debug("the console has this")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [line.partition(" | ")[2] for line in lines] == ["but this", "and this"]
    assert capsys.readouterr().out.endswith("pulsar_spark.anything | the console has this\n")


def test_a_logger_of_the_program_gets_the_records(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = logging.getLogger("mine")
    mine.setLevel(logging.INFO)
    found: list[str] = []

    def noted(record: logging.LogRecord) -> bool:
        found.append(record.getMessage())
        return True

    mine.addFilter(noted)
    for _ in range(2):
        pulsar.Client(url, logger=mine).close()
    PACKAGE.propagate = False
    try:
        LOG.info("once")
        LOG.debug("not this")
    finally:
        PACKAGE.propagate = True
    assert found == ["once"]
    assert "once" in caplog.text


@pytest.mark.parametrize("level", ["Info", 1])
def test_a_level_is_a_logger_level(level: object) -> None:
    with pytest.raises(ValueError, match="Argument log_level is expected to be of type"):
        pulsar.ConsoleLogger(level)  # type: ignore[arg-type]
