"""What the recorded programs reach, and the reasons for what is otherwise here."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

from tests.connector.client.test_public_names import rows
from tests.programs import differences, families
from tests.programs.checks import GROUPS, programs_of

REPOSITORY = Path(__file__).resolve().parents[2]
OFFERED = json.loads(
    (REPOSITORY / "tests/recorded/pulsar-client-3.13.json").read_text(encoding="utf-8")
)["modules"]
KINDS = {
    "pulsar": (
        "Client", "Producer", "Consumer", "Reader", "TableView", "Message", "MessageId",
        "ConsumerBatchReceivePolicy", "ConsumerDeadLetterPolicy", "ConsumerKeySharedPolicy",
    ),
    "pulsar.asyncio": ("Client", "Producer", "Consumer", "Reader"),
}  # fmt: skip
PAGE = " ".join((REPOSITORY / "docs/from-pulsar-client.md").read_text(encoding="utf-8").split())


def offered() -> set[str]:
    """Each public call of Pulsar's client, and each argument, but for those that are not here."""
    found = set()
    for module, kinds in KINDS.items():
        prefix = "asyncio." if module == "pulsar.asyncio" else ""
        for kind in kinds:
            for call, arguments in OFFERED[module][kind]["calls"].items():
                found.add(f"{prefix}{kind}.{call}()")
                names = (name for name, *_ in arguments or () if not name.startswith("*"))
                found.update(f"{prefix}{kind}.{call}({name})" for name in names)
    absent = rows("Not here")
    return {
        each for each in found
        if not any(fnmatchcase(name, row) for row in absent for name in (each, each.split("(")[0]))
    }  # fmt: skip


def test_there_are_two_hundred_programs_and_more_each_in_one_group() -> None:
    grouped = [name for group in GROUPS for name in programs_of(group)]
    assert len(grouped) >= 200
    assert sorted(grouped) == sorted(differences.PROGRAMS)


def test_what_was_recorded_are_the_programs_that_are_written_now() -> None:
    written = families.programs()
    changed = [
        name for name, steps in written.items()
        if name not in differences.PROGRAMS or differences.PROGRAMS[name]["steps"] != steps
    ]  # fmt: skip
    assert not changed, "record them: make record-programs"
    assert not differences.PROGRAMS.keys() - written.keys()


def test_each_public_call_and_each_argument_is_used_by_a_program() -> None:
    reached = {each for program in differences.PROGRAMS.values() for each in program["reach"]}
    assert not sorted(offered() - reached)


def test_each_difference_on_purpose_is_a_sentence_of_the_docs() -> None:
    assert differences.listed().keys() == differences.SENTENCES.keys()
    assert not [text for text in differences.SENTENCES.values() if text not in PAGE]


def test_each_reason_has_a_program_that_shows_it() -> None:
    assert all(any(programs.values()) for programs in differences.listed().values())
