"""The dashboard's pages, as a browser without a window asks for them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from flask.testing import FlaskClient


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def all_of(self, tag: str, attribute: str) -> list[str]:
        return [each[attribute] or "" for name, each in self.tags if name == tag]


def page(browser: FlaskClient, path: str, status: int = 200) -> Page:
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    return Page(answer.text)


def words(html: Page) -> str:
    return " ".join(html.text.split())


def pictures_of(browser: FlaskClient, path: str) -> list[str]:
    """The pictures of a page, drawn, each of them well-formed."""
    found = []
    for source in page(browser, path).all_of("img", "src"):
        answer = browser.get(source)
        assert answer.mimetype == "image/svg+xml"
        ET.fromstring(answer.text)
        found.append(answer.text)
    return found


def all_pages(browser: FlaskClient) -> set[str]:
    """Every page that a link leads to, each looked at with its pictures."""
    seen, ahead = set[str](), ["/"]
    while ahead:
        path = ahead.pop()
        if path not in seen:
            seen.add(path)
            ahead += page(browser, path).all_of("a", "href")
            pictures_of(browser, path)
    return seen
