"""The officer's part of the report in a browser: on a wide screen, on a phone, in the dark and on paper."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from discretion.report import write
from support.browser import Visit
from support.run_folders import BARE, OWN, STRICT, make_run, trained

ABOUT = {
    "project": "Readmission after heart attacks, a second study in four hospitals",
    "purpose": "Tell within a day whom to call",
    "operator": "Data office of the university hospital",
    "contact": "data-protection-officer@a-rather-long-name-of-a-hospital.example",
}
SCREENS = [(1440, False), (1440, True), (390, False), (390, True)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("officer")
    page = home / "report.html"
    write([trained(home / "run", *(f"about.{name}={text}" for name, text in ABOUT.items()))], page)
    return page


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("officers")
    write([make_run(home / method, method) for method in (OWN, STRICT, BARE)], home / "report.html")
    return home / "report.html"


def officers(visit: Visit, report: Path, width: int, dark: bool) -> Page:
    page = visit(report, width=width, dark=dark)
    page.locator("#tab-officer").click()
    return page


# of each text its contrast with the nearest background that is painted
FAINT = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = parts(colour).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
  };
  return [...document.querySelectorAll("#decides *, #scale *")].filter((node) => {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) return false;
    if (!node.checkVisibility() || node.matches(".unseen")) return false;
    const [one, other] = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
    return (one + 0.05) / (other + 0.05) < 4.5;
  }).map((node) => node.outerHTML.slice(0, 80));
}"""


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_what_decides_comes_first_and_fits(visit: Visit, report: Path, width: int, dark: bool) -> None:
    page = officers(visit, report, width, dark)
    first = page.locator("#officer section").first
    assert first.get_attribute("id") == "decides"
    sentence = first.locator(".decides").inner_text()
    for words in (
        "every budget was kept, counted in this run alone",
        "from other clients",
        "if the server is trusted",
        "It was a simulation, and protects nobody",
        "answered",
    ):
        assert words in sentence
    assert sentence.count(". ") == 0 and sentence.endswith(".")  # one sentence
    for text in ABOUT.values():
        assert first.get_by_text(text, exact=True).is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = "(node) => node.scrollWidth > node.clientWidth + 1"
    assert not any(fact.evaluate(wider) for fact in first.locator("dd").all())
    assert page.evaluate(FAINT) == []


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_epsilons_are_in_order_on_one_scale(visit: Visit, report: Path, width: int, dark: bool) -> None:
    page = officers(visit, report, width, dark)
    rows = page.locator("#scale tbody tr")
    assert rows.count() == 8 and page.locator("#scale tr.own").count() == 2
    ends = []
    for row in rows.all():
        track, mark = row.locator(".place").bounding_box(), row.locator(".place > span").bounding_box()
        assert (
            track and mark and track["width"] > 80 and mark["width"] >= 4 and mark["height"] > track["height"]
        )
        assert track["x"] - 3 <= mark["x"] and mark["x"] + mark["width"] <= track["x"] + track["width"] + 3
        ends.append((mark["x"] + mark["width"] - track["x"]) / track["width"])
        assert row.locator("td").last.inner_text()  # a source
    assert ends == sorted(ends)
    colours = "getComputedStyle(document.querySelector('{} .place > span')).backgroundColor"
    own, other = (page.evaluate(colours.format(kind)) for kind in ("tr.own", "tr:not(.own)"))
    assert own != other


def test_every_method_has_its_own_sentence(visit: Visit, comparison: Path) -> None:
    page = officers(visit, comparison, 1440, False)
    sentences = [found.inner_text() for found in page.locator("#decides .decides").all()]
    assert len(sentences) == 3 and sum("No budget is kept" in text for text in sentences) == 1
    assert page.locator("#decides .badge").count() == 3
    assert page.locator("#decides").get_by_text("not stated", exact=True).count() == 4
    assert page.locator("#scale tr.own").count() == 4  # nothing is said of what protects nobody


@pytest.mark.parametrize("which", ["report", "comparison"])
def test_on_paper_who_answers_for_it_is_on_every_sheet(
    visit: Visit, which: str, request: pytest.FixtureRequest
) -> None:
    page = visit(request.getfixturevalue(which), width=800)
    page.emulate_media(media="print")
    assert page.locator("#decides").is_visible() and page.locator("#scale").is_visible()
    footer = page.locator("footer")
    style = footer.evaluate("(node) => [getComputedStyle(node).display, getComputedStyle(node).breakInside]")
    assert style == ["table-footer-group", "avoid"]  # which is what repeats it
    words = footer.inner_text()
    stated = ABOUT if which == "report" else dict.fromkeys(ABOUT, "not stated")
    assert all(f"{name.capitalize()}: {text}" in words for name, text in stated.items())
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    assert len(page.pdf(format="A4")) > 10_000


def test_without_scripts_all_of_it_is_there(visit: Visit, report: Path) -> None:
    context = visit.browser.new_context(java_script_enabled=False)
    visit.contexts.append(context)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#decides").is_visible() and page.locator("#scale").is_visible()
