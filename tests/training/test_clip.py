"""Updates clipped and added up: the same in compiled code and by numpy, and never longer than the clip."""

from fractions import Fraction

import numpy as np
import pytest

from discretion._native import extension
from discretion.training.clip import ROUNDING, add_layers, finite_and_factor

ROWS = (0, 1, 3, 4, 5, 33, 70)
WIDTHS = (1, 7, 8, 9, 2047, 2049, 4500)


@pytest.fixture(params=["compiled", "numpy"])
def either_way(request: pytest.FixtureRequest) -> None:
    if request.param == "numpy":
        request.getfixturevalue("without_compiled")
    elif extension() is None:
        pytest.skip("the compiled code was not built")


def summed(change: np.ndarray, clip: np.ndarray, layers: list[slice], share: np.ndarray) -> np.ndarray:
    total = np.ones(change.shape[1])
    kept, factor = finite_and_factor(change, clip, layers)
    add_layers(total, share, kept, factor, layers)
    return total


@pytest.mark.usefixtures("either_way")
def test_sums_are_those_of_the_clipped_updates() -> None:
    rng = np.random.default_rng(0)
    for k in ROWS:
        for d in WIDTHS:
            change = (rng.standard_normal((k, d)) * 10.0 ** rng.integers(-3, 4, (k, 1))).astype(np.float32)
            clip, share = 10.0 ** rng.uniform(-2, 2, k), rng.random(k)
            for layers in ([slice(0, d)], [slice(0, d // 2), slice(d // 2, d)]):
                bound = clip * (1 - ROUNDING) / np.sqrt(len(layers))
                expected = np.ones(d)
                for part in layers:
                    norm = np.sqrt(np.square(change[:, part].astype(np.float64)).sum(axis=1))
                    factor = np.minimum(1, bound / np.maximum(norm, 1e-300))
                    expected[part] += ((share * factor)[:, None] * change[:, part]).sum(axis=0)
                np.testing.assert_allclose(
                    summed(change, clip, layers, share), expected, rtol=1e-12, atol=1e-12
                )


@pytest.mark.usefixtures("either_way")
def test_rows_lie_in_memory_as_they_like() -> None:
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((22, 41)).astype(np.float32)
    clip, share = np.ones(11), np.ones(11)
    for change in (
        whole[::2, 3:30],
        whole[::-2, 3:30],
        whole[:11, ::2],
        whole.T[:11],
        whole.T.copy()[:11, 1:],
    ):
        layers = [slice(0, 5), slice(5, change.shape[1])]
        expected = summed(change.copy(), clip, layers, share)
        np.testing.assert_allclose(summed(change, clip, layers, share), expected, rtol=1e-13)


@pytest.mark.skipif(extension() is None, reason="the compiled code was not built")
def test_it_does_not_matter_which_updates_are_handed_on_together() -> None:
    rng = np.random.default_rng(4)
    change, clip = rng.standard_normal((23, 2100)).astype(np.float32), rng.uniform(1, 100, 23)
    layers, sums = [slice(0, 900), slice(900, 2100)], []
    for together in (1, 2, 5, 8, 23):
        total = np.zeros(2100)
        for first in range(0, 23, together):
            part = slice(first, first + together)
            kept, factor = finite_and_factor(change[part], clip[part], layers)
            add_layers(total, np.ones(len(kept)), kept, factor, layers)
        sums.append(total)
    for total in sums[1:]:
        np.testing.assert_array_equal(total, sums[0])


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_counts_as_zero_wherever_it_is_so(bad: float) -> None:
    rng = np.random.default_rng(2)
    for d in (1, 7, 8, 9, 2049):
        for place in {0, d // 2, d - 1}:
            change = rng.standard_normal((5, d)).astype(np.float32)
            without = np.delete(change, 3, axis=0)
            change[3, place] = bad
            layers = [slice(0, d // 2), slice(d // 2, d)]
            found = summed(change, np.ones(5), layers, np.ones(5))
            np.testing.assert_allclose(
                found, summed(without, np.ones(4), layers, np.ones(4)), rtol=1e-13, atol=1e-15
            )


@pytest.mark.usefixtures("either_way")
def test_no_update_moves_the_sum_by_more_than_its_clip() -> None:
    """By exact arithmetic, from the shortest numbers to the longest."""
    rng = np.random.default_rng(3)
    for size in (1e-45, 1e-40, 1e-20, 1.0, 1e20, 3e38):
        change = (rng.uniform(-1, 1, (6, 50)) * size).astype(np.float32)
        clip = size * 10.0 ** rng.uniform(-3, 1, 6)
        for i in range(6):
            total, layers = np.zeros(50), [slice(0, 50)]
            kept, factor = finite_and_factor(change[[i]], clip[[i]], layers)
            add_layers(total, np.ones(1), kept, factor, layers)
            assert sum(Fraction(x) ** 2 for x in total.tolist()) <= Fraction(float(clip[i])) ** 2
