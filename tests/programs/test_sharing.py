"""The programs of the group `sharing` end here as they ended on a Pulsar."""

from __future__ import annotations

import pytest

from tests.programs.checks import check, programs_of


@pytest.mark.parametrize("name", programs_of("sharing"))
def test_a_program_ends_here_as_on_a_pulsar(name: str) -> None:
    check(name)
