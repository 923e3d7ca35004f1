"""Steps never mix what does not add up, and no accountant lets more release cost less."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.accounting import Accountant, Pld, Renyi
from discretion.errors import PlanError
from discretion.plan.steps import Steps

GOOD: dict[str, Any] = {
    "rate": np.array([[0.1, 0.2]]),
    "multiplier": np.array([[1.0, 2.0]]),
    "count": np.array([[3, 4]]),
}


@pytest.mark.parametrize(
    "change",
    [
        {"rate": np.array([[-0.1, 0.2]])},
        {"rate": np.array([[0.1, 1.1]])},
        {"rate": np.array([[0.1, math.nan]])},
        {"rate": np.array([0.1, 0.2])},
        {"rate": np.array([[0.1, 0.2, 0.3]])},
        {"multiplier": np.array([[1.0, -1.0]])},
        {"multiplier": np.array([[1.0, math.nan]])},
        {"multiplier": np.array([[1.0]])},
        {"count": np.array([[3, -1]])},
        {"count": np.array([[3, 0.9]])},  # would be rounded down to nothing
        {"count": np.array([[3, math.nan]])},
        {"count": np.array([[3, math.inf]])},
        {"count": np.array([[3]])},
        {"count": np.array([3, 4])},
    ],
)
def test_steps_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="invalid steps: "):
        Steps(**{**GOOD, **change})


@pytest.mark.parametrize("change", [{"unit": "user"}, {"adjacency": "replace_one"}])
def test_unknown_units_and_adjacencies_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="invalid steps: (unit|adjacency) must be .*, found"):
        Steps(**GOOD, **change)


def test_a_count_for_everybody_is_a_count_for_each() -> None:
    steps = Steps(GOOD["rate"], GOOD["multiplier"], np.array([5]))
    assert steps.count.tolist() == [[5, 5]] and len(steps) == 1


def test_secret_coins_where_units_are_replaced_are_refused() -> None:
    with pytest.raises(PlanError, match="secret coin cannot be accounted for.*use add_remove"):
        Steps(**GOOD, adjacency="replace")
    public = Steps(**{**GOOD, "rate": np.array([[0.0, 1.0]])}, adjacency="replace")
    assert public.of(np.array([1])).adjacency == "replace"


def test_what_does_not_add_up_is_not_added_up() -> None:
    always = {**GOOD, "rate": np.ones((1, 2))}
    kinds = [
        Steps(**always, unit=unit, adjacency=adjacency)
        for unit in ("client", "record")
        for adjacency in ("add_remove", "replace")
    ]
    for one in kinds:
        for other in kinds:
            if one is other:
                both = one.then(other)
                assert len(both) == 2 and (both.unit, both.adjacency) == (one.unit, one.adjacency)
            else:
                with pytest.raises(PlanError, match="do not add up: keep an account for each"):
                    one.then(other)
        for both in (Steps.none(2).then(one), one.then(Steps.none(2))):
            assert len(both) == 1 and (both.unit, both.adjacency) == (one.unit, one.adjacency)


def test_steps_of_some_clients_and_one_after_the_other() -> None:
    one = Steps.same(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0]), 5)
    assert one.rate.shape == (1, 3) and one.count.tolist() == [[5, 5, 5]]
    assert Steps.same(one.rate[0], one.multiplier[0], np.array([1, 2, 3])).count.tolist() == [[1, 2, 3]]
    some = one.of(np.array([2, 0]))
    np.testing.assert_array_equal(some.rate, [[0.3, 0.1]])
    np.testing.assert_array_equal(some.multiplier, [[3.0, 1.0]])
    both = Steps.none(3).then(one).then(one)
    assert both.count.tolist() == [[5, 5, 5]] * 2
    np.testing.assert_array_equal(both.multiplier, [[1.0, 2.0, 3.0]] * 2)
    assert both.count.dtype == np.int64


# what every accountant keeps to

ACCOUNTANTS = pytest.mark.parametrize("accountant", [Pld(), Renyi()], ids=lambda a: a.name)
SLACK = {"PLD": 5e-3, "Rényi": 1e-8}  # share of epsilon by which a bound may be loose
rates = st.one_of(st.just(1.0), st.floats(1e-3, 1.0))
multipliers = st.floats(0.4, 20.0)
counts = st.integers(1, 60)
deltas = st.floats(1e-8, 1e-2)
one_step = st.tuples(rates, multipliers, counts)


def epsilons(accountant: Accountant, clients: list[list[tuple[float, float, int]]], delta: Any) -> np.ndarray:
    """(N,) for clients with equally many steps each."""
    rate, multiplier, count = np.moveaxis(np.array(clients, dtype=float), 2, 0)
    steps = Steps(rate.T, multiplier.T, count.T.astype(np.int64))
    return accountant.epsilon(steps, np.broadcast_to(np.asarray(delta, float), len(clients)))


@ACCOUNTANTS
@settings(max_examples=20, deadline=None)
@given(step=one_step, delta=deltas, more=st.floats(1.01, 3.0))
def test_more_release_never_costs_less(
    accountant: Accountant, step: tuple[float, float, int], delta: float, more: float
) -> None:
    rate, multiplier, count = step
    clients = [
        [step],
        [(min(rate * more, 1.0), multiplier, count)],
        [(rate, multiplier / more, count)],
        [(rate, multiplier, count + 1)],
        [step],
    ]
    found = epsilons(accountant, clients, np.array([delta] * 4 + [delta / more]))
    assert (found >= 0).all()
    assert (found[1:] >= found[0] * (1 - SLACK[accountant.name])).all()
    without_coins = epsilons(accountant, [[(1.0, multiplier, count)]], delta)
    assert found[0] <= without_coins[0] * (1 + SLACK[accountant.name])


@ACCOUNTANTS
@settings(max_examples=15, deadline=None)
@given(step=st.tuples(rates, multipliers, st.integers(2, 8)), delta=deltas)
def test_many_steps_once_are_one_step_many_times(
    accountant: Accountant, step: tuple[float, float, int], delta: float
) -> None:
    rate, multiplier, count = step
    once = epsilons(accountant, [[step]], delta)
    many = epsilons(accountant, [[(rate, multiplier, 1)] * count], delta)
    np.testing.assert_allclose(many, once, rtol=1e-10)


@ACCOUNTANTS
@settings(max_examples=15, deadline=None)
@given(steps=st.lists(one_step, min_size=2, max_size=3), delta=deltas)
def test_the_order_of_steps_does_not_matter_and_each_costs(
    accountant: Accountant, steps: list[tuple[float, float, int]], delta: float
) -> None:
    forth, back = epsilons(accountant, [steps, steps[::-1]], delta)
    assert forth == pytest.approx(back, rel=1e-12)
    for step in steps:
        assert epsilons(accountant, [[step]], delta)[0] <= forth * (1 + SLACK[accountant.name])


@ACCOUNTANTS
def test_steps_that_release_nothing_cost_nothing(accountant: Accountant) -> None:
    step = (0.2, 1.5, 10)
    alone = epsilons(accountant, [[step]], 1e-5)[0]
    for nothing in ((0.0, 1.0, 50), (0.5, math.inf, 50), (0.5, 1.0, 0), (0.0, 0.0, 50)):
        assert epsilons(accountant, [[step, nothing]], 1e-5)[0] == pytest.approx(alone, rel=1e-12)
        assert epsilons(accountant, [[nothing]], 1e-5)[0] == 0
    assert np.isinf(epsilons(accountant, [[step, (1e-9, 0.0, 1)]], 1e-5)[0])


@settings(max_examples=20, deadline=None)
@given(step=one_step, delta=deltas)
def test_the_tight_accountant_never_says_more_than_the_other(
    step: tuple[float, float, int], delta: float
) -> None:
    tight, loose = (epsilons(accountant, [[step]], delta)[0] for accountant in (Pld(), Renyi()))
    assert tight <= loose * (1 + SLACK["PLD"])
