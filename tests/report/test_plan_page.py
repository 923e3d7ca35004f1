"""Figures of plans: they hold the plan's own numbers, load nothing, and are chosen by what is in it."""

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.accounting import Certificate, certify
from discretion.errors import InputError
from discretion.methods import METHODS, explain, make_plan
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.report.charts import over_time, some, stretches, varies
from discretion.report.plan_page import write

SETTINGS = {"rounds": 6, "rate": 0.25, "clip": 0.5}
Made = tuple[Plan, Certificate, str]


@pytest.fixture(scope="module")
def people() -> Population:
    random = np.random.default_rng(0)
    return Population.of(np.repeat([1.0, 3.0, 12.0], 8), 1e-4, random.integers(20, 200, 24))


def drawn(name: str, population: Population, tmp_path: Path, accounting: str = "tight") -> Made:
    taken: dict[str, Any] = {key: value for key, value in SETTINGS.items() if key in METHODS[name].parameters}
    if "accounting" in METHODS[name].parameters:
        taken["accounting"] = accounting
    plan = make_plan(name, population, taken)
    certificate = certify(plan, population)
    write(plan, population, certificate, explain(plan, population), tmp_path / "plan.html")
    return plan, certificate, (tmp_path / "plan.html").read_text(encoding="utf-8")


def figures(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" data-figure="([^"]+)">(.*?)</script>', page, re.S)
    return {name: json.loads(text) for name, text in found}


class Targets(HTMLParser):
    """All that a page refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "href", "srcset", "action", "data", "poster")
        self.found += [value or "" for name, value in attrs if name in names]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_drawn_and_loads_nothing(name: str, people: Population, tmp_path: Path) -> None:
    _, _, page = drawn(name, people, tmp_path)
    assert METHODS[name].title in page and "default-src 'none'" in unescape(page)
    assert all(target.startswith(("#", "data:text/csv")) for target in Targets(page).found)
    assert "http:" not in page and "https:" not in page and "url(" not in page
    shown = figures(page)
    assert all(series["y"] for drawing in shown.values() for series in drawing["series"])
    assert "nan" not in "".join(re.findall(r' d="([^"]*)"', page))
    assert all(f"{colour}:" in page for colour in re.findall(r"var\((--[a-z0-9-]+)\)", page))


def test_chances_of_a_draw_stand_at_budget_and_size(people: Population, tmp_path: Path) -> None:
    plan, _, page = drawn("privacy_aware", people, tmp_path)
    (points,) = figures(page)["figure-selection"]["series"]
    at = dict(zip(points["labels"], zip(points["x"], points["y"], strict=True), strict=True))
    assert at == {
        f"client {client}": (epsilon, size)
        for client, epsilon, size in zip(
            people.client, people.epsilon.tolist(), people.size.tolist(), strict=True
        )
    }
    assert sum(float(text.split(" %")[0]) for text in points["text"]) == pytest.approx(100, abs=1)
    turns = np.sum([phase.turns for phase in plan.phases if phase.turns is not None], axis=0)
    found = figures(page)["figure-budget-0"]["series"][0]
    each = {f"client {name}": float(count) for name, count in zip(people.client, turns, strict=True)}
    assert dict(zip(found["labels"], found["y"], strict=True)) == each


def test_turns_that_were_drawn_are_shown_where_no_chance_is_known(people: Population, tmp_path: Path) -> None:
    plan, _, page = drawn("random", people, tmp_path)
    (points,) = figures(page)["figure-selection"]["series"]
    turns = np.sum([phase.turns for phase in plan.phases if phase.turns is not None], axis=0)
    shares = {
        f"client {n}": 100 * share for n, share in zip(people.client, turns / np.sum(turns), strict=True)
    }
    shown = [float(text.split(" %")[0]) for text in points["text"]]
    assert dict(zip(points["labels"], shown, strict=True)) == pytest.approx(shares, rel=1e-2)
    assert "Share of all turns" in page


def test_spending_is_that_of_the_certificate(people: Population, tmp_path: Path) -> None:
    _, certificate, page = drawn("spend_as_you_go", people, tmp_path)
    lines = figures(page)["figure-spending"]["series"]
    assert [line["name"] for line in lines] == list(certificate.spending.classes)
    for line, epsilon in zip(lines, certificate.spending.epsilon, strict=True):
        np.testing.assert_array_equal(line["y"], epsilon)
    high = figures(page)["figure-spending"]["y"][1]
    levels = re.findall(r'<path class="level"[^>]* d="M0 ([\d.]+)H', page)
    assert [high * (1 - float(down) / 1000) for down in levels] == pytest.approx([1.0, 3.0, 12.0], rel=0.01)


def test_what_changes_over_rounds_is_drawn_and_the_rest_is_not(people: Population, tmp_path: Path) -> None:
    plan, _, page = drawn("spend_as_you_go", people, tmp_path)
    rate = figures(page)["figure-round-0"]["series"][0]
    assert rate["y"][::2] == pytest.approx([phase.rate[0] for phase in plan.phases])
    assert rate["x"] == [t for t in range(1, 7) for _ in range(2)]
    _, _, still = drawn("dp_fedavg", people, tmp_path)
    assert not [name for name in figures(still) if name.startswith("figure-round")]
    assert "Clip: 0.5 for every client." in still


def test_rates_stand_against_budgets_by_group(people: Population, tmp_path: Path) -> None:
    plan, _, page = drawn("gdpfed_opc", people, tmp_path)
    groups = figures(page)["figure-budget-0"]["series"]
    assert [group["name"] for group in groups] == [f"group {k}, summed apart" for k in (1, 2, 3)]
    assert [group["y"][0] for group in groups] == pytest.approx(sorted(set(plan.phases[0].rate)))
    assert "figure-selection" not in page


def test_the_game_is_drawn_with_its_numbers(people: Population, tmp_path: Path) -> None:
    _, _, page = drawn("fedpcs", people, tmp_path)
    levels = figures(page)["figure-details-0"]["series"]
    mean, above, _, below = (np.array(line["y"]) for line in levels)
    assert len(mean) == 7 and (below <= above).all() and (mean > 0).all()
    assert "price of anarchy" in page and "an equilibrium was found" in page


def test_paper_mode_and_raw_reading_are_said(people: Population, tmp_path: Path) -> None:
    _, certificate, page = drawn("gdpfed", people, tmp_path, "paper")
    assert len(certificate.overspent) and "Paper mode: not the stated guarantee." in page
    _, _, raw = drawn("power_of_choice", people, tmp_path)
    assert "read raw" in raw and "figure-spending" not in raw and "no privacy" in raw


def test_public_clients_and_hostile_names_are_drawn(people: Population, tmp_path: Path) -> None:
    odd = replace(
        people,
        client=("<script><b>", *people.client[1:]),
        epsilon=np.where(np.arange(24) < 4, np.inf, people.epsilon),
    )
    for name in ("idp_fedavg", "privacy_aware", "dp_fedavg"):
        _, _, page = drawn(name, odd, tmp_path)
        assert "<b>c" not in page and "<script><b>" not in page and figures(page)


def test_many_clients_are_picked_evenly() -> None:
    epsilon = np.append(np.linspace(1, 9, 999), np.inf)
    picked = some(epsilon, np.ones(1000, dtype=np.int64), 100)
    assert len(picked) == 100 and 999 not in picked and {0, 998} <= set(picked.tolist())


def test_curves_know_what_varies(people: Population) -> None:
    plan = make_plan("spend_as_you_go", people, dict(SETTINGS))
    time = over_time(plan, people.classes()[1])
    rate = time["Chance of taking part"]
    assert stretches([phase.rounds for phase in plan.phases], rate[:, 0])[0] == [
        t for t in range(1, 7) for _ in range(2)
    ]
    assert varies(rate) and varies(np.array([phase.expected.sum() for phase in plan.phases]))
    assert not varies(np.full((3, 2), np.nan)) and not varies(np.array([1.0, 1.0 + 1e-9]))


def test_a_place_that_cannot_be_written_is_said(people: Population, tmp_path: Path) -> None:
    (tmp_path / "plan.html").mkdir()
    with pytest.raises(InputError, match="cannot write the figures"):
        drawn("dp_fedavg", people, tmp_path)
