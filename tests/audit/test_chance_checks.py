"""Checks of coins and noise: right about independent ones, and sure about others."""

import numpy as np
import pytest
from scipy import stats

from discretion.audit.attack import _noise, _unusual
from discretion.audit.canaries import SPARE, directions
from discretion.audit.chance_checks import CELLS, EDGES, NOTHING, Heads, Noise

DIRECTION = "along some directions there is less noise than planned"
SMALL = "small noise is more frequent than planned"
CHANCE, TRIES = 0.2, 300
MOST = int(stats.binom.ppf(0.9999, TRIES, CHANCE))  # of the tries that may accuse


@pytest.mark.parametrize(("coins", "rate"), [(8, 0.4), (1000, 0.02), (3, 0.9)])
def test_cells_have_the_chance_of_their_numbers_of_heads(coins: int, rate: float) -> None:
    heads = Heads.of(np.full(coins, rate))
    number = np.arange(coins + 1)
    assert heads.cells(number).sum(axis=1) == pytest.approx(1)
    chance = stats.binom.pmf(number, coins, rate)
    cell = np.searchsorted(EDGES, (number - coins * rate) / np.sqrt(coins * rate * (1 - rate)))
    assert heads.chance == pytest.approx(np.bincount(cell, chance, CELLS), abs=1e-12)


def test_coins_of_different_rates_are_looked_at_together() -> None:
    heads = Heads.of(np.array([0.1, 0.5, 1.0]))
    chance = np.array([0.0, 0.45, 0.5, 0.05])  # of 0, 1, 2 and 3 heads
    assert heads.chance == pytest.approx(chance @ heads.cells(np.arange(4)))


def test_sure_coins_and_too_many_rates_are_left_out() -> None:
    for rate in (np.array([0.0, 1.0]), np.linspace(0.1, 0.9, 600)):
        assert Heads.of(rate) is NOTHING and not Heads.of(rate).cells(3).any()


def test_independent_coins_are_seldom_called_odd_and_repeated_ones_always() -> None:
    draw, heads = np.random.default_rng(0), Heads.of(np.full(8, 0.4))
    learning = np.arange(400) % 4 == 0
    planned = np.tile(heads.chance, (len(learning), 1))
    odd = 0
    for _ in range(TRIES):
        odd += _unusual(heads.cells(draw.binomial(8, 0.4, len(learning))), planned, learning, CHANCE)
        twice = 2 * draw.binomial(4, 0.4, len(learning))
        assert _unusual(heads.cells(twice), planned, learning, 1e-6)
    assert 0 < odd <= MOST


def test_independent_noise_is_seldom_called_odd_and_one_quiet_direction_always() -> None:
    """The quiet direction is none of the coordinates: each of them has nearly all of its noise."""
    draw, size, odd = np.random.default_rng(0), 10, 0
    quiet = np.full(size, size**-0.5)
    for _ in range(TRIES):
        noise = draw.standard_normal((2, 100, size))
        less = noise - 0.7 * (noise @ quiet)[..., None] * quiet
        odd += DIRECTION in _noise(heard(noise[0]), heard(noise[1]), CHANCE)
        assert _noise(heard(less[0]), heard(less[1]), 1e-6) == [DIRECTION]
    assert 0 < odd <= MOST
    assert abs(heard(less[0]).quietest() @ quiet) > 0.9


def test_noise_that_is_too_often_small_is_found_and_more_noise_is_not() -> None:
    draw, size, odd = np.random.default_rng(0), 10, 0
    for _ in range(TRIES):
        noise = draw.standard_normal((2, 400, size))
        odd += SMALL in _noise(heard(noise[0]), heard(noise[1]), CHANCE)
        assert _noise(heard(1.5 * noise[0]), heard(1.5 * noise[1]), 1e-6) == []
    assert 0 < odd <= MOST
    uniform = draw.uniform(-np.sqrt(3), np.sqrt(3), (2, 1000, size))
    assert _noise(heard(uniform[0]), heard(uniform[1]), 1e-6) == [SMALL]
    seldom = noise.copy()
    seldom[:, ::20] *= 1e-3  # every twentieth vector has hardly any noise
    assert SMALL in _noise(heard(seldom[0]), heard(seldom[1]), 1e-6)


def test_rounding_to_a_grid_is_not_taken_for_small_noise() -> None:
    """Without the step of the grid, numbers that were rounded to 0 would be too many."""
    noise = np.random.default_rng(0).standard_normal((2, 400, 10))
    rounded = np.rint(noise / 0.2) * 0.2
    assert _noise(heard(rounded[0]), heard(rounded[1]), 1e-6) == [SMALL]
    found = Noise(10), Noise(10)
    for each, numbers in zip(found, rounded, strict=True):
        each.add(numbers, 0.2)
    assert _noise(*found, 1e-6) == []


def heard(noise: np.ndarray) -> Noise:
    found = Noise(noise.shape[1])
    for part in np.split(noise, 4):
        found.add(part)
    assert found.vectors == len(noise)
    return found


@pytest.mark.parametrize("layers", [1, 3])
def test_directions_are_orthogonal_dense_and_as_long_in_every_layer(layers: int) -> None:
    found = directions(40, layers, 0)
    assert found.shape == (40, layers * (40 + SPARE))
    assert found @ found.T == pytest.approx(np.eye(40), abs=1e-12)
    by_layer = found.reshape(40, layers, -1)
    assert np.linalg.norm(by_layer, axis=-1) == pytest.approx(layers**-0.5)
    assert np.abs(by_layer).max() < 0.7 * layers**-0.5
    assert not np.allclose(found, directions(40, layers, 1))
