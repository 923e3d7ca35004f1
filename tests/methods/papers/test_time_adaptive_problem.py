"""Shapes of schedules: what is saved, who saves, and what a better shape is worth."""

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import brentq

from discretion.accounting import Pld, noise_multiplier
from discretion.errors import PlanError
from discretion.methods.papers.kiani import Saving, set_privacy_params
from discretion.methods.solvers.time_adaptive import assign, noise_shape
from discretion.plan.steps import Steps
from support.formulas import optimal_shape, spending, weighted_noise

BUDGETS, DELTA, RATE, ROUNDS = np.array([10.0, 20.0, 30.0]), np.full(3, 1e-5), np.full(3, 0.9), 25
FMNIST = Saving(ROUNDS, RATE, np.array([0.5, 0.6, 0.7]), np.full(3, 13))
WEIGHT = 1.1 ** np.arange(float(ROUNDS))  # later rounds matter more


def scaled(rates: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """(T, N) the shape, times a factor for each client that makes it cost the budget."""

    def over(log_factor: float, n: int) -> float:
        steps = Steps(rates[:, [n]], shape[:, [n]] * np.exp(log_factor), np.ones(len(rates), dtype=np.int64))
        result: float = float(Pld().epsilon(steps, DELTA[:1])[0]) - BUDGETS[n]
        return result

    return shape * np.exp([brentq(over, -1, 1.5, args=(n,), xtol=1e-3) for n in range(shape.shape[1])])


def second_order(rate: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.log1p(rate**2 * np.expm1(1 / multiplier**2))
    return result


def test_rates() -> None:
    by_group = Saving(4, np.full(2, 0.9), np.array([0.5, 0.7]), np.array([3, 2]))
    assert by_group.rates().tolist() == [[0.5, 0.7], [0.5, 0.9], [0.9, 0.9], [0.9, 0.9]]


@pytest.mark.parametrize("spend_from", [1, 2, 13, 25])
@pytest.mark.parametrize("multiplier", [0.05, 1.0, 50.0])
def test_all_is_spent_and_never_less_than_before(spend_from: int, multiplier: float) -> None:
    chosen = Saving(25, np.full(4, 0.9), np.array([0.0, 0.1, 0.5, 0.9]), np.full(4, spend_from))
    equal = np.full(4, multiplier)
    found = noise_shape(chosen, equal)
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=0) <= 1e-12 * multiplier).all()
    if multiplier > 0.05:
        spent = second_order(chosen.rates(), found)
        assert spent.sum(axis=0) == pytest.approx(25 * second_order(np.full(4, 0.9), equal))
        assert (np.diff(spent, axis=0) > -1e-12).all()
    assert found[:, 3] == pytest.approx(multiplier)  # does not save


def test_with_small_rates_and_much_noise_it_is_lemma_1() -> None:
    rare = Saving(25, np.full(3, 0.01), np.array([0.005, 0.006, 0.009]), np.array([13, 5, 20]))
    spent = second_order(rare.rates(), noise_shape(rare, np.full(3, 30.0)))
    assert spent / spent.sum(axis=0) == pytest.approx(spending(rare), rel=1e-3)


def test_at_large_rates_saving_saves_less_than_lemma_1_says() -> None:
    equal = noise_multiplier(BUDGETS, DELTA, RATE, ROUNDS)
    spent = second_order(FMNIST.rates(), noise_shape(FMNIST, equal))
    more = spent[0] / spent.sum(axis=0) / spending(FMNIST)[0]
    assert more == pytest.approx([1.056, 1.132, 1.158], abs=2e-3)


def test_the_shape_needs_hardly_any_scaling() -> None:
    """Counted at order 2, the schedule already costs the budget to within 1 %; the paper's wants 0.79."""
    equal = noise_multiplier(BUDGETS, DELTA, RATE, ROUNDS)
    found = noise_shape(FMNIST, equal)
    factor = (scaled(FMNIST.rates(), found) / found)[0]
    assert factor == pytest.approx([1.006, 1.002, 0.996], abs=2e-3)


def test_weighted_noise_of_four_schedules() -> None:
    """Saving by coming less often is worse than equal rounds, 6.45, and than noise that falls, 5.80."""
    saved, always = FMNIST.rates(), np.broadcast_to(RATE, (ROUNDS, 3))
    literal = set_privacy_params(FMNIST, BUDGETS, DELTA).multiplier
    equal = np.broadcast_to(noise_multiplier(BUDGETS, DELTA, RATE, ROUNDS), (ROUNDS, 3))
    found = [
        weighted_noise(WEIGHT, saved, literal),
        weighted_noise(WEIGHT, saved, scaled(saved, literal)),
        weighted_noise(WEIGHT, saved, scaled(saved, noise_shape(FMNIST, equal[0]))),
        weighted_noise(WEIGHT, always, equal),
        weighted_noise(WEIGHT, saved, scaled(saved, 3.5 * optimal_shape(WEIGHT, saved))),
        weighted_noise(WEIGHT, always, scaled(always, 3.5 * optimal_shape(WEIGHT, always))),
    ]
    assert [each[0] for each in found] == pytest.approx([11.24, 7.08, 7.06, 6.45, 6.30, 5.80], abs=0.02)
    assert (found[2][1:] < found[1][1:]).all() and (found[5] < np.array(found[:5])).all()


def test_the_optimal_shape_without_sampling() -> None:
    rng = np.random.default_rng(2)
    weight = rng.uniform(0.1, 5, 8)
    best = optimal_shape(weight, np.ones((8, 1)))

    def value(multiplier: np.ndarray) -> float:
        same_cost = multiplier * np.sqrt((multiplier**-2).sum())
        return float(weighted_noise(weight, np.ones((8, 1)), same_cost)[0])

    for _ in range(200):
        assert value(best * np.exp(0.2 * rng.standard_normal((8, 1)))) > value(best)


def test_the_optimal_shape_of_equal_rounds_is_equal() -> None:
    assert (optimal_shape(np.full(5, 3.0), np.full((5, 2), 0.4)).std(axis=0) == 0).all()


def test_rates_are_handed_out_like_clips() -> None:
    rates, clip = np.array([0.7, 0.5, 0.6, 0.5]), np.array([3.0, 9.0, 1.0, 4.0])
    found = assign(rates, clip)
    assert found.tolist() == [0.5, 0.7, 0.5, 0.6]
    assert found @ clip == pytest.approx(max(np.array(other) @ clip for other in permutations(rates)))


def test_what_cannot_be_is_refused() -> None:
    half = np.full(1, 0.5)
    for saving_rate, rate in ((0.6, 0.5), (-0.1, 0.5), (0.0, 0.0), (1.0, 1.1)):
        with pytest.raises(PlanError, match="saving rate"):
            noise_shape(Saving(5, np.array([rate]), np.array([saving_rate]), np.array([2])), np.ones(1))
    for start in (0, 6):
        with pytest.raises(PlanError, match="one of the 5 rounds"):
            noise_shape(Saving(5, half, half, np.array([start])), np.ones(1))
    with pytest.raises(PlanError, match="infinite noise"):
        optimal_shape(np.array([1.0, 0.0]), np.ones((2, 1)))
