"""Drawing clients by privacy level: what the paper's weights do, and what holds for the repaired ones."""

from itertools import combinations

import numpy as np
import pytest

from discretion.errors import InputError
from discretion.methods.solvers.cohorts import (
    inclusion,
    systematic,
    unbiased_weights,
    within_round,
)
from support.formulas import (
    by_level,
    by_noise,
    importance_weights,
    noise_variance,
    printed_ratio,
    within_budget,
)

N = 100
RHO = np.random.default_rng(1).uniform(0.01, 12, N)
THETA = np.full(N, 1 / N)
EVEN = np.full(N, 1 / N)


@pytest.mark.parametrize(
    ("cohort", "total", "bias", "certain"),
    [(20, 1.034, 0.06, 0), (50, 1.120, 0.20, 0), (80, 1.334, 0.51, 0.38)],
)
def test_weights_for_replacement_are_biased_without_it(
    cohort: int, total: float, bias: float, certain: float
) -> None:
    """1.8, by 4000 draws; 1/x is large for a few clients, hence a tolerance of 0.01."""
    x = by_level(RHO)
    race = np.random.default_rng(5).exponential(size=(4000, N)) / x  # first K in: drawn without replacement
    drawn = (race <= np.partition(race, cohort - 1, axis=1)[:, [cohort - 1]]).mean(axis=0)
    weights = importance_weights(THETA, x, cohort)
    assert drawn @ weights == pytest.approx(total, abs=0.01)
    assert np.abs(drawn * weights - THETA).sum() == pytest.approx(bias, abs=0.012)
    assert np.mean(cohort * x > 1) == pytest.approx(certain)


def test_weights_amplify_the_noise_of_noisy_clients() -> None:
    """1.9: 34 times the noise of uniform drawing; drawn by noise it is least."""
    x, cohort = by_level(RHO), 20
    weighted, uniform, least = (
        noise_variance(importance_weights(THETA, y, cohort), y, RHO, cohort)
        for y in (x, EVEN, by_noise(THETA, RHO))
    )
    assert (weighted, uniform, least) == pytest.approx((0.931, 0.0273, 0.0153), rel=3e-3)
    assert weighted / uniform == pytest.approx(34, abs=0.5)
    assert noise_variance(np.full(N, 1 / cohort), x, RHO, cohort) == pytest.approx(0.0081, abs=5e-5)
    assert np.abs(x - THETA).sum() == pytest.approx(0.487, abs=5e-4)
    for other in np.random.default_rng(0).dirichlet(np.full(N, 5.0), 50):
        assert noise_variance(importance_weights(THETA, other, cohort), other, RHO, cohort) >= least


@pytest.mark.parametrize(("spread", "ratio"), [(0.3, 1.07), (0.1, 1.006)])
def test_near_equal_levels_make_little_difference(spread: float, ratio: float) -> None:
    """1.9, for levels uniform within ±30 % and ±10 %; methods.md has 1.07 and 1.005."""
    rho = 6.6 * (1 + spread * np.random.default_rng(1).uniform(-1, 1, N))
    by_rho, even = (
        noise_variance(importance_weights(THETA, x, 20), x, rho, 20) for x in (by_level(rho), EVEN)
    )
    assert by_rho / even == pytest.approx(ratio, abs=0.07 * (ratio - 1) + 0.001)


@pytest.mark.parametrize("cohort", [1, 20, 80, 99, 100])
def test_inclusion_sums_to_the_cohort(cohort: int) -> None:
    drawn = inclusion(np.stack([RHO, RHO[::-1] ** 3]), cohort)
    assert drawn.sum(axis=1) == pytest.approx(cohort)
    assert np.all((drawn > 0) & (drawn <= 1))
    open_to_chance = drawn[0] < 1
    assert np.ptp((drawn[0] / RHO)[open_to_chance]) <= 1e-12 if open_to_chance.any() else cohort == N
    assert unbiased_weights(THETA, drawn[0]) @ drawn[0] == pytest.approx(1)


def test_systematic_drawing_keeps_size_and_probabilities() -> None:
    drawn = inclusion(by_level(RHO), 80)
    starts = (np.arange(5000) + 0.5) / 5000
    chosen = np.stack([systematic(drawn, start) for start in [0.0, *starts, np.nextafter(1, 0)]])
    assert np.all(chosen.sum(axis=1) == 80)
    assert chosen[1:-1].mean(axis=0) == pytest.approx(drawn, abs=3e-4)
    sums = chosen[1:-1] @ unbiased_weights(THETA, drawn)
    assert sums.mean() == pytest.approx(1, abs=1e-3)


def test_a_cohort_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="a cohort of 101 from 100 clients"):
        inclusion(RHO, 101)
    with pytest.raises(InputError, match="the smallest is 0"):
        inclusion(np.append(RHO, 0.0), 5)


@pytest.mark.parametrize("line", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("start", [1e-3, 3.5, 6.6])
def test_theorem_7_pays_a_negative_reward(line: float, start: float) -> None:
    """1.11, with v = gamma theta²/(t |D|²) at t = 1. The inputs of its example (-1.75, 2381) are not known;
    line 2 and start 3.5 give -1.75, and K* passes N = 100 for every budget above 0.3.
    """
    v, gamma = 0.5 * (0.01 / 600) ** 2, 0.5
    reward, cohort, multiplier = printed_ratio(line, start, 2.5, v, gamma)
    level = line * reward + start
    of_reward = (line * v / level**2 - (1 - gamma) * (2 * line * reward + start)) / line  # (43)
    assert multiplier == pytest.approx(of_reward, rel=1e-6)
    assert cohort * level == pytest.approx(2.5)
    assert cohort > N
    assert (multiplier >= 0) == (reward <= -v / (level**2 * (1 - gamma)))
    if start == 3.5 and line == 2:
        assert reward == pytest.approx(-1.75, abs=0.001)


def cost(rho: np.ndarray, clients: int, reward: float, weight: float) -> float:
    many = len(rho)
    variance = 1 / many - 1 / clients + np.sum(1 / rho) / many**2
    return float(0.5 * weight * variance + 0.5 * reward * rho.sum())


@pytest.mark.parametrize("reward", [0.0, 0.01])
def test_cohort_of_a_round_is_near_the_best_of_all(reward: float) -> None:
    for seed in range(6):
        rho = np.random.default_rng(seed).uniform(0.01, 12, 9)
        for budget in (3.0, 15.0, 200.0):
            chosen, price = within_round(rho, budget, reward)
            assert rho[chosen].sum() <= budget
            assert price == pytest.approx(cost(rho[chosen], 9, reward, 1.0))
            every = [
                cost(rho[list(some)], 9, reward, 1.0)
                for many in range(1, 10)
                for some in combinations(range(9), many)
                if rho[list(some)].sum() <= budget
            ]
            assert min(every) <= price * (1 + 1e-12) and price <= 1.25 * min(every)
            if budget == 200.0:
                assert price == pytest.approx(min(every))


def test_cohort_of_a_round_grows_with_budget_and_worth() -> None:
    sizes = [within_round(RHO, budget, 0.0)[0].sum() for budget in (10, 50, 200, 1000)]
    assert sizes == sorted(sizes) and sizes[0] >= 1 and sizes[-1] >= 90
    paid = [within_round(RHO, 200.0, 1.0, accuracy_weight=worth)[0].sum() for worth in (1, 100, 1e4, 1e6)]
    assert paid == sorted(paid) and paid[0] < paid[-1]
    nobody, price = within_round(RHO, 1e-3, 0.0)
    assert not nobody.any() and price == np.inf


@pytest.mark.parametrize("how", ["stop", "scale"])
def test_nobody_spends_more_than_its_total(how: str) -> None:
    rng = np.random.default_rng(3)
    rho, there = rng.uniform(0.01, 12, (31, N)), rng.random((31, N)) < 0.2
    total = rng.uniform(0, 60, N)
    granted = within_budget(rho, total, there, how)  # type: ignore[arg-type]
    assert np.all(np.cumsum(granted, axis=0)[-1] <= total) and np.all(granted.sum(axis=0) <= total)
    assert np.all(granted[~there] == 0) and np.all(granted <= rho)
    rich = np.where(there, rho, 0).sum(axis=0) < total * (1 - 1e-9)
    assert np.array_equal(granted[:, rich], np.where(there, rho, 0)[:, rich])
    poor = ~rich
    if how == "scale":
        assert granted.sum(axis=0)[poor] == pytest.approx(total[poor])
    else:  # what was refused would not have fitted
        before = np.cumsum(granted, axis=0) - granted
        refused = there & (granted == 0)
        assert refused.any() and np.all((before + rho)[refused] > np.broadcast_to(total, rho.shape)[refused])


def test_scaling_leaves_out_those_who_never_take_part() -> None:
    never = np.zeros((3, 2), dtype=bool)
    assert not within_budget(np.ones((3, 2)), np.array([0.0, 1.0]), never, "scale").any()
