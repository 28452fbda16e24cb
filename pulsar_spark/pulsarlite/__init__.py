"""`import pulsarlite`: the package `pulsar_spark`, by the name under which it is installed.

Invariant: there is one package. `pulsarlite` is the module `pulsar_spark` itself, and
`pulsarlite.errors` is `pulsar_spark.errors`: so there is one class of each name, and what a program
pickles names `pulsar_spark`. Its folder is installed as a package of its own (setup.cfg).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Final

import pulsar_spark

if TYPE_CHECKING:
    from pulsar_spark import *  # noqa: F403 - the names that a type checker finds
    from pulsar_spark import aio as aio
    from pulsar_spark import errors as errors
    from pulsar_spark import examples as examples
    from pulsar_spark import pictures as pictures
    from pulsar_spark import pulsar as pulsar
    from pulsar_spark import telemetry as telemetry
    from pulsar_spark import testing as testing

ALIAS: Final = "pulsarlite"


class _Alias(MetaPathFinder, Loader):
    """Finds `pulsarlite.X`, which is `pulsar_spark.X`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as importlib calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{ALIAS}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_name_of(spec.name))
        spec.loader_state = module.__spec__
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m pulsarlite`."""
        name = _name_of(fullname)
        loader = spec.loader if (spec := find_spec(name)) else None
        return loader.get_code(name) if isinstance(loader, InspectLoader) else None

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; its spec, which import has just replaced, is its own again."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _name_of(fullname: str) -> str:
    return fullname.replace(ALIAS, "pulsar_spark", 1)


if __name__ == ALIAS:
    sys.meta_path.insert(0, _Alias())
    sys.modules[ALIAS] = pulsar_spark
