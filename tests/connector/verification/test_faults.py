"""A slice of the faults; `make verify-faults` injects a thousand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import pulsar_spark
from pulsar_spark.connector.inspect.verification.verified import Check, Difference
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from tests.connector.topics import ledger_of, send
from tests.connector.verification import faults
from tests.connector.verification.__main__ import FAULTS, inject
from tests.connector.verification.faults import Scene
from tests.connector.verification.roots import _files_of, write_root
from tests.simulation.lots import Lots

ROOTS = 3
A_BLOCK = 13


@pytest.mark.parametrize("first", range(0, len(FAULTS), A_BLOCK))
def test_each_kind_of_fault_is_found(first: int) -> None:
    for seed in range(first, min(first + A_BLOCK, len(FAULTS))):
        try:
            inject(seed, ROOTS)
        except Exception as error:  # noqa: BLE001, PERF203 - the seed is what counts
            pytest.fail(f"{error!r} of seed {seed}, {FAULTS[seed].__name__}")


@pytest.mark.parametrize("number", range(ROOTS))
def test_a_root_without_a_fault_is_sound(number: int, tmp_path: Path) -> None:
    write_root(number, tmp_path)
    found = pulsar_spark.verify(str(tmp_path), deep=True)
    assert [each.differences for each in found if not each.ok] == []
    accounts = [one for each in found for part in each.partitions for one in part.subscriptions]
    assert any(each.acknowledged for each in accounts)


@pytest.mark.slow
def test_a_root_is_the_same_each_time() -> None:
    def digest() -> str:
        _files_of.cache_clear()
        return hashlib.sha256(repr(sorted(_files_of(1))).encode()).hexdigest()

    assert digest() == digest()


def test_verifying_changes_nothing(tmp_path: Path) -> None:
    write_root(0, tmp_path)

    def every_file() -> dict[Path, bytes]:
        return {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}

    before = every_file()
    pulsar_spark.verify(str(tmp_path), deep=True)
    assert every_file() == before


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A topic of five ledgers, in five files."""
    for value in "abcde":
        send(tmp_path, "orders", [value, value + value], columns={"key": [value, None]})
    return tmp_path


class Chosen(Lots):
    """The place that is drawn is that of one ledger."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(0)
        self._ledger_id = ledger_id

    def draw_from(self, choices):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        (chosen,) = [
            each for each in choices if getattr(each, "ledger", each).ledger_id == self._ledger_id
        ]
        return chosen


def differences(root: Path, *, deep: bool = True) -> list[Difference]:
    (found,) = pulsar_spark.verify(str(root), "orders", deep=deep)
    return [*found.differences]


@pytest.mark.parametrize(
    "fault",
    [
        faults.swap_two_rows, faults.alter_a_key, faults.alter_a_value, faults.empty_a_value,
        faults.move_a_byte_from_a_value_to_the_next,
    ],
)  # fmt: skip
def test_a_rewritten_ledger_is_named_with_its_file(
    fault: Callable[[Scene], None], orders: Path
) -> None:
    fault(Scene(orders, Chosen(2), "orders"))
    (found,) = differences(orders)
    file = ledger_of(orders, "orders").ledgers(0)[2].file
    assert (found.check, found.ledger_id, found.file) == (Check.CONTENT, 2, file)
    assert not differences(orders, deep=False), "nobody has read a message"


def test_a_ledger_that_a_snapshot_lost_is_named_and_so_is_the_snapshot(orders: Path) -> None:
    ledger_of(orders, "orders").write_snapshot()
    faults.lose_a_ledger_of_the_snapshot(Scene(orders, Chosen(3), "orders"))
    found = differences(orders, deep=False)
    assert {Check.LOG, Check.SUM} == {each.check for each in found}
    assert {each.ledger_id for each in found} == {3, None}
    assert any(each.file == f"_log/{5:020d}.snapshot.parquet" for each in found)


def test_of_a_file_with_several_ledgers_the_first_that_differs_is_named(tmp_path: Path) -> None:
    for value in "abc":
        send(tmp_path, "orders", [value])
    ledger = ledger_of(tmp_path, "orders")
    LedgerStore(ledger).merge_small_files()
    (file,) = ledger.state.files
    path = tmp_path / ledger.folder / file
    path.write_bytes(b"nothing of ours" + path.read_bytes()[15:])
    (found,) = differences(tmp_path)
    assert (found.check, found.ledger_id, found.file) == (Check.FILE, 0, file)


@pytest.mark.parametrize("number", [0, 3])
def test_a_log_that_goes_on_behind_a_lost_commit_is_named(orders: Path, number: int) -> None:
    log = ledger_of(orders, "orders").folder + "/_log"
    (orders / f"{log}/{number:020d}.json").unlink()
    (found,) = differences(orders, deep=False)
    assert found.text.startswith(f"Log file {log}/{number:020d}.json is missing, and later ones")
