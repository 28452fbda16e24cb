"""Object stores that refuse, or must be refused: each is a named error that says what to set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage import service_url
from pulsar_spark.connector.storage.object_store import CREATE_ATTEMPTS
from pulsar_spark.connector.storage.remote_store import CHECKED
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.tools.doctor.finding import State
from pulsar_spark.connector.tools.doctor.root_checks import check_root
from pulsar_spark.errors import (
    PulsarliteError,
    StorageAccessDeniedError,
    StorageCredentialsError,
    StorageError,
    StorageSettingsError,
    StorageUnavailableError,
)
from pulsar_spark.model.topic_name import TopicName
from tests.connector.storage.object_service import BUCKET, ObjectService, serving

pytest.importorskip("obstore")
CONDITIONS = {
    "s3": ["if-none-match", "if-match"],
    "gs": ["x-goog-if-generation-match"],
}


@pytest.fixture(params=["s3", "gs"])
def service(request: pytest.FixtureRequest) -> Iterator[ObjectService]:
    with serving(request.param) as running:
        yield running


def client_of(service: ObjectService, **changed: str) -> pulsar.Client:
    return pulsar.Client(service.root(), storage={**service.options, **changed})


@pytest.mark.parametrize("condition", ["if-none-match", "if-match", "x-goog-if-generation-match"])
def test_a_store_that_ignores_conditional_writes_is_refused_before_a_message_is_confirmed(
    condition: str,
) -> None:
    with serving("gs" if "goog" in condition else "s3") as service:
        service.ignored = {condition}
        for _ in range(3):  # whoever comes later is told too
            service_url._opened.clear()  # as another process
            with client_of(service) as client:
                with pytest.raises(pulsar.OperationNotSupported, match="ignores the condition"):
                    client.create_producer("t")
                with pytest.raises(pulsar.OperationNotSupported):
                    client.subscribe("t", "s")
        assert service.objects.keys() == {f"root/{CHECKED}"}
        service.ignored = set()
        with client_of(service) as client:
            client.create_producer("t").send(b"a")


def test_conditional_writes_are_tried_once_a_process_and_not_with_each_topic_or_commit(
    service: ObjectService,
) -> None:
    def tried() -> int:
        return sum(path.endswith(CHECKED) for _, path in service.requests)

    with client_of(service) as client:
        producer = client.create_producer("t")
        assert tried() == 3, "created, refused, and not replaced; besides one listing"
        for _ in range(3):
            producer.send(b"a")
        client.create_producer("other").send(b"a")
    assert tried() == 3
    service_url._opened.clear()  # as another process
    with client_of(service) as client:
        client.create_producer("t").send(b"a")
        assert tried() == 3, "nobody who makes no topic"
        client.create_producer("third")
    assert tried() == 5


def test_a_conflict_at_the_file_of_a_publication_or_a_report_is_no_error(
    service: ObjectService,
) -> None:
    """As S3's OperationAborted, which is to be sent again."""
    with pulsar.Client(service.root(), storage=service.options, broker="embedded") as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
        for number in range(3):
            producer.send(b"%d" % number)
            service.answer("PUT", ".parquet", 409, "OperationAborted", times=3)
            message = consumer.receive(60_000)
            assert message.data() == b"%d" % number
            consumer.acknowledge(message)


def test_a_conflict_at_the_first_write_of_a_root_is_no_error(service: ObjectService) -> None:
    service.answer("PUT", CHECKED, 409, "ConditionalRequestConflict")
    with client_of(service) as client:
        client.create_producer("t").send(b"a")


def test_doctor_says_of_such_a_store_that_it_loses_messages(service: ObjectService) -> None:
    service.ignored = {*CONDITIONS[service.dialect]}
    findings = list(check_root(Root(service.root(), service.options)))
    (problem,) = (each for each in findings if each.subject == "conditional puts")
    assert problem.state is State.PROBLEM
    assert "may lose messages" in problem.remedy


@pytest.mark.parametrize(
    ("method", "status", "code", "what"),
    [
        ("PUT", 403, "AccessDenied", "s3:PutObject"),
        ("GET", 403, "AccessDenied", "s3:ListBucket"),
        ("POST", 403, "AccessDenied", "s3:DeleteObject"),
        ("GET", 403, "InvalidAccessKeyId", "storage.aws_access_key_id"),
        ("GET", 404, "NoSuchBucket", "create it, or correct serviceUrl"),
        ("GET", 301, "", "storage.aws_region"),
        ("GET", 503, "SlowDown", "storage.aws_endpoint"),
    ],
)
def test_doctor_names_what_is_missing_and_what_to_set(
    method: str, status: int, code: str, what: str
) -> None:
    with serving("s3") as service:
        service.answer(method, "", status, code, times=10**6)
        *_, problem = check_root(Root(service.root(), {**service.options, "max_retries": "0"}))
        assert (problem.state, problem.subject) == (State.PROBLEM, "store")
        assert what in problem.text
        assert code in problem.text


def test_credentials_that_may_only_read_are_told_at_once_with_what_to_allow(
    service: ObjectService,
) -> None:
    with client_of(service) as client:
        client.create_producer("t").send(b"a")
    service.answer("PUT", "", 403, "AccessDenied", times=10**6)
    with client_of(service) as client:
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        assert reader.read_next(5000).data() == b"a"
        producer = client.create_producer("t", send_timeout_millis=3_600_000)
        rights = "s3:PutObject" if service.dialect == "s3" else "Storage Object User"
        with pytest.raises(
            pulsar.AuthorizationError, match=f"AccessDenied(.|\n)*{rights}"
        ) as reported:
            producer.send(b"b")
        assert "check the network" not in str(reported.value).lower()
        answers: list[object] = []
        producer.send_async(b"c", lambda result, _: answers.append(result))
        with pytest.raises(pulsar.AuthorizationError):
            producer.flush()
        assert answers == [client_errors.Result.AuthorizationError]


@pytest.mark.parametrize(
    ("status", "code", "kind", "what"),
    [
        (403, "AccessDenied", StorageAccessDeniedError, "s3:ListBucket"),
        (403, "InvalidAccessKeyId", StorageCredentialsError, "storage.aws_access_key_id"),
        (403, "SignatureDoesNotMatch", StorageCredentialsError, "AWS_SECRET_ACCESS_KEY"),
        (400, "ExpiredToken", StorageCredentialsError, "AWS_SESSION_TOKEN"),
        (401, "Unauthorized", StorageCredentialsError, "storage.aws_secret_access_key"),
        (403, "RequestTimeTooSkewed", StorageSettingsError, "clock"),
        (400, "AuthorizationHeaderMalformed", StorageSettingsError, "storage.aws_region"),
        (301, "", StorageSettingsError, "storage.aws_region"),
        (404, "NoSuchBucket", StorageError, "storage.aws_endpoint"),
        (400, "SomethingElse", StorageUnavailableError, "Check the network"),
    ],
)
def test_a_refusal_has_the_service_s_code_and_says_what_to_set(
    status: int, code: str, kind: type[StorageError], what: str
) -> None:
    with serving("s3") as service:
        service.answer("GET", "x", status, code, times=10**6)
        service.answer("PUT", "x", status, code, times=10**6)
        store = open_store(service.root(), service.options)
        output = store.open_output("x")
        output.sink.write(b"abc")
        for attempt in (lambda: store.get("x"), lambda: store.create("x", b""), output.close):
            with pytest.raises(kind) as reported:
                attempt()
            assert what in str(reported.value)
            assert code in str(reported.value)
            assert "<" not in str(reported.value), "no XML"


def test_without_credentials_it_is_told_which_to_set(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, service.address.removeprefix("http://"))
    for method in ("PUT", "GET"):
        service.answer(method, "token", 403, times=9)
    endpoint = {"s3": "aws_endpoint", "gs": "google_base_url"}[service.dialect]
    given = {endpoint: service.address, "allow_http": "true", "max_retries": "0"}
    name = {"s3": "aws_access_key_id", "gs": "google_service_account"}[service.dialect]
    if service.dialect == "s3":
        given |= {"aws_metadata_endpoint": service.address, "aws_region": "r"}
    with pytest.raises(PulsarliteError, match=name) as reported:
        open_store(service.root(), given).get("x")
    assert isinstance(reported.value, StorageCredentialsError)


def test_an_address_without_tls_names_the_option_that_allows_it(service: ObjectService) -> None:
    given = {name: each for name, each in service.options.items() if name != "allow_http"}
    with (
        pulsar.Client(service.root(), storage=given) as client,
        pytest.raises(pulsar.InvalidConfiguration, match=r"storage\.allow_http=true"),
    ):
        client.create_producer("t")


def test_an_endpoint_that_contains_the_bucket_is_told_before_a_message_is_confirmed() -> None:
    with serving("s3") as service:
        service.is_of_bucket = True
        for _ in range(2):
            service_url._opened.clear()  # as another process
            with (
                client_of(service) as client,
                pytest.raises(pulsar.InvalidConfiguration, match=r"storage\.aws_endpoint"),
            ):
                client.create_producer("t")
        assert service.objects.keys() == {f"{BUCKET}/root/{CHECKED}"}


def test_a_heartbeat_that_meets_a_conflict_is_written_again(service: ObjectService) -> None:
    store = open_store(service.root(), service.options)
    service.answer("PUT", "lease", 409, "OperationAborted", times=2)
    store.touch("lease", b"a")
    assert store.get("lease") == b"a"


def test_a_heartbeat_that_meets_conflicts_alone_is_an_error(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_spark.connector.storage.object_store.LOST_RACE_PAUSE_S", 0.0)
    store = open_store(service.root(), service.options)
    service.answer("PUT", "lease", 409, "OperationAborted", times=CREATE_ATTEMPTS)
    with pytest.raises(StorageUnavailableError, match="another write of it under way"):
        store.touch("lease", b"a")
    assert store.get("lease") is None


def test_a_file_that_is_larger_than_any_is_not_read_into_memory(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_spark.connector.storage.remote_store.MOST_BYTES", 1 << 20)
    with client_of(service) as client:
        client.create_producer("t").send(b"a")
        ledger = Root(service.root(), service.options).open(TopicName.parse("t"))
        store = open_store(service.root(), service.options)
        store.create(
            f"{ledger.log_folder}/{ledger.state.number + 1:020d}.json", bytes((1 << 20) + 1)
        )
        with pytest.raises(pulsar.ReadError, match="has more than"):
            client.create_reader("t", pulsar.MessageId.earliest)
