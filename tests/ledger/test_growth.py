"""The work of a ledger grows in proportion to the runs on record, and what it counts does not change."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from discretion.accounting.filter import Taken
from discretion.ledger.ledger import Ledger
from discretion.ledger.store import Rule
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

Who = Literal["same", "other"]
RUNS = (6, 12, 24)
DELTA = 1e-5


def people(run: int, who: Who) -> Population:
    names = tuple(f"{'c' if who == 'same' else run}-{i}" for i in range(3))
    return replace(Population.of([60.0, 40.0, 20.0], DELTA), client=names)


def plan_of(population: Population, run: int) -> Plan:
    one = np.ones(len(population))
    return Plan("made", population.client, (Phase.one_pool(2, one, one, 30.0 + run),))


def filled(path: Path, runs: int, who: Who, rule: Rule) -> list[float]:
    """Put runs of three clients on record; return what the first one of each had spent after its run."""
    spent = []
    for run in range(runs):
        with Ledger(path, people(run, who), rule) as ledger:
            ledger.admit(f"r{run}", plan_of(ledger.population, run))
            ledger.reserve(f"r{run}", 1)
            ledger.finish(f"r{run}", kept=1)
            spent.append(float(ledger.spent()[0]))
    return spent


def work(path: Path, runs: int, who: Who, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count what each call reads (rows) and hands to accountants (cells: steps times clients)."""
    found, now = dict.fromkeys(("open", "admit", "reserve", "spent", "all spent"), 0), "open"
    fetch, built = Ledger._read, Taken.__init__

    def reading(self: Ledger, query: str, values: Any = ()) -> list[Any]:
        rows = fetch(self, query, values)
        found[now] += len(rows)
        return rows

    def building(self: Taken, *words: Any, **named: Any) -> None:
        built(self, *words, **named)
        found[now] += self.first.size

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_read", reading)
        patch.setattr(Taken, "__init__", building)
        with Ledger(path, people(0, who), rule) as ledger:
            now = "admit"
            ledger.admit("new", plan_of(ledger.population, 99))
            now = "reserve"
            ledger.reserve("new", 1)
            now = "spent"
            ledger.spent()
        now = "open"
        with Ledger.existing(path) as everybody:
            now = "all spent"
            everybody.spent()
    return found


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
@pytest.mark.parametrize("who", ["same", "other"])
def test_work_grows_in_proportion_to_the_runs_on_record(
    tmp_path: Path, who: Who, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, more, most = (
        work(path, runs, who, rule, monkeypatch)
        for runs in RUNS
        for path in [tmp_path / f"{runs}.sqlite"]
        if filled(path, runs, who, rule)
    )
    for call in few:
        assert most[call] - more[call] == 2 * (more[call] - few[call]), call


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
def test_a_client_has_spent_the_same_whoever_else_is_on_record(tmp_path: Path, rule: Rule) -> None:
    path = tmp_path / "ledger.sqlite"
    alone = filled(path, RUNS[0], "other", rule)
    with Ledger.existing(path) as everybody:
        assert everybody._accounts.taken().first.shape == (1, 3 * RUNS[0])  # one row for all runs
        np.testing.assert_array_equal(everybody.spent()[::3], alone)
