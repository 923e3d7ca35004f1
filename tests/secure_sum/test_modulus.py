"""The modulus holds what a sum can reach, and is no larger than needed."""

import math

import numpy as np
import pytest
from scipy import stats

from discretion.errors import InputError
from discretion.randomness.discrete import discrete_gaussian
from discretion.randomness.sources import Seeded
from discretion.randomness.streams import Purpose, stream
from discretion.secure_sum.modulus import farthest, modulus_bits


def test_clips_and_noise_add_up() -> None:
    none = np.zeros(3)
    assert farthest(np.array([10.0, 20.0, 30.0]), none, 5) == 61  # of 60 and a trace of float64
    sigmas = np.array([300.0, 400.0, 0.0])
    expected = 500 * math.sqrt(2 * (math.log(2 * 1000 * 7) + 64 * math.log(2)))
    assert farthest(none, sigmas, 1000, 7) == math.ceil(expected)


def test_the_tail_is_below_the_chance_and_not_far_below() -> None:
    """For a normal tail, which that of a discrete Gaussian of many steps is near to."""
    for size in (1, 22_000, 1_700_000):
        reach = farthest(np.zeros(1), np.array([1e6]), size) / 1e6
        chance = 2 * size * stats.norm.sf(reach)
        assert 2.0**-70 < chance < 2.0**-64
    assert farthest(np.zeros(1), np.array([1e6]), 10, 100) == farthest(np.zeros(1), np.array([1e6]), 1000)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.5])
def test_a_discrete_gaussian_is_no_wider_than_the_bound_takes_it_for(sigma: float) -> None:
    """E exp(tX) <= exp(t² sigma²/2), exactly summed and drawn."""
    x = np.arange(-200, 201)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    for t in (0.1, 0.5, 1.0, 2.0):
        assert (np.exp(t * x) * mass).sum() / mass.sum() <= math.exp(t**2 * sigma**2 / 2) * (1 + 1e-12)
    drawn = discrete_gaussian(100_000, sigma, Seeded(stream(1, Purpose.NOISE)).words)
    assert np.abs(drawn).max() <= farthest(np.zeros(1), np.array([sigma]), 100_000)


def test_the_smaller_modulus_is_taken_where_it_is_enough() -> None:
    one = np.zeros(1)
    assert modulus_bits(np.array([2.0**31 - 2**20]), one, 1) == 32
    assert modulus_bits(np.array([2.0**31]), one, 1) == 64
    assert modulus_bits(one, np.array([2.0**26]), 22_000) == 32
    assert modulus_bits(one, np.array([2.0**29]), 22_000) == 64
    for far in (2.0**63, math.inf):
        with pytest.raises(InputError, match="choose a longer step"):
            modulus_bits(np.array([far]), one, 1)


def test_bounds_and_noise_are_checked() -> None:
    one = np.ones(1)
    for bounds, sigmas in ((-one, one), (one, -one), (one, np.ones(2)), (one * math.nan, one)):
        with pytest.raises(InputError, match="expected one for each client"):
            farthest(bounds, sigmas, 1)
