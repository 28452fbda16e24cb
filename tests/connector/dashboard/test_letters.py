"""Dead letters on their page, and back where they came from; and who may send them."""

from __future__ import annotations

import re
from itertools import chain

import pyarrow as pa
import pytest
from flask.testing import FlaskClient

from pulsar_spark import pulsar
from pulsar_spark.connector.tools.dashboard import dead_letter_pages as letter_pages
from pulsar_spark.connector.tools.dashboard.dead_letter_pages import DEAD_LETTERS_A_PAGE
from tests.connector.dashboard import story
from tests.connector.dashboard.browsing import Page, page, words
from tests.connector.dashboard.conftest import browser_of
from tests.connector.topics import send

DLQ = "persistent://public/default/payments-billing-DLQ"
PATH = f"/letters?topic={DLQ}"


def to_dead_letter(client: pulsar.Client, *values: str) -> FlaskClient:
    """These letters, and a browser that may redrive them."""
    said = {story.EVIL: "of a name", "n": story.EVIL}
    story.subscribed(client, "payments", "all").close()  # keeps them to be looked at
    story.to_dead_letter(client, "payments", *values, partition_key=story.EVIL, properties=said)
    return browser_of(client.root, allow_changes=True)


def form_of(browser: FlaskClient) -> dict[str, str | list[str]]:
    (token,) = (
        tag["value"] or ""
        for name, tag in page(browser, PATH).tags
        if name == "input" and tag["name"] == "token"
    )
    return {"topic": DLQ, "token": token}


def ids_on(browser: FlaskClient) -> list[str]:
    tags = page(browser, PATH).tags
    return [tag["value"] or "" for name, tag in tags if name == "input" and tag["name"] == "id"]


def sent(browser: FlaskClient, **form: str | list[str]) -> str:
    """What the page says after the redrive."""
    answer = browser.post("/redrive", data={**form_of(browser), **form}, follow_redirects=True)
    assert answer.status_code == 200
    return words(Page(answer.text))


def values_of(client: pulsar.Client) -> list[bytes]:
    reader = client.create_reader("payments", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next().data())
    reader.close()
    return found


def test_a_letter_tells_all_that_is_known_of_it_as_text(client: pulsar.Client) -> None:
    browser = to_dead_letter(client, story.EVIL, "b")
    assert DLQ in page(browser, "/letters").all_of("a", "href")[-1]
    found = page(browser, PATH)
    assert found.all_of("script", "src") == ["/static/dashboard.js"]
    text = words(found)
    for part in (
        "2 of its messages were not redriven", "rejected", "from payments 0:0:0",
        "given up by billing", "attempts 2, the last by", f"error {story.EVIL}",
        f"key {story.EVIL}", f"{story.EVIL} of a name", f"n {story.EVIL}", f"value {story.EVIL}",
    ):  # fmt: skip
        assert part in text, part
    assert story.EVIL_NAME in found.text


def test_the_chosen_letters_go_back_and_the_others_stay(client: pulsar.Client) -> None:
    browser = to_dead_letter(client, "a", "b", "c")
    ids = ids_on(browser)
    assert len(ids) == 3
    assert "1 went to persistent://public/default/payments" in sent(browser, id=[ids[1]])
    story.advance(client, 1000)
    assert values_of(client) == [b"a", b"b", b"c", b"b"]
    assert ids_on(browser) == [ids[0], ids[2]]


def test_all_letters_go_back_and_only_once(client: pulsar.Client) -> None:
    browser = to_dead_letter(client, "a", "b")
    form = {**form_of(browser), "all": "1"}
    assert "2 went to persistent://public/default/payments" in sent(browser, all="1")
    story.advance(client, 1000)
    assert "0 of its messages were not redriven" in words(page(browser, PATH))
    again = browser.post("/redrive", data=form, follow_redirects=True)
    assert "None of these is left" in again.text
    assert values_of(client) == [b"a", b"b"] * 2


def test_nothing_goes_back_where_nothing_was_chosen(client: pulsar.Client) -> None:
    browser = to_dead_letter(client, "a")
    assert "No letter was chosen" in sent(browser)
    assert "is no message id" in sent(browser, id=["x"])
    assert values_of(client) == [b"a"]


def test_a_dashboard_that_only_looks_changes_nothing(client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    browser = browser_of(client.root)
    assert "start the dashboard with --allow-changes" in words(page(browser, PATH))
    assert not ids_on(browser)
    answer = browser.post("/redrive", data={**form_of(browser), "all": "1"})
    assert answer.status_code == 403
    assert "--allow-changes" in answer.text
    assert values_of(client) == [b"a"]


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ({"token": ""}, {}),
        ({"token": "guessed ü"}, {}),
        ({}, {"Origin": "https://evil.example"}),
        ({}, {"Origin": "http://localhost:1"}),
        ({}, {"Origin": "null"}),
    ],
)
def test_a_page_of_somewhere_else_changes_nothing(
    client: pulsar.Client, form: dict[str, str], headers: dict[str, str]
) -> None:
    browser = to_dead_letter(client, "a")
    data = {**form_of(browser), "all": "1", **form}
    answer = browser.post("/redrive", data=data, headers=headers)
    assert answer.status_code == 403
    assert "was not sent by a page of this dashboard" in answer.text
    assert values_of(client) == [b"a"]


def test_without_a_broker_it_says_so_and_does_not_wait(
    client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = to_dead_letter(client, "a")
    monkeypatch.setattr(letter_pages, "is_alive", lambda _: False)
    assert "No broker serves this root" in sent(browser, all="1")


def test_a_page_reads_only_the_letters_that_it_shows(client: pulsar.Client, url: str) -> None:
    count = DEAD_LETTERS_A_PAGE * 2 + 3
    to_dead_letter(client, *(f"letter {number:03}" for number in range(count)))
    browser = browser_of(client.root)
    pages = [words(page(browser, f"{PATH}&page={number}")) for number in range(4)]
    found = [re.findall(r"value ?(letter \d+)", text) for text in pages]
    assert [len(each) for each in found] == [DEAD_LETTERS_A_PAGE, DEAD_LETTERS_A_PAGE, 3, 0]
    assert [*chain(*found)] == [f"letter {number:03}" for number in range(count)]
    assert f"26 to 50 of {count}" in pages[1]


def test_what_is_no_text_is_shown_in_hexadecimal_digits_and_long_values_are_cut(
    client: pulsar.Client, url: str
) -> None:
    letter = [("REAL_TOPIC", "persistent://public/default/t"), ("REAL_SUBSCRIPTION", "s")]
    properties = pa.array([letter], pa.map_(pa.string(), pa.string()))
    for value in (b"\xff\x00", b"\xc3\xa9" * 5000):
        send(url, "t-s-DLQ", [value], columns={"properties": properties})
    text = words(page(browser_of(client.root), "/letters?topic=t-s-DLQ"))
    assert "0xff00" in text
    assert "é… (10,000 in all)" in text
