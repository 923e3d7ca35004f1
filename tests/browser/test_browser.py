"""The browser that pages are tested in notices what a page must not do."""

from pathlib import Path

import pytest

from support.browser import Visit

QUIET = (
    "<!doctype html><meta name=viewport content='width=device-width'><title>Quiet</title><p>Nothing happens."
)
LOUD = {
    "console": "<script>console.error('broken')</script>",
    "thrown": "<script>nowhere()</script>",
    "request": "<img src='other.png' alt=''>",
}


def test_a_quiet_page_passes(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(QUIET, encoding="utf-8")
    for width, dark in ((1200, False), (390, True)):
        page = visit(path, width=width, dark=dark)
        assert page.evaluate("innerWidth") == width
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == dark
        assert page.title() == "Quiet"


@pytest.mark.parametrize("kind", LOUD)
def test_a_loud_page_is_found_out(kind: str, visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(QUIET + LOUD[kind], encoding="utf-8")
    visit(path)
    found = list(visit.faults)
    visit.faults.clear()
    assert any(fault.startswith(kind) for fault in found)
