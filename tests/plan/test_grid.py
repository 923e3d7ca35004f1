"""On a grid no update is longer than it is charged for, and noise is no less than planned."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from discretion.discrete import rounded_gaussian
from discretion.errors import InputError
from discretion.grid import Grid, multiplier, norm_bound, to_grid
from discretion.noise import Cryptographic, Seeded
from discretion.streams import Purpose, Words, run_stream


def seeded(round_: int = 1) -> Seeded:
    return Seeded(run_stream(3, Purpose.NOISE, "run", "0" * 64, round_, 0))


@pytest.mark.parametrize("stochastic", [False, True])
def test_no_update_on_the_grid_is_longer_than_the_bound(stochastic: bool) -> None:
    rng = np.random.default_rng(5)
    draw = seeded().words if stochastic else None
    for size, step in itertools.product([1, 2, 30, 1000], [2.0**-20, 2.0**-5, 0.25, 1.0, 8.0]):
        clip = np.array([0.0, 1e-3, 0.4, 1.0, 7.3, 300.0])
        directions = np.concatenate([rng.normal(size=(3, 6, size)), np.ones((1, 6, size))])
        for direction in directions:
            update = (
                direction / np.linalg.norm(direction, axis=1, keepdims=True) * clip[:, None] * (1 - 1e-12)
            )
            whole = to_grid(update, clip, step, draw)
            assert whole.dtype == np.int64 and whole.shape == update.shape
            assert np.abs(whole * step - update).max() <= step * (1 if stochastic else 0.5)
            bound = norm_bound(clip, step, size, stochastic=stochastic)
            assert (np.linalg.norm(whole, axis=1) <= bound).all()
            assert (bound >= clip / step).all() or not stochastic


def test_the_bound_of_nearest_rounding_is_reached() -> None:
    halves = np.full((1, 400), 1.5000001)
    clip = np.linalg.norm(halves, axis=1)
    assert np.linalg.norm(to_grid(halves, clip, 1.0)) == pytest.approx(
        norm_bound(clip, 1.0, 400)[0], rel=1e-6
    )
    assert to_grid(np.full((1, 4), 1.5), np.array([3.0]), 1.0).tolist() == [[2, 2, 2, 2]]  # exactly
    small = np.full((1, 400), 0.5000001)  # half a step: doubled
    assert np.linalg.norm(to_grid(small, small.sum(axis=1) / 20, 1.0)) == 20
    assert (
        norm_bound(np.array([0.0]), 0.5, 400).tolist()
        == [0.0]
        == norm_bound(np.array([0.0]), 0.5, 400, stochastic=True).tolist()
    )


def test_rounding_at_random_keeps_the_mean_and_draws_long_ones_again() -> None:
    update = np.tile([[0.25, -0.75, 2.0, 0.0]], (40_000, 1))
    clip = np.full(len(update), 3.0)  # room enough: nothing is drawn again
    whole = to_grid(update, clip, 1.0, seeded().words)
    np.testing.assert_allclose(whole.mean(axis=0), [0.25, -0.75, 2.0, 0.0], atol=0.012)
    assert (whole[:, 2] == 2).all() and set(np.unique(whole[:, 0])) == {0, 1}
    asked = []

    def counted(count: int) -> Words:
        asked.append(count)
        return seeded(len(asked)).words(count)

    halves = np.full((2000, 100), 0.5)  # the worst case for the length
    tight = to_grid(halves, np.full(2000, 5.0), 1.0, counted)
    assert len(asked) > 1 and 1 - asked[1] / asked[0] > 0.39
    assert (np.square(tight).sum(axis=1) <= 25 + 25 + 5 + 5).all()
    assert norm_bound(np.array([5.0]), 1.0, 100, stochastic=True)[0] ** 2 == pytest.approx(60)


def test_noise_on_a_grid_is_charged_for_its_rounding() -> None:
    clip = np.array([0.0, 1.0, 2.0])
    charged = multiplier(3.0, clip, 2.0**-10, 10_000)
    assert charged[0] == math.inf
    np.testing.assert_allclose(charged[1:], 3 / (clip[1:] + 50 * 2.0**-10), rtol=1e-9)
    assert (charged[1:] < 3 / clip[1:]).all()
    assert (multiplier(3.0, clip, 2.0**-10, 10_000, stochastic=True)[1:] > charged[1:]).all()


def test_what_cannot_go_to_a_grid_is_refused() -> None:
    clip = np.array([1.0])
    for update in ([[2.0, 0.0]], [[math.nan, 0.0]], [[math.inf, 0.0]], [[1e300, 1e300]], [[1.0, 1e-4]]):
        with pytest.raises(InputError, match="clip it before"):
            to_grid(np.array(update), clip, 0.5)
    for step in (0.1, 0.0, -0.5, math.nan, math.inf):
        with pytest.raises(InputError, match="power of two"):
            to_grid(np.zeros((1, 2)), clip, step)
    for wrong in (-1.0, math.nan, math.inf, 2.0**40, 1e308):
        with pytest.raises(InputError, match="between 0 and 2\\^30 steps"):
            norm_bound(np.array([wrong]), 0.5, 3)


def test_a_sum_on_a_grid_gets_the_planned_noise() -> None:
    """The way it is used: clipped updates, whole steps, their sum, noise on the grid, and back."""
    rng, step, std = np.random.default_rng(1), 2.0**-12, 0.05
    update = rng.normal(size=(20, 30_000)).astype(np.float32)
    update /= np.linalg.norm(update, axis=1, keepdims=True) * (1 + 1e-6)
    total = to_grid(update, np.ones(20), step).sum(axis=0)
    noisy = step * (total + rounded_gaussian(30_000, std / step, Cryptographic().words))
    assert np.std(noisy - update.sum(axis=0, dtype=np.float64)) == pytest.approx(std, rel=0.03)
    assert stats.kstest((noisy - update.sum(axis=0, dtype=np.float64)) / std, "norm").pvalue > 1e-6


def test_a_grid_is_a_power_of_two_and_a_number_of_coordinates() -> None:
    grid = Grid(0.25, np.int64(9))  # type: ignore[arg-type]
    assert type(grid.size) is int
    np.testing.assert_allclose(grid.sensitivity(np.array([0.0, 0.1, 4.0])), [0.0, 0.2, 4.375], rtol=1e-9)
    for step in (0.1, 0.0, -0.5, math.nan, math.inf):
        with pytest.raises(InputError, match="power of two"):
            Grid(step, 9)
    for size in (0, -1, 2.5, math.nan, math.inf):
        with pytest.raises(InputError, match="whole number of coordinates"):
            Grid(0.25, size)  # type: ignore[arg-type]
