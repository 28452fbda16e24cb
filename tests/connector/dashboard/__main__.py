"""Takes the screenshots of docs/dashboard.md: `python -m tests.connector.dashboard`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pulsar_spark.testing import Place
from tests.architecture.sources import REPOSITORY
from tests.connector.dashboard import story
from tests.connector.dashboard.chromium import chromium, prefer
from tests.connector.dashboard.test_browser import pictures_are_drawn, served, wait

SHOTS = (
    ("dashboard-topic.png", "light", "/topic?name=orders"),
    ("dashboard-subscription.png", "dark", "/subscription?topic=orders&name=by-customer"),
)


def main() -> None:
    with Place() as place, tempfile.TemporaryDirectory() as folder:
        kept = story.busy(place.client, third="carol")
        with (
            chromium(Path(folder)) as chrome,
            served(place.root) as url,
        ):
            chrome.get(url)
            for name, scheme, path in SHOTS:
                prefer(chrome, scheme)
                chrome.set_window_size(1000, 700)
                chrome.get(url.partition("/?")[0] + path)
                wait(chrome, pictures_are_drawn)
                # The window's frame is in its size, though nobody sees one.
                whole = "return [document.body.scrollHeight, outerHeight - innerHeight]"
                chrome.set_window_size(1000, sum(chrome.execute_script(whole)))
                chrome.execute_script("document.querySelector('.root').textContent = '/data/queue'")
                assert chrome.save_screenshot(str(REPOSITORY / "docs" / name))
        del kept


if __name__ == "__main__":
    main()
