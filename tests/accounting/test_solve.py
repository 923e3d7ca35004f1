"""What a budget allows is used up and never passed: for each solver, and for thousands of clients."""

import math

import numpy as np
import pytest

from discretion.accounting import (
    Accountant,
    Pld,
    Renyi,
    clip_bound,
    most_rounds,
    noise_multiplier,
    noise_scale,
    sampling_rate,
    search,
)
from discretion.accounting.search import Found, most
from discretion.accounting.solve import MOST_ROUNDS
from discretion.errors import PlanError
from discretion.plan.steps import Steps

EPSILON = np.array([0.2, 1.0, 8.0, 1.0])
DELTA = np.array([1e-5, 1e-6, 1e-5, 1e-3])
RATE = np.array([0.01, 0.3, 0.1, 1.0])
ROUNDS = np.array([100, 10, 1000, 3])
BOTH = pytest.mark.parametrize("accountant", [Pld(), Renyi()], ids=lambda accountant: accountant.name)


def used(
    accountant: Accountant, rate: np.ndarray, multiplier: np.ndarray, rounds: np.ndarray | int
) -> np.ndarray:
    result: np.ndarray = accountant.epsilon(Steps.same(rate, multiplier, rounds), DELTA) / EPSILON
    return result


# each client with its own rounds


@BOTH
def test_noise_and_rate_for_rounds_of_ones_own(accountant: Accountant) -> None:
    multiplier = noise_multiplier(EPSILON, DELTA, RATE, ROUNDS, accountant)
    share = used(accountant, RATE, multiplier, ROUNDS)
    assert (share <= 1).all() and (share >= 0.9995).all()
    rate = sampling_rate(EPSILON, DELTA, 1.1 * multiplier, ROUNDS, accountant)
    share = used(accountant, rate, 1.1 * multiplier, ROUNDS)
    assert (share <= 1).all() and ((share >= 0.9995) | (rate == 1)).all()
    for i in range(4):
        alone = noise_multiplier(EPSILON[[i]], DELTA[[i]], RATE[[i]], int(ROUNDS[i]), accountant)
        assert alone[0] == pytest.approx(multiplier[i], rel=1e-3)


def test_no_rounds_and_no_budget_limit_need_the_least_noise() -> None:
    epsilon, rounds = np.array([1.0, math.inf, 1.0]), np.array([0, 50, 50])
    rate = np.array([0.5, 0.5, 0.0])
    np.testing.assert_array_equal(noise_multiplier(epsilon, DELTA[:3], rate, rounds), [0.05] * 3)
    np.testing.assert_array_equal(
        sampling_rate(epsilon[:2], DELTA[:2], np.array([2.0, 0.0]), rounds[:2]), [1.0, 1.0]
    )


@pytest.mark.parametrize("rounds", [-1, 2.5, np.array([1, 2, 3, -4])])
def test_rounds_that_cannot_be_get_no_answer(rounds: int) -> None:
    with pytest.raises(PlanError, match="invalid number of rounds: found (-1|2.5|-4), expected a whole"):
        noise_multiplier(EPSILON, DELTA, RATE, rounds)
    with pytest.raises(PlanError, match="invalid number of rounds: found (-1|2.5|-4), expected a whole"):
        sampling_rate(EPSILON, DELTA, RATE, rounds)


@BOTH
@pytest.mark.parametrize("budget", [0.02, 1000.0])
def test_tiny_and_huge_budgets(accountant: Accountant, budget: float) -> None:
    args = np.array([budget]), np.array([1e-3]), np.array([0.5])
    multiplier = noise_multiplier(*args, 20, accountant)
    share = accountant.epsilon(Steps.same(args[2], multiplier, 20), args[1])[0] / budget
    assert 0.9995 <= share <= 1


def test_a_rate_that_no_budget_allows_is_refused() -> None:
    one = np.ones(1)
    with pytest.raises(PlanError, match="no sampling rate down to a billionth"):
        sampling_rate(one, 1e-12 * one, 0 * one, 1)


# numbers in place of arrays


def test_numbers_give_a_number_and_arrays_an_array() -> None:
    multiplier = noise_multiplier(1.0, 1e-5, 0.1, 100)
    rate = sampling_rate(1.0, 1e-5, multiplier, 100)
    clip = clip_bound(1.0, 1e-5, 0.1, 100, 3.0)
    rounds = most_rounds(1.0, 1e-5, 0.1, multiplier)
    assert [type(found) for found in (multiplier, rate, clip, rounds)] == [float, float, float, int]
    assert rounds == 100 and rate == pytest.approx(0.1, rel=1e-3) and clip == pytest.approx(3 / multiplier)
    one = np.ones(1)
    assert noise_multiplier(one, 1e-5 * one, 0.1 * one, 100).tolist() == [multiplier]
    assert clip_bound(1.0, 1e-5, 0.0, 100, 3.0) == math.inf


def test_a_number_stands_for_every_client() -> None:
    each = np.ones(4)
    for solve in (noise_multiplier, sampling_rate):
        alike = solve(EPSILON, 1e-5, 0.3, 50)
        assert alike.shape == (4,)
        np.testing.assert_array_equal(alike, solve(EPSILON, 1e-5 * each, 0.3 * each, 50))
    np.testing.assert_array_equal(
        noise_multiplier(1.0, 1e-5, RATE, 50), noise_multiplier(each, 1e-5, RATE, 50)
    )
    assert noise_multiplier(EPSILON[:, None], 1e-5, RATE, 50).shape == (4, 4)
    clip = clip_bound(1.0, DELTA, 0.3, 50, 2.0)
    np.testing.assert_array_equal(clip, clip_bound(each, DELTA, 0.3 * each, 50, 2.0))
    rounds = most_rounds(EPSILON, 1e-5, 0.3, 2.0)
    np.testing.assert_array_equal(rounds, most_rounds(EPSILON, 1e-5 * each, 0.3 * each, 2 * each))
    steps = Steps.same(RATE, 2 * each, 10)
    np.testing.assert_array_equal(noise_scale(steps, 1.0, 1e-5), noise_scale(steps, each, 1e-5 * each))
    assert noise_scale(Steps.none(4), 1.0, 1e-5).tolist() == [1, 1, 1, 1]


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="invalid budget: found epsilon 0, expected a number above 0"):
        noise_multiplier(0.0, 1e-5, 0.1, 100)
    with pytest.raises(PlanError, match="invalid budget: found epsilon nan"):
        most_rounds(np.array([1.0, math.nan]), 1e-5, 0.1, 1.0)


# clip


def test_clip_is_the_largest_that_the_noise_covers() -> None:
    noise = np.array([0.5, 1.0, 7.0, 1e-3])
    clip = clip_bound(EPSILON, DELTA, RATE, ROUNDS, noise)
    share = used(Pld(), RATE, noise / clip, ROUNDS)
    assert (share <= 1).all() and (share >= 0.9995).all()
    multiplier = noise_multiplier(EPSILON, DELTA, RATE, ROUNDS)
    assert (noise / clip >= multiplier).all()
    np.testing.assert_allclose(clip * multiplier, noise, rtol=1e-15)
    assert clip_bound(EPSILON, DELTA, RATE, ROUNDS, 0.0).tolist() == [0, 0, 0, 0]


def test_noise_over_clip_is_never_below_the_multiplier() -> None:
    """Rounding takes noise / (noise / multiplier) below the multiplier for some in a hundred."""
    epsilon, delta, rate, rounds = crowd(500)
    noise = np.linspace(0.1, 3.0, 500)
    multiplier = noise_multiplier(epsilon, delta, rate, rounds, Limit())
    assert (noise / (noise / multiplier) < multiplier).any()
    assert (noise / clip_bound(epsilon, delta, rate, rounds, noise, Limit()) >= multiplier).all()


def test_clip_is_infinite_where_it_does_not_matter() -> None:
    epsilon, rounds = np.array([math.inf, 1.0, 1.0, 1e9]), np.array([5, 5, 0, 5])
    rate = np.array([0.5, 0.0, 0.5, 0.5])
    clip = clip_bound(epsilon, DELTA, rate, rounds, 3.0)
    np.testing.assert_array_equal(clip, [math.inf, math.inf, math.inf, 3.0 / 0.05])


@pytest.mark.parametrize("noise", [-1.0, math.nan, math.inf])
def test_noise_that_cannot_be_gives_no_clip(noise: float) -> None:
    with pytest.raises(PlanError, match="invalid noise: found standard deviation"):
        clip_bound(EPSILON, DELTA, RATE, ROUNDS, noise)


# rounds


@BOTH
def test_one_round_more_does_not_fit(accountant: Accountant) -> None:
    multiplier = np.array([0.9, 2.0, 1.5, 3.0])
    rounds = most_rounds(EPSILON, DELTA, RATE, multiplier, accountant)
    assert rounds.dtype == np.int64 and (rounds >= 1).any()
    assert (used(accountant, RATE, multiplier, rounds) <= 1).all()
    assert (used(accountant, RATE, multiplier, rounds + 1) > 1).all()


def test_most_rounds_undoes_the_noise_for_some_rounds() -> None:
    multiplier = noise_multiplier(EPSILON, DELTA, RATE, ROUNDS)
    np.testing.assert_array_equal(most_rounds(EPSILON, DELTA, RATE, multiplier), ROUNDS)


def test_no_rounds_and_rounds_without_end() -> None:
    epsilon = np.array([0.1, 1.0, math.inf, 1.0, 1.0])
    rate = np.array([1.0, 0.5, 0.5, 0.0, 0.5])
    multiplier = np.array([1.0, 0.0, 0.0, 0.0, math.inf])
    found = most_rounds(epsilon, np.full(5, 1e-5), rate, multiplier)
    np.testing.assert_array_equal(found, [0, 0, MOST_ROUNDS, MOST_ROUNDS, MOST_ROUNDS])


@pytest.mark.parametrize("last", [1, 2, 7, 123_456_789, MOST_ROUNDS])
@pytest.mark.parametrize("guess", [1.0, 1e4, 1e9])
def test_whole_numbers_are_found_behind_a_jump(last: int, guess: float) -> None:
    found = most(
        np.ones(1),
        1.0,
        MOST_ROUNDS,
        np.array([guess]),
        np.ones(1),
        lambda x, _: np.where(x <= last, 0.5, 2.0),
        whole=True,
    )
    assert found.x[0] == last and found.cost[0] == 0.5


# the scale of a schedule


def schedule() -> Steps:
    multiplier = np.array([[2.0, 1.0, 4.0, 2.0], [1.0, 3.0, 2.0, 1.0], [4.0, math.inf, 1.0, 9.0]])
    return Steps(np.stack([RATE, RATE / 2, RATE / 3]), multiplier, np.array([5, 20, 3]))


@BOTH
def test_a_schedule_keeps_its_shape_and_spends_everything(accountant: Accountant) -> None:
    steps = schedule()
    factor = noise_scale(steps, EPSILON, DELTA, accountant)
    scaled = Steps(steps.rate, steps.multiplier * factor, steps.count)
    share = accountant.epsilon(scaled, DELTA) / EPSILON
    assert (share <= 1).all() and (share >= 0.9995).all()


def test_the_scale_of_equal_rounds_is_their_noise() -> None:
    factor = noise_scale(Steps.same(RATE, np.full(4, 3.0), ROUNDS), EPSILON, DELTA)
    np.testing.assert_allclose(3 * factor, noise_multiplier(EPSILON, DELTA, RATE, ROUNDS), rtol=5e-4)


def test_scales_at_the_edges() -> None:
    steps = Steps.same(np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, math.inf, 2.0, 4.0]), 3)
    factor = noise_scale(steps, np.array([1.0, 1.0, math.inf, 1e9]), DELTA)
    np.testing.assert_allclose(factor, [1, 1, 0.025, 0.0125], rtol=1e-12)
    assert noise_scale(Steps.none(4), EPSILON, DELTA).tolist() == [1, 1, 1, 1]
    with pytest.raises(PlanError, match="without noise"):
        noise_scale(Steps.same(RATE, np.array([1.0, 0.0, 1.0, 1.0]), 3), EPSILON, DELTA)
    with pytest.raises(PlanError, match="no noise multiplier up to a million"):
        noise_scale(Steps.same(np.ones(1), np.ones(1), 10**9), np.array([1e-9]), np.array([1e-12]))


# thousands of different clients


class Limit:
    """The limit of many rounds by concentrated privacy: fast, smooth, and counts whom it was asked about."""

    name = "limit"

    def __init__(self) -> None:
        self.asked = 0

    def epsilon(self, steps: Steps, delta: np.ndarray) -> np.ndarray:
        self.asked += len(delta)
        with np.errstate(over="ignore", divide="ignore"):
            shift = steps.rate[0] * np.sqrt(steps.count[0] * np.expm1(steps.multiplier[0] ** -2.0))
        result: np.ndarray = shift**2 / 2 + shift * np.sqrt(-2 * np.log(delta))
        return result


def crowd(clients: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    epsilon, rate = 10 ** random.uniform(-1, 1, clients), 10 ** random.uniform(-2, -0.3, clients)
    return epsilon, 10 ** random.uniform(-7, -4, clients), rate, random.integers(10, 1000, clients)


def test_many_clients_are_read_off_between_few() -> None:
    epsilon, delta, rate, rounds = crowd(3500)
    accountant = Limit()
    multiplier = noise_multiplier(epsilon, delta, rate, rounds, accountant)
    assert accountant.asked < 2.5 * 3500  # each would take some four looks of its own
    share = accountant.epsilon(Steps.same(rate, multiplier, rounds), delta) / epsilon
    assert (share <= 1).all() and (share >= 0.995).all()
    backwards = noise_multiplier(epsilon[::-1], delta[::-1], rate[::-1], rounds[::-1], accountant)
    np.testing.assert_array_equal(backwards[::-1], multiplier)


def test_rates_of_many_clients_end_at_1() -> None:
    """Half of them could take part in every round: no neighbour of theirs is drawn beyond its budget."""
    epsilon, delta, _, rounds = crowd(5000)
    multiplier = np.geomspace(1.0, 100.0, 5000)[np.random.default_rng(2).permutation(5000)]
    rate = sampling_rate(epsilon, delta, multiplier, rounds, Limit())
    share = Limit().epsilon(Steps.same(rate, multiplier, rounds), delta) / epsilon
    assert 0.1 < (rate == 1).mean() < 0.9
    assert (share <= 1).all() and ((share >= 0.995) | (rate == 1)).all()


def test_many_clients_with_few_values_in_a_column_and_some_without_limits() -> None:
    epsilon, _, rate, _ = crowd(3500)
    random = np.random.default_rng(3)
    rounds, delta = random.choice([10, 1000], 3500), random.choice([1e-6, 1e-4], 3500)
    epsilon[::100], rate[1::100] = math.inf, 0.0
    multiplier = noise_multiplier(epsilon, delta, rate, rounds, Limit())
    free = np.isinf(epsilon) | (rate == 0)
    assert (multiplier[free] == 0.05).all()
    share = Limit().epsilon(Steps.same(rate, multiplier, rounds), delta)[~free] / epsilon[~free]
    assert (share <= 1).all() and (share >= 0.995).all()


class Rough(Limit):
    """Epsilon goes up in steps of five per cent: nothing can be read off."""

    def epsilon(self, steps: Steps, delta: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            result: np.ndarray = 1.05 ** np.ceil(np.log(super().epsilon(steps, delta)) / math.log(1.05))
            return result


def test_where_nothing_can_be_read_off_nobody_is_over_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discretion.accounting.solve.MANY", 1000)
    epsilon, delta, rate, rounds = crowd(1500)
    multiplier = noise_multiplier(epsilon, delta, rate, rounds, Rough())
    assert (Rough().epsilon(Steps.same(rate, multiplier, rounds), delta) <= epsilon).all()


def test_a_sample_that_misses_has_more_clients_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tolerance that doubts nobody, only the accountant's look at the sample finds the errors."""
    monkeypatch.setattr(search, "TOLERATED", 0.05)
    epsilon, delta, rate, rounds = crowd(3500)
    multiplier = noise_multiplier(epsilon, delta, rate, rounds, Limit())
    share = Limit().epsilon(Steps.same(rate, multiplier, rounds), delta) / epsilon
    assert (share <= 1).all()


def test_a_crowd_by_pld() -> None:
    epsilon, _, rate, rounds = crowd(3500)
    epsilon, rate = 1 + epsilon / 10, 0.1 + rate / 5
    delta = np.full(3500, 1e-5)
    multiplier = noise_multiplier(epsilon, delta, rate, rounds)
    some = np.arange(0, 3500, 12)
    spent = Pld().epsilon(Steps.same(rate[some], multiplier[some], rounds[some]), delta[some])
    assert (spent <= epsilon[some]).all() and (spent >= 0.995 * epsilon[some]).all()


def test_a_surface_without_curvature_is_read_off_at_once() -> None:
    """Nobody is in doubt, so nobody but the first is solved."""
    points = np.random.default_rng(5).uniform(-1, 1, (3000, 2))
    budget, truth, solved = np.ones(3000), points @ np.array([0.5, -0.2]), []

    def solve(who: np.ndarray, guess: object, slope: object) -> Found:
        solved.append(len(who))
        return Found(np.exp(truth[who]), np.ones(len(who)), np.ones(len(who)))

    found = search.interpolated(points, budget, 1e3, solve, lambda x, who: x / np.exp(truth[who]))
    assert len(solved) == 1 and solved[0] < 2000
    assert (found <= np.exp(truth) * (1 + 1e-9)).all() and (found >= 0.996 * np.exp(truth)).all()


def test_interpolation_is_exact_for_polynomials_of_degree_two() -> None:
    random = np.random.default_rng(4)
    points, places = random.uniform(-1, 1, (60, 3)), random.uniform(-1, 1, (5, 3))

    def value(at: np.ndarray) -> np.ndarray:
        result: np.ndarray = 1 + at[:, 0] - 2 * at[:, 1] * at[:, 2] + 3 * at[:, 2] ** 2
        return result

    around = np.tile(np.arange(60), (5, 1))
    found = search.interpolate(points, value(points), places, around)
    np.testing.assert_allclose(found, value(places), rtol=1e-6, atol=1e-7)
