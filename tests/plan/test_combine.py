"""What becomes of the pools' sums: what is kept, what is projected, and what is remembered."""

from collections.abc import Callable

import numpy as np
import pytest

from discretion.errors import PlanError
from discretion.plan.combine import SUM, Combine
from support.formulas import top_k_energy

NOTHING = np.zeros((0, 5))


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_sum_is_weighted_as_it_is() -> None:
    sums, weight = gaussian(3, 5), np.array([1.0, 0.5, 2.0])
    step, memory = SUM.step(sums, weight, gaussian(5, seed=1), NOTHING)
    np.testing.assert_allclose(step, weight @ sums)
    assert memory is NOTHING


@pytest.mark.parametrize("kept, energy", [(0.9, 0.9995), (0.8, 0.996), (0.7, 0.985)])
def test_the_largest_of_pure_noise_are_nearly_all_of_it(kept: float, energy: float) -> None:
    """The paper takes the energy that is kept to be the share of the coordinates."""
    noise, last = gaussian(1, 200_000), gaussian(200_000, seed=1)
    largest, _ = Combine("top_k", (kept,)).step(noise, np.ones(1), last, NOTHING)
    other, _ = Combine("top_k", (kept,), by="last_step").step(noise, np.ones(1), last, NOTHING)
    for step in (largest, other):
        assert np.mean(step != 0) == pytest.approx(kept, abs=1e-5)
        assert set(step[step != 0]) <= set(noise[0])
    assert np.square(largest).sum() / np.square(noise).sum() == pytest.approx(energy, abs=1e-3)
    assert top_k_energy(np.array(kept)) == pytest.approx(energy, abs=1e-3)
    assert np.square(other).sum() / np.square(noise).sum() == pytest.approx(kept, abs=0.01)


def test_each_pool_keeps_its_own_share() -> None:
    sums = np.array([[1.0, -4.0, 3.0, 2.0], [8.0, 7.0, -6.0, 5.0]])
    by_size, _ = Combine("top_k", (0.5, 0.25)).step(sums, np.array([1.0, 10.0]), np.zeros(4), NOTHING)
    assert by_size.tolist() == [80.0, -4.0, 3.0, 0.0]
    last = np.array([0.0, 0.1, -0.2, 0.3])
    by_last, _ = Combine("top_k", (0.5, 0.25), by="last_step").step(
        sums, np.array([1.0, 10.0]), last, NOTHING
    )
    assert by_last.tolist() == [0.0, 0.0, 3.0, 52.0]


def test_the_first_step_keeps_everything_and_the_smallest_share_one_coordinate() -> None:
    sums = gaussian(1, 50)
    rule = Combine("top_k", (0.001,), by="last_step")
    assert (rule.step(sums, np.ones(1), np.zeros(50), NOTHING)[0] == sums[0]).all()
    assert np.count_nonzero(rule.step(sums, np.ones(1), gaussian(50, seed=1), NOTHING)[0]) == 1


def test_strict_pools_are_projected_and_the_generous_one_is_not() -> None:
    rule, memory = Combine("project", memory=3), np.zeros((0, 8))
    generous = gaussian(5, 8)
    for t in range(5):
        sums = np.stack([*gaussian(2, 8, seed=10 + t), generous[t]])
        _, seen = rule.step(sums, np.ones(3), np.zeros(8), memory)
        span = generous[max(0, t - 2) : t + 1]
        np.testing.assert_array_equal(seen, span)  # this round's included, no more than three
        for pool in range(3):
            step, _ = rule.step(sums, np.eye(3)[pool], np.zeros(8), memory)
            expected = span.T @ np.linalg.lstsq(span.T, sums[pool], rcond=None)[0]
            np.testing.assert_allclose(step, sums[2] if pool == 2 else expected, atol=1e-12)
        memory = seen


def test_what_lies_in_the_span_stays_and_what_is_across_goes() -> None:
    rule, generous = Combine("project", memory=1), np.array([3.0, 4.0, 0.0])
    for sum_, expected in (([6.0, 8.0, 0.0], [6.0, 8.0, 0.0]), ([4.0, -3.0, 9.0], [0.0, 0.0, 0.0])):
        step, _ = rule.step(np.array([sum_, generous]), np.array([1.0, 0.0]), np.zeros(3), np.zeros((0, 3)))
        np.testing.assert_allclose(step, expected, atol=1e-12)


def test_a_generous_sum_of_zeros_or_twice_the_same_spans_no_more_than_it_should() -> None:
    strict = np.array([1.0, 2.0, 3.0])
    rule = Combine("project", memory=2)
    for before, now, expected in (
        (np.zeros((0, 3)), np.zeros(3), np.zeros(3)),
        (np.array([[0.0, 1.0, 0.0]]), np.array([0.0, 1.0, 0.0]), np.array([0.0, 2.0, 0.0])),
        (np.array([[0.0, 1.0, 0.0]]), np.zeros(3), np.array([0.0, 2.0, 0.0])),
    ):
        step, _ = rule.step(np.stack([strict, now]), np.array([1.0, 0.0]), np.zeros(3), before)
        np.testing.assert_allclose(step, expected, atol=1e-12)


def test_a_memory_longer_than_the_model_is_the_whole_space() -> None:
    sums = gaussian(2, 3)
    step, _ = Combine("project", memory=9).step(sums, np.ones(2), np.zeros(3), gaussian(8, 3, seed=1))
    np.testing.assert_allclose(step, sums.sum(axis=0))


def test_ways_that_cannot_be_are_refused() -> None:
    refused: list[Callable[[], object]] = [
        lambda: Combine("top_k"),
        lambda: Combine("top_k", (0.0,)),
        lambda: Combine("top_k", (1.1,)),
        lambda: Combine("project"),
        lambda: Combine("project", (0.5,), memory=1),
        lambda: Combine("sum", memory=1),
    ]
    for make in refused:
        with pytest.raises(PlanError):
            make()
    assert Combine("top_k", (0.5, 0.5)).fits(2) and not Combine("top_k", (0.5, 0.5)).fits(3)
    assert Combine("project", memory=1).fits(2) and not Combine("project", memory=1).fits(1)
    assert SUM.fits(1) and SUM.fits(7)
