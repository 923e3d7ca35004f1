"""Pages as people meet them: in a browser, with keys, on a phone, in the dark, on paper, without scripts."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.sync_api import Browser, Locator, Page

from discretion.accounting import certify
from discretion.audit import receipts
from discretion.ledger.ledger import Ledger
from discretion.ledger.lifetime import read_lifetime
from discretion.methods import explain, make_plan
from discretion.plan.population import Population
from discretion.report import budgets_page, page, plan_page, write
from discretion.report.budget_tables import Source
from discretion.report.receipt_page import render
from discretion.runs.read import read_run
from support.browser import Visit
from support.run_folders import BARE, OWN, ROUNDS, STRICT, make_run, people, planned, run_of

PHONE = 390
READERS = ("operator", "officer", "researcher")
WITH_TABS = ("report", "comparison", "many")
PAGES = (*WITH_TABS, "receipt", "plan", "budgets")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report on one run, several compared, a run of 10,000 clients, a receipt, a plan, and all budgets."""
    home = tmp_path_factory.mktemp("pages")
    found = {name: home / f"{name}.html" for name in PAGES}
    one = run_of(home / "one", "spend_as_you_go")
    run = read_run(one)
    with Ledger(one / "ledger.sqlite", run.population) as ledger:
        ledger.admit(run.about.id, run.plan)
        for number in range(1, run.plan.rounds + 1):
            ledger.reserve(run.about.id, number)
            ledger.commit(run.about.id, number)
    write([one], found["report"])
    several = [
        make_run(home / f"{method}-{seed}", method, seed) for method in (OWN, STRICT) for seed in (0, 1)
    ]
    several.append(make_run(home / "bare", BARE, accuracy=(0.5, 0.7, 0.9)))
    several.append(make_run(home / "other", OWN, settings={"model.name": "linear"}))
    write(several, found["comparison"])
    budgets = np.random.default_rng(0).uniform(1, 4, 10_000)
    write([make_run(home / "crowd", population=Population.of(budgets))], found["many"])
    signed = receipts.issue(one, "c4", Ed25519PrivateKey.generate())
    found["receipt"].write_text(render(signed), encoding="utf-8")
    sizes = np.random.default_rng(1).integers(20, 200, 12)
    crowd = Population.of(people().epsilon, 1e-4, sizes)
    plan = make_plan("privacy_aware", crowd, {"rounds": 6, "rate": 0.25, "clip": 0.5})
    plan_page.write(plan, crowd, certify(plan, crowd), explain(plan, crowd), found["plan"])
    page.write(budgets_page.render([lifetimes(home / "ledger.sqlite")]), found["budgets"], "page")
    return found


def lifetimes(path: Path) -> Source:
    """Sixty clients of three budgets in two runs, the second one open."""
    population = people(60)
    with Ledger(path, population) as ledger:
        for run, rounds in (("first", ROUNDS), ("second", 2)):
            ledger.admit(run, planned(OWN, population, noise=14.0))
            for number in range(1, rounds + 1):
                ledger.reserve(run, number)
                ledger.commit(run, number)
            if run == "first":
                ledger.finish(run)
        ledger.change_budget("c9", -1.0)  # all it had
    return Source("ledger.sqlite", read_lifetime(path))


def open_tabs(page: Page) -> Iterator[Locator | None]:
    """Each tab in turn; a page without tabs is as it is."""
    tabs = page.get_by_role("tab").all()
    if not tabs:
        yield None
    for tab in tabs:
        tab.click()
        yield tab


EMPTY = """() => [...document.querySelectorAll(".chart")].filter((chart) => {
  if (!chart.checkVisibility()) return false;
  const parts = [...chart.querySelectorAll("g path, g rect")];
  const drawn = parts.some((part) => (part.getAttribute("d") || part.getAttribute("height")).length > 2);
  const box = chart.querySelector("svg").getBoundingClientRect();
  const labelled = chart.querySelector(".x") && chart.querySelector(".y");
  return !drawn || box.width < 100 || box.height < 80 || !labelled;
}).map((chart) => chart.id)"""


@pytest.mark.parametrize("name", PAGES)
def test_every_chart_has_data(name: str, visit: Visit, pages: dict[str, Path]) -> None:
    page, seen = visit(pages[name]), set()
    for _ in open_tabs(page):
        assert page.evaluate(EMPTY) == []
        seen |= {c.get_attribute("id") for c in page.locator(".chart").all() if c.is_visible()}
    assert seen == {chart.get_attribute("id") for chart in page.locator(".chart").all()} and seen
    assert all(c.get_attribute("aria-label") for c in page.locator(".chart").all())


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_the_screen(
    name: str, dark: bool, visit: Visit, pages: dict[str, Path]
) -> None:
    page = visit(pages[name], width=PHONE, dark=dark)
    for _ in open_tabs(page):
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
        assert page.evaluate("innerWidth") == PHONE  # else it was zoomed out
        for tab in page.get_by_role("tab").all():  # all of them at once
            box = tab.bounding_box()
            assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE


LIGHTNESS = """(selector) => {
  const [r, g, b] = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/[\\d.]+/g);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""


COLOUR = """() => {
  const drawn = document.querySelector(".line, .mark, .plot rect");
  return getComputedStyle(drawn)[drawn.tagName === "rect" ? "fill" : "stroke"];
}"""


@pytest.mark.parametrize("name", PAGES)
def test_dark_and_light(name: str, visit: Visit, pages: dict[str, Path]) -> None:
    light, dark = (visit(pages[name], dark=dark) for dark in (False, True))
    assert light.evaluate(LIGHTNESS, "body") > 0.9 and dark.evaluate(LIGHTNESS, "body") < 0.1
    button = dark.get_by_role("button", name="Light or dark")
    button.click()
    assert dark.evaluate(LIGHTNESS, "body") > 0.9
    dark.reload()
    assert dark.evaluate(LIGHTNESS, "body") > 0.9  # it is remembered
    colours = [p.evaluate(COLOUR) for p in (light, dark)]
    assert colours[0] not in ("none", "")
    dark.get_by_role("button", name="Light or dark").click()
    lines = dark.evaluate(COLOUR)
    assert lines != colours[0]  # charts follow the theme


@pytest.mark.parametrize("name", WITH_TABS)
def test_tabs_by_pointer_key_and_address(name: str, visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages[name])

    def shown() -> list[str]:
        return [panel for panel in READERS if page.locator(f"#{panel}").is_visible()]

    assert shown() == ["operator"]
    for reader in READERS:
        page.locator(f"#tab-{reader}").click()
        assert shown() == [reader]
        assert page.locator(f"#tab-{reader}").get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowRight")
    assert shown() == ["operator"] and page.evaluate("document.activeElement.id") == "tab-operator"
    page.keyboard.press("ArrowLeft")
    assert shown() == ["researcher"]
    page.keyboard.press("Home")
    assert shown() == ["operator"]
    page.evaluate("location.hash = 'limits'")
    page.wait_for_function("!document.getElementById('officer').hidden")
    assert shown() == ["officer"]


def test_budget_classes_can_be_filtered_out(visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages["comparison"])
    box = page.locator("#operator").get_by_label("ε 2", exact=True)
    panels = page.locator("#spending figure")
    assert panels.count() == 3 and all(panel.is_visible() for panel in panels.all())
    box.uncheck()
    assert [panel.is_visible() for panel in panels.all()] == [True, False, True]
    page.locator("#tab-officer").click()
    assert not page.locator("#officer").get_by_label("ε 2", exact=True).is_checked()
    rows = page.locator("#promise tbody tr:not(.group)")
    assert [row.is_visible() for row in rows.all()].count(False) == 2  # of two methods
    page.locator("#officer").get_by_label("ε 2", exact=True).check()
    assert all(row.is_visible() for row in rows.all())


def test_series_can_be_hidden(visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages["comparison"])
    section = page.locator("#accuracy")
    lines = section.locator("g[data-group]")
    assert [line.is_visible() for line in lines.all()] == [True] * 3
    button = section.get_by_role("button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [line.is_visible() for line in lines.all()] == [False, True, True]
    button.click()
    assert all(line.is_visible() for line in lines.all())


@pytest.mark.parametrize("name", PAGES)
def test_values_are_shown_under_a_pointer_and_by_keys(
    name: str, visit: Visit, pages: dict[str, Path]
) -> None:
    page = visit(pages[name])
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    tip = page.locator(".tip")
    assert not tip.is_visible()
    chart.locator("svg").hover()
    assert tip.is_visible() and any(letter.isdigit() for letter in tip.inner_text())
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    chart.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#spoken").inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible() and page.locator("#spoken").inner_text() != first != ""
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_hidden_series_are_not_read(visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages["comparison"])
    section = page.locator("#accuracy")
    label = section.get_by_role("button").first.inner_text()
    section.locator("svg.swatch").first.click()
    section.locator(".plot svg").hover()
    assert label not in page.locator(".tip").inner_text()


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_everything_is_there(
    name: str, visit: Visit, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = visit(pages[name], dark=True)
    printed = page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") >= 1
    page.emulate_media(media="print")
    for panel in page.get_by_role("tabpanel", include_hidden=True).all():
        assert panel.is_visible()
    assert all(chart.is_visible() for chart in page.locator(".chart").all())
    for selector in (".top", ".tools", ".filter"):
        assert not any(part.is_visible() for part in page.locator(selector).all())
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


@pytest.mark.parametrize("name", PAGES)
def test_the_numbers_of_a_chart_can_be_taken_away(name: str, visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages[name])
    link = page.get_by_role("link", name="Data (CSV)").first
    with page.expect_download() as caught:
        link.click()
    assert caught.value.suggested_filename.startswith("figure-")
    text = Path(caught.value.path()).read_text(encoding="utf-8")
    assert text == unquote(str(link.get_attribute("href")).partition(",")[2])
    assert text.startswith("series,") and len(text.splitlines()) > 2


OUTLINE = "[...document.querySelectorAll('h1,h2,h3,h4')].map((heading) => Number(heading.tagName[1]))"
NAMELESS = """() => [...document.querySelectorAll("a, button, input, table, [role=region]")].filter(
  (part) => !(part.getAttribute("aria-label") || part.labels?.length || part.caption?.textContent
    || part.textContent.trim())).map((part) => part.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("name", PAGES)
def test_for_whoever_listens(name: str, visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages[name])
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate(OUTLINE)
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.evaluate(NAMELESS) == []
    names = page.evaluate("[...document.querySelectorAll('[id]')].map((part) => part.id)")
    assert len(names) == len(set(names))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the contents"


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_everything_is_there(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages[name].as_uri())
    panels = page.get_by_role("tabpanel").all()
    assert len(panels) == (3 if name in WITH_TABS else 0) and all(panel.is_visible() for panel in panels)
    assert all(chart.is_visible() for chart in page.locator(".chart svg").all())
    context.close()


def test_ten_thousand_clients_make_a_light_page(visit: Visit, pages: dict[str, Path]) -> None:
    assert pages["many"].stat().st_size < 500_000
    page = visit(pages["many"])
    assert page.evaluate("document.querySelectorAll('*').length") < 6000


def test_accounts_can_be_found_sorted_and_filtered(visit: Visit, pages: dict[str, Path]) -> None:
    page = visit(pages["budgets"])
    rows, count = page.locator("#rows tr"), page.locator("#count")
    names = page.locator("#rows th")
    assert rows.count() == 50 and names.first.inner_text() == "c9"  # of it all is withdrawn
    before = page.locator("#rows").inner_text()
    page.get_by_label("First").select_option("name")
    assert [names.nth(k).inner_text() for k in range(3)] == ["c0", "c1", "c2"]
    page.get_by_label("First").select_option("share")
    assert page.locator("#rows").inner_text() == before  # as without the script
    page.get_by_role("button", name="Show more").click()
    assert rows.count() == 60 and not page.get_by_role("button", name="Show more").is_visible()
    page.get_by_label("Find").fill("C5")
    assert rows.count() == 11 and count.inner_text() == "11 of 11 shown, of 60 in all."
    page.get_by_label("no room").check()
    assert rows.count() == 0 and count.inner_text() == "0 of 0 shown, of 60 in all."
    page.get_by_label("Find").fill("")
    assert [name.inner_text() for name in names.all()] == ["c9"]
    rows.first.locator("summary").click()
    assert "first: " in rows.first.inner_text() and "open" in rows.first.inner_text()


def test_the_budgets_for_others_on_a_phone(visit: Visit, tmp_path: Path) -> None:
    life = lifetimes(tmp_path / "ledger.sqlite").lifetime
    page.write(budgets_page.render_public(life), tmp_path / "public.html", "page")
    for width in (PHONE, 1440):
        shown = visit(tmp_path / "public.html", width=width)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.locator("table").is_visible() and shown.evaluate(NAMELESS) == []
