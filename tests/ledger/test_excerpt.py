"""Excerpts of ledgers: what a report may hold of one run, and a ledger in memory made of it again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from discretion.errors import PopulationError
from discretion.ledger.excerpt import Excerpt, as_planned, excerpt, reopen
from discretion.ledger.ledger import Ledger
from discretion.ledger.reader import LedgerReader, plan_rows
from discretion.methods import make_plan
from discretion.plan.plan import Plan
from discretion.plan.population import Population

PEOPLE = Population.of([1.0, 2.0, 4.0], 1e-5, 7)


def planned(rounds: int = 3) -> Plan:
    return make_plan("dp_fedavg", PEOPLE, {"rounds": rounds, "rate": 0.5, "clip": 0.5})


def taken(path: Path, run: str) -> Excerpt:
    with LedgerReader(path) as ledger:
        return excerpt(ledger, run, PEOPLE.client, 1)


def test_an_excerpt_reads_like_the_ledger(tmp_path: Path) -> None:
    path, plan = tmp_path / "ledger.sqlite", planned()
    with Ledger(path, PEOPLE) as ledger:
        ledger.change_budget("c1", 0.5, "a note")
        ledger.admit("mine", plan)
        ledger.reserve("mine", 1)
        ledger.commit("mine", 1)
        ledger.reserve("mine", 2)
    known = taken(path, "mine")
    assert as_planned(known, "mine", plan) and not as_planned(known, "mine", planned(4))
    with LedgerReader(path) as whole, reopen(known, "mine", plan) as again:
        reads: tuple[Callable[[LedgerReader], object], ...] = (
            lambda ledger: ledger.rule,
            lambda ledger: ledger.budgets(),
            lambda ledger: ledger.changes(),
            lambda ledger: ledger.run("mine"),
            lambda ledger: ledger.rounds("mine"),
            lambda ledger: ledger.plan_rows("mine"),
            lambda ledger: ledger.accounts(PEOPLE.client).about("mine"),
        )
        for read in reads:
            assert read(whole) == read(again)
        steps = [each.accounts(PEOPLE.client).steps() for each in (whole, again)]
        assert np.array_equal(steps[0].count, steps[1].count) and steps[0].count.sum() == 2 * len(PEOPLE)
    assert plan_rows("mine", plan)["member"]


def test_a_run_that_is_not_admitted_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path, Population.of([1.0, 2.0], 1e-5, 7)).close()  # c2 is not on record
    known = taken(path, "mine")
    assert known.run is None and [client.name for client in known.clients] == ["c0", "c1"]
    assert not as_planned(known, "mine", planned())
    with reopen(known, "mine", planned()) as again:
        assert again.run("mine") is None and again.rounds("mine") == []


def test_a_population_is_read_from_text_as_from_a_file() -> None:
    assert Population.from_text(PEOPLE.to_csv(), "text").digest() == PEOPLE.digest()
    with pytest.raises(PopulationError, match="text: not CSV"):
        Population.from_text('client,epsilon,delta,size\n"c1"x,1,1e-5,3\n', "text")
