"""What rho means, and what the printed clipping makes of it."""

import numpy as np
import pytest

from discretion.accounting import gaussian
from discretion.methods.papers import yuan_wang

DELTA = 1e-5


def test_noise_costs_rho_if_every_record_is_clipped() -> None:
    rho, size, clip = np.array([0.01, 2.0, 12.0]), np.array([600.0, 50.0, 10.0]), 3.0
    noise = yuan_wang.noise_std(rho, size, clip)
    assert noise**2 == pytest.approx(2 * clip**2 / (rho * size**2))  # Proposition 1
    assert (2 * clip / size / noise) ** 2 / 2 == pytest.approx(rho)
    assert 2 * clip / size * yuan_wang.multiplier(rho) == pytest.approx(noise)


def test_noise_costs_size_squared_times_rho_as_printed() -> None:
    rho, size = np.array([0.01]), np.array([600.0])
    true = yuan_wang.true_rho(rho, size)
    assert true / rho == pytest.approx(360_000)
    assert true == pytest.approx(3600)
    epsilon = gaussian.epsilon_of(np.sqrt(2 * true), np.array([DELTA]))
    assert epsilon == pytest.approx(4000, rel=0.02)  # 3961; by the usual conversion 4007


@pytest.mark.parametrize(("rho", "known"), [(12, 32.2), (30 * 0.01, 3.26), (36, 71)])
def test_exact_epsilon_of_rho(rho: float, known: float) -> None:
    total, delta = np.array([rho]), np.array([DELTA])
    exact = gaussian.epsilon_of(1 / yuan_wang.multiplier(total), delta)
    assert exact == pytest.approx(known, rel=6e-3)
    assert yuan_wang.to_epsilon(total, delta) > exact


@pytest.mark.parametrize(("epsilon", "known"), [(1, 1.31), (10, 1.14), (30, 1.08)])
def test_conversion_costs_noise(epsilon: float, known: float) -> None:
    budget, delta = np.array([epsilon]), np.array([DELTA])
    rho = yuan_wang.from_epsilon(budget, delta)
    assert yuan_wang.to_epsilon(rho, delta) == pytest.approx(epsilon)
    ratio = yuan_wang.multiplier(rho) * gaussian.shift_of(budget, delta)
    assert ratio == pytest.approx(known, abs=0.005)
