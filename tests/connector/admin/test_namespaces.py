"""Namespaces, tenants and schemas, in Python and on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.admin.namespaces import TENANT_FORMAT, TenantInfo
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import (
    FutureVersionError,
    InvalidTopicNameError,
    MessageNotFoundError,
    NamespaceNotFoundError,
    PulsarliteError,
    TopicExistsError,
    TopicInUseError,
)
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.pulsar import InitialPosition
from tests.connector.topics import send

FIRST = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
OTHER = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}'


@pytest.fixture
def admin(root: Path, monkeypatch: pytest.MonkeyPatch) -> Admin:
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    return Admin(str(root))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(arguments)
    captured = capsys.readouterr()
    assert status == (1 if captured.err else 0)
    return captured.err or captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def test_a_namespace_is_there_once_it_was_made_or_has_a_topic(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(capsys, "namespaces", "list") == []
    said(capsys, "namespaces", "create", "acme/e.u")
    send(root, "acme/us/t", "a")
    assert answer(capsys, "namespaces", "list", "acme") == ["acme/e.u", "acme/us"]
    assert answer(capsys, "namespaces", "topics", "acme/us") == ["persistent://acme/us/t"]
    assert answer(capsys, "namespaces", "topics", "acme/e.u") == []
    assert "[NAMESPACE_NOT_FOUND]" in said(capsys, "namespaces", "topics", "acme/su")
    assert "exists already" in said(capsys, "namespaces", "create", "acme/us")
    assert Admin(str(root)).policies("acme/e.u").get() == {}


def test_a_namespace_goes_with_its_policies_and_by_force_with_its_topics(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(root, "acme/us/t", "a")
    Admin(str(root)).policies("acme/us").set(message_ttl=60)
    with pytest.raises(TopicInUseError, match=r"1 topics, such as .*/t\. .*--force"):
        admin.namespaces.delete("acme/us")
    gone = answer(capsys, "namespaces", "delete", "acme/us", "--force")["topics"]
    assert gone == ["persistent://acme/us/t"]
    assert admin.namespaces.list() == []
    with pytest.raises(NamespaceNotFoundError):
        admin.namespaces.delete("acme/us")
    with pytest.raises(InvalidTopicNameError, match="stays"):
        admin.namespaces.delete("pulsar/system", force=True)
    admin.namespaces.create("acme/us")
    assert Admin(str(root)).policies("acme/us").get() == {}


def test_a_tenant_is_made_told_of_and_deleted(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "tenants", "create", "a.b", "-r", "me,you", "-c", "here")
    assert answer(capsys, "tenants", "list") == ["a.b"]
    assert answer(capsys, "tenants", "get", "a.b") == {
        "adminRoles": ["me", "you"], "allowedClusters": ["here"],
    }  # fmt: skip
    admin.tenants.update("a.b", ["you"])
    assert admin.tenants.get("a.b") == TenantInfo(("you",))
    with pytest.raises(TopicExistsError):
        admin.tenants.create("a.b")
    send(root, "a.b/us/t", "a")
    with pytest.raises(TopicInUseError, match=r"namespaces a\.b/us"):
        admin.tenants.delete("a.b")
    assert answer(capsys, "tenants", "delete", "a.b", "--force")["namespaces"] == ["a.b/us"]
    assert admin.tenants.list() == []
    with pytest.raises(NamespaceNotFoundError, match="no tenant"):
        admin.tenants.get("a.b")
    send(root, "acme/us/t", "a")
    assert admin.tenants.get("acme") == TenantInfo(), "a topic made it"


def test_a_tenants_file_of_a_future_version_is_refused(admin: Admin, root: Path) -> None:
    admin.tenants.create("acme")
    (file,) = root.glob("persistent/acme/~tenant.json")
    file.write_bytes(replace(TENANT_FORMAT, version=2).encode({"admin_roles": []}))
    with pytest.raises(FutureVersionError, match="version 2"):
        admin.tenants.get("acme")


def test_a_schema_is_uploaded_got_and_asked_about(
    admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.topics.create("t")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": FIRST, "properties": {}}))
    assert answer(capsys, "schemas", "upload", "t", "-f", str(file)) == {"version": 0}
    assert answer(capsys, "schemas", "upload", "t", "-f", str(file)) == {"version": 0}
    got = answer(capsys, "schemas", "get", "t")
    assert got == {"version": 0, "schemaInfo": {"type": "AVRO", "schema": FIRST}}
    assert answer(capsys, "schemas", "get", "t", "-a") == [got]
    with pytest.raises(MessageNotFoundError, match="no version 1"):
        admin.schemas.get("t", 1)
    file.write_text(json.dumps({"type": "AVRO", "schema": OTHER}))
    asked = answer(capsys, "schemas", "compatibility", "t", "-f", str(file))
    assert asked == {"isCompatibility": False, "schemaCompatibilityStrategy": "FULL"}
    assert "INCOMPATIBLE_SCHEMA" in said(capsys, "schemas", "upload", "t", "-f", str(file))
    assert admin.schemas.list("t") == (SchemaInfo(SchemaType.AVRO, FIRST),)
    file.write_text("{}")
    assert "A schema's file has JSON such as" in said(
        capsys, "schemas", "upload", "t", "-f", str(file)
    )
    assert "No such file" in said(capsys, "schemas", "upload", "t", "-f", "nowhere")


@pytest.mark.parametrize("can_be_read", [True, False])
def test_a_damaged_topic_of_a_namespace_keeps_no_other_from_being_cleared(
    tmp_path: Path, can_be_read: bool
) -> None:
    url = str(tmp_path / "root")
    with pulsar.Client(url, broker="embedded") as client:
        for name in ("a", "bad", "z"):
            client.create_producer(name).send(b"1")
            client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
        log = max((tmp_path / "root/persistent/public/default/bad/_log").glob("0*.json"))
        log.write_bytes(b"{}")
        if not can_be_read:  # as on a failing disk, or without rights
            log.unlink()
            log.mkdir()
        namespaces = Admin(url).namespaces
        for act in (namespaces.clear_backlog, namespaces.unsubscribe):
            with pytest.raises(PulsarliteError, match=r"other topics are done; .*/bad can't be"):
                act("public/default", "s", force=True)
            for name in ("a", "z"):
                left = Admin(url).subscriptions.stats(name)
                assert [each.backlog for each in left] == ([0] if left else [])
        assert not Admin(url).subscriptions.stats("z"), "unsubscribed"
