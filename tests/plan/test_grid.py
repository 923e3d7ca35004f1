"""On a grid no update is longer than it is charged for, and noise is no less than planned."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from discretion.errors import InputError, PlanError
from discretion.plan.grid import Grid
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.randomness.discrete import rounded_gaussian
from discretion.randomness.sources import Cryptographic


def test_no_update_on_the_grid_is_longer_than_the_bound() -> None:
    rng = np.random.default_rng(5)
    for size, step in itertools.product([1, 2, 30, 1000], [2.0**-20, 2.0**-5, 0.25, 1.0, 8.0]):
        clip = np.array([0.0, 1e-3, 0.4, 1.0, 7.3, 300.0])
        directions = np.concatenate([rng.normal(size=(3, 6, size)), np.ones((1, 6, size))])
        for direction in directions:
            update = (
                direction / np.linalg.norm(direction, axis=1, keepdims=True) * clip[:, None] * (1 - 1e-12)
            )
            whole = Grid(step, size).rounded(update, clip)
            assert whole.dtype == np.int64 and whole.shape == update.shape
            assert np.abs(whole * step - update).max() <= step * 0.5
            bound = Grid(step, size).norm_bound(clip)
            assert (np.linalg.norm(whole, axis=1) <= bound).all()


def test_the_bound_of_nearest_rounding_is_reached() -> None:
    halves = np.full((1, 400), 1.5000001)
    clip, grid = np.linalg.norm(halves, axis=1), Grid(1.0, 400)
    assert np.linalg.norm(grid.rounded(halves, clip)) == pytest.approx(grid.norm_bound(clip)[0], rel=1e-6)
    assert Grid(1.0, 4).rounded(np.full((1, 4), 1.5), np.array([3.0])).tolist() == [[2, 2, 2, 2]]  # exactly
    small = np.full((1, 400), 0.5000001)  # half a step: doubled
    assert np.linalg.norm(grid.rounded(small, small.sum(axis=1) / 20)) == 20
    assert Grid(0.5, 400).norm_bound(np.array([0.0])).tolist() == [0.0]


def test_a_clip_on_a_grid_is_charged_for_its_rounding() -> None:
    clip, grid = np.array([0.0, 1.0, 2.0]), Grid(2.0**-10, 10_000)
    assert grid.sensitivity(clip)[0] == 0
    np.testing.assert_allclose(grid.sensitivity(clip)[1:], clip[1:] + 50 * 2.0**-10, rtol=1e-9)
    assert (grid.sensitivity(clip)[1:] > clip[1:]).all()


def test_what_cannot_go_to_a_grid_is_refused() -> None:
    clip = np.array([1.0])
    for update in ([[2.0, 0.0]], [[math.nan, 0.0]], [[math.inf, 0.0]], [[1e300, 1e300]], [[1.0, 1e-4]]):
        with pytest.raises(InputError, match="clip them before"):
            Grid(0.5, 2).rounded(np.array(update), clip)
    for step in (0.1, 0.0, -0.5, math.nan, math.inf):
        with pytest.raises(InputError, match="power of two"):
            Grid(step, 2)
    for wrong in (-1.0, math.nan, math.inf, 2.0**40, 1e308):
        with pytest.raises(InputError, match="between 0 and 2\\^30 steps"):
            Grid(0.5, 3).norm_bound(np.array([wrong]))


def test_a_sum_on_a_grid_gets_the_planned_noise() -> None:
    """The way it is used: clipped updates, whole steps, their sum, noise on the grid, and back."""
    rng, step, std = np.random.default_rng(1), 2.0**-12, 0.05
    update = rng.normal(size=(20, 30_000)).astype(np.float32)
    update /= np.linalg.norm(update, axis=1, keepdims=True) * (1 + 1e-6)
    total = Grid(step, 30_000).rounded(update, np.ones(20)).sum(axis=0)
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


@pytest.mark.parametrize("step", [2.0**-1000, 2.0**1000])
def test_steps_beyond_all_clips_and_noise_are_refused(step: float) -> None:
    phase = Phase.one_pool(1, np.ones(2), np.ones(2), 1.0)
    plan = Plan("made", ("a", "b"), (phase,), noise_at="secure_sum")
    with pytest.raises(PlanError, match="must stay within 2|must be 0 or at least 12 steps"):
        replace(plan, grid=Grid(step, 3))
    grid = Grid(step, 3)
    assert not np.isnan(grid.made_up(np.array([0.0, 1.0]), np.array([0, 1]), np.array([1, 1]))).any()
