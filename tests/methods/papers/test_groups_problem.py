"""Groups of like budgets: Problem 1 against a grid, weights, pooling, and which clients go together."""

from itertools import combinations

import numpy as np
import pytest

from discretion.accounting import noise_multiplier
from discretion.errors import PlanError
from discretion.methods.idp_fedavg import idp_fedavg_sampling
from discretion.methods.papers.xu_hu import TABLE_1, Setting, optimal_rates, theorem_1, weights
from discretion.methods.solvers.groups import capped_rates, group, inverse_variance
from discretion.plan.population import Population
from support.formulas import (
    cohort_of,
    gain,
    noise_to_signal,
    objective,
    opacus_multiplier,
    pooled_noise_to_signal,
    top_k_energy,
    weight_bias,
)

NAMES = pytest.mark.parametrize("name", TABLE_1)
LOCAL_STEPS = {"FMNIST": 5, "SVHN": 25, "Shakespeare": 30, "CIFAR-10": 5}
EQUAL = np.ones(3, dtype=np.int64)


def drawn(setting: Setting, rates: np.ndarray) -> np.ndarray:
    return rates * setting.clients / 3


@NAMES
@pytest.mark.parametrize("top_k", [False, True])
def test_the_closed_form_is_the_minimum_of_the_printed_objective(name: str, top_k: bool) -> None:
    """By a grid of ratios, for weights that sum to 1 and for those of the update."""
    setting = TABLE_1[name]

    def value(ratio: tuple[float, float], cohort: float) -> float:
        rates = np.array([*ratio, 1.0]) * 3 * setting.rate / (sum(ratio) + 1)
        noise = theorem_1(setting.epsilon, setting.delta, rates, setting.rounds)
        return objective(drawn(setting, rates), noise, 0.1, LOCAL_STEPS[name], cohort, top_k)

    closed = capped_rates(setting.epsilon, setting.delta, EQUAL, setting.rate)
    grid = [(a, b) for a in np.arange(0.03, 0.6, 0.02) for b in np.arange(0.3, 0.9, 0.02)]
    for cohort in (1.0, cohort_of(setting)):
        best = min(grid, key=lambda ratio: value(ratio, cohort))
        assert best == pytest.approx(closed[:2] / closed[2], abs=0.021)
        least = value(tuple(closed[:2] / closed[2]), cohort)
        published = value(tuple(setting.rates[:2] / setting.rates[2]), cohort)
        assert least <= value(best, cohort)
        assert least < published < (1 + 2e-5) * least  # nearly a constant


def test_objective_as_printed() -> None:
    """eta = 0.5, tau = 4; two groups of one and two clients."""
    omega, r, noise = np.array([0.2, 0.8]), np.array([1.0, 2.0]), np.array([3.0, 2.0])
    mu4, mu5 = 32 * 2 + 0.5 + 0.125, 2.0
    phi = (2 * omega * noise**2 / (2 * mu4 * r**2)) ** 2
    plain = (omega * (mu4 + mu5 * omega * noise**2 / r**2)).sum()
    assert objective(r, noise, 0.5, 4, 1.0, top_k=False) == pytest.approx(plain)
    sparse = (omega * (mu4 * (1 + phi) + mu5 * (1 - np.sqrt(phi)) * omega * noise**2 / r**2)).sum()
    assert objective(r, noise, 0.5, 4, 1.0, top_k=True) == pytest.approx(sparse)
    # no more than everything is left out
    assert objective(r, 1e3 * noise, 0.5, 4, 1.0, top_k=True) == pytest.approx(2 * mu4)


def test_rates_above_one_are_capped() -> None:
    epsilon, delta, size = np.array([0.5, 1.5, 3.0]), np.full(3, 1e-5), np.array([10, 30, 20])
    for rate in (0.01, 0.3, 0.5, 0.7, 0.9, 1.0):
        found = capped_rates(epsilon, delta, size, rate)
        assert (found * size).sum() == pytest.approx(rate * 60)
        assert (np.diff(found) >= 0).all() and found.max() <= 1
        free = optimal_rates(epsilon, delta, size.astype(float), rate)
        if free.max() <= 1:
            assert found == pytest.approx(free)
        shared = found[found < 1] / free[found < 1]
        assert shared == pytest.approx(np.full(len(shared), shared[:1]))
    assert found == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "before", "after", "bias"),
    [("FMNIST", 3.68, 2.62, 0.43), ("SVHN", 16.6, 6.7, 0.62), ("CIFAR-10", 4.97, 2.68, 0.54)],
)
def test_inverse_variance_weights(name: str, before: float, after: float, bias: float) -> None:
    """Never noisier than any others; the strict then count for less than their share."""
    setting = TABLE_1[name]
    noise = opacus_multiplier(setting.epsilon, setting.delta, setting.equal_rates, setting.rounds)
    clients = drawn(setting, setting.equal_rates)
    weight = inverse_variance(clients, noise, cohort_of(setting))
    assert gain(clients, weight, cohort_of(setting)) == pytest.approx(1)

    def ratio(weight: np.ndarray) -> float:
        return noise_to_signal(clients, noise, weight, cohort_of(setting))

    assert ratio(weights(clients)) == pytest.approx(before, rel=6e-3)
    assert ratio(weight) == pytest.approx(after, rel=6e-3)
    assert weight_bias(clients, weights(clients), EQUAL) == pytest.approx(0, abs=1e-12)
    assert weight_bias(clients, weight, EQUAL) == pytest.approx(bias, abs=5e-3)
    rng = np.random.default_rng(0)
    for _ in range(100):
        assert ratio(weight * np.exp(0.3 * rng.standard_normal(3))) > ratio(weight)


POOLED = {  # noise to signal in one pool and, by Rényi as published, in groups; the same for the bias
    "FMNIST": (0.63, 1.75, 0.60, 1.03),
    "SVHN": (1.90, 5.33, 0.49, 1.05),
    "Shakespeare": (2.36, 6.95, 0.47, 0.87),
    "CIFAR-10": (0.75, 2.08, 0.49, 1.00),
}


@NAMES
def test_one_pool_is_less_noisy_and_less_biased(name: str) -> None:
    """A client of each group, equal clips: three times less noise than published, half the bias."""
    setting, (pooled, grouped, fair, unfair) = TABLE_1[name], POOLED[name]
    people = Population(("a", "b", "c"), setting.epsilon, setting.delta, EQUAL)
    phase = idp_fedavg_sampling(people, setting.rounds, setting.rate, 1.0).phases[0]
    multiplier = np.full(3, phase.noise[0])
    found = pooled_noise_to_signal(phase.rate, multiplier, EQUAL)
    assert found == pytest.approx(phase.noise[0] ** 2)
    assert found == pytest.approx(pooled, rel=9e-3)
    assert weight_bias(phase.rate, np.ones(3), EQUAL) == pytest.approx(fair, abs=6e-3)
    clients = drawn(setting, setting.rates)
    noise = opacus_multiplier(setting.epsilon, setting.delta, setting.rates, setting.rounds)
    apart = noise_to_signal(clients, noise, weights(clients), cohort_of(setting))
    assert apart == pytest.approx(grouped, rel=6e-3)
    assert weight_bias(clients, weights(clients), EQUAL) == pytest.approx(unfair, abs=6e-3)
    # at any of these rates, with clips to match, hardly less noisy
    for rates in (setting.rates, 0.5 * (setting.rates + phase.rate)):
        noise = noise_multiplier(setting.epsilon, setting.delta, rates, setting.rounds)
        assert pooled_noise_to_signal(rates, noise, EQUAL) > 0.995 * found


def test_participation_pays() -> None:
    """Equal rates of 0.02, 0.1 and 1, clips by budget; in units of (C / n)²."""
    setting, found = TABLE_1["FMNIST"], []
    for rate in (0.02, 0.1, 1.0):
        rates = np.full(3, rate)
        noise = noise_multiplier(setting.epsilon, setting.delta, rates, setting.rounds)
        found.append(pooled_noise_to_signal(rates, noise, EQUAL) / rate**2)
    assert found == pytest.approx([1836, 373, 229], rel=2e-3)


def test_top_k_after_noise_keeps_the_noise() -> None:
    kept = np.array([0.7, 0.8, 0.9])
    assert top_k_energy(kept) == pytest.approx([0.985, 0.996, 0.9995], abs=5e-4)
    energy = np.sort(np.random.default_rng(0).standard_normal(200_000) ** 2)[::-1]
    for part in (0.01, 0.1, 0.5, 0.9, 1.0):
        largest = energy[: int(part * len(energy))].sum() / energy.sum()
        assert top_k_energy(np.array(part)) == pytest.approx(largest, abs=3e-3)


def waste(epsilon: np.ndarray, starts: tuple[float, ...]) -> float:
    floor = np.array(starts)[np.searchsorted(starts, epsilon, side="right") - 1]
    return float(np.log(epsilon / floor).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_no_other_grouping_wastes_less(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    epsilon = np.round(np.exp(rng.normal(size=40) * 1.5), 1) + 0.1
    epsilon = epsilon[epsilon < np.sort(np.unique(epsilon))[14]]
    found = group(epsilon, most)
    kinds = np.unique(epsilon).tolist()
    best = min(waste(epsilon, (kinds[0], *rest)) for rest in combinations(kinds[1:], most - 1))
    assert np.log(epsilon / found.epsilon[found.member]).sum() == pytest.approx(best)
    assert len(found.size) == most and found.size.tolist() == np.bincount(found.member).tolist()
    assert found.least(epsilon) == pytest.approx(found.epsilon)


def test_few_kinds_waste_nothing() -> None:
    epsilon = np.array([3.0, 0.5, 1.5, 0.5, 3.0, 3.0])
    for most in (3, 7):
        found = group(epsilon, most)
        assert found.epsilon.tolist() == [0.5, 1.5, 3.0]
        assert found.member.tolist() == [2, 0, 1, 0, 2, 2]
        assert found.size.tolist() == [2, 1, 3]
    assert found.least(np.array([5, 2, 3, 1, 9, 4.0])).tolist() == [1, 3, 4]


def test_what_cannot_be_grouped_is_refused() -> None:
    for epsilon, most in (([1.0], 0), ([1.0, np.inf], 2), ([0.0], 1)):
        with pytest.raises(PlanError, match="at least 1 group"):
            group(np.array(epsilon), most)
    for rate in (0.0, 1.1):
        with pytest.raises(PlanError, match="mean rate"):
            capped_rates(np.ones(1), np.full(1, 1e-5), np.ones(1, dtype=np.int64), rate)
