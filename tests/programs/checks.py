"""The check of one program, which the tests of each group of programs make."""

from __future__ import annotations

import pytest

from tests.programs import differences, here

GROUPS = {
    "consumers": (
        "exclusive-", "failover-", "ack-timeouts-", "listeners-", "batch-receives-", "seeks-",
        "several-topics-",
    ),
    "sharing": ("shared-", "key-shared-", "dead-letters-", "delays-", "partitions-"),
    "producers": ("producing-", "schemas-", "access-", "producer-", "send-"),
    "readers": ("readers-", "table-views-", "reader-", "client-", "call-", "asynchronous-"),
    "subscriptions": ("subscribe-",),
}  # fmt: skip
"""Group -> the beginnings of its programs' names; each group has a file, for pytest-xdist."""


def programs_of(group: str) -> list[str]:
    return [name for name in differences.PROGRAMS if name.startswith(GROUPS[group])]


def check(name: str) -> None:
    """The steps that differ are those that are listed, no more and no fewer."""
    program = differences.PROGRAMS[name]
    found = differences.compared(program, here.run(name, program["steps"]))
    reasons = differences.expected(name)
    alike = sorted(reasons.keys() - {each.step for each in found})
    without_reason = [
        str(each)
        for each in found
        if not differences.is_explained(each, reasons.get(each.step, []))
    ]
    if without_reason:
        pytest.fail("\n".join(["It ends otherwise than on a Pulsar:", *without_reason]))
    if alike:
        pytest.fail(f"Steps {alike} are alike now: drop them, by python -m tests.programs --prune")
