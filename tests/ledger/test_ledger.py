"""The ledger never counts too little: not after crashes, not over runs, not with many processes."""

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from discretion.accounting import certify, noise_multiplier, spent
from discretion.errors import BudgetError, LedgerError, PopulationError
from discretion.ledger.ledger import Ledger
from discretion.ledger.reader import LedgerReader
from discretion.ledger.store import Rule
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.training.loop import State, train
from discretion.training.orders import Order, Updates
from support.training_clients import UpdatesOnly

DELTA = 1e-5


def people(*epsilon: float) -> Population:
    return Population.of(list(epsilon or (2.0, 4.0, 8.0)), DELTA)


def gaussian_plan(population: Population, rounds: int, sigma: float) -> Plan:
    """Everybody in every round: quick to account for."""
    everyone = np.ones(len(population))
    return Plan("made", population.client, (Phase.one_pool(rounds, everyone, everyone, sigma),))


def costing(population: Population, epsilon: float, rounds: int = 4) -> Plan:
    """A plan that costs everybody `epsilon`, and not a trace more."""
    one = np.ones(1)
    return gaussian_plan(
        population, rounds, float(noise_multiplier(epsilon * one, DELTA * one, one, rounds)[0])
    )


def two_phases(population: Population) -> Plan:
    """Everybody is treated differently, in two phases of 2 and 3 rounds."""
    count = len(population)
    first = Phase(
        rounds=2,
        rate=np.linspace(0.1, 0.3, count),
        clip=np.linspace(1.0, 2.0, count),
        noise=np.array([6.0, 8.0]),
        pool=np.arange(count) % 2,
        weight=np.ones(2),
    )
    second = Phase.one_pool(3, np.linspace(0.0, 1.0, count), np.ones(count), 8.0)
    return Plan("made", population.client, (first, second))


def do(ledger: Ledger, run: str, *rounds: int) -> None:
    for number in rounds:
        ledger.reserve(run, number)
        ledger.commit(run, number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


# admission


def test_a_new_ledger_has_nothing_spent(path: Path) -> None:
    with Ledger(path, people()) as ledger:
        np.testing.assert_array_equal(ledger.spent(), [0, 0, 0])
        assert ledger.states("a") == []


def test_a_plan_within_every_budget_is_admitted_and_costs_nothing_yet(path: Path) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 2.0))
        np.testing.assert_array_equal(ledger.spent(), [0, 0, 0])


def test_a_plan_beyond_one_budget_is_refused_and_leaves_no_trace(path: Path) -> None:
    population = people(8.0, 2.0, 8.0)
    with Ledger(path, population) as ledger:
        with pytest.raises(BudgetError) as caught:
            ledger.admit("a", costing(population, 2.1))
        assert "1 of 3 clients refuse this plan; worst is client c1: epsilon 0 is spent" in str(caught.value)
        assert "> budget 2. Plan this run for a smaller share" in str(caught.value)
        with pytest.raises(LedgerError, match="run a has no plan in this ledger: admit one first"):
            ledger.reserve("a", 1)
        ledger.admit("a", costing(population, 2.0))  # the name is still free, and so is the budget


def test_the_worst_of_many_is_named(path: Path) -> None:
    population = people(2.0, 1.0, 4.0)
    with Ledger(path, population) as ledger, pytest.raises(BudgetError, match="3 of 3 .* worst is client c1"):
        ledger.admit("a", costing(population, 9.0))


def test_admitting_again_changes_nothing(path: Path) -> None:
    population = people()
    plan = costing(population, 1.5)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        do(ledger, "a", 1, 2)
        before = contents(path)
        ledger.admit("a", plan)  # although two of them would be too much
        ledger.admit("a", Plan.from_json(plan.to_json()))
        assert contents(path) == before


def test_a_run_keeps_its_plan(path: Path) -> None:
    population = people()
    plan = costing(population, 0.5)
    other = replace(plan, phases=(replace(plan.phases[0], noise=plan.phases[0].noise * 2),))
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        with pytest.raises(LedgerError, match=f"{plan.digest()[:12]}….*not.*{other.digest()[:12]}…"):
            ledger.admit("a", other)
        ledger.finish("a")
        with pytest.raises(LedgerError, match="A run keeps"):
            ledger.admit("a", other)


def test_a_run_keeps_where_its_noise_comes_from(path: Path) -> None:
    """A round that is done again after a crash is the same release; with other noise it would be a second."""
    population = people()
    plan = costing(population, 0.5)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan, "here")
        ledger.admit("a", plan, "here")
        for other in ("there", ""):
            with pytest.raises(LedgerError, match="A run keeps"):
                ledger.admit("a", plan, other)


@pytest.mark.parametrize("clients", [("c0", "c1"), ("c0", "c1", "c3")])
def test_a_plan_without_one_of_its_clients_is_refused(path: Path, clients: tuple[str, ...]) -> None:
    plan = replace(gaussian_plan(people(*[9.0] * len(clients)), 1, 100.0), clients=clients)
    with Ledger(path, people()) as ledger, pytest.raises(LedgerError, match="names other clients"):
        ledger.admit("a", plan)


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
def test_a_ledger_of_some_clients_counts_theirs_alone(path: Path, tmp_path: Path, rule: Rule) -> None:
    """What a plan costs them does not depend on who else is in the ledger, or in which order."""
    everybody = Population.of([4.0, 8.0, 16.0, 2.0], 1e-5)
    clips = np.array([0.4, 0.8, 1.6, 0.2])
    phase = Phase.one_pool(5, np.full(4, 0.5), clips, 4.0)
    plan = Plan("test", everybody.client, (phase,), noise_at="clients", promise="server")
    with Ledger(path, everybody, rule) as whole:
        whole.admit("a", plan)
        for round_ in range(1, 4):
            whole.reserve("a", round_)
            whole.commit("a", round_)
        expected = whole.spent()
    for some in ([1], [3, 0]):
        mine = replace(Population.of(everybody.epsilon[some], 1e-5), client=tuple(f"c{i}" for i in some))
        with Ledger(tmp_path / f"{some[0]}.sqlite", mine, rule) as ledger:
            ledger.admit("a", plan)
            ledger.reserve("a", 1)
            ledger.commit("a", 1)
            ledger.pass_over("a", 2)
            ledger.pass_over("a", 3)
            np.testing.assert_array_equal(ledger.spent(), expected[some])
            assert [state for _, state in ledger.states("a")] == ["committed"] * 3


def test_a_round_that_was_passed_over_counts_as_budgets_were(path: Path) -> None:
    mine = people(4.0)
    plan = gaussian_plan(mine, 10, 10.0)
    with Ledger(path, mine) as ledger:
        ledger.admit("a", plan)
        ledger.reserve("a", 1)
        ledger.commit("a", 1)
        spent = ledger.spent()[0]
        ledger.change_budget("c0", spent + 1e-3 - 4.0)
        ledger.pass_over("a", 2)  # it may have been before the withdrawal
        ledger.pass_over("a", 3)
        after = ledger.spent()[0]
        assert after > spent + 1e-3 and not ledger.refusals("a", 2).any()
        assert not ledger.reserve("a", 4).any() and ledger.refusals("a", 4).all()
        ledger.commit("a", 4)
        ledger.pass_over("a", 5)  # this one was after it
        assert ledger.refusals("a", 5).all() and ledger.spent()[0] == after
        with pytest.raises(LedgerError, match="expected round"):
            ledger.pass_over("a", 7)
        with pytest.raises(LedgerError, match="beyond"):
            ledger.pass_over("a", 11)


# rounds


def test_rounds_are_reserved_and_committed_in_turn(path: Path) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        ledger.reserve("a", 1)
        assert ledger.states("a") == [(1, "reserved")]
        ledger.commit("a", 1)
        assert ledger.states("a") == [(1, "committed")]
        do(ledger, "a", 2, 3, 4)
        assert ledger.states("a") == [(t, "committed") for t in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("done", "round_", "reason"),
    [
        (0, 2, "expected round 1 of run a next, got 2"),
        (0, 0, "expected round 1 of run a next, got 0"),
        (0, -1, "expected round 1 of run a next, got -1"),
        (2, 4, "expected round 3 of run a next, got 4"),
        (2, 2, "round 2 of run a was released already"),
        (2, 1, "round 1 of run a was released already"),
        (4, 5, "round 5 is beyond the 4 rounds that were admitted"),
        (0, 5, "round 5 is beyond the 4 rounds that were admitted"),
    ],
)
def test_rounds_out_of_turn_are_refused(path: Path, done: int, round_: int, reason: str) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        do(ledger, "a", *range(1, done + 1))
        before = contents(path)
        with pytest.raises(LedgerError, match=reason):
            ledger.reserve("a", round_)
        assert contents(path) == before


def test_the_next_round_waits_for_the_release_of_this_one(path: Path) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        ledger.reserve("a", 1)
        with pytest.raises(LedgerError, match="expected round 1 of run a next, got 2"):
            ledger.reserve("a", 2)


def test_unknown_runs_and_rounds_are_refused(path: Path) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        with pytest.raises(LedgerError, match="run b has no plan in this ledger"):
            ledger.reserve("b", 1)
        with pytest.raises(LedgerError, match="round 1 of run b was never reserved"):
            ledger.commit("b", 1)
        ledger.admit("a", costing(population, 1.0))
        with pytest.raises(LedgerError, match="round 1 of run a was never reserved"):
            ledger.commit("a", 1)


def test_a_closed_run_may_spend_nothing_more(path: Path) -> None:
    population = people()
    plan = costing(population, 1.0)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        do(ledger, "a", 1)
        ledger.reserve("a", 2)
        ledger.finish("a")
        before = ledger.spent()
        ledger.admit("a", plan)
        for round_ in (2, 3):
            with pytest.raises(LedgerError, match="run a is closed since .*: it may spend nothing more"):
                ledger.reserve("a", round_)
        np.testing.assert_array_equal(ledger.spent(), before)


def test_reserving_committing_and_finishing_again_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = map(str, itertools.count())
    monkeypatch.setattr("discretion.ledger.ledger.now", lambda: next(clock))
    population = people()

    def everything() -> list[str]:
        db = sqlite3.connect(path)
        try:
            return list(db.iterdump())
        finally:
            db.close()

    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        for action in (
            lambda: ledger.reserve("a", 1),
            lambda: ledger.commit("a", 1),
            lambda: ledger.finish("a"),
        ):
            untouched = everything()
            action()
            once = everything()
            assert once != untouched
            action()
            assert everything() == once


# what is spent


def test_spent_is_what_the_plan_says_after_each_round(path: Path) -> None:
    population = people(20.0, 20.0, 20.0, 20.0)
    plan = two_phases(population)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        for done in range(1, 6):
            ledger.reserve("a", done)
            np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta, done))
            ledger.commit("a", done)
            np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta, done))
        ledger.finish("a")
        np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta))


def test_a_reserved_round_counts_as_spent(path: Path) -> None:
    population = people()
    plan = costing(population, 1.0)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        ledger.reserve("a", 1)
        assert (ledger.spent() > 0).all()
        ledger.finish("a")  # and is not given back
        np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta, 1))


def test_spent_over_two_runs_is_what_google_finds(path: Path) -> None:
    population = people(20.0, 20.0, 20.0)
    one, two = two_phases(population), gaussian_plan(population, 4, 9.0)
    with Ledger(path, population) as ledger:
        ledger.admit("a", one)
        do(ledger, "a", 1, 2, 3)
        ledger.admit("b", two)
        ledger.reserve("b", 1)
        found = ledger.spent()
    rate, multiplier = np.linspace(0.1, 0.3, 3), np.array([6.0, 8.0, 6.0]) / [1.0, 1.5, 2.0]
    for i, client in enumerate(found):
        accountant = PLDAccountant()
        sampled = dp_accounting.PoissonSampledDpEvent(rate[i], dp_accounting.GaussianDpEvent(multiplier[i]))
        accountant.compose(sampled, 2)
        later = dp_accounting.GaussianDpEvent(8.0)
        accountant.compose(dp_accounting.PoissonSampledDpEvent([0.0, 0.5, 1.0][i], later))
        accountant.compose(dp_accounting.GaussianDpEvent(9.0))
        assert client == pytest.approx(accountant.get_epsilon(DELTA), rel=3e-3)


def test_the_order_of_runs_and_of_clients_does_not_matter(tmp_path: Path) -> None:
    population = people(20.0, 20.0, 20.0)
    plans = {"a": two_phases(population), "b": gaussian_plan(population, 4, 9.0)}
    found = []
    for order in ("ab", "ba"):
        with Ledger(tmp_path / order, population) as ledger:
            for run in order:
                ledger.admit(run, plans[run])
                do(ledger, run, 1, 2, 3)
            found.append(ledger.spent())
        backwards = Population(
            population.client[::-1], np.full(3, 20.0), np.full(3, DELTA), np.ones(3, np.int64)
        )
        with Ledger(tmp_path / order, backwards) as ledger:
            found.append(ledger.spent()[::-1])
        with Ledger(
            tmp_path / order, Population(("c1",), np.full(1, 20.0), np.full(1, DELTA), np.ones(1, np.int64))
        ) as ledger:
            assert ledger.spent()[0] == found[-1][1]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9)


def test_who_was_not_in_a_run_has_spent_nothing_in_it(path: Path) -> None:
    first = people(2.0, 2.0)
    with Ledger(path, first) as ledger:
        ledger.admit("a", costing(first, 2.0))
        do(ledger, "a", 1, 2, 3, 4)
    more = Population(("new", "c1", "c0"), np.full(3, 2.0), np.full(3, DELTA), np.ones(3, dtype=int))
    with Ledger(path, more) as ledger:
        assert ledger.spent()[0] == 0 and (ledger.spent()[1:] > 1.99).all()
        with pytest.raises(BudgetError, match="2 of 3 clients refuse"):
            ledger.admit("b", costing(more, 1.0))
    new = Population(("new",), np.full(1, 2.0), np.full(1, DELTA), np.ones(1, dtype=int))
    with Ledger(path, new) as ledger:
        ledger.admit("b", costing(new, 2.0))


# two runs on one ledger


def test_two_runs_compose_and_the_one_too_many_is_refused(path: Path) -> None:
    population = people(2.0, 2.0)
    half = costing(population, 1.0)
    with Ledger(path, population) as ledger:
        for run in ("a", "b"):
            ledger.admit(run, half)
            do(ledger, run, 1, 2, 3, 4)
            ledger.finish(run)
        both = spent(replace(half, phases=half.phases * 2), population.delta)
        np.testing.assert_array_equal(ledger.spent(), both)
        assert (both > 1.3).all()
        with pytest.raises(BudgetError, match=r"epsilon 1\.\d+ is spent or promised already") as caught:
            ledger.admit("c", costing(population, 1.9))
        assert "would become 2." in str(caught.value)
        np.testing.assert_array_equal(ledger.spent(), both)


def test_composition_is_not_the_sum(path: Path) -> None:
    """What is left is more than budget minus spent: three thirds do not fill a budget."""
    population = people(3.0)
    with Ledger(path, population) as ledger:
        for run in "abc":
            ledger.admit(run, costing(population, 1.0))
            do(ledger, run, 1, 2, 3, 4)
        assert 1.5 < ledger.spent()[0] < 2.5


def test_an_open_run_is_counted_whole_and_a_finished_one_as_far_as_it_went(path: Path) -> None:
    population = people(2.0, 2.0)
    most = costing(population, 1.6)
    with Ledger(path, population) as ledger:
        ledger.admit("a", most)
        with pytest.raises(BudgetError, match="spent or promised already"):
            ledger.admit("b", most)
        do(ledger, "a", 1)
        with pytest.raises(BudgetError):
            ledger.admit("b", most)
        ledger.finish("a")
        quarter = spent(most, population.delta, 1)
        with pytest.raises(BudgetError):  # what it used is not free again
            ledger.admit("b", costing(population, 1.999))
        ledger.admit("b", most)
        np.testing.assert_array_equal(ledger.spent(), quarter)


def test_a_run_that_was_admitted_can_always_finish(path: Path) -> None:
    population = people(2.0)
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.2))
        ledger.admit("b", costing(population, 1.2))
        with pytest.raises(BudgetError):
            ledger.admit("c", costing(population, 1.2))
        for number in range(1, 5):  # in turns
            do(ledger, "a", number)
            do(ledger, "b", number)
        assert ledger.spent()[0] <= 2.0


# no privacy


def test_a_plan_without_noise_needs_acceptance_and_ends_every_budget(path: Path) -> None:
    population = people()
    nothing = gaussian_plan(population, 2, 0.0)
    with Ledger(path, population) as ledger:
        with pytest.raises(BudgetError, match="3 of 3 clients refuse"):
            ledger.admit("a", nothing)
        ledger.admit("a", nothing, accept_no_privacy=True)
        with pytest.raises(BudgetError):  # while it is open it may spend everything
            ledger.admit("b", costing(population, 0.1))
        do(ledger, "a", 1)
        ledger.finish("a")
        assert np.isinf(ledger.spent()).all()
        with pytest.raises(BudgetError):
            ledger.admit("b", costing(population, 0.1))


def with_unclipped(phase: Phase) -> Phase:
    """The last two of three clients without a clip, in a pool of their own: nobody's noise is lost there."""
    noise, clip = np.repeat(phase.noise, 2), np.array([1.0, np.inf, np.inf])
    return replace(phase, clip=clip, pool=np.array([0, 1, 1]), noise=noise, weight=np.ones(2))


def test_accepting_no_privacy_for_all_does_not_take_it_from_some(path: Path) -> None:
    population = people()
    phase = with_unclipped(gaussian_plan(population, 2, 10.0).phases[0])
    with Ledger(path, population) as ledger, pytest.raises(BudgetError, match="2 of 3"):
        ledger.admit("a", Plan("made", population.client, (phase,)), accept_no_privacy=True)


def test_public_clients_may_spend_everything(path: Path) -> None:
    population = people(1.0, np.inf, np.inf)
    phase = with_unclipped(gaussian_plan(population, 2, 20.0).phases[0])
    with Ledger(path, population) as ledger:
        for run in "abc":
            ledger.admit(run, Plan("made", population.client, (phase,)))
            do(ledger, run, 1)
        assert ledger.spent()[0] < 1 and ledger.spent()[1] == np.inf


# budgets and names


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": np.array([2.0, 5.0, 8.0])},
        {"epsilon": np.array([2.0, np.inf, 8.0])},
        {"epsilon": np.array([2.0, np.nextafter(4.0, 5), 8.0])},
        {"epsilon": np.array([2.0, 3.9, 8.0])},
        {"delta": np.array([DELTA, 1e-4, DELTA])},
        {"delta": np.array([DELTA, np.nextafter(DELTA, 1), DELTA])},
    ],
)
def test_a_budget_holds_for_life(path: Path, change: dict[str, Any]) -> None:
    Ledger(path, people()).close()
    before = contents(path)
    with pytest.raises(
        LedgerError, match=r"client c1 has the budget \(epsilon 4, delta 1e-05\) in .*for life"
    ):
        Ledger(path, replace(people(), **change))
    assert contents(path) == before
    with pytest.raises(LedgerError):  # nor are the others of such a population entered
        Ledger(path, Population(("c9", "c1"), np.full(2, 9.0), np.full(2, DELTA), np.ones(2, dtype=int)))
    assert contents(path) == before
    Ledger(path, replace(people(), size=np.array([5, 6, 7]))).close()


def test_odd_budgets_and_prices_survive_the_file_exactly(path: Path) -> None:
    odd = np.array([np.inf, 5e-324, 0.1 + 0.2, 1e308, np.nextafter(1, 2), 2.0**63, 1 / 3])
    population = Population.of(odd, np.resize([5e-324, np.nextafter(1, 0), 1e-5], 7))
    Ledger(path, population).close()
    Ledger(path, population).close()  # refused if any had changed
    generous = Population.of(np.full(4, 1e6), 1e-5)
    phase = Phase(
        rounds=2,
        rate=np.array([np.nextafter(1, 0), 1 / 3, 0.1 + 0.2, 1.0]),
        clip=np.array([1 / 3, np.pi, np.nextafter(1, 2), 0.0]),
        noise=np.array([2 / 3]),
        pool=np.zeros(4, dtype=int),
        weight=np.ones(1),
    )
    plan = Plan("made", generous.client, (phase,))
    other = path.with_name("other.sqlite")
    with Ledger(other, generous) as ledger:
        ledger.admit("a", plan)
        do(ledger, "a", 1, 2)
    with Ledger(other, generous) as ledger:
        np.testing.assert_array_equal(ledger.spent(), spent(plan, generous.delta))
        assert ledger.spent()[3] == 0


def test_odd_names_are_names(path: Path) -> None:
    names = (
        "001",
        "1",
        "1.0",
        "1e0",
        "'; DROP TABLE client; --",
        "a b",
        "a",
        "A",
        "ä",
        "☃",
        "NULL",
        "None",
    )
    count = len(names)
    population = Population(names, np.full(count, 2.0), np.full(count, DELTA), np.ones(count, dtype=int))
    clip = np.linspace(0.1, 1.0, count)
    plan = Plan("made", names, (Phase.one_pool(2, np.ones(count), clip, 5.0),))
    with Ledger(path, population) as ledger:
        ledger.admit("it's a run", plan)
        do(ledger, "it's a run", 1, 2)
    with Ledger(path, population) as ledger:
        np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta))
        assert len(np.unique(ledger.spent())) == count


def test_names_that_are_not_text_cannot_hide_what_is_spent(path: Path) -> None:
    try:
        population = Population((0, 1), np.full(2, 2.0), np.full(2, DELTA), np.ones(2, dtype=int))  # type: ignore[arg-type]
    except PopulationError:
        return
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 2.0))
        do(ledger, "a", 1, 2, 3, 4)
        assert (ledger.spent() > 1.99).all()
        with pytest.raises(BudgetError):
            ledger.admit("b", costing(population, 2.0))


# who took part


class Nothing(UpdatesOnly):
    """Clients whose updates are zero."""

    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.zeros((len(order.clients), 5), dtype=np.float32))


class Leaning(Nothing):
    """Clients whose updates are all alike."""

    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.full((len(order.clients), 5), 0.1, dtype=np.float32))


START = State.start(np.zeros(5, np.float32))


def contents(path: Path) -> list[str]:
    """All that is in the file, as text, without what the clock wrote."""
    tables = {
        "client": "*",
        "change": "number, client, epsilon, note",
        "run": "id, plan, method, unit, adjacency, rounds, unprotected, changes, closed IS NULL",
        "member": "*",
        "phase": "*",
        "price": "*",
        "round": "run, round, phase, state, refused, committed IS NULL",
    }
    db = sqlite3.connect(path)
    try:
        found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables.keys() <= found
        return [
            f"{name}: {row}"
            for name, columns in tables.items()
            for row in sorted(map(repr, db.execute(f"SELECT {columns} FROM {name}")))
        ]
    finally:
        db.close()


def test_nobodys_participation_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever came, the file is the same."""
    population = people(20.0, 20.0, 20.0)
    plan = two_phases(population)
    files = []
    for cohort in ([], [0], [1, 2]):
        monkeypatch.setattr(
            sys.modules[train.__module__],
            "select",
            lambda *_, who=cohort: (np.array(who, np.int64), np.zeros(len(who), np.int64)),
        )
        path = tmp_path / f"{len(cohort)}.sqlite"
        with Ledger(path, population) as ledger:
            states = list(train(plan, certify(plan, population), Nothing(), ledger, START, run="a", seed=1))
        assert len(states) == 5
        files.append(contents(path))
    assert files[0] == files[1] == files[2]
    assert any(line.startswith("round: ") for line in files[0])


# one round, one release; and independent noise for what is composed as independent


def first_models(path: Path, population: Population, *runs: tuple[str, int, Nothing]) -> list[np.ndarray]:
    """The models after round 1 that callers get who start (run, seed, clients); who is refused gets none."""
    plan = costing(population, 1.0)
    models = []
    for run, seed, clients in runs:
        with Ledger(path, population) as ledger:
            rounds = train(plan, certify(plan, population), clients, ledger, START, run=run, seed=seed)
            try:
                models.append(next(rounds).model)
            except LedgerError:
                continue
            finally:
                assert isinstance(rounds, Generator)
                rounds.close()  # killed before the round is committed
    return models


def test_a_round_that_is_done_again_is_the_same_round(path: Path) -> None:
    models = first_models(path, people(), ("a", 1, Nothing()), ("a", 1, Nothing()))
    assert len(models) == 2
    np.testing.assert_array_equal(models[0], models[1])


def test_a_round_on_record_is_not_released_twice_with_different_noise(path: Path) -> None:
    """After a crash, or from a copy of the run: another seed is another release, which nobody counted."""
    models = first_models(path, people(), ("a", 1, Nothing()), ("a", 2, Nothing()))
    assert len(models) == 1 or (models[0] == models[1]).all()


def test_two_runs_never_share_their_noise(path: Path) -> None:
    """They are composed as independent: the same noise in both would cancel in the difference."""
    models = first_models(path, people(), ("a", 1, Nothing()), ("b", 1, Nothing()))
    assert len(models) == 1 or (models[0] != models[1]).all()


def test_the_difference_of_two_runs_does_not_show_the_updates(path: Path) -> None:
    """The updates differ by 0.1 in each coordinate, under noise of a standard deviation of about 3."""
    population = people()
    models = first_models(path, population, ("a", 1, Nothing()), ("b", 1, Leaning()))
    assert len(models) == 1 or np.ptp(models[1] - models[0]) > 0.01


# files


def test_files_that_cannot_be_a_ledger_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a database, but long enough to be taken for one\n" * 50, encoding="utf-8")
    for path in (tmp_path, tmp_path / "no" / "such" / "folder.sqlite", other):
        with pytest.raises(LedgerError, match="cannot be used now|is damaged"):
            Ledger(path, people())
    assert other.read_text(encoding="utf-8").startswith("not a database")


def test_a_ledger_in_use_is_a_ledger_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(
        "discretion.ledger.store.sqlite3.connect",
        lambda *args, **kwargs: connect(*args, **{**kwargs, "timeout": 0.05}),
    )
    population = people()
    plan = costing(population, 1.0)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        ledger.reserve("a", 1)
        other = connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for refused in (
            lambda: ledger.admit("b", plan),
            lambda: ledger.reserve("a", 1),
            lambda: ledger.commit("a", 1),
            lambda: ledger.finish("a"),
            lambda: Ledger(path, population),
        ):
            with pytest.raises(LedgerError):
                refused()
        other.execute("ROLLBACK")
        other.close()
        ledger.commit("a", 1)


def test_a_database_of_somebody_else_is_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE anything (x)")
    with pytest.raises(LedgerError, match="not a ledger of Discretion"):
        Ledger(path, people())
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert [name for (name,) in other.execute("SELECT name FROM sqlite_schema")] == ["anything"]


def test_missing_prices_are_not_free(path: Path) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        ledger.reserve("a", 1)
        ledger._db.execute("DELETE FROM price")
    with LedgerReader(path) as reader, pytest.raises(LedgerError, match="damaged"):
        reader.accounts(population.client).steps()
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path, population)


def test_opening_waits_for_whoever_makes_the_ledger(path: Path) -> None:
    """Two processes that start together both want to make the file."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("PRAGMA user_version = 0")
    release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    release.start()
    try:
        Ledger(path, people()).close()
    finally:
        release.join()
        other.close()


def test_a_commit_that_fails_is_taken_back_and_the_ledger_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that holds the file may block the writer at the very end of its transaction."""
    connect = sqlite3.connect
    monkeypatch.setattr(
        "discretion.ledger.store.sqlite3.connect",
        lambda *args, **kwargs: connect(*args, **{**kwargs, "timeout": 0.05}),
    )
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        reader = connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM round").fetchall()
        try:
            ledger.reserve("a", 1)
        except LedgerError:
            assert ledger.states("a") == []
        finally:
            reader.execute("COMMIT")
            reader.close()
        ledger.reserve("a", 1)
        with Ledger(path, population) as other:
            assert other.states("a") == [(1, "reserved")]


def test_a_reservation_survives_a_loss_of_power(path: Path) -> None:
    """SQLite's manual: with a rollback journal only EXTRA (3) keeps the last commit."""
    with Ledger(path, people()) as ledger:
        assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_round_is_committed_with_the_next_one_or_not_at_all(path: Path) -> None:
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        ledger.reserve("a", 1)
        with pytest.raises(LedgerError, match="expected round"):
            ledger.reserve("a", 3, kept=1)
        assert ledger.states("a") == [(1, "reserved")]
        with pytest.raises(LedgerError, match="round 2 of run a was never reserved"):
            ledger.reserve("a", 2, kept=2)
        assert ledger.reserve("a", 2, kept=1).all()
        assert ledger.states("a") == [(1, "committed"), (2, "reserved")]
        ledger.finish("a", kept=2)
        assert [state for _, state in ledger.states("a")] == ["committed"] * 2
        assert ledger.runs[0].closed


def test_a_ledger_is_one_file_at_any_moment(path: Path) -> None:
    """Damaged, or left behind when the ledger is copied, a write-ahead log would lose what is on record."""
    population = people()
    with Ledger(path, population) as ledger:
        ledger.admit("a", costing(population, 1.0))
        with Ledger(path, population) as other:
            other.reserve("a", 1)
        ledger.reserve("a", 2, kept=1)
        assert [each.name for each in path.parent.iterdir() if each.name.startswith(path.name)] == [path.name]
        ledger._db.execute("PRAGMA journal_mode = WAL")
    Ledger.existing(path).close()
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(path.name)] == [path.name]
    path.with_name("copy").write_bytes(path.read_bytes())
    with Ledger.existing(path.with_name("copy")) as copy:
        assert copy.states("a") == [(1, "committed"), (2, "reserved")]


def test_a_failure_inside_a_transaction_takes_all_of_it_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = people()
    plan = costing(population, 1.0)
    release, calls = Plan.release, []

    def interrupted(self: Plan, phase: Phase) -> tuple[np.ndarray, np.ndarray]:
        """The first time the cost is asked for; the second time it is being recorded."""
        calls.append(phase)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return release(self, phase)

    with Ledger(path, population) as ledger:
        before = contents(path)
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "release", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.admit("a", plan)
        assert len(calls) == 2 and contents(path) == before
        ledger.admit("a", plan)


# several processes, and their ends

OPEN = """
import os, signal, sys
from contextlib import contextmanager
from discretion.ledger.store import VERSION
from discretion.ledger.ledger import Ledger
from discretion.plan.plan import Plan
from discretion.plan.population import Population

path, run = sys.argv[1:3]
population = Population.from_csv(path + ".csv")
with open(path + ".json", encoding="utf-8") as file:
    plan = Plan.from_json(file.read())
ledger = Ledger(path, population)
"""

RACE = (
    OPEN
    + """
import time
from discretion.errors import BudgetError

consider = Ledger._consider

def slowly(self, *args):
    found = consider(self, *args)
    time.sleep(0.2)
    return found

Ledger._consider = slowly
print("ready", flush=True)
sys.stdin.readline()
try:
    ledger.admit(run, plan)
    print("admitted", flush=True)
except BudgetError:
    print("refused", flush=True)
"""
)

DIE = (
    OPEN
    + """
@contextmanager
def killed(self):
    self._db.execute("BEGIN IMMEDIATE")
    yield
    os.kill(os.getpid(), signal.SIGKILL)

Ledger._transaction = killed
operation, *rounds = sys.argv[3:]
getattr(ledger, operation)(run, *([plan] if operation == "admit" else map(int, rounds)))
"""
)


def prepared(path: Path, population: Population, plan: Plan) -> None:
    path.with_name(path.name + ".csv").write_text(population.to_csv(), encoding="utf-8")
    path.with_name(path.name + ".json").write_text(plan.to_json(), encoding="utf-8")


def process(script: str, *args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_of_processes_at_the_same_time_only_as_many_are_admitted_as_fit(path: Path) -> None:
    population = people(2.0, 4.0)
    plan = costing(population, 1.8)
    prepared(path, population, plan)
    Ledger(path, population).close()
    workers = [process(RACE, str(path), run) for run in "abc"]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate(timeout=60)[0].strip() for worker in workers]
    assert sorted(answers) == ["admitted", "refused", "refused"]
    assert sum(line.startswith("run: ") for line in contents(path)) == 1


@pytest.mark.parametrize(
    ("operation", "done"),
    [
        (("admit",), "nothing"),
        (("reserve", "1"), "admit"),
        (("commit", "1"), "reserve"),
        (("finish",), "reserve"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_killed_before_a_transaction_ends_nothing_of_it_is_there(
    path: Path, operation: tuple[str, ...], done: str
) -> None:
    population = people(2.0, 4.0)
    plan = costing(population, 1.8)
    prepared(path, population, plan)
    with Ledger(path, population) as ledger:
        if done != "nothing":
            ledger.admit("a", plan)
        if done == "reserve":
            ledger.reserve("a", 1)
        cost = ledger.spent()
    before = contents(path)
    victim = process(DIE, str(path), "a", *operation)
    assert victim.wait(timeout=60) == -signal.SIGKILL, victim.communicate()[1]
    victim.communicate()
    assert contents(path) == before
    with Ledger(path, population) as ledger:
        np.testing.assert_array_equal(ledger.spent(), cost)
        ledger.admit("a", plan)
        ledger.reserve("a", 1)
        ledger.commit("a", 1)
        np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta, 1))


def test_killed_after_a_reservation_the_round_is_on_record_and_can_be_taken_up(path: Path) -> None:
    population = people(2.0, 4.0)
    plan = costing(population, 1.8)
    prepared(path, population, plan)
    end = "\nos.kill(os.getpid(), signal.SIGKILL)\n"
    script = (
        OPEN
        + "ledger.admit(run, plan)\nledger.reserve(run, 1)\nledger.commit(run, 1)\nledger.reserve(run, 2)"
        + end
    )
    victim = process(script, str(path), "a")
    assert victim.wait(timeout=60) == -signal.SIGKILL, victim.communicate()[1]
    victim.communicate()
    with Ledger(path, population) as ledger:
        assert ledger.states("a") == [(1, "committed"), (2, "reserved")]
        np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta, 2))
        ledger.admit("a", plan)
        ledger.reserve("a", 2)
        ledger.commit("a", 2)
        np.testing.assert_array_equal(ledger.spent(), spent(plan, population.delta, 2))
        with pytest.raises(LedgerError, match="released already"):
            ledger.reserve("a", 2)
