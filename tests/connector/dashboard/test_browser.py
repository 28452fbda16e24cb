"""The dashboard in headless Chromium: pictures, light and dark, refresh, redrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.dashboard.web_app import make_dashboard
from pulsar_spark.testing import Place
from tests.connector.dashboard import story
from tests.connector.dashboard.chromium import chromium, prefer, said
from tests.connector.dashboard.test_pages import PAGES

DLQ = "/letters?topic=payments-billing-DLQ"
IN_TIME_S = 20


@contextmanager
def served(root: Root, *, allow_changes: bool = False) -> Iterator[str]:
    """The URL with its key, as long as the block lasts."""
    server, url = make_dashboard(root, 0, allow_changes=allow_changes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def wait(chrome: Chrome, condition: Any) -> Any:
    try:
        return WebDriverWait(chrome, IN_TIME_S).until(condition)
    except TimeoutException:
        pytest.fail(f"It did not come; there is: {text_of(chrome)}\n{said(chrome)}")


def pictures_are_drawn(chrome: Chrome) -> bool:
    images = "[...document.images].every(i => i.complete && i.naturalWidth > 100)"
    return bool(chrome.execute_script(f"return {images}"))


def text_of(chrome: Chrome) -> str:
    return chrome.find_element(By.TAG_NAME, "body").text


def reload(chrome: Chrome) -> None:
    """What the page does by itself every five seconds, now."""
    chrome.execute_async_script("refresh().then(arguments[0])")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_drawn_whole_in_light_and_dark(
    chrome: Chrome, reported: Place, scheme: str, tmp_path: Path
) -> None:
    with served(reported.root) as url:
        prefer(chrome, scheme)
        chrome.get(url)
        grounds = set()
        for path in PAGES:
            chrome.get(url.partition("/?")[0] + path)
            wait(chrome, pictures_are_drawn)
            grounds.add(
                chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
            )
            width = "document.documentElement.scrollWidth - innerWidth"
            assert chrome.execute_script(f"return {width}") <= 0, f"{path} is too wide"
            assert chrome.get_screenshot_as_png()
        assert grounds == {"rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)"}
        assert said(chrome) == []


def test_no_text_of_a_message_runs_as_a_script(chrome: Chrome, client: pulsar.Client) -> None:
    evil = {story.EVIL: "v", "n": "<img src=x onerror=\"document.title='taken'\">"}
    story.to_dead_letter(client, "payments", story.EVIL, partition_key=story.EVIL, properties=evil)
    with served(client.root) as url:
        chrome.get(url)
        chrome.get(url.partition("/?")[0] + DLQ)
        assert story.EVIL in text_of(chrome)
        assert evil["n"] in text_of(chrome)
        assert chrome.title.startswith("Dead letters of")
        assert said(chrome) == []


def test_a_page_shows_what_came_since_but_leaves_alone_who_chooses(
    chrome: Chrome, client: pulsar.Client
) -> None:
    story.to_dead_letter(client, "payments", "a")
    with served(client.root, allow_changes=True) as url:
        chrome.get(url)
        chrome.get(url.partition("/?")[0] + DLQ)
        assert text_of(chrome).count("rejected") == 1
        story.to_dead_letter(client, "payments", "b")
        reload(chrome)
        assert text_of(chrome).count("rejected") == 2
        chrome.find_element(By.NAME, "id").click()
        story.to_dead_letter(client, "payments", "c")
        reload(chrome)
        assert text_of(chrome).count("rejected") == 2
        chrome.find_element(By.NAME, "id").click()
        chrome.execute_script("document.activeElement.blur()")
        reload(chrome)
        assert text_of(chrome).count("rejected") == 3
    reload(chrome)
    assert "does not answer" in chrome.find_element(By.ID, "news").text
    said(chrome)


def test_a_person_redrives_one_letter_then_all(chrome: Chrome, client: pulsar.Client) -> None:
    story.to_dead_letter(client, "payments", "a", "b", "c")
    with served(client.root, allow_changes=True) as url:
        chrome.get(url)
        chrome.get(url.partition("/?")[0] + DLQ)
        chrome.find_elements(By.NAME, "id")[1].click()
        chrome.find_element(By.NAME, "chosen").click()
        wait(chrome, lambda c: "1 went to persistent://public/default/payments" in text_of(c))
        story.advance(client, 1000)
        reload(chrome)
        assert "2 of its messages were not redriven" in text_of(chrome)
        chrome.find_element(By.NAME, "all").click()
        question = wait(chrome, lambda c: c.switch_to.alert)
        assert "Publish all dead letters" in question.text
        question.dismiss()
        assert "2 of its messages were not redriven" in text_of(chrome)
        chrome.find_element(By.NAME, "all").click()
        wait(chrome, lambda c: c.switch_to.alert).accept()
        wait(chrome, lambda c: "2 went to persistent://public/default/payments" in text_of(c))
        story.advance(client, 1000)
        reload(chrome)
        assert "0 of its messages were not redriven" in text_of(chrome)


def test_a_form_of_another_site_is_refused(
    chrome: Chrome, client: pulsar.Client, tmp_path: Path
) -> None:
    """Of a page on disk, in the browser that has the key's cookie."""
    story.to_dead_letter(client, "payments", "a")
    with served(client.root, allow_changes=True) as url:
        base = url.partition("/?")[0]
        chrome.get(url)
        page = tmp_path / "evil.html"
        page.write_text(
            f"<form method=post action={base}/redrive><input name=all value=1>"
            "<input name=topic value=payments-billing-DLQ></form>"
        )
        chrome.get(page.as_uri())
        chrome.execute_script("document.forms[0].submit()")
        wait(chrome, lambda c: "That did not work" in text_of(c))
        chrome.get(base + DLQ)
        assert "1 of its messages were not redriven" in text_of(chrome)
        said(chrome)
