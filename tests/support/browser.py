"""Headless Chromium, as Debian packages it, for the tests that look at a page."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_PROGRAMS = ("chromium", "chromedriver")


def missing() -> str | None:
    """What the browser tests lack, with its remedy; None if nothing."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"the program {program!r} is not installed; remedy: make browser (Debian: chromium, chromium-driver)"
    if importlib.util.find_spec("selenium") is None:
        return "the package 'selenium' is not installed; remedy: pip install 'deep5[dev]'"
    return None


def start() -> Any:
    """A browser with logs of its console and of every request."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    # Tests run as root in containers, where Chromium's sandbox and shared memory are not available.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(argument)
    options.add_argument("--disable-background-networking")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the tests of a file."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    driver = start()
    yield driver
    driver.quit()
