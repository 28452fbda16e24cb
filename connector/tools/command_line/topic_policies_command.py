"""`pulsarlite topicPolicies ...`, and the same commands for `topics` and `namespaces`.

Invariants: no Spark; each policy has `set-`, `get-` and `remove-`, by pulsar-admin's names and
flags, from the one table of policies; what a command prints says what holds, and who says so.
Follows pulsar-admin's `CmdNamespaces` and `CmdTopicPolicies`.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from pulsar_spark.connector.runtime.topics.policies import Policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import TOPIC, Argument, Noun, argument, one_of
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.policy_units import SWITCH
from pulsar_spark.options.topic_policies import (
    POLICIES,
    SETTINGS,
    Policy,
    Setting,
    switched_off,
)

Place = Callable[[Root, Namespace], Policies]
EACH: Final = "{} Each set-POLICY has a get-POLICY and a remove-POLICY beside it."
"""Tells of the commands that a noun's list leaves out."""
_TYPES: Final = {
    "backlog-quota": {
        "destination_storage": "backlog_quota_limit", "message_age": "backlog_quota_limit_time",
    },
}  # fmt: skip
"""Pulsar's `--type` of a policy, by what it means -> the setting that goes with it."""
_APPLIED: Final = argument(
    "-ap", "--applied", action="store_true", help="print what counts, and who says so"
)
_JSON: Final = argument(
    "--json", action="store_true", help="as JSON: times in seconds, sizes in bytes"
)


def register_policies(
    noun: Noun,
    subject: Argument,
    place: Place,
    *,
    is_listed: bool = True,
    of_topics: bool = True,
) -> None:
    """Add the commands for policies to a noun, and (main ones) to its list."""
    policies = [each for each in POLICIES if not (of_topics and each.is_namespaces)]
    settings = [each for policy in policies for each in policy.settings]
    noun.command(
        "policies", "Print all policies. Pulsar: policies.", subject, _APPLIED, _JSON
    )(partial(_get, settings, place))  # fmt: skip
    for policy in policies:
        for name in (policy.name, *policy.also):
            listed = is_listed and name == policy.name
            _register(noun, subject, place, policy, name, is_listed=listed)


def _register(
    noun: Noun,
    subject: Argument,
    place: Place,
    policy: Policy,
    name: str,
    *,
    is_listed: bool,
) -> None:
    text = " ".join(each.meaning for each in policy.settings).replace("%", "%%")
    types = [_type(policy)] if policy.name in _TYPES else []
    flags = map(_flag, policy.settings)
    noun.command(
        f"set-{name}", f"{text} Pulsar: {policy.pulsar or f'set-{name}'}.", subject, *flags, *types,
        _JSON, is_listed=is_listed,
    )(partial(_set, policy, place))  # fmt: skip
    noun.command(
        f"get-{name}",
        f"Print what set-{name} has set.",
        subject,
        _APPLIED,
        _JSON,
        is_listed=False,
    )(partial(_get, policy.settings, place))
    noun.command(
        f"remove-{name}",
        f"Take back what set-{name} has set.",
        subject,
        *types,
        _JSON,
        is_listed=False,
    )(partial(_remove, policy, place))


def _type(policy: Policy) -> Argument:
    types = _TYPES[policy.name]
    words = " or ".join(f"{each} ({SETTINGS[name].flags[-1]})" for each, name in types.items())
    return argument("-t", "--type", choices=types, metavar="TYPE", help=f"what is meant: {words}")


def _meant(policy: Policy, arguments: Namespace) -> str | None:
    """The setting that `--type` means; None if it is not given."""
    return _TYPES.get(policy.name, {}).get(getattr(arguments, "type", None) or "")


def _flag(setting: Setting) -> Argument:
    """The flag that says it; `setting.name` is absent where nothing is said."""
    if setting.unit is not SWITCH:
        return argument(
            *setting.flags, dest=setting.name, required=setting.is_required, default=None,
            metavar=setting.name.rpartition("_")[2].upper(),
            help=f"{setting.unit.expects} (default: {setting.unit.text(setting.default)})",
        )  # fmt: skip
    switches = [
        argument(*flags, dest=setting.name, action="store_const", const=on, default=None)
        for flags, on in ((setting.flags, True), (switched_off(setting), False))
    ]
    return one_of(*switches, required=setting.is_required)


def _set(policy: Policy, place: Place, root: Root, arguments: Namespace) -> Iterator[str]:
    names = [each.name for each in policy.settings]
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    requested = _meant(policy, arguments)
    if requested is not None and requested not in given:
        flag = SETTINGS[requested].flags[-1]
        raise InvalidOptionError(f"--type {arguments.type} needs {flag}: that is what it says.")
    if not given:
        raise InvalidOptionError(f"set-{policy.name} needs something to set: see --help.")
    policies = place(root, arguments)
    policies.set(**given)
    yield from _reported(policies, policy.settings, arguments, applied=False)


def _remove(policy: Policy, place: Place, root: Root, arguments: Namespace) -> Iterator[str]:
    only = _meant(policy, arguments)
    policies = place(root, arguments)
    policies.remove(*([only] if only else [each.name for each in policy.settings]))
    yield from _reported(policies, policy.settings, arguments, applied=True)


def _get(
    settings: Iterable[Setting], place: Place, root: Root, arguments: Namespace
) -> Iterator[str]:
    yield from _reported(place(root, arguments), settings, arguments, applied=arguments.applied)


def _reported(
    policies: Policies, settings: Iterable[Setting], arguments: Namespace, *, applied: bool
) -> Iterator[str]:
    """The lines for these settings; with `applied` the effective value and its source."""
    if not arguments.json:
        yield policies.name
        yield from _lines(policies, settings, applied=applied)
        return
    counts, given = policies.applied(), policies.get()
    if applied:
        found: dict[str, Any] = {
            each.name: {"value": counts[each.name].value, "source": counts[each.name].source}
            for each in settings
        }
    else:
        found = {each.name: given[each.name] for each in settings if each.name in given}
    yield json.dumps(found)


def _lines(policies: Policies, settings: Iterable[Setting], *, applied: bool) -> Iterator[str]:
    counts, given = policies.applied(), policies.get()
    for each in settings:
        if not applied and each.name not in given:
            yield f"  {each.name}: nothing is said"
            continue
        value, source = counts[each.name].value, counts[each.name].source
        why = f" ({policies.why(source)}{_option(each)})" if applied else ""
        yield f"  {each.name}: {each.unit.text(each.unit.stored(value))}{why}"


def _option(setting: Setting) -> str:
    return f"; a query's option {setting.option} comes before it" if setting.option else ""


def policies_of_topic(root: Root, arguments: Namespace) -> Policies:
    """The policies of the topic that a command names."""
    topic = str(TopicName.parse(arguments.name))
    return Policies(root, topic)


TOPIC_POLICIES: Final = Noun(EACH.format("What holds for a topic."))
add_to = TOPIC_POLICIES.add_to
register_policies(TOPIC_POLICIES, TOPIC, policies_of_topic)
