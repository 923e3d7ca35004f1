"""The live page in a browser: it keeps up with a run that is killed and resumed, and with its server."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from discretion.runs.config import read
from discretion.runs.folder import RunFolder
from discretion.runs.history import Journal
from discretion.runs.prepare import prepare
from discretion.watch.server import Watch
from support.browser import Visit
from support.run_folders import seal
from support.small_run import ROUNDS
from support.stepping import Stepping

PATIENCE = 60_000  # milliseconds; what is waited for comes by itself


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[Watch]:
    with Watch(folder, port, every=0.05) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def folder(small_config: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def make(small_config: Path, folder: RunFolder) -> None:
    config = read(small_config)
    prepare(config, folder)


def status(page: Page, expected: str) -> None:
    expect(page.locator("#live")).to_have_attribute("data-status", expected, timeout=PATIENCE)


def lead(page: Page, words: str) -> None:
    expect(page.locator("#lead")).to_contain_text(words, timeout=PATIENCE)


def drawn(page: Page, chart: str) -> list[str]:
    """The lines of a chart, as they are drawn."""
    result: list[str] = page.locator(f"#{chart} path.line").evaluate_all(
        "found => found.map(path => path.getAttribute('d'))"
    )
    return result


def test_the_page_keeps_up_with_a_run_that_is_killed_and_resumed(
    visit: Visit, small_config: Path, folder: RunFolder
) -> None:
    with served(folder.path) as server:
        page = visit(server.address)
        status(page, "waiting")
        expect(page.locator("h1")).to_contain_text("Waiting for")
        expect(page.locator("#accuracy")).to_be_hidden()
        make(small_config, folder)
        status(page, "ready")
        expect(page.locator("#accuracy")).to_be_visible()
        with Stepping(folder.path) as run:
            run.until(2)
            lead(page, f"Round 2 of {ROUNDS}")
            (early,) = drawn(page, "chart-accuracy")
            spent = page.locator("table.budget tbody tr").first.inner_text()
            page.locator("details summary").click()
            expect(page.locator("#evaluations tbody tr")).to_have_count(2)
            run.until(3)
            lead(page, f"Round 3 of {ROUNDS}")
            expect(page.locator("#evaluations tbody tr")).to_have_count(3)  # and it is still unfolded
            run.kill()
            status(page, "stopped")
        lead(page, "--resume")
        assert drawn(page, "chart-accuracy") != [early]
        with Stepping(folder.path) as run:
            run.until(5)
            status(page, "running")
            lead(page, f"Round 5 of {ROUNDS}")
            bar = page.locator("[role=progressbar]")
            expect(bar).to_have_attribute("aria-valuenow", "5")
            assert page.locator("table.budget tbody tr").first.inner_text() != spent
            run.to_the_end()
        status(page, "finished")
        lead(page, f"All {ROUNDS} rounds are done")
        assert page.title().startswith("100 %")
        assert len(drawn(page, "chart-spending")) == 3  # nothing is planned any more


def test_the_page_finds_its_server_again(
    visit: Visit, small_config: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the secret in the address is the same; each server has another one otherwise."""
    monkeypatch.setattr("discretion.watch.server.secrets.token_urlsafe", lambda size: "known")
    make(small_config, folder)
    with served(folder.path) as server:
        port = server.server_port
        page = visit(server.address, tolerate="ERR_CONNECTION_REFUSED")
        status(page, "ready")
        expect(page.locator("#lost")).to_be_hidden()
    expect(page.locator("#lost")).to_be_visible(timeout=PATIENCE)
    folder.history.write_text('{"round": 1, "accuracy": 0.5, "loss": 1.0}\n')
    with served(folder.path, port):
        expect(page.locator("#lost")).to_be_hidden(timeout=PATIENCE)
        lead(page, f"Round 1 of {ROUNDS}")


@pytest.mark.parametrize(("width", "dark"), [(1200, True), (390, False), (320, True)])
def test_it_fits_and_can_be_read_everywhere(
    visit: Visit, small_config: Path, folder: RunFolder, width: int, dark: bool
) -> None:
    make(small_config, folder)
    lines = [f'{{"round": {n}, "accuracy": {0.1 * n}, "loss": 1.0}}\n' for n in range(1, 7)]
    folder.history.write_text("".join(lines))
    with served(folder.path) as server:
        page = visit(server.address, width=width, dark=dark)
        status(page, "stopped")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        shade = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 200) == dark
        page.locator("#theme").click()
        other = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert other != shade
        expect(page.locator("[role=status]")).to_have_text(re.compile(r"stopped: 70 % of 8 rounds"))
        assert page.locator(".chart[role=img][aria-label]").count() == 2


def test_values_can_be_read_by_keyboard_while_it_changes(
    visit: Visit, small_config: Path, folder: RunFolder
) -> None:
    make(small_config, folder)
    folder.history.write_text('{"round": 1, "accuracy": 0.25, "loss": 1.0}\n')
    with served(folder.path) as server:
        page = visit(server.address)
        lead(page, f"Round 1 of {ROUNDS}")
        page.locator("#chart-accuracy").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_contain_text("25.00")
        folder.history.write_text(
            '{"round": 1, "accuracy": 0.25, "loss": 1.0}\n{"round": 2, "accuracy": 0.5, "loss": 1.0}\n'
        )
        lead(page, f"Round 2 of {ROUNDS}")
        expect(page.locator("#chart-accuracy")).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_contain_text("50.00")
        expect(page.locator("#spoken")).to_contain_text("50.00")


def test_text_from_a_folder_is_text(visit: Visit, small_config: Path, folder: RunFolder) -> None:
    """Names and reasons come from others: none of them becomes part of the page."""
    make(small_config, folder)
    evil = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    folder.about.write_text(folder.about.read_text().replace('"digits"', f'"{evil}"'))
    seal(folder.path)
    heard = {"round": 1, "asked": 2, "answered": 1, "refused": {"c1": evil}, "lost": 1}
    Journal(folder.answers, 0).add_stop(heard)
    with served(folder.path) as server:
        page = visit(server.address)
        expect(page.locator("h1")).to_contain_text(evil)
        expect(page.locator("#missing")).to_contain_text(evil)
        assert page.locator("img").count() == 0
