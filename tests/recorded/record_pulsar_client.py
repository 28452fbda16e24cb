"""Writes what Pulsar's Python client offers: `python record_pulsar_client.py > FILE.json`.

To be run where that client is installed (`pip install pulsar-client==3.13.0`), and nothing of this
repository is needed.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import sys
from typing import Any

MODULES = ("pulsar", "pulsar.asyncio", "pulsar.exceptions", "pulsar.schema")
SPECIAL = {"__init__"}


def main() -> None:
    found = {name: public(importlib.import_module(name)) for name in MODULES}
    version = importlib.import_module("pulsar").__version__
    json.dump({"version": version, "modules": found}, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


def public(module: Any) -> dict[str, Any]:
    """The public names that are the client's own, and what each is."""
    found = {}
    for name, value in sorted(vars(module).items()):
        home = getattr(value, "__module__", "") or ""
        own = inspect.ismodule(value) or home.startswith(("pulsar", "_pulsar"))
        if name.startswith("_") or not own or name in {"logging", "re", "functools", "io", "json"}:
            continue
        if inspect.ismodule(value):
            if value.__name__.startswith("pulsar"):
                found[name] = {"kind": "module"}
        elif inspect.isclass(value):
            found[name] = described(value)
        elif callable(value):
            found[name] = {"kind": "function"}
    return found


def described(kind: Any) -> dict[str, Any]:
    """A class: its calls with their arguments, its attributes, or an enumeration's members."""
    members = getattr(kind, "__members__", None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return {"kind": "exception"}
    if members:
        return {"kind": "enumeration", "members": {n: int(m.value) for n, m in members.items()}}
    calls: dict[str, Any] = {}
    attributes = []
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if name.startswith("_") and name not in SPECIAL:
            continue
        if callable(getattr(kind, name)):
            if name in SPECIAL and name not in vars(kind):
                continue
            calls[name] = arguments(getattr(kind, name))
        elif not isinstance(value, int):
            attributes.append(name)
    return {"kind": "class", "calls": calls, "attributes": attributes}


def arguments(call: Any) -> list[list[Any]] | None:
    """[name] or [name, default] of each argument but self; None where Python can't see them."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return None
    found = []
    for each in parameters:
        if each.name in {"self", "cls"}:
            continue
        name = str(each).split(":")[0] if str(each).startswith("*") else each.name
        found.append([name] if each.default is each.empty else [name, plain(each.default)])
    return found


def plain(value: Any) -> Any:
    """A default as JSON has it: an enumeration's member by its name, a schema by its class."""
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)
    ):
        return value
    if hasattr(value, "name") and hasattr(value, "value"):
        return f"{type(value).__name__}.{value.name}"
    return f"{type(value).__name__}()"


if __name__ == "__main__":
    main()
