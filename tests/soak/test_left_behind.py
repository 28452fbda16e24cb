"""What an operator has, on roots that killed publishers, consumers and brokers left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulsar_spark
from pulsar_spark.connector.tools.command_line.command_line import main
from tests.soak.left_behind import look_over, write_left_behind

SEEDS = (10, 14)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_operator_has_works_on_a_root_that_a_soak_left_behind(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_left_behind(seed, tmp_path)
    assert look_over(tmp_path) == []
    for command in (["topics", "verify", "--deep"], ["doctor", "--deep"]):
        assert main([*command, "--service-url", str(tmp_path)]) == 0, capsys.readouterr()


def test_the_roots_have_something_to_look_at(tmp_path: Path) -> None:
    unread = given = 0
    for seed in SEEDS:
        write_left_behind(seed, tmp_path / f"{seed}")
        url = str(tmp_path / f"{seed}")
        unread += pulsar_spark.dataset(url, view="backlog").count_rows()
        given += pulsar_spark.dataset(url, view="unacknowledged").count_rows()
    assert unread >= given > 0


def test_what_a_soak_would_have_lost_is_told(tmp_path: Path) -> None:
    write_left_behind(SEEDS[0], tmp_path)
    ledgers = pulsar_spark.dataset(str(tmp_path), view="ledgers").to_table(["file"])
    (lost,) = tmp_path.glob(f"persistent/public/default/*/{ledgers['file'][0]}")
    lost.unlink()
    wrong = look_over(tmp_path)
    assert any(each.startswith("verify: ") for each in wrong)
    assert any(each.startswith("doctor: ") for each in wrong)
