"""Options: one table, from which parsing and errors come."""

from __future__ import annotations

import pickle

import pytest

from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.option_values import text
from pulsar_spark.options.options import OPTIONS, Option, Options, Scope, markdown_table

URL = {"serviceUrl": "/data"}


def parsed(name: str, value: str) -> object:
    return Options.parse({**URL, name: value})[name]


def refusal(given: dict[str, str], scope: Scope = Scope.ANY) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        Options.parse(given, scope)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("topic", "flights", "flights"),
        ("topics", "a, b,c", ("a", "b", "c")),
        ("topicsPattern", "fl.*", "fl.*"),
        ("maxMessagesPerTrigger", "7", 7),
        ("maxBytesPerTrigger", "131072", 131072),
        ("maxBytesPerTrigger", "128k", 131072),
        ("maxBytesPerTrigger", "5 MB", 5 << 20),
        ("maxBytesPerTrigger", "1GiB", 1 << 30),
        ("topicDiscoveryInterval", "500", 500),
        ("topicDiscoveryInterval", "500ms", 500),
        ("topicDiscoveryInterval", "30s", 30_000),
        ("topicDiscoveryInterval", "5 M", 300_000),
        ("topicDiscoveryInterval", "1h", 3_600_000),
        ("topicDiscoveryInterval", "2d", 172_800_000),
        ("failOnDataLoss", "FALSE", False),
        ("compressionType", "lz4", "LZ4"),
        ("hashingScheme", "murmur3_32hash", "Murmur3_32Hash"),
        ("messageRoutingMode", "singlepartition", "SinglePartition"),
        ("maxMessageSize", "10", 10),
        ("batcherBuilder", "key_based", "KEY_BASED"),
        ("deliverAt", "1700000000000", 1_700_000_000_000),
        ("deliverAt", "2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("deliverAt", "2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("deliverAfter", "5m", 300_000),
    ],
)
def test_a_value_is_parsed(name: str, text: str, value: object) -> None:
    assert parsed(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topic", " "),
        ("topics", "a,,b"),
        ("topics", ""),
        ("topicsPattern", "fl(.*"),
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", "-3"),
        ("maxMessagesPerTrigger", "many"),
        ("maxMessagesPerTrigger", "1.5"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "5 miles"),
        ("maxBytesPerTrigger", "-5k"),
        ("topicDiscoveryInterval", "5 weeks"),
        ("topicDiscoveryInterval", "-1s"),
        ("failOnDataLoss", "yes"),
        ("compressionType", "GZIP"),
        ("hashingScheme", "MD5"),
        ("numPartitions", "0"),
        ("deliverAt", "tomorrow"),
        ("deliverAfter", "-5m"),
        ("batcherBuilder", "BY_KEY"),
        ("messageRouter", "package.module.function"),
        ("messageRouter", "package:"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_expected(name: str, text: str) -> None:
    (option,) = (option for option in OPTIONS if option.name == name)
    set_policies = refusal({**URL, name: text})
    assert f"Option {name} can't be {text!r}" in set_policies
    assert option.kind.expects in set_policies


@pytest.mark.parametrize(
    "option",
    [each for each in OPTIONS if each.kind.parse is not text("").parse],
    ids=lambda each: each.name,
)
def test_every_option_that_is_not_any_text_refuses_what_it_can_not_be(option: Option) -> None:
    special = {
        "topics": " , ",
        "topicsPattern": "(",
        "subscriptionName": "pulsar.dedup",
    }  # any text
    bad = special.get(option.name, "?! no such thing")
    set_policies = refusal({**URL, option.name: bad})
    assert f"Option {option.name} can't be {bad!r}" in set_policies
    assert option.kind.expects in set_policies


@pytest.mark.parametrize("factor", ["inf", "nan", "1e999", "1"])
def test_a_backoff_that_no_record_can_hold_is_refused(factor: str) -> None:
    set_policies = refusal({**URL, "negativeAckRedeliveryBackoff": f"1s,60s,{factor}"})
    assert "Option negativeAckRedeliveryBackoff can't be" in set_policies


def test_a_bad_pattern_says_what_is_wrong_with_it() -> None:
    assert "unterminated subpattern" in refusal({**URL, "topicsPattern": "fl(.*"})


def test_names_are_compared_without_regard_to_case() -> None:
    options = Options.parse({"SERVICEURL": "/data", "maxmessagespertrigger": "5"})
    assert options["maxMessagesPerTrigger"] == 5
    assert options["serviceUrl"] == "/data"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("topik", "topic"),
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("startingOffset", "startingOffsets"),
        ("batchMaxMessages", "batchingMaxMessages"),
    ],
)
def test_an_unknown_option_offers_the_nearest(wrong: str, meant: str) -> None:
    set_policies = refusal({**URL, wrong: "1"})
    assert f"Option {wrong} is not known. Did you mean {meant}?" in set_policies


def test_an_unknown_option_like_none_lists_all_that_are_known() -> None:
    set_policies = refusal({**URL, "zzzzzzzz": "1"})
    assert "Did you mean" not in set_policies
    assert all(option.name in set_policies for option in OPTIONS)


def test_options_of_the_store_pass_as_they_are() -> None:
    options = Options.parse({**URL, "storage.aws_endpoint": "http://here"})
    assert options.storage == {"aws_endpoint": "http://here"}


@pytest.mark.parametrize(
    ("name", "value", "scope"),
    [
        ("endingOffsets", "latest", Scope.STREAM_READ),
        ("maxMessagesPerTrigger", "1", Scope.BATCH_READ),
        ("numPartitions", "4", Scope.READ),
        ("startingOffsets", "latest", Scope.BATCH_WRITE),
        ("txnAppId", "a", Scope.STREAM_WRITE),
    ],
)
def test_an_option_without_meaning_is_refused(name: str, value: str, scope: Scope) -> None:
    set_policies = refusal({**URL, name: value}, scope)
    assert f"Option {name} has no meaning here: it belongs to " in set_policies
    assert "Leave it out" in set_policies


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": "a", "topics": "b"}, "topic and topics exclude"),
        ({"topic": "a", "topicsPattern": "b"}, "topic and topicsPattern exclude"),
        ({"startingOffsets": "latest", "startingTime": "1"}, "startingOffsets and startingTime"),
        ({"endingOffsets": "latest", "endingTime": "1"}, "endingOffsets and endingTime"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion go together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion go together"),
        ({"maxTriggerDelay": "1s"}, "maxTriggerDelay needs minMessagesPerTrigger"),
        (
            {"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"},
            "minMessagesPerTrigger (5) is above maxMessagesPerTrigger (4)",
        ),
        ({"deliverAt": "1", "deliverAfter": "1"}, "deliverAt and deliverAfter exclude"),
        (
            {"batcherBuilder": "KEY_BASED", "batchingEnabled": "false"},
            "batcherBuilder KEY_BASED needs batchingEnabled true",
        ),
        ({"messageRoutingMode": "CustomPartition"}, "messageRouter and messageRoutingMode Custom"),
        (
            {"messageRoutingMode": "SinglePartition", "messageRouter": "a:b"},
            "messageRouter and messageRoutingMode CustomPartition go together",
        ),
        ({"path": "/elsewhere"}, "serviceUrl and path mean the same"),
    ],
)
def test_options_that_don_t_go_together_are_refused(given: dict[str, str], reason: str) -> None:
    assert reason in refusal({**URL, **given})


def test_without_a_service_url_the_error_says_how_to_give_one() -> None:
    set_policies = refusal({"topic": "a"})
    assert "serviceUrl is missing" in set_policies
    assert "PULSARLITE_SERVICE_URL" in set_policies


def test_path_and_the_environment_stand_in_for_the_service_url() -> None:
    environment = {"PULSARLITE_SERVICE_URL": "/environment"}
    assert Options.parse({"path": "/p"}, environment=environment)["serviceUrl"] == "/p"
    assert Options.parse({}, environment=environment)["serviceUrl"] == "/environment"
    assert Options.parse(URL, environment=environment)["serviceUrl"] == "/data"


def test_defaults_are_had_but_not_given() -> None:
    options = Options.parse(URL)
    assert options["batchingMaxMessages"] == 1000
    assert options["batchingMaxBytes"] == 131072
    assert options["compressionType"] == "ZSTD"
    assert not options.has("batchingMaxMessages")


def test_options_pickle() -> None:
    options = Options.parse({**URL, "topics": "a,b", "storage.x": "y"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_table_of_the_docs_has_a_row_for_each_option() -> None:
    lines = markdown_table().splitlines()
    assert len(lines) == 2 + len(OPTIONS)
    for option, line in zip(OPTIONS, lines[2:], strict=True):
        assert line.startswith(f"| `{option.name}` |")
        assert option.meaning in line


def test_option_names_differ_in_more_than_case() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"schemaType": "XML"}, "it takes BYTES, STRING"),
        ({"schema": "{}"}, "schema needs schemaType JSON or AVRO"),
        ({"schema": "{}", "schemaType": "STRING"}, "schema needs schemaType JSON or AVRO"),
        ({"valueSchema": "on"}, "it takes auto"),
        ({"onSchemaMismatch": "null"}, "needs valueSchema"),
        ({"onSchemaMismatch": "deadLetter", "valueSchema": "auto"}, "needs a subscription"),
        (
            {"onSchemaMismatch": "deadLetter", "valueSchema": "auto", "subscriptionName": "s"},
            "maxRedeliverCount or deadLetterTopic",
        ),
    ],
)
def test_options_of_schemas_that_cannot_be_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOptionError, match=why):
        Options.parse({"serviceUrl": "/x", "topic": "t", **given})
