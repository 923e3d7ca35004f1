"""Nobody passes a budget: by the planned and by the adaptive rule, with changes, over runs and crashes."""

import functools
import sqlite3
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.accounting import Pld, certify, filter, noise_multiplier, renyi
from discretion.arrays import Floats
from discretion.errors import BudgetError, LedgerError
from discretion.ledger.ledger import Ledger
from discretion.ledger.store import Rule
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading
from discretion.plan.steps import Steps
from discretion.training.loop import State, train
from discretion.training.orders import Order, Updates
from support.training_clients import UpdatesOnly

DELTA = 1e-5
Entry = tuple[float, float, int]  # rate, multiplier and number of steps
Charge = tuple[str, Entry]  # by run


def people(*epsilon: float) -> Population:
    return Population.of(list(epsilon), DELTA)


def gaussian(population: Population, rounds: int, *multiplier: float) -> Plan:
    """Everybody in every round, with these multipliers."""
    clip = 1 / np.array(multiplier if len(multiplier) > 1 else multiplier * len(population))
    return Plan("made", population.client, (Phase.one_pool(rounds, np.ones(len(population)), clip, 1.0),))


def costing(population: Population, epsilon: float, rounds: int = 4) -> Plan:
    one = np.ones(1)
    return gaussian(population, rounds, float(noise_multiplier(epsilon * one, DELTA * one, one, rounds)[0]))


def cost(rule: Rule, taken: list[Charge], first: float, plans: dict[str, Entry] | None = None) -> float:
    """Of one client that came with the budget `first`, without a ledger; `plans` are whole plans of runs."""
    delta, entries = np.array([DELTA]), [entry for _, entry in taken if entry[2]]
    if rule == "planned":
        return float(Pld().epsilon(steps_of(entries), delta)[0])
    own = next(run for run, entry in taken if entry[2])
    assert plans is not None
    rows = [(*plans[own][:2], sum(count for run, (_, _, count) in taken if run == own))]
    rows += [entry for run, entry in taken if run != own]
    whole = np.zeros((len(rows), 1), dtype=np.int64)
    whole[0] = plans[own][2]
    steps_taken = filter.Taken(steps_of(rows), whole)
    share = filter.shares(steps_taken, np.array([first]), delta)
    none = np.zeros((1, len(renyi.ORDERS)))
    total = sum((count * curve(rate, multiplier) for rate, multiplier, count in entries), none)
    rest = (1 - share) * delta
    by_renyi = filter.renyi_mixture(total, rest, filter.ladder(np.array([first]), rest))
    return float(np.minimum(filter.tight(steps_taken, share * delta), by_renyi)[0])


def steps_of(entries: list[Entry]) -> Steps:
    """Of one client."""
    rate, multiplier, count = (np.array([entry[k] for entry in entries])[:, None] for k in range(3))
    return Steps(rate.astype(float), multiplier.astype(float), count.astype(int))


@functools.cache
def curve(rate: float, multiplier: float) -> Floats:
    return renyi.curve(np.array([rate]), np.array([multiplier]))


def do(ledger: Ledger, run: str, *rounds: int) -> list[list[bool]]:
    answers = []
    for number in rounds:
        answers.append(ledger.reserve(run, number).tolist())
        ledger.commit(run, number)
    return answers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


# the adaptive rule


def test_exactly_the_round_that_would_pass_a_budget_is_refused_whatever_came_before(path: Path) -> None:
    """Three runs in turns, one sampled, one with public turns, until nobody wants any of them any more."""
    population = people(1.0, 3.0, np.inf)
    rate, sampled, plain = 0.3, 1.2, (9.0, 5.0, 0.5)
    turns = np.array([1, 2, 0])
    own: dict[str, Any] = {"pool": np.arange(3), "noise": np.full(3, 6.0), "weight": np.ones(3)}
    plans = {
        "a": Plan("made", population.client, (Phase.one_pool(40, np.full(3, rate), np.ones(3), sampled),)),
        "b": gaussian(population, 40, *plain),
        "c": Plan("made", population.client, (Phase(40, np.ones(3), clip=np.ones(3), turns=turns, **own),)),
    }
    asks = {
        "a": [(rate, sampled, 1)] * 3,
        "b": [(1.0, multiplier, 1) for multiplier in plain],
        "c": [(1.0, 6.0, int(count)) for count in turns],
    }
    taken: list[list[Charge]] = [[], [], []]
    wholes = [{run: (*ask[i][:2], 40 * ask[i][2]) for run, ask in asks.items()} for i in range(3)]
    said = {True: 0, False: 0}
    with Ledger(path, population, "adaptive") as ledger:
        for run, plan in plans.items():
            ledger.admit(run, plan)
        for number in range(1, 41):
            for run in np.random.default_rng(number).permutation(list(plans)).tolist():
                willing = ledger.reserve(run, number)
                for i, ask in enumerate(asks[run]):
                    epsilon, after = population.epsilon[i], [*taken[i], (run, ask)]
                    assert willing[i] == (
                        ask[2] == 0 or cost("adaptive", after, epsilon, wholes[i]) <= epsilon
                    )
                    taken[i] = after if willing[i] else taken[i]
                    said[bool(willing[i])] += 1
                ledger.commit(run, number)
        spent = ledger.spent()
        for i, entries in enumerate(taken):
            expected = cost("adaptive", entries, population.epsilon[i], wholes[i])
            assert spent[i] == pytest.approx(expected, rel=1e-9)
        assert (spent <= population.epsilon).all() and (spent[:2] > 0.8 * population.epsilon[:2]).all()
    assert min(said.values()) > 20
    with Ledger(path, population, "adaptive") as ledger:  # read anew, all at once
        np.testing.assert_array_equal(ledger.spent(), spent)


def sampled(population: Population, rounds: int, rate: float, multiplier: float) -> Plan:
    each = np.ones(len(population))
    return Plan("made", population.client, (Phase.one_pool(rounds, rate * each, each, multiplier),))


@pytest.mark.parametrize(("rate", "rounds"), [(0.02, 300), (0.3, 40), (1.0, 12)])
def test_a_first_plan_that_pld_allows_goes_to_its_end(path: Path, rate: float, rounds: int) -> None:
    """Also where it uses up the budget, of which the Rényi filter would allow two thirds of the rounds."""
    population, one = people(2.0), np.ones(1)
    multiplier = float(noise_multiplier(2 * one, DELTA * one, rate * one, rounds)[0])
    plan = sampled(population, rounds, rate, multiplier)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", plan)
        assert do(ledger, "a", *range(1, rounds + 1)) == [[True]] * rounds
        assert ledger.spent()[0] == pytest.approx(certify(plan, population).spent[0], rel=1e-3)
        ledger.finish("a")
        with pytest.raises(BudgetError, match="nobody has enough left"):
            ledger.admit("b", plan)


def test_the_first_plan_of_a_client_is_that_of_the_first_round_it_paid_for(path: Path) -> None:
    """Not the first that was admitted, nor one whose rounds it refused or had no part in."""
    population = people(2.0, 2.0)
    dear, cheap = gaussian(population, 3, 0.3, 30.0), sampled(population, 50, 0.1, 2.0)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("dear", dear)
        ledger.admit("cheap", cheap)
        assert do(ledger, "dear", 1) == [[False, True]]
        assert do(ledger, "cheap", 1, 2) == [[True, True]] * 2
        ledger.change_budget("c0", 1000.0)
        assert do(ledger, "dear", 2) == [[True, True]]
        taken = ledger._accounts.taken()
        np.testing.assert_array_equal(taken.first.sum(axis=0), [50, 3])
        np.testing.assert_array_equal(taken.steps.count.sum(axis=0), [3, 4])
        spent = ledger.spent()
    with Ledger(path, population, "adaptive") as ledger:
        np.testing.assert_array_equal(ledger.spent(), spent)


def test_what_a_first_plan_set_aside_is_not_given_to_steps_chosen_later(path: Path) -> None:
    """A run is stopped early, of whose rounds PLD would allow 38 more: only cheaper ones can follow."""
    population, one = people(4.0), np.ones(1)
    multiplier = float(noise_multiplier(4 * one, DELTA * one, 0.3 * one, 40)[0])
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", sampled(population, 40, 0.3, multiplier))
        do(ledger, "a", 1, 2)
        ledger.finish("a")
        assert ledger.spent()[0] < 2
        ledger.admit("b", sampled(population, 38, 0.3, multiplier))
        same = sum(answer for (answer,) in do(ledger, "b", *range(1, 39)))
        assert 0 < same < 30 and ledger.spent()[0] <= 4


class Leaning(UpdatesOnly):
    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def updates(self, order: Order) -> Iterator[Updates]:
        self.asked.append(order.clients.tolist())
        yield Updates(order.clients, np.full((len(order.clients), 5), 0.1, dtype=np.float32))


def resumed(
    path: Path, population: Population, plan: Plan, stops: list[int]
) -> tuple[State, Leaning, list[str]]:
    """Train; after each of these rounds be killed, before or after it is committed, and go on."""
    clients, state = Leaning(), State.start(np.zeros(5, np.float32))
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("earlier", replace(plan, phases=(replace(plan.phases[0], rounds=1),)))
        do(ledger, "earlier", 1)
    for stop in [*stops, plan.rounds + 1]:
        with Ledger(path, population, "adaptive") as ledger:
            rounds = train(plan, certify(plan, population), clients, ledger, state, run="a", seed=1)
            for reached in rounds:
                if reached.round < abs(stop):
                    state = reached
                elif stop > 0:
                    state = reached  # on disk, but not committed
                    break
                else:
                    break  # reserved and released to nobody
            assert isinstance(rounds, Generator)
            rounds.close()
    db = sqlite3.connect(path)
    lines = [str(row) for row in db.execute("SELECT round, phase, state, refused FROM round ORDER BY number")]
    db.close()
    return state, clients, lines


def test_who_runs_out_stops_and_the_others_go_on_and_a_crash_changes_nothing(tmp_path: Path) -> None:
    population = people(1.0, 4.0, 4.0)
    # PLD would allow all rounds, but two clients have spent one on an earlier run
    one = np.ones(1)
    multipliers = [noise_multiplier(e * one, DELTA * one, one, 12)[0] for e in (1.0, 4.0, 8.0)]
    plan = gaussian(population, 12, multipliers[0], multipliers[1], 2 * multipliers[1])
    whole = resumed(tmp_path / "whole", population, plan, [])
    asked = whole[1].asked
    assert len(asked) == 12 and asked[0] == [0, 1, 2] and asked[-1] == [2]
    last = [max(number for number, who in enumerate(asked, 1) if i in who) for i in range(3)]
    assert 6 < last[0] < 12 and 6 < last[1] < 12 and last[2] == 12
    for i, end in enumerate(last):
        assert all((i in who) == (number <= end) for number, who in enumerate(asked, 1))
        epsilon, multiplier = population.epsilon[i], 1 / plan.phases[0].clip[i]
        before, wholes = ("earlier", (1.0, multiplier, 1)), {"earlier": (1.0, multiplier, 1)}
        assert cost("adaptive", [before, ("a", (1.0, multiplier, end))], epsilon, wholes) <= epsilon
        if i < 2:
            assert cost("adaptive", [before, ("a", (1.0, multiplier, end + 1))], epsilon, wholes) > epsilon
    for name, stops in (("some", [3, last[0] + 1, -12]), ("all", list(range(1, 13)))):
        state, _, lines = resumed(tmp_path / name, population, plan, stops)
        np.testing.assert_array_equal(state.model, whole[0].model)
        assert lines == whole[2]
    with (
        Ledger(tmp_path / "whole", population, "adaptive") as first,
        Ledger(tmp_path / "some", population, "adaptive") as second,
    ):
        np.testing.assert_array_equal(first.spent(), second.spent())


def test_a_plan_that_nobody_can_begin_is_refused_and_a_top_up_lets_clients_go_on(path: Path) -> None:
    population = people(1.0, 1.0)
    plan = gaussian(population, 30, 10.0)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", plan)
        answers = do(ledger, "a", *range(1, 11))
        assert answers[0] == [True, True] and answers[-1] == [False, False]
        with pytest.raises(BudgetError, match="nobody has enough left .* top budgets up"):
            ledger.admit("b", plan)
        with pytest.raises(BudgetError, match="nobody has enough left"):
            ledger.consider(plan)
        ledger.change_budget("c1", 0.5, "by mail")
        np.testing.assert_array_equal(ledger.budget, [1.0, 1.5])
        ledger.admit("b", plan)
        assert do(ledger, "a", 11) == [[False, True]]
        (change,) = ledger.changes
        assert change[:3] == ("c1", 0.5, "by mail")


def test_a_reservation_that_is_repeated_gives_the_same_answer_also_after_a_change(path: Path) -> None:
    population = people(1.0, 9.0)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", gaussian(population, 5, 2.0))
        assert ledger.reserve("a", 1).tolist() == [False, True]
        ledger.change_budget("c0", 9.0)
        ledger.change_budget("c1", -8.9)
        assert ledger.reserve("a", 1).tolist() == [False, True]
    with Ledger(path, population, "adaptive") as ledger:
        assert ledger.reserve("a", 1).tolist() == [False, True]
        ledger.commit("a", 1)
        assert ledger.reserve("a", 2).tolist() == [True, False]
        (run,) = ledger.runs
        assert run[:7] == ("a", "made", 2, 5, 2, 1, 2) and not run.unprotected and run.closed is None


def test_the_filter_looks_at_the_orders_it_began_with_whatever_the_budget_becomes(path: Path) -> None:
    """Orders that were chosen again, after releases, would be no filter."""
    population = people(1.0)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", gaussian(population, 5, 10.0))
        do(ledger, "a", 1, 2)
        spent = ledger.spent()
        ledger.change_budget("c0", 20.0)
    for budget in (1.0, 21.0):
        with Ledger(path, people(budget), "adaptive") as ledger:
            np.testing.assert_array_equal(ledger.spent(), spent)


# what is not private


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
def test_after_a_run_that_protects_nobody_no_budget_is_left(path: Path, rule: Rule) -> None:
    population = people(1.0, 8.0)
    nothing = Plan("made", population.client, (Phase.one_pool(3, np.ones(2), np.ones(2), 0.0),))
    private = costing(population, 0.5)
    with Ledger(path, population, rule) as ledger:
        ledger.admit("early", private)
        with pytest.raises(BudgetError):
            ledger.admit("a", nothing)
        ledger.admit("a", nothing, accept_no_privacy=True)
        assert ledger.runs[1].unprotected
        assert do(ledger, "a", 1) == [[True, True]]
        ledger.change_budget("c1", -0.1)  # whoever withdraws anything is out of it
        assert do(ledger, "a", 2) == [[True, False]]
        ledger.finish("a")
        assert np.isinf(ledger.spent()).all()
        for accept in (False, True):
            with pytest.raises(BudgetError):
                ledger.admit("b", private, accept_no_privacy=accept)
        ledger.change_budget("c1", 100.0)
        with pytest.raises(BudgetError):
            ledger.admit("b", private)
        ledger.admit("c", nothing, accept_no_privacy=True)
        if rule == "adaptive":
            assert do(ledger, "early", 1) == [[False, False]]


def test_to_accept_no_privacy_does_not_take_it_from_a_private_plan(path: Path) -> None:
    population = people(1.0, 1.0)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", gaussian(population, 30, 10.0), accept_no_privacy=True)
        assert not ledger.runs[0].unprotected
        assert do(ledger, "a", *range(1, 11))[-1] == [False, False]
        assert (ledger.spent() <= 1.0).all()


def test_who_has_no_limit_is_never_refused_and_has_nothing_to_change(path: Path) -> None:
    population = people(np.inf, 1.0)
    with Ledger(path, population, "adaptive") as ledger:
        ledger.admit("a", gaussian(population, 4, 0.0001, 30.0))
        assert do(ledger, "a", 1, 2, 3) == [[True, True]] * 3
        with pytest.raises(LedgerError, match="c0 has no limit, so a change would change nothing"):
            ledger.change_budget("c0", -0.5)
        assert ledger.budget[0] == np.inf and ledger.changes == []


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
def test_a_papers_plan_that_passes_budgets_has_to_be_accepted_aloud(path: Path, rule: Rule) -> None:
    population = people(1.0, 8.0)
    tight = costing(population, 4.0)
    papers = replace(tight, accounting="paper")
    with Ledger(path, population, rule) as ledger:
        if rule == "adaptive":  # where each refuses for itself, whatever was accepted
            ledger.admit("a", papers, accept_no_privacy=True)
            assert not ledger.runs[0].unprotected and not do(ledger, "a", 1)[0][0]
            return
        for plan, accept in ((papers, False), (tight, False), (tight, True)):
            with pytest.raises(BudgetError, match="1 of 2 clients refuse this plan"):
                ledger.consider(plan, accept)
        ledger.consider(papers, accept_no_privacy=True)
        assert ledger.runs == []
        ledger.admit("a", papers, accept_no_privacy=True)
        assert ledger.runs[0].unprotected
        assert do(ledger, "a", 1, 2, 3, 4) == [[True, True]] * 4
        np.testing.assert_array_equal(ledger.spent(), certify(papers, population).spent)
        ledger.finish("a")
        with pytest.raises(BudgetError):  # what was spent stays spent
            ledger.admit("b", costing(population, 0.5))
        small = replace(costing(people(8.0), 0.5), clients=("c1",), accounting="paper")
    with Ledger(path, replace(people(8.0), client=("c1",)), rule) as ledger:
        ledger.admit("c", small, accept_no_privacy=True)  # nobody passes anything: as good as any other plan
        assert not ledger.runs[1].unprotected


# statistics that decide who trains


def reading(population: Population, *rows: list[int], read: list[float] | None = None) -> Plan:
    """A round for each row of public turns, or with public rates alone."""
    count = len(population)
    own: dict[str, Any] = {"clip": np.ones(count), "pool": np.arange(count), "weight": np.ones(count)}
    own |= {"noise": np.full(count, 2.0), "batch": np.full(count, 0.25)}
    statistic = np.array(read or [9.0, 12.0, 15.0])
    phases = tuple(
        Phase(2, np.ones(count), **own, turns=np.array(row), steps=3, read=statistic * (1 + i // 2))
        for i, row in enumerate(rows)
    )
    return Plan("made", population.client, phases, noise_at="steps", reading=Reading("norm", 1, 1.0))


def same(ours: Steps, theirs: Steps) -> None:
    """Nothing in a ledger has an order: by client, price and count."""
    assert (ours.unit, ours.adjacency) == (theirs.unit, theirs.adjacency)

    def entries(steps: Steps) -> list[dict[tuple[float, float], int]]:
        found: list[dict[tuple[float, float], int]] = [{} for _ in range(steps.rate.shape[1])]
        for rate, multiplier, count in zip(steps.rate, steps.multiplier, steps.count, strict=True):
            for i in np.flatnonzero(count):
                key = (float(rate[i]), float(multiplier[i]))
                found[i][key] = found[i].get(key, 0) + int(count[i])
        return found

    assert entries(ours) == entries(theirs)


def test_statistics_are_on_record_as_the_plan_charges_them(path: Path) -> None:
    population = people(50.0, 50.0, 50.0)
    plan = reading(population, [1, 0, 1], [0, 0, 1], [1, 1, 1])
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        same(ledger._accounts.steps(whole_plans=True), plan.steps())
        for number in range(1, plan.rounds + 1):
            do(ledger, "a", number)
            same(ledger._accounts.steps(), plan.steps(number))
            same(ledger._accounts.steps(whole_plans=True), plan.steps())
        np.testing.assert_allclose(ledger.spent(), certify(plan, population).spent, rtol=1e-12)
    with Ledger(path, population) as ledger:  # read anew
        same(ledger._accounts.steps(), plan.steps())
        ledger.admit("a", plan)


def test_whoever_has_no_turn_is_not_charged_for_the_statistic_of_others(path: Path) -> None:
    """Also without turns, where rates are 0 or 1 and counts differ all the same."""
    population = people(50.0, 50.0, 50.0)
    phase = reading(population, [1, 1, 1]).phases[0]
    silent = replace(phase, turns=None, rate=np.array([1.0, 0.0, 1.0]))
    plan = replace(reading(population, [1, 1, 1]), phases=(silent,))
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        do(ledger, "a", 1, 2)
        same(ledger._accounts.steps(), plan.steps())
        assert ledger.spent()[1] == 0


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
def test_who_refuses_is_charged_neither_for_the_statistic_nor_for_training(path: Path, rule: Rule) -> None:
    population = people(50.0, 50.0, 50.0)
    plan = reading(population, [1, 1, 1])
    with Ledger(path, population, rule) as ledger:
        ledger.admit("a", plan)
        assert do(ledger, "a", 1) == [[True, True, True]]
        one = ledger.spent()
        ledger.change_budget("c1", -49.9999)
        assert ledger.reserve("a", 2).tolist() == [True, False, True]
    with Ledger(path, population, rule) as ledger:  # after a crash
        assert ledger.reserve("a", 2).tolist() == [True, False, True]
        ledger.commit("a", 2)
        assert ledger.spent()[1] == one[1] and (ledger.spent()[[0, 2]] > one[[0, 2]]).all()
        after = ledger._accounts.steps()
        assert after.count[:, 1].tolist() == plan.steps(1).count[:, 1].tolist() == [3, 1]


def test_what_is_read_raw_protects_nobody(path: Path) -> None:
    population = people(1.0, 1.0, 1.0)
    plan = reading(population, [1, 0, 0], read=[0.0, 0.0, 0.0])
    with Ledger(path, population) as ledger:
        with pytest.raises(BudgetError, match="3 of 3 clients refuse"):
            ledger.admit("a", plan)
        ledger.admit("a", plan, accept_no_privacy=True)
        assert do(ledger, "a", 1) == [[True, True, True]]
        assert np.isinf(ledger.spent()).all()


# the planned rule with changes


def test_a_withdrawal_is_heeded_from_exactly_the_round_that_would_pass_it(path: Path) -> None:
    population = people(2.0, 2.0, 2.0)
    plan = costing(population, 2.0, 10)
    multiplier = 1 / plan.phases[0].clip[0]
    allowed = [cost("planned", [("a", (1.0, multiplier, done))], 2.0) for done in range(1, 11)]
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        assert do(ledger, "a", 1, 2, 3) == [[True] * 3] * 3
        ledger.change_budget("c1", -0.6)
        ledger.change_budget("c2", -2.0)  # all there is
        answers = do(ledger, "a", *range(4, 11))
        assert answers == [[True, epsilon <= 1.4, False] for epsilon in allowed[3:]]
        assert answers[0][1] and not answers[-1][1]
        np.testing.assert_array_equal(ledger.budget, [2.0, 1.4, 0.0])
        assert ledger.spent()[0] == allowed[-1]
        assert ledger.spent()[1] == max(epsilon for epsilon in allowed if epsilon <= 1.4)
        assert ledger.spent()[2] == allowed[2]
        with pytest.raises(BudgetError, match="3 of 3 clients refuse this plan; worst is client c2"):
            ledger.admit("b", plan)
        idle = Plan("made", population.client, (Phase.one_pool(2, np.ones(3), np.array([0.0, 0, 0]), 1.0),))
        with pytest.raises(BudgetError, match="1 of 3"):  # c2 has already spent more than it allows
            ledger.admit("b", idle)


def test_who_withdrew_may_still_do_what_costs_nothing(path: Path) -> None:
    population = people(2.0, 2.0)
    first = Phase.one_pool(2, np.ones(2), np.ones(2), 5.0)
    later = Phase.one_pool(2, np.array([1.0, 0.0]), np.ones(2), 5.0)
    with Ledger(path, population) as ledger:
        ledger.admit("a", Plan("made", population.client, (first, later)))
        do(ledger, "a", 1)
        ledger.change_budget("c1", -2.0)
        assert do(ledger, "a", 2, 3, 4) == [[True, False], [True, True], [True, True]]
        assert ledger.spent()[1] == cost("planned", [("a", (1.0, 5.0, 1))], 2.0) > ledger.budget[1] == 0


def test_a_top_up_that_was_promised_to_another_run_does_not_undo_a_withdrawal(path: Path) -> None:
    """Up by 2, a second run on the strength of it, down by 2: the first run has to look, too."""
    population = people(2.0)
    plan = costing(population, 1.9)
    with Ledger(path, population) as ledger:
        ledger.admit("a", plan)
        ledger.change_budget("c0", 2.0)
        ledger.admit("b", plan)
        do(ledger, "b", 1, 2, 3, 4)
        ledger.change_budget("c0", -2.0)
        do(ledger, "a", 1, 2, 3, 4)
        assert ledger.budget[0] == 2.0 and ledger.spent()[0] <= 2.0


def test_spent_is_what_the_certificate_says_where_nobody_refuses(path: Path) -> None:
    population = people(2.0, 4.0)
    phases = (
        Phase.one_pool(3, np.array([0.2, 0.4]), np.array([1.0, 1.5]), 4.0),
        Phase.one_pool(2, np.array([0.2, 0.4]), np.array([1.0, 1.5]), 5.0),
        Phase.one_pool(4, np.array([0.2, 0.4]), np.array([1.0, 1.5]), 4.0),
    )
    plan = Plan("made", population.client, phases)
    start = State.start(np.zeros(5, np.float32))
    certificate = certify(plan, population)
    with Ledger(path, population) as ledger:
        assert len(list(train(plan, certificate, Leaning(), ledger, start, run="a", seed=1))) == 9
        np.testing.assert_array_equal(ledger.spent(), certificate.spent)
        assert ledger.runs[0].closed and ledger._read("SELECT COUNT(*) FROM price") == [(2,)]


# files, populations, units


def test_a_ledger_keeps_its_rule_and_its_unit(path: Path) -> None:
    population = people(8.0, 8.0)
    plan = gaussian(population, 2, 8.0)
    other = replace(plan, adjacency="replace")
    with Ledger(path, population, "adaptive") as ledger:
        ledger.consider(other)
        ledger.admit("a", plan)
        refusals: list[Callable[[], object]] = [
            lambda: ledger.admit("b", other),
            lambda: ledger.consider(other),
        ]
        for refused in refusals:
            with pytest.raises(
                LedgerError, match=r"protects a client \(add_remove\), this plan a client \(replace\)"
            ):
                refused()
    with pytest.raises(LedgerError, match="goes by the rule adaptive, not planned. A ledger keeps its rule"):
        Ledger(path, population, "planned")
    with Ledger.existing(path) as ledger:
        assert ledger.rule == "adaptive" and ledger.population.client == population.client


def test_only_a_population_of_exactly_its_clients_may_reserve(path: Path) -> None:
    """Others would not know whether those who are missing refuse."""
    with Ledger(path, people(1.0, 2.0), "adaptive") as ledger:
        ledger.admit("a", gaussian(people(1.0, 2.0), 3, 3.0))
        do(ledger, "a", 1)
        spent = ledger.spent()
    more = Population(("x", "c1"), np.array([9.0, 2.0]), np.full(2, DELTA), np.ones(2, dtype=int))
    fewer = people(1.0)
    for population, known in ((more, [0.0, spent[1]]), (fewer, spent[:1])):
        with Ledger(path, population, "adaptive") as ledger:
            with pytest.raises(LedgerError, match="run a has other clients"):
                ledger.reserve("a", 2)
            np.testing.assert_array_equal(ledger.spent(), known)
    with Ledger(path, fewer, "adaptive") as ledger:
        with Ledger.existing(path) as everybody:
            everybody.change_budget("c1", -1.0)
            everybody.change_budget("x", 1.0)
            assert everybody.budget.tolist() == [1.0, 1.0, 10.0]
            assert everybody.takes_part_in.tolist() == [1, 1, 0]
        assert ledger.budget.tolist() == [1.0]


def test_only_a_ledger_can_be_opened_as_one_and_opening_it_changes_nothing(
    tmp_path: Path, path: Path
) -> None:
    with pytest.raises(LedgerError, match=r"there is no ledger .*give the ledger\.sqlite"):
        Ledger.existing(path)
    path.touch()
    with pytest.raises(LedgerError, match="not a ledger of Discretion"):
        Ledger.existing(path)
    assert path.stat().st_size == 0
    Ledger(path, people(1.0)).close()
    before = path.read_bytes()
    with Ledger.existing(path) as ledger:
        assert ledger.spent().tolist() == [0.0] and ledger.runs == []
    assert path.read_bytes() == before


def test_a_changed_budget_may_stand_in_the_population_as_it_was_or_as_it_is(path: Path) -> None:
    with Ledger(path, people(4.0, 4.0)) as ledger:
        for by in (0.1, 0.2):
            ledger.change_budget("c1", by)
    for budget in (4.0, 4.3):
        with Ledger(path, people(4.0, budget)) as ledger:
            assert ledger.budget[1] == pytest.approx(4.3, rel=1e-12)
    for budgets in ((4.0, 4.1), (4.3, 4.0)):
        with pytest.raises(LedgerError, match="holds for life"):
            Ledger(path, people(*budgets))


@pytest.mark.parametrize("by", [0.0, np.nan, np.inf, -np.inf])
def test_changes_that_are_none_are_refused(path: Path, by: float) -> None:
    with Ledger(path, people(4.0)) as ledger:
        with pytest.raises(LedgerError, match="by a finite number"):
            ledger.change_budget("c0", by)
        with pytest.raises(LedgerError, match="no client 'c00' in the ledger .* Did you mean 'c0'"):
            ledger.change_budget("c00", 1.0)
        assert ledger.changes == []


def test_no_more_is_withdrawn_than_there_is(path: Path) -> None:
    with Ledger(path, people(4.0)) as ledger:
        with pytest.raises(LedgerError, match="at most the whole budget can be withdrawn: 4, found 100"):
            ledger.change_budget("c0", -100.0)
        assert ledger.changes == [] and ledger.budget[0] == 4.0
        ledger.change_budget("c0", -4.0)
        assert ledger.budget[0] == 0.0


def test_a_file_that_goes_away_is_a_ledger_error(path: Path) -> None:
    with Ledger(path, people(4.0)) as ledger:
        ledger._db.execute("DROP TABLE round")
        with pytest.raises(LedgerError, match="cannot be used now"):
            ledger.states("a")


def test_a_transaction_that_sqlite_ended_by_itself_is_not_ended_again(path: Path) -> None:
    """As when a disk is full."""
    with Ledger(path, people(4.0)) as ledger:
        with pytest.raises(LedgerError, match="disk is full"), ledger._transaction():
            ledger._db.execute("ROLLBACK")
            raise sqlite3.OperationalError("disk is full")
        ledger.change_budget("c0", 1.0)


# anything that may happen

CHEAP, DEAR = 12.0, 4.0
actions = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.sampled_from("abc"), st.sampled_from([CHEAP, DEAR])),
        st.tuples(st.just("round"), st.sampled_from("abc"), st.just(0.0)),
        st.tuples(st.just("round"), st.sampled_from("abc"), st.just(0.0)),
        st.tuples(st.just("finish"), st.sampled_from("abc"), st.just(0.0)),
        st.tuples(st.just("change"), st.sampled_from(["c0", "c1"]), st.sampled_from([-1.0, -0.3, 0.4, 2.0])),
        st.tuples(st.just("reopen"), st.just(""), st.just(0.0)),
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.parametrize("rule", ["planned", "adaptive"])
@settings(max_examples=20, deadline=None)
@given(actions)
def test_no_history_takes_a_client_past_its_budget(
    tmp_path_factory: pytest.TempPathFactory, rule: Rule, history: list[tuple[str, str, float]]
) -> None:
    population = people(1.5, 2.5)
    first: Floats = population.epsilon
    budget = first.copy()
    taken: list[list[Charge]] = [[], []]
    used: dict[str, Entry] = {}  # the whole plan of each run
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger(path, population, rule)
    for action, who, value in history:
        if action == "admit" and who not in used:
            try:
                ledger.admit(who, gaussian(population, 6, value))
                used[who] = (1.0, value, 6)
            except BudgetError:
                pass
        elif action == "round":
            done = len(ledger.states(who))
            try:
                willing = ledger.reserve(who, done + 1)
            except LedgerError:
                continue
            for i in np.flatnonzero(willing).tolist():
                taken[i].append((who, (1.0, used[who][1], 1)))
                assert cost(rule, taken[i], first[i], used) <= max(budget[i], 0.0) * (1 + 1e-12)
            ledger.commit(who, done + 1)
        elif action == "finish":
            ledger.finish(who)
        elif action == "change":
            if -value <= ledger.budget[int(who[1])]:  # more is refused
                ledger.change_budget(who, value)
                budget[int(who[1])] += value
        elif action == "reopen":
            ledger.close()
            ledger = Ledger(path, population, rule)
    for i in range(2):
        expected = cost(rule, taken[i], first[i], used) if taken[i] else 0.0
        assert ledger.spent()[i] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(ledger.budget, np.maximum(budget, 0.0), rtol=1e-12)
    ledger.close()


def test_budgets_of_a_ledger_hold_against_one_adversary(tmp_path: Path) -> None:
    population = Population.of([5.0, 5.0], 1e-4)
    phase = Phase.one_pool(1, np.ones(2), np.ones(2), 30.0)
    plan = Plan("made", population.client, (phase,), noise_at="secure_sum", promise="server")
    with Ledger(tmp_path / "ledger", population) as ledger:
        ledger.admit("a", plan)
        ledger.admit("b", plan)
        with pytest.raises(LedgerError, match="hold against server, in this plan against clients"):
            ledger.admit("c", replace(plan, promise="clients"))
