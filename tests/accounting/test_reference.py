"""The second opinion agrees with the first, and both are bounds."""

import math

import numpy as np
import pytest

from discretion.accounting import Pld, Reference, reference
from discretion.accounting.reference import countable
from discretion.errors import PlanError
from discretion.plan.steps import Steps


def test_two_accountants_agree() -> None:
    rng = np.random.default_rng(0)
    rate = rng.choice([0.02, 0.3, 1.0], (2, 4))
    multiplier = rng.choice([1.5, 2.0, 8.0], (2, 4))
    steps, delta = Steps(rate, multiplier, np.array([20, 7])), np.full(4, 1e-5)
    ours, theirs = Pld().epsilon(steps, delta), Reference().epsilon(steps, delta)
    np.testing.assert_allclose(ours, theirs, rtol=2e-3)


def test_steps_that_cost_nothing_or_everything() -> None:
    def cost(rate: float, multiplier: float, count: int) -> float:
        steps = Steps(np.array([[rate]]), np.array([[multiplier]]), np.array([count]))
        return float(Reference().epsilon(steps, np.array([1e-5]))[0])

    assert cost(0.0, 0.0, 3) == cost(0.5, 1.0, 0) == cost(0.5, math.inf, 3) == 0
    assert cost(0.5, 0.0, 1) == math.inf


def test_equal_steps_are_composed_together() -> None:
    apart = Steps(np.full((3, 1), 0.1), np.ones((3, 1)), np.array([1, 1, 2]))
    together = Steps(np.full((1, 1), 0.1), np.ones((1, 1)), np.array([4]))
    delta = np.array([1e-5])
    assert Reference().epsilon(apart, delta) == pytest.approx(Reference().epsilon(together, delta))


@pytest.mark.parametrize(
    ("rate", "multiplier", "count"), [(0.5, 0.01, 1), (1.0, 1e-200, 1), (0.5, 0.5, 10**6)]
)
def test_what_dp_accounting_cannot_count_is_refused_before_work_starts(
    rate: float, multiplier: float, count: int
) -> None:
    """Its own answer is an OverflowError, or gigabytes and minutes."""
    steps, delta = Steps.same(np.array([rate]), np.array([multiplier]), count), np.array([1e-5])
    assert not countable(steps, delta).any()
    with pytest.raises(PlanError, match="dp-accounting cannot count 1 of 1 clients: found so little noise"):
        Reference().epsilon(steps, delta)


def test_what_costs_nothing_or_everything_can_be_counted() -> None:
    rate, multiplier = np.array([0.0, 1.0, 1.0]), np.array([1e-200, 0.0, 1.0])
    assert countable(Steps.same(rate, multiplier, 3), np.full(3, 1e-5)).all()
    assert countable(Steps.none(2), np.full(2, 1e-5)).all()


def test_an_epsilon_of_0_is_counted_on_one_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """With delta 0.9 and little noise, a finer grid would take minutes, and can give no less."""
    grids: list[float] = []
    composed = reference._composed

    def counting(steps: reference.Kinds, delta: float, grid: float) -> float:
        grids.append(grid)
        return composed(steps, delta, grid)

    monkeypatch.setattr(reference, "_composed", counting)
    steps = Steps(np.array([[0.5]]), np.array([[1.0]]), np.array([3]))
    assert Reference().epsilon(steps, np.array([0.9])) == 0 and len(grids) == 1
    assert Reference().epsilon(steps, np.array([1e-5])) > 0 and len(grids) == 3
