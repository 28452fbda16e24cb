"""The pages over HTTP: what they show, whom they refuse, and what they cost."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from flask.testing import FlaskClient

import pulsar_spark
from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.inspect.statistics.pulsar_stats import topic_stats
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.tools.dashboard.followed_queue import FollowedQueue
from pulsar_spark.connector.tools.dashboard.topic_pages import TOPICS_A_PAGE, topic_rows
from pulsar_spark.connector.tools.dashboard.web_app import make_app
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.testing import Place
from tests.connector.dashboard import story
from tests.connector.dashboard.browsing import all_pages, page, pictures_of, words
from tests.connector.dashboard.conftest import KEY, browser_of
from tests.connector.topics import send
from tests.golden import ROOT as GOLDEN_ROOT
from tests.torture.world import EVENTS, prepared

PAGES = (
    "/", "/topic?name=orders", "/subscription?topic=orders&name=billing",
    "/subscription?topic=orders&name=by-customer", "/letters",
    "/letters?topic=orders",
)  # fmt: skip


# -- what is shown ---------------------------------------------------------------------------------


def test_the_list_shows_each_topic_with_its_backlog(browser: FlaskClient) -> None:
    text = words(page(browser, "/"))
    assert re.search(r"orders 1 1\.9 kB \d\.\d 2 \d+ \d+ (s|min)", text), text
    assert "No topic has that in its name" in page(browser, "/?having=nothing").text
    assert "orders" in page(browser, "/?having=rder").text


def test_a_topic_shows_its_subscriptions_its_past_and_what_is_delayed(
    browser: FlaskClient, reported: Place
) -> None:
    stats = topic_stats(reported.root, TopicName.parse("orders"))["subscriptions"]
    text = words(page(browser, "/topic?name=orders"))
    for name, kind in (("billing", "Shared"), ("by-customer", "Key_Shared")):
        each = stats[name]
        numbers = (each["msgBacklog"], each["unackedMessages"], each["msgDelayed"])
        assert f"{name} {kind} {' '.join(map(str, numbers))}" in text
    backlog, delays = pictures_of(browser, "/topic?name=orders")
    assert "not acknowledged, by time" in backlog
    assert "hours from now" in delays


def test_a_subscription_shows_holes_redeliveries_delays_and_consumers(
    browser: FlaskClient,
) -> None:
    strip, delays = pictures_of(browser, "/subscription?topic=orders&name=billing")
    for what in ("with a consumer", "to come later", "acknowledged", "partition 0"):
        assert what in strip
    assert "to come again" in delays
    text = words(page(browser, "/subscription?topic=orders&name=billing"))
    assert "worker" in text
    assert re.search(r"came again ?messages (\d+ times? ?\d+ )+", text), text


def test_a_key_shared_subscription_shows_its_ring(browser: FlaskClient) -> None:
    _, ring, _ = pictures_of(browser, "/subscription?topic=orders&name=by-customer")
    assert "alice" in ring
    assert "bob" in ring


def test_the_past_is_what_the_views_say_of_each_batch(reported: Place) -> None:
    queue = FollowedQueue(reported.root)
    queue.follow()
    points = queue.backlogs("persistent://public/default/orders")
    assert len(points) > 10
    batches = pulsar_spark.dataset(reported.service_url, view="batches").to_table()
    written = batches["written"].cast("int64").to_pylist()
    for batch, written_us in [*zip(batches["batch"].to_pylist(), written, strict=True)][::9]:
        rows = pulsar_spark.dataset(
            reported.service_url, "orders", view="subscriptions", as_of=batch
        ).to_table()
        expected = dict(
            zip(rows["subscription"].to_pylist(), rows["msg_backlog"].to_pylist(), strict=True)
        )
        until = [held for time_ms, held in points if time_ms <= written_us // 1000]
        if until and written.count(written_us) == 1:
            assert until[-1] == expected, f"after batch {batch}"


# -- what comes from messages ----------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_what_clients_name_is_text_and_nothing_else(browser: FlaskClient, path: str) -> None:
    found = page(browser, path)
    assert [*found.all_of("script", "src")] == ["/static/dashboard.js"]
    assert "b" not in {tag for tag, _ in found.tags}
    assert all(pictures_of(browser, path))


def test_a_hostile_name_is_shown_as_it_is(browser: FlaskClient) -> None:
    found = page(browser, "/subscription?topic=orders&name=by-customer")
    assert story.EVIL_NAME in found.text
    for path in ("/topic", "/subscription", "/letters"):
        answer = browser.get(path, query_string={
            "topic": story.EVIL, "name": story.EVIL, "having": story.EVIL, "page": "0",
        })  # fmt: skip
        assert answer.status_code == 404
        assert story.EVIL not in answer.text
    searched = browser.get("/", query_string={"having": f'"{story.EVIL}'})
    assert story.EVIL not in searched.text


# -- who may look ----------------------------------------------------------------------------------


def test_nothing_is_shown_without_the_key(reported: Place) -> None:
    client = make_app(reported.root, allow_changes=True, key=KEY).test_client()
    for path in (*PAGES, "/picture/x.svg", "/?key=another", "/?key=", "/?key=ü"):
        answer = client.get(path)
        assert answer.status_code == 403, path
        assert "orders" not in answer.text
    assert "Open the whole URL" in client.get("/").text
    assert client.post("/redrive").status_code == 403
    with client.get("/static/dashboard.css") as sheet:
        assert sheet.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_request_under_another_hosts_name_is_refused(browser: FlaskClient, host: str) -> None:
    answer = browser.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert "orders" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:7780", "localhost:7780", "LOCALHOST"])
def test_this_machines_own_names_are_fine(reported: Place, host: str) -> None:
    client = make_app(reported.root, allow_changes=False, key=KEY).test_client()
    answer = client.get("/", query_string={"key": KEY}, headers={"Host": host})
    assert answer.status_code == 303


def test_a_browser_is_told_to_run_no_other_script(browser: FlaskClient) -> None:
    headers = browser.get("/").headers
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    cookie = make_app(Root("memory://x", {}), allow_changes=False, key=KEY).test_client()
    said = cookie.get("/", query_string={"key": KEY}).headers["Set-Cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Lax" in said
    assert KEY not in said


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_root_without_topics_says_so(tmp_path: Path) -> None:
    text = words(page(browser_of(Root(str(tmp_path / "not" / "there"), {})), "/"))
    assert f"There is no topic in {tmp_path}/not/there yet" in text
    assert "No broker shows life" in text
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/topic?name=order", 404, "Did you mean persistent://public/default/orders?"),
        ("/topic", 400, "This page needs name=..."),
        ("/subscription?topic=orders&name=nobody", 404, "No broker knows of a subscription"),
        ("/subscription?topic=orders&name=billing&first=-1", 400, "first=-1 is no whole number"),
        ("/letters?topic=none-DLQ", 404, "none-DLQ does not exist"),
        ("/picture/0.svg", 404, "That picture is no longer kept"),
        ("/nowhere", 404, "not found"),
    ],
)
def test_what_is_not_there_is_a_sentence(
    browser: FlaskClient, path: str, status: int, sentence: str
) -> None:
    assert sentence in words(page(browser, path, status))


def test_a_damaged_topic_is_a_sentence_in_its_place_and_the_others_are_shown(
    tmp_path: Path,
) -> None:
    for name in ("good", "bad"):
        send(tmp_path / "root", name, ["a", "b"])
    shutil.copytree(tmp_path / "root", tmp_path / "copy")  # which no process has opened before
    (commit,) = tmp_path.glob("copy/persistent/public/default/bad/_log/*1.json")
    commit.write_bytes(commit.read_bytes()[:-20])
    browser = browser_of(Root(str(tmp_path / "copy"), {}))
    text = words(page(browser, "/"))
    assert re.search(r"bad \[CORRUPT_FILE\].* good 1 ?2 B", text), text
    assert "[CORRUPT_FILE]" in page(browser, "/topic?name=bad", 503).text


def test_a_damaged_dispatch_is_a_sentence(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN_ROOT, tmp_path / "root")
    folder = tmp_path / "root" / DISPATCH.storage_path / "data"
    for file in folder.rglob("*.parquet"):
        file.write_bytes(b"nothing")
    browser = browser_of(Root(str(tmp_path / "root"), {}))
    assert "[CORRUPT_FILE]" in page(browser, "/", 503).text


# -- what it costs ---------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_looking_changes_no_file(tmp_path: Path) -> None:
    """Of a root whose broker was killed, and without a deleted topic, which has no page."""
    shutil.copytree(GOLDEN_ROOT, tmp_path / "root", ignore=shutil.ignore_patterns("gone"))
    before = files_of(tmp_path)
    seen = all_pages(browser_of(Root(str(tmp_path / "root"), {}), allow_changes=True))
    assert len(seen) > 5
    assert files_of(tmp_path) == before


def test_a_second_look_reads_only_what_is_new(
    reported: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = browser_of(reported.root)
    page(browser, "/topic?name=orders")
    read = []
    original = LedgerFileReader.read_table

    def counted(reader: LedgerFileReader, *given: object) -> object:
        read.append(given)
        return original(reader, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(LedgerFileReader, "read_table", counted)
    first = page(browser, "/topic?name=orders").all_of("img", "src")
    assert page(browser, "/topic?name=orders").all_of("img", "src") == first, "drawn once"
    assert read == []


def test_of_many_topics_those_of_one_page_are_opened(tmp_path: Path) -> None:
    names = [f"topic-{number:03}" for number in range(TOPICS_A_PAGE + 5)]
    for name in names:
        Root(str(tmp_path), {}).create(TopicName.parse(name), 1)
    opened = []

    class Counted(FollowedQueue):
        def open(self, name: str) -> ManagedLedger:
            opened.append(name)
            return super().open(name)

    rows, count = topic_rows(Counted(Root(str(tmp_path), {})), "", 1)
    assert (len(rows), count, len(opened)) == (5, len(names), 5)
    browser = browser_of(Root(str(tmp_path), {}))
    assert f"1 to {TOPICS_A_PAGE} of {len(names)} after" in words(page(browser, "/"))
    assert f"before {TOPICS_A_PAGE + 1} to {len(names)} of" in words(page(browser, "/?page=1"))


# -- what others left behind -----------------------------------------------------------------------


def test_a_dispatch_that_was_made_anew_is_followed_from_its_beginning(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN_ROOT, tmp_path / "root")
    root = Root(str(tmp_path / "root"), {})
    browser = browser_of(root)
    before = words(page(browser, "/"))
    shutil.rmtree(tmp_path / "root" / DISPATCH.storage_path)
    assert words(page(browser, "/")) != before
    shutil.copytree(GOLDEN_ROOT / DISPATCH.storage_path, tmp_path / "root" / DISPATCH.storage_path)
    assert words(page(browser, "/")) == before


@pytest.mark.parametrize("seed", [3, 7])
def test_every_page_of_a_root_that_a_schedule_of_kills_left_behind(seed: int) -> None:
    with prepared(seed) as make:
        world = make()
        early, late = browser_of(world.root), browser_of(world.root)
        all_pages(early)
        world.run(EVENTS)  # nobody looks meanwhile
        seen = all_pages(late)
        assert all_pages(early) == seen, f"seed {seed}"
        for path in seen:
            assert words(page(early, path)) == words(page(late, path)), f"seed {seed}: {path}"
    assert len(seen) > 2 + len(world.topics), f"seed {seed}"


def test_without_a_broker_the_backlog_grows_all_the_same(client: pulsar.Client, url: str) -> None:
    story.subscribed(client, "t", "s").close()
    send(url, "t", ["a", "b"])
    text = words(page(browser_of(client.root), "/topic?name=t"))
    assert "s Shared 2 0 0" in text


def test_who_looks_sees_why_delivery_pauses(client: pulsar.Client, url: str) -> None:
    send(url, "t", [str(number) for number in range(50)])
    Admin(url).policies("t").set(breaker_threshold=50, breaker_delay="1h")
    consumer = story.subscribed(client, "t", "s")
    for _ in range(20):
        consumer.negative_acknowledge(consumer.receive(1000))
    story.advance(client, 5_000)
    browser = browser_of(client.root)
    assert "s breaker open Shared" in words(page(browser, "/topic?name=t"))
    text = words(page(browser, "/subscription?topic=t&name=s"))
    assert "the breaker is open, and 0 trials have failed since" in text
    consumer.close()
