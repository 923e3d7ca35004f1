"""A real browser for the pages: Debian's Chromium without a window, watched for errors and for requests."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from support.browser import Visit

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")  # not longer: while it is open, nothing else can run an event loop
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "no Chromium: `make test` installs it, by scripts/get-chromium.sh"
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(path_or_address, width=390, dark=True)` is the page; no fault may be left when the test ends."""
    visits = Visit(browser)
    yield visits
    for context in visits.contexts:
        context.close()
    assert not visits.faults
