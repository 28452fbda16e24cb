"""One recorded case: every field of it is either taken as input or compared, or it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MISSING = object()


@dataclass
class Case:
    """A recorded case under its name, what differs so far, and what differs on purpose."""

    name: str
    record: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    on_purpose: set[str] = field(default_factory=set)
    """Names of rules of `differences`."""
    _seen: set[str] = field(default_factory=set)

    def take(self, name: str, default: Any = MISSING) -> Any:
        """An input."""
        self._seen.add(name)
        return self.record[name] if default is MISSING else self.record.get(name, default)

    def expect(self, name: str, actual: Any) -> None:
        """Compare a field, if the case has it."""
        if name in self.record:
            self._seen.add(name)
            self.compare(name, self.record[name], actual)

    def compare(self, what: str, recorded: Any, actual: Any) -> None:
        # 1 == True in Python, but not in a record.
        if recorded != actual or isinstance(recorded, bool) != isinstance(actual, bool):
            self.problems.append(f"{what}: Pulsar {_short(recorded)}, here {_short(actual)}")

    def expect_call(self, name: str, call: Callable[[], Any]) -> None:
        """Compare a field with what a call returns; an error that it raises is a difference."""
        if name in self.record:
            try:
                self.expect(name, call())
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the report
                self._seen.add(name)
                self.problems.append(f"{name}: raised {error!r}")

    def close(self) -> Case:
        """Report what was neither taken nor compared."""
        unread = sorted(self.record.keys() - self._seen)
        if unread:
            self.problems.append(f"not checked: {', '.join(unread)}")
        return self


Check = Callable[[Case], None]


def run(name: str, record: Any, check: Check) -> Case:
    """Run one case; whatever it raises is a difference."""
    if not isinstance(record, dict):
        return Case(name, {}, [f"is no case but {_short(record)}"])
    case = Case(name, record)
    try:
        check(case)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the report
        case.problems.append(f"raised {error!r}")
        return case
    return case.close()


def run_all(kind: str, records: list[Any], check: Check) -> Iterator[Case]:
    for number, record in enumerate(records):
        name = record.get("name") if isinstance(record, dict) else None
        yield run(f"{kind}[{number}]" if name is None else str(name), record, check)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:140]} ... {text[-140:]}"
