"""The client's names, arguments and defaults, against what Pulsar's Python client 3.13 offers."""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.client.client_settings import Absent

REPOSITORY = Path(__file__).resolve().parents[3]
RECORDED = json.loads(
    (REPOSITORY / "tests/recorded/pulsar-client-3.13.json").read_text(encoding="utf-8")
)
PAGE = (REPOSITORY / "docs/from-pulsar-client.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """The names in the first column of that section's table."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


def differences() -> Iterator[tuple[str, str]]:
    """(name, how it differs), of each public name that is not here as Pulsar's client has it."""
    for module, names in RECORDED["modules"].items():
        here = importlib.import_module(module.replace("pulsar", "pulsar_spark.pulsar", 1))
        prefix = "".join(f"{part}." for part in module.split(".")[1:])
        for name, what in names.items():
            found = getattr(here, name, None)
            if found is None:
                yield prefix + name, "it is not there"
            elif what["kind"] == "enumeration":
                members = {each.name: each.value for each in found}
                if members != what["members"]:
                    yield prefix + name, f"it has {members}"
            elif what["kind"] == "class" and issubclass(found, Absent):
                yield prefix + name, "nothing can be made of it"
            elif what["kind"] == "class":
                yield from class_differences(prefix + name, found, what)


def class_differences(name: str, found: Any, what: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for attribute in what["attributes"]:
        if not hasattr(found, attribute) and attribute not in instance_attributes(found):
            yield f"{name}.{attribute}", "it is not there"
    for call, arguments in what["calls"].items():
        if not hasattr(found, call):
            yield f"{name}.{call}", "it is not there"
        elif arguments is not None:
            mine = inspect.signature(getattr(found, call)).parameters
            yield from argument_differences(f"{name}.{call}", arguments, mine)


def argument_differences(
    call: str, arguments: list[list[Any]], mine: Any
) -> Iterator[tuple[str, str]]:
    positional = [each.name for each in mine.values() if each.kind is not each.KEYWORD_ONLY]
    positional = [each for each in positional if each not in {"self", "sync"}]
    for place, (name, *default) in enumerate(arguments):
        if name.startswith("*"):
            continue
        if name not in mine:
            if not any(each.kind is each.VAR_KEYWORD for each in mine.values()):
                yield f"{call}({name})", "it is not there"
            continue
        if not call.startswith("asyncio.") and positional.index(name) != place:
            yield f"{call}({name})", f"it is argument {positional.index(name)}"
        held = mine[name].default
        if bool(default) != (held is not inspect.Parameter.empty):
            yield f"{call}({name})", "only one of the two has a default"
        elif default and plain(held) != default[0]:
            yield f"{call}({name})", f"its default is {plain(held)}"


def plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"{type(value).__name__}()"


def instance_attributes(kind: type) -> set[str]:
    return set(re.findall(r"self\.(\w+) =", inspect.getsource(kind)))


DIFFERENCES = dict(differences())


def test_the_record_is_of_the_version_that_the_page_names() -> None:
    assert RECORDED["version"].startswith("3.13.")


def test_what_differs_from_pulsar_s_client_is_told_with_its_reason() -> None:
    reported = rows("Not here")
    untold = {
        name: how
        for name, how in DIFFERENCES.items()
        if not any(fnmatchcase(name, row) for row in reported)
    }
    assert not untold


def test_nothing_is_told_as_missing_that_is_there() -> None:
    stale = [
        row for row in rows("Not here") if not any(fnmatchcase(name, row) for name in DIFFERENCES)
    ]
    assert not stale


def test_what_is_told_to_have_no_effect_is_an_argument_of_pulsar_s_client() -> None:
    known = {
        f"{name}.{call}({argument[0]})"
        for name, what in RECORDED["modules"]["pulsar"].items()
        if what["kind"] == "class"
        for call, arguments in what["calls"].items()
        for argument in arguments or ()
    }
    for row in rows("Without effect"):
        assert any(fnmatchcase(name, row) for name in known), row


def test_every_error_and_result_of_pulsar_s_has_its_number() -> None:
    from pulsar_spark import pulsar

    for name, what in RECORDED["modules"]["pulsar.exceptions"].items():
        assert what["kind"] == "exception"
        kind = getattr(pulsar.exceptions, name)
        if kind is not pulsar.PulsarException:
            assert issubclass(kind, pulsar.PulsarException)
            assert kind.result.value == RECORDED["modules"]["pulsar"]["Result"]["members"][name]
            assert kind("why").error() is kind.result


def test_what_pulsar_awaits_is_awaited_here() -> None:
    from pulsar_spark import aio

    for name in ("send", "flush", "close"):
        assert asyncio.iscoroutinefunction(getattr(aio.Producer, name))
    for name in ("receive", "acknowledge", "seek", "unsubscribe", "close"):
        assert asyncio.iscoroutinefunction(getattr(aio.Consumer, name))


PROGRAM = """
import _pulsar
from _pulsar import ConsumerType, ProducerConfiguration
from pulsar import AuthenticationToken, AuthenticationOauth2, AutoClusterFailover, CryptoKeyReader
from pulsar import BatchReceivePolicy, ConsoleLogger, FileLogger, LoggerLevel, ServiceInfo
from pulsar.schema import ProtobufNativeSchema
from pulsar import Function, SerDe

class Doubled(Function):
    def process(self, input, context):
        return input * 2
"""


def test_what_a_program_imports_is_there_and_refuses_when_it_is_used() -> None:
    names: dict[str, Any] = {}
    program = PROGRAM.replace("import _pulsar", "from pulsar import _pulsar", 1)
    program = program.replace("from _pulsar", "from pulsar._pulsar")
    exec(program.replace("from pulsar", "from pulsar_spark.pulsar"), names)
    assert names["_pulsar"].Result is pulsar.Result
    for name, arguments, why in (
        ("AuthenticationToken", ["abc"], "AuthenticationToken can't be used: there is nobody to"),
        ("CryptoKeyReader", ["public", "private"], "encrypt the disk or the bucket"),
        ("ServiceInfo", ["pulsar://there"], "there are no clusters"),
        ("BatchReceivePolicy", [1, 1, 1], "take ConsumerBatchReceivePolicy"),
        ("Doubled", [], "Function can't be used: Pulsar Functions are not here: use Spark"),
        ("ProducerConfiguration", [], "there is no C\\+\\+ client here"),
    ):
        with pytest.raises(pulsar.OperationNotSupported, match=why):
            names[name](*arguments)


def test_an_id_is_wrapped_and_a_field_validates_as_in_pulsar_s_client() -> None:
    assert pulsar.MessageId.wrap(pulsar.MessageId.latest) == pulsar.MessageId.latest
    field = pulsar.schema.String()
    assert field.validate_type("name", b"a") == "a"
    with pytest.raises(TypeError, match="name"):
        field.validate_type("name", 7)
