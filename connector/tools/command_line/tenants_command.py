"""`pulsarlite tenants ...`: the first part of topics' names.

Invariant: no Spark. Follows pulsar-admin's `CmdTenants`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.admin.namespaces import TenantInfo
from pulsar_spark.connector.tools.command_line.admin_commands import (
    FORCE,
    AdminCommand,
    Answer,
    register_calls,
)
from pulsar_spark.connector.tools.command_line.noun import Noun, argument

TENANTS: Final = Noun(
    "Tenants are the first part of topics' names. A topic makes its tenant; these are for those "
    "who want to see or say it themselves."
)
add_to = TENANTS.add_to
_TENANT: Final = argument("tenant", metavar="TENANT")
_SETTINGS: Final = tuple(
    argument(
        *flags, action="append", default=[], metavar="NAME",
        help=f"{what}: kept and shown, and nobody's rights depend on it here",
    )
    for flags, what in (
        (("-r", "--admin-roles"), "who administers it"),
        (("-c", "--allowed-clusters"), "where it may be"),
    )
)  # fmt: skip


def _list(admin: Admin, _: Namespace) -> Answer:
    found = list(admin.tenants.list())
    return found, found or "There are no tenants: a topic makes one."


def _create(admin: Admin, given: Namespace) -> Answer:
    admin.tenants.create(given.tenant, *_given(given))
    return {"tenant": given.tenant}, f"Created {given.tenant}"


def _get(admin: Admin, given: Namespace) -> Answer:
    info = admin.tenants.get(given.tenant)
    lines = f"{given.tenant}: admin roles {_names(info)[0]}, allowed clusters {_names(info)[1]}"
    value = {"adminRoles": [*info.admin_roles], "allowedClusters": [*info.allowed_clusters]}
    return value, lines


def _update(admin: Admin, given: Namespace) -> Answer:
    admin.tenants.update(given.tenant, *_given(given))
    return {"tenant": given.tenant}, f"Updated {given.tenant}"


def _delete(admin: Admin, given: Namespace) -> Answer:
    gone = list(admin.tenants.delete(given.tenant, force=given.force))
    answer = {"tenant": given.tenant, "namespaces": gone}
    return answer, f"Deleted {given.tenant}" + (f", with {', '.join(gone)}" if gone else "")


def _given(given: Namespace) -> Sequence[list[str]]:
    both = (given.admin_roles, given.allowed_clusters)
    return [[name for each in names for name in each.split(",")] for names in both]


def _names(info: TenantInfo) -> Sequence[str]:
    return [", ".join(each) or "none" for each in (info.admin_roles, info.allowed_clusters)]


register_calls(TENANTS, (AdminCommand("list", "Name the tenants. Pulsar: list.", (), _list),), None)
register_calls(
    TENANTS,
    (
        AdminCommand("create", "Create a tenant. Pulsar: create.", _SETTINGS, _create),
        AdminCommand("get", "Print the settings of a tenant. Pulsar: get.", (), _get),
        AdminCommand("update", "Change a tenant. Pulsar: update.", _SETTINGS, _update),
        AdminCommand(
            "delete", "Delete a tenant. Pulsar: delete.",
            (FORCE(help="also if it has namespaces, which are deleted with their topics"),),
            _delete,
        ),
    ),
    _TENANT,
)  # fmt: skip
