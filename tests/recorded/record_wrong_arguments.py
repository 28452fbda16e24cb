"""Records what Pulsar's own Python client raises for wrong arguments, without a broker.

    VENV/bin/python tests/recorded/record_wrong_arguments.py

with a Python that has `pulsar-client` of the version to record. The calls are those of
`wrong_arguments.json`, and each answer is written beside its call: the error's class, and its text
where that is Python's; `none` is a call that would have gone to the broker.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("wrong_arguments.json")


class Reached(Exception):  # noqa: N818
    """The C++ client was asked for something."""


class Below:
    """Stands for the C++ client below Pulsar's Python."""

    def __getattr__(self, name: str) -> Any:
        def reached(*_: Any, **__: Any) -> None:
            raise Reached(name)

        return reached


def made(kind: type, below: str, schema: Any) -> Any:
    each = kind()
    setattr(each, below, Below())
    each._schema = schema
    return each


def names() -> dict[str, Any]:
    pulsar: Any = importlib.import_module("pulsar")
    importlib.import_module("pulsar.schema")
    client = pulsar.Client("pulsar://localhost:1")
    client._client = Below()
    schemas = pulsar.schema
    return {name: getattr(schemas, name) for name in dir(schemas) if name[0].isupper()} | {
        "pulsar": pulsar, "re": __import__("re"), "URL": "pulsar://localhost:1", "client": client,
        "producer": made(pulsar.Producer, "_producer", schemas.BytesSchema()),
        "strings": made(pulsar.Producer, "_producer", schemas.StringSchema()),
        "consumer": made(pulsar.Consumer, "_consumer", schemas.BytesSchema()),
        "reader": made(pulsar.Reader, "_reader", schemas.BytesSchema()),
        "MessageId": pulsar.MessageId, "EARLIEST": pulsar.MessageId.earliest,
        "KeyShared": pulsar.KeySharedMode, "Policy": pulsar.ConsumerKeySharedPolicy,
    }  # fmt: skip


def answer(call: str, known: dict[str, Any]) -> list[str]:
    try:
        eval(call, known)
    except Reached:
        return [call, "none", ""]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded
        text = "" if isinstance(error, (TypeError, AttributeError)) else str(error)
        return [call, type(error).__name__, text]
    return [call, "none", ""]


if __name__ == "__main__":
    known = names()
    calls = [call for call, *_ in json.loads(FILE.read_text(encoding="utf-8"))["calls"]]
    lines = ",\n".join(json.dumps(answer(call, known)) for call in calls)
    version = known["pulsar"].__version__
    text = f'{{"version": "{version}", "calls": [\n{lines}\n]}}\n'
    FILE.write_text(text, encoding="utf-8")
