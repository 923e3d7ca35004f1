"""Lifetime budgets in tables and on pages: every account for the operator, no small number for others."""

import html
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discretion.errors import InputError
from discretion.ledger.guard_ledger import GuardLedger
from discretion.ledger.ledger import Ledger
from discretion.ledger.lifetime import Lifetime, Room, read_lifetime
from discretion.plan.population import Population
from discretion.report import budget_tables as tables
from discretion.report import budgets_page, public_budgets
from discretion.report.budget_tables import Source
from support.run_folders import OWN, planned

HOSTILE = "<script><b>x&y"  # as far as names may have it


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Twelve clients with budgets 1, 2 and 4 in two runs, the second one open; one withdrew everything."""
    population = replace(
        Population.of(np.resize([1.0, 2.0, 4.0], 12)),
        client=(HOSTILE, *(f"site {k}" for k in range(1, 12))),
    )
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, population) as ledger:
        plan = planned(OWN, population, 4, 14.0)
        for run, rounds in (("first", 4), ("second", 1)):
            ledger.admit(run, plan)
            for number in range(1, rounds + 1):
                ledger.reserve(run, number)
                ledger.commit(run, number)
            if run == "first":
                ledger.finish(run)
        ledger.change_budget("site 4", -2.0)
    return Source("all sites", read_lifetime(path))


def test_tables_say_what_the_ledger_says(source: Source) -> None:
    found = tables.accounts(source)
    life = source.lifetime
    assert [each.spent for each in found] == life.spent.tolist()
    rows = tables.classes(source)
    assert [(row.name, row.clients) for row in rows] == [("ε 1", 4), ("ε 2", 4), ("ε 4", 4)]
    two = rows[1]  # the class that it came with, though its budget is 0 now
    assert two.share == math.inf and two.left == 0 and two.near == 1 and two.no_room == 1
    assert two.spent == max(each.spent for each in found if each.budget_class == "ε 2")
    assert [row.run for row in tables.runs(source)] == ["second", "first"]
    assert tables.runs(source)[0].open and tables.runs(source)[0].planned > tables.runs(source)[0].spent
    (last, first) = tables.by_run(source, "site 1")
    assert first[2] is None and last[2] is not None and last[1] < first[1] == pytest.approx(last[2])
    assert [each.client for each in tables.alerts(found, 0.9)] == ["site 4"]
    assert tables.urgent(found)[0].client == "site 4"
    assert "second, would not be admitted again: 1 client cannot join it." in tables.again(source)


def test_a_share_is_never_shown_smaller_than_it_is() -> None:
    assert [tables.share(value) for value in (0.0, 0.5, 0.89901, 1.0, math.inf)] == [
        *("0 %", "50 %", "90 %"),
        *("100 %", "∞"),
    ]


def test_the_operators_page(source: Source) -> None:
    text = budgets_page.render([source])
    assert HOSTILE not in text and "site 11" in text
    assert "1 spent more than is allowed now" in text and "Of 12 clients, 1 has spent 90 %" in text
    embedded = re.search(r'id="accounts">(.*?)</script>', text, re.S)
    assert embedded
    record = json.loads(html.unescape(embedded[1]))
    assert len(record["rows"]) == 12 and record["rows"][0][1] == "site 4"
    assert len(record["kinds"]) == 3  # equal lists of runs are kept once
    assert not re.search(r"(src|href)=\"(?!#|data:)", text) and "connect-src" not in text


def test_ledgers_stand_side_by_side(source: Source) -> None:
    other = Source("the copy", source.lifetime)
    text = budgets_page.render([source, other])
    assert "Of 24 accounts, 2 have" in text and "accounts of different ledgers are not added up" in text
    many = budgets_page.render([Source(f"number {k}", source.lifetime) for k in range(6)])
    assert "6 ledgers</a>" in many


def test_a_guards_ledger_is_shown_by_operator(tmp_path: Path) -> None:
    population = replace(Population.of([8.0]), client=("here",))
    with GuardLedger(tmp_path / "ledger.sqlite", population, "adaptive", "new") as ledger:
        ledger.admit("r", planned(OWN, population, 4, 14.0))
        ledger.join("r", "7f" * 32, b"order")
        ledger.reserve("r", 1)
    life = read_lifetime(tmp_path / "ledger.sqlite")
    known, unknown = Source("here", life, {"7f" * 32: "consortium"}), Source("here", life)
    assert tables.runs(known)[0].operator == "consortium"
    assert "consortium" in budgets_page.render([known])
    assert "7f7f7f7f7f7f…" in budgets_page.render([unknown])
    assert tables.to_record([known])["ledgers"][0]["operators"].keys() == {"consortium"}


def test_a_ledger_without_runs_is_shown_as_it_is(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite", Population.of([2.0])).close()
    source = Source("new", read_lifetime(tmp_path / "ledger.sqlite"))
    assert tables.again(source) == "" and "nobody at 90 %" in budgets_page.render([source])


def test_an_unprotected_run_is_not_called_one_that_fits(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite", Population.of([2.0, 2.0])) as ledger:
        plan = planned(OWN, ledger.population, 4, 0.0)
        ledger.admit("r", plan, accept_no_privacy=True)
        ledger.reserve("r", 1)
    source = Source("bare", read_lifetime(tmp_path / "ledger.sqlite"))
    assert "not be admitted again, unless its cost is accepted" in tables.again(source)
    assert "∞" in budgets_page.render([source])


def lifetime(epsilon: list[float], share: list[float]) -> Lifetime:
    budget = np.array(epsilon)
    spent = np.where(np.isinf(budget), 0.0, np.array(share) * np.where(np.isinf(budget), 0.0, budget))
    none = np.zeros(len(budget))
    rooms: tuple[Room, ...] = tuple("whole" for _ in epsilon)
    turns = np.zeros(len(budget), dtype=np.int64)
    return Lifetime(
        "planned", None, Population.of(budget), budget, spent, none, (), {}, {}, rooms, turns, turns, None
    )


BUDGET = st.one_of(st.floats(0.05, 40.0), st.sampled_from([0.5, 1.0, 2.0, 8.0, math.inf]))


@given(
    st.lists(st.tuples(BUDGET, st.floats(0, 1.2)), min_size=1, max_size=60),
    st.integers(3, 12),
)
def test_no_small_number_and_nothing_to_subtract(clients: list[tuple[float, float]], least: int) -> None:
    epsilon, share = [budget for budget, _ in clients], [part for _, part in clients]
    life = lifetime(epsilon, share)
    found = public_budgets.cells(life, least)
    finite = [
        (budget, float(part)) for budget, part in zip(epsilon, life.share, strict=True) if budget < math.inf
    ]
    assert bool(found) == (len(finite) >= least)
    assert all(cell.clients >= least for cell in found)
    # a partition: each client is in exactly one cell, so no sum or difference is of anything else
    for budget, part in finite if found else []:
        inside = [
            cell
            for cell in found
            if cell.budget_from <= budget < cell.budget_below and cell.share_from <= part < cell.share_below
        ]
        assert len(inside) == 1
    assert sum(cell.clients for cell in found) == (len(finite) if found else 0)


def test_ranges_are_cut_at_fixed_points_and_cover_everything() -> None:
    even = lifetime([1.0] * 6 + [4.0] * 7, [0.3] * 6 + [0.95] * 7)
    found = public_budgets.cells(even)
    assert [(public_budgets.budget_name(c), public_budgets.share_name(c), c.clients) for c in found] == [
        ("any budget", "below 50\u00a0%", 6),
        ("any budget", "50\u00a0% or more", 7),
    ]
    wide = lifetime([0.5] * 6 + [0.3] * 5 + [1.0] * 6 + [30.0] * 5, [0.1] * 22)
    assert [public_budgets.budget_name(cell) for cell in public_budgets.cells(wide)] == [
        "ε below 1",
        "ε 1 to below 4",
        "ε 4 or more",
    ]
    (cell,) = public_budgets.cells(lifetime([1.0] * 6 + [4.0] * 3, [0.1] * 6 + [0.95] * 3))
    assert asdict(cell) == {
        "budget_from": 0.0,
        "budget_below": math.inf,
        "share_from": 0.0,
        "share_below": math.inf,
        "clients": 9,
    }
    assert public_budgets.share_name(cell) == "any share"


@given(st.lists(st.tuples(BUDGET, st.floats(0, 1.2)), min_size=1, max_size=60), st.integers(3, 12))
def test_every_end_of_a_range_is_a_fixed_one(clients: list[tuple[float, float]], least: int) -> None:
    found = public_budgets.cells(lifetime(*map(list, zip(*clients, strict=True))), least)
    budgets, shares = public_budgets.BUDGETS, public_budgets.SHARES
    covered = np.zeros((len(budgets) - 1, len(shares) - 1), dtype=int)
    for cell in found:
        rows = slice(budgets.index(cell.budget_from), budgets.index(cell.budget_below))
        columns = slice(shares.index(cell.share_from), shares.index(cell.share_below))
        covered[rows, columns] += 1
    assert (covered == bool(found)).all()  # outer ends never move, and nothing is left out


@given(st.integers(3, 12), st.data())
def test_a_few_clients_move_no_end_wherever_they_are(least: int, data: st.DataObject) -> None:
    """Fewer than `least` clients could be anywhere in the range that they are shown in."""
    many = [(1.0, 0.1)] * data.draw(st.integers(least, 30))
    anywhere = st.lists(
        st.tuples(st.floats(0.05, 40.0), st.floats(0, 1.2)), min_size=least - 1, max_size=least - 1
    )
    one, other = ([*many, *data.draw(anywhere)] for _ in range(2))
    found = [
        public_budgets.cells(lifetime(*map(list, zip(*each, strict=True))), least) for each in (one, other)
    ]
    assert found[0] == found[1] and len(found[0]) == 1


def test_the_page_for_others_names_nobody(source: Source) -> None:
    text = budgets_page.render_public(source.lifetime)
    record = public_budgets.to_record(source.lifetime, 5)
    for secret in (*source.lifetime.population.client, "all sites", "ledger.sqlite"):
        assert html.escape(secret) not in text and secret not in json.dumps(record)
    assert [cell["clients"] for cell in record["cells"]] and min(c["clients"] for c in record["cells"]) >= 5
    hidden = budgets_page.render_public(source.lifetime, 13)
    assert "Fewer than 13 clients" in hidden and "<table" not in hidden


def test_one_public_version_is_of_one_ledger(source: Source) -> None:
    with pytest.raises(InputError, match="subtracted"):
        public_budgets.only_one([source.lifetime, source.lifetime])
