"""The machine's Chromium, driven by Selenium; a test that needs one is skipped without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--window-size=1100,900",
)  # fmt: skip


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """A browser of its own, with an empty profile; skips where the machine has none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no chromium and chromedriver on PATH (Debian: chromium, chromium-driver)")
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def prefer(chrome: Chrome, scheme: str) -> None:
    """Have pages drawn for people who prefer `light` or `dark`."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def said(chrome: Chrome) -> list[str]:
    """What the browser complained of since the last call."""
    return [str(each["message"]) for each in chrome.get_log("browser")]  # type: ignore[no-untyped-call]
