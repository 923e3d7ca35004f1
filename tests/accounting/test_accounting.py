"""Every epsilon is an upper bound, and close to the truth: against closed forms and other accountants."""

import math
from functools import cache

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as google
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.accounting import (
    Accountant,
    Pld,
    Renyi,
    gaussian,
    noise_multiplier,
    renyi,
    sampling_rate,
    spent,
)
from discretion.errors import PlanError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.steps import Steps

PLD, RENYI = Pld(), Renyi()
BOTH = pytest.mark.parametrize("accountant", [PLD, RENYI], ids=lambda accountant: accountant.name)
TIGHT_TO = 2e-3  # of PLD, relative

some = settings(max_examples=15, deadline=None)
rates = st.floats(0.001, 1)
multipliers = st.floats(0.4, 20)
counts = st.integers(1, 300)
deltas = st.floats(-9, -2).map(lambda exponent: 10.0**exponent)


def epsilon(accountant: Accountant, rate: float, multiplier: float, count: int, delta: float) -> float:
    steps = Steps.same(np.array([rate]), np.array([multiplier]), count)
    return float(accountant.epsilon(steps, np.array([delta]))[0])


def google_rdp(rate: float, multiplier: float, count: int, delta: float) -> float:
    accountant = RdpAccountant(renyi.ORDERS.tolist())
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return float(accountant.compose(step, count).get_epsilon(delta))


@cache
def google_pld(rate: float, multiplier: float, count: int, delta: float, upper: bool) -> float:
    """By google's library; with `upper` not less than the truth, otherwise not more."""
    step = google.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        pessimistic_estimate=upper,
        use_connect_dots=upper,
        value_discretization_interval=5e-4 if upper else 2e-3,
    )
    return float(step.self_compose(count).get_epsilon_for_delta(delta))


# Gaussian steps without sampling


def true_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        below = mpmath.erfc((e / m - m / 2) / mpmath.sqrt(2)) / 2
        return below - mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2


@settings(max_examples=60, deadline=None)
@given(st.floats(-4, 3).map(lambda x: 10.0**x), st.floats(-15, -0.3).map(lambda x: 10.0**x))
def test_gaussian_epsilon_is_the_smallest_at_its_delta(mu: float, delta: float) -> None:
    found = float(gaussian.epsilon_of(np.array(mu), np.array(delta)))
    assert true_delta(found, mu) <= delta * (1 + 1e-6)
    if found > 0:
        assert true_delta(found * (1 - 1e-6), mu) > delta * (1 - 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(-2, 2).map(lambda x: 10.0**x), st.floats(0, 200))
def test_gaussian_delta_is_that_of_balle_and_wang(mu: float, at: float) -> None:
    truth = float(true_delta(at, mu))
    found = float(gaussian.delta_of(np.array(at), np.array(mu)))
    assert found == pytest.approx(truth, rel=1e-7, abs=1e-17)


def test_gaussian_epsilon_as_google_computes_it() -> None:
    for sigma, delta in [(0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-6), (10.0, 1e-3), (50.0, 1e-9)]:
        theirs = dp_accounting.get_epsilon_gaussian(sigma, delta)
        ours = gaussian.epsilon_of(np.array(1 / sigma), np.array(delta))
        assert float(ours) == pytest.approx(theirs, rel=1e-6)


def test_gaussian_edges() -> None:
    mu = np.array([0.0, math.inf, 1e-300, 5e-324, 1e-9])
    np.testing.assert_array_equal(gaussian.epsilon_of(mu, np.array(1e-5)), [0, math.inf, 0, 0, 0])
    np.testing.assert_array_equal(gaussian.delta_of(np.zeros(2), np.array([0.0, math.inf])), [0.0, 1.0])
    # within delta already at epsilon 0: its total variation distance is 2 Φ(mu / 2) - 1
    assert float(gaussian.epsilon_of(np.array(0.1), np.array(0.05))) == 0
    assert float(gaussian.epsilon_of(np.array(0.1), np.array(0.0398))) > 0


def test_gaussian_works_on_all_clients_at_once() -> None:
    mu, delta = np.array([[0.5], [5.0]]), np.array([1e-5, 1e-3, 1e-9])
    table = gaussian.epsilon_of(mu, delta)
    assert table.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert table[i, j] == gaussian.epsilon_of(mu[i, 0], delta[j])


@pytest.mark.parametrize("mu", [1e10, 1e31, 1e160, 1e300])
def test_gaussian_never_understates_an_enormous_shift(mu: float) -> None:
    """At any delta below a half the loss has to reach its median, mu² / 2."""
    assert float(gaussian.epsilon_of(np.array(mu), np.array(1e-5))) >= 0.5 * (mu * mu) * (1 - 1e-6)


# Rényi


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.5, 0.9])
@pytest.mark.parametrize("multiplier", [0.3, 0.7, 1.0, 4.0, 30.0])
def test_renyi_divergence_of_whole_orders_is_the_binomial_sum(rate: float, multiplier: float) -> None:
    """Mironov, Talwar and Zhang 2019, section 3.3, with 50 digits."""
    found = renyi.curve(np.array([rate]), np.array([multiplier]))[0]
    for order in (2, 3, 5, 16, 64):
        with mpmath.workdps(50):
            q, s = mpmath.mpf(rate), mpmath.mpf(multiplier)
            moment = sum(
                mpmath.binomial(order, k)
                * (1 - q) ** (order - k)
                * q**k
                * mpmath.exp((k * k - k) / (2 * s * s))
                for k in range(order + 1)
            )
            truth = float(mpmath.log(moment) / (order - 1))
        at = int(np.argmin(np.abs(renyi.ORDERS - order)))
        assert found[at] == pytest.approx(truth, rel=1e-9, abs=1e-14)


def test_renyi_divergence_of_fractional_orders_by_quadrature() -> None:
    rate, multiplier = 0.1, 0.8
    found = renyi.curve(np.array([rate]), np.array([multiplier]))[0]
    for at in (0, 4, 15, 20):
        order = float(renyi.ORDERS[at])
        with mpmath.workdps(30):

            def integrand(x: mpmath.mpf, order: float = order) -> mpmath.mpf:
                ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * multiplier**2))
                return mpmath.npdf(x, 0, multiplier) * ratio**order

            moment = mpmath.quad(integrand, [-20, -5, 0, 2, 5, 10, 30])
            truth = float(mpmath.log(moment) / (order - 1))
        assert found[at] == pytest.approx(truth, rel=1e-9)


def true_divergence(rate: float, multiplier: float, order: float) -> mpmath.mpf:
    """By sums of what cannot be negative: of the binomial for whole orders, of a fine grid for others."""
    with mpmath.workdps(50):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(multiplier), mpmath.mpf(order)
        if order % 1 == 0:
            excess = mpmath.fsum(
                mpmath.binomial(a, k) * (1 - q) ** (a - k) * q**k * mpmath.expm1(k * (k - 1) / (2 * s * s))
                for k in range(2, int(order) + 1)
            )
        else:
            step = mpmath.mpf(min(0.25, multiplier / 4))
            excess = mpmath.mpf(0)
            for i in range(int((26 + max(a, 2) / s) / step)):
                u = i * step - 13
                y = q * mpmath.expm1(u / s - 1 / (2 * s * s))
                excess += step * mpmath.npdf(u) * (mpmath.expm1(a * mpmath.log1p(y)) - a * y)
        return mpmath.log1p(excess) / (a - 1)


@pytest.mark.parametrize(
    ("rate", "multiplier"),
    [(1e-9, 1e8), (1e-9, 0.3), (1e-9, 0.9), (1e-4, 1.0), (0.5, 0.999), (0.999, 1.01), (0.3, 0.2), (0.9, 50.0)]
    + [(1e-5, 0.25), (1 - 1e-12, 2.0), (0.11, 1e5)],
)
def test_renyi_is_never_understated_and_true_to_nine_digits(rate: float, multiplier: float) -> None:
    found = renyi.curve(np.array([rate]), np.array([multiplier]))[0]
    for order in (1.1, 1.9, 2.0, 2.1, 4.5, 10.5, 63.0, 1024.0):
        at = int(np.flatnonzero(order == renyi.ORDERS)[0])
        truth = true_divergence(rate, multiplier, order)
        assert truth <= found[at] <= truth * (1 + 1e-9)


def test_renyi_as_google_finds_it_for_many_clients_at_once() -> None:
    generator = np.random.default_rng(2)
    rate, multiplier = 10 ** generator.uniform(-4, 0, 15), 10 ** generator.uniform(-0.3, 1, 15)
    found = renyi.curve(rate, multiplier)
    for i in range(15):
        accountant = RdpAccountant(renyi.ORDERS.tolist())
        gaussian_step = dp_accounting.GaussianDpEvent(float(multiplier[i]))
        accountant.compose(dp_accounting.PoissonSampledDpEvent(float(rate[i]), gaussian_step))
        theirs = np.asarray(accountant._rdp)  # there is no other way to it
        whole = renyi.ORDERS % 1 == 0
        np.testing.assert_allclose(found[i, whole], theirs[whole], rtol=1e-6, atol=1e-12)
        # between whole orders theirs adds up the sizes of an alternating series, or gives up
        assert (found[i] <= theirs * (1 + 1e-6) + 1e-12).all()


def test_renyi_of_a_client_does_not_depend_on_the_others() -> None:
    generator = np.random.default_rng(3)
    rate, multiplier = 10 ** generator.uniform(-9, 0, 700), 10 ** generator.uniform(-1, 2, 700)
    rate[:5], multiplier[5:10] = [0, 1, 0.5, 1, 1e-300], [0, 0.01, 1e9, math.inf, 1e300]
    together = renyi.curve(np.tile(rate, 2), np.tile(multiplier, 2))
    np.testing.assert_array_equal(together[:700], together[700:])
    for i in range(0, 700, 23):
        np.testing.assert_array_equal(together[i], renyi.curve(rate[i : i + 1], multiplier[i : i + 1])[0])
    assert (together[0] == 0).all() and (together[4] > 0).all() and np.isinf(together[5]).all()
    assert (np.diff(together[10:700], axis=1) >= 0).all()
    assert renyi.curve(np.zeros(0), np.zeros(0)).shape == (0, len(renyi.ORDERS))


def test_renyi_without_sampling_is_the_gaussian() -> None:
    np.testing.assert_allclose(renyi.curve(np.array([1.0]), np.array([2.0]))[0], renyi.ORDERS / 8)
    near = renyi.curve(np.array([1 - 1e-12]), np.array([2.0]))[0]
    np.testing.assert_allclose(near, renyi.ORDERS / 8, rtol=1e-8)


@pytest.mark.parametrize(
    ("rate", "multiplier", "count", "delta"),
    [
        (0.01, 0.8, 1, 1e-5),
        (0.01, 0.8, 50, 1e-9),
        (0.02, 1.5, 50, 1e-5),
        (0.02, 1.5, 2000, 1e-9),
        (0.3, 2.0, 1, 1e-5),
        (0.9, 2.286, 1, 1e-9),
        (1.0, 5.0, 2000, 1e-5),
    ],
)
def test_renyi_is_what_google_finds_with_the_same_orders(
    rate: float, multiplier: float, count: int, delta: float
) -> None:
    theirs = google_rdp(rate, multiplier, count, delta)
    assert epsilon(RENYI, rate, multiplier, count, delta) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(
    ("rate", "multiplier", "count"), [(0.3, 2.0, 2000), (0.9, 2.286, 25), (0.01, 0.8, 2000)]
)
def test_renyi_is_a_little_tighter_than_google_between_whole_orders(
    rate: float, multiplier: float, count: int
) -> None:
    """There google's series is an upper bound only, or does not converge; ours is the integral itself."""
    theirs = google_rdp(rate, multiplier, count, 1e-5)
    assert 0.9 * theirs < epsilon(RENYI, rate, multiplier, count, 1e-5) <= theirs * (1 + 1e-9)


@some
@given(rates, multipliers, counts, deltas)
def test_renyi_is_never_below_pld(rate: float, multiplier: float, count: int, delta: float) -> None:
    tight = epsilon(PLD, rate, multiplier, count, delta)
    assert epsilon(RENYI, rate, multiplier, count, delta) >= tight * (1 - 1e-6)


@pytest.mark.parametrize(
    ("rate", "multiplier", "count", "delta"),
    [(0.02, 1.5, 50, 1e-5), (0.9, 2.286, 25, 1e-5), (0.1, 0.6, 10, 1e-6), (0.5, 8.0, 200, 1e-4)],
)
@BOTH
def test_epsilon_is_above_what_is_known_to_be_too_low(
    accountant: Accountant, rate: float, multiplier: float, count: int, delta: float
) -> None:
    low = google_pld(rate, multiplier, count, delta, upper=False)
    high = google_pld(rate, multiplier, count, delta, upper=True)
    found = epsilon(accountant, rate, multiplier, count, delta)
    assert 0 < low <= found
    assert accountant is RENYI or found <= high * (1 + TIGHT_TO)


def test_known_values_of_pld_and_renyi() -> None:
    """GDPFed's noise (arXiv 2505.13655, table III) keeps its budget by Rényi, and PLD shows the slack."""
    delta = 6000**-1.1
    noise = math.sqrt(2.26)
    assert epsilon(RENYI, 0.02, noise, 50, delta) == pytest.approx(0.496, abs=2e-3)
    assert epsilon(PLD, 0.02, noise, 50, delta) == pytest.approx(0.368, abs=2e-3)


# what holds for every accountant


@some
@given(rates, rates, multipliers, counts, deltas)
@BOTH
def test_epsilon_grows_with_the_rate(
    accountant: Accountant, one: float, other: float, multiplier: float, count: int, delta: float
) -> None:
    low, high = sorted([one, other])
    slack = TIGHT_TO if accountant is PLD else 1e-9
    more = epsilon(accountant, high, multiplier, count, delta)
    assert epsilon(accountant, low, multiplier, count, delta) <= more * (1 + slack) + 1e-9


@some
@given(rates, multipliers, multipliers, counts, deltas)
@BOTH
def test_epsilon_falls_with_the_noise(
    accountant: Accountant, rate: float, one: float, other: float, count: int, delta: float
) -> None:
    low, high = sorted([one, other])
    slack = TIGHT_TO if accountant is PLD else 1e-9
    more = epsilon(accountant, rate, low, count, delta)
    assert epsilon(accountant, rate, high, count, delta) <= more * (1 + slack) + 1e-9


@some
@given(rates, multipliers, counts, counts, deltas)
@BOTH
def test_epsilon_grows_with_the_count(
    accountant: Accountant, rate: float, multiplier: float, one: int, other: int, delta: float
) -> None:
    low, high = sorted([one, other])
    slack = TIGHT_TO if accountant is PLD else 1e-9
    more = epsilon(accountant, rate, multiplier, high, delta)
    assert epsilon(accountant, rate, multiplier, low, delta) <= more * (1 + slack) + 1e-9


@some
@given(rates, multipliers, counts, deltas, deltas)
@BOTH
def test_epsilon_falls_with_delta(
    accountant: Accountant, rate: float, multiplier: float, count: int, one: float, other: float
) -> None:
    low, high = sorted([one, other])
    slack = TIGHT_TO if accountant is PLD else 1e-9
    more = epsilon(accountant, rate, multiplier, count, low)
    assert epsilon(accountant, rate, multiplier, count, high) <= more * (1 + slack) + 1e-9


@settings(max_examples=10, deadline=None)
@given(rates, multipliers, st.integers(1, 20), deltas)
@BOTH
def test_many_steps_are_one_step_many_times(
    accountant: Accountant, rate: float, multiplier: float, count: int, delta: float
) -> None:
    each = Steps(np.full((count, 1), rate), np.full((count, 1), multiplier), np.ones(count, dtype=np.int64))
    found = accountant.epsilon(each, np.array([delta]))[0]
    slack = TIGHT_TO if accountant is PLD else 1e-9
    assert found == pytest.approx(epsilon(accountant, rate, multiplier, count, delta), rel=slack)


@settings(max_examples=10, deadline=None)
@given(st.permutations([(0.1, 1.0, 20), (0.5, 3.0, 10), (1.0, 9.0, 5), (0.02, 0.7, 40)]), deltas)
@BOTH
def test_the_order_of_steps_does_not_matter(
    accountant: Accountant, order: list[tuple[float, float, int]], delta: float
) -> None:
    def cost(steps: list[tuple[float, float, int]]) -> float:
        rate, multiplier, count = (np.array(column) for column in zip(*steps, strict=True))
        return float(
            accountant.epsilon(Steps(rate[:, None], multiplier[:, None], count), np.array([delta]))[0]
        )

    assert cost(order) == pytest.approx(cost(sorted(order)), rel=1e-9)


@BOTH
def test_clients_are_accounted_for_apart(accountant: Accountant) -> None:
    rate, multiplier = np.array([0.1, 0.5, 0.1, 0.0]), np.array([1.0, 3.0, 1.0, 1.0])
    delta = np.array([1e-5, 1e-5, 1e-7, 1e-5])
    together = accountant.epsilon(Steps.same(rate, multiplier, 20), delta)
    alone = [epsilon(accountant, *client) for client in zip(rate, multiplier, [20] * 4, delta, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=TIGHT_TO)
    assert together[2] > together[0] > 0 == together[3]


@BOTH
def test_nothing_costs_nothing(accountant: Accountant) -> None:
    delta = np.full(3, 1e-5)
    np.testing.assert_array_equal(accountant.epsilon(Steps.none(3), delta), [0, 0, 0])
    rate, multiplier = np.array([0.0, 0.5, 1.0]), np.array([1.0, np.inf, np.inf])
    np.testing.assert_array_equal(accountant.epsilon(Steps.same(rate, multiplier, 9), delta), [0, 0, 0])
    never = Steps.same(np.zeros(3), np.zeros(3), 9)  # no noise, but nobody there
    np.testing.assert_array_equal(accountant.epsilon(never, delta), [0, 0, 0])


@BOTH
def test_without_noise_everything_is_lost(accountant: Accountant) -> None:
    rate, multiplier = np.array([1e-4, 0.5, 1.0]), np.zeros(3)
    lost = accountant.epsilon(Steps.same(rate, multiplier, 1), np.full(3, 1e-5))
    assert np.isinf(lost).all()
    well = Steps.same(rate, np.full(3, 100.0), 1)
    assert np.isinf(accountant.epsilon(well.then(Steps.same(rate, multiplier, 1)), np.full(3, 1e-5))).all()


@BOTH
@pytest.mark.parametrize(
    ("rate", "multiplier", "count"),
    [
        (math.nan, 1.0, 1),
        (-0.5, 1.0, 1),
        (1.5, 1.0, 1),
        (math.inf, 1.0, 1),
        (0.5, math.nan, 1),
        (1.0, math.nan, 1),
        (0.5, -1.0, 1),
        (1.0, -1.0, 1),
        (0.5, 1.0, -1),
    ],
)
def test_steps_that_cannot_be_are_never_free(
    accountant: Accountant, rate: float, multiplier: float, count: int
) -> None:
    try:
        cost = epsilon(accountant, rate, multiplier, count, 1e-5)
    except PlanError:
        return
    assert cost == math.inf


def test_steps_of_different_lengths_are_refused() -> None:
    with pytest.raises(PlanError):
        Steps(np.full((2, 3), 0.5), np.ones((2, 3)), np.array([1]))
    with pytest.raises(PlanError):
        Steps(np.full((1, 3), 0.5), np.ones((1, 2)), np.array([1]))


@BOTH
@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("multiplier", [1e-300, 1e-6, 1e20, 1e300])
def test_the_largest_and_the_smallest_noise(accountant: Accountant, rate: float, multiplier: float) -> None:
    """No warning, no crash and no flood of memory: a bound that holds."""
    cost = epsilon(accountant, rate, multiplier, 1, 1e-5)
    if multiplier < 1:
        assert cost >= 0.4 / multiplier / multiplier
    else:
        assert 0 <= cost < 0.01


def test_renyi_counts_a_step_that_is_never_taken_as_nothing() -> None:
    assert epsilon(RENYI, 0.5, 0.0, 0, 1e-5) == 0


# spent


def test_spent_counts_the_first_rounds_of_a_plan() -> None:
    one = Phase.one_pool(4, np.array([0.5, 0.1]), np.array([1.0, 2.0]), 3.0)
    two = Phase.one_pool(6, np.array([1.0, 0.0]), np.array([1.0, 1.0]), 5.0)
    plan, delta = Plan("made", ("a", "b"), (one, two)), np.array([1e-5, 1e-6])
    np.testing.assert_array_equal(spent(plan, delta, 0), [0, 0])
    np.testing.assert_allclose(
        spent(plan, delta, 3),
        [epsilon(PLD, 0.5, 3.0, 3, 1e-5), epsilon(PLD, 0.1, 1.5, 3, 1e-6)],
        rtol=TIGHT_TO,
    )
    np.testing.assert_array_equal(spent(plan, delta), spent(plan, delta, 10))
    np.testing.assert_array_equal(spent(plan, delta)[1], spent(plan, delta, 4)[1])
    np.testing.assert_array_equal(spent(plan, delta, accountant=RENYI), RENYI.epsilon(plan.steps(), delta))


# noise and rate from a budget


def published(epsilons: list[float], rate: float, rounds: int, delta: float, by: Accountant) -> np.ndarray:
    budget = np.array(epsilons)
    return noise_multiplier(budget, np.full(3, delta), np.full(3, rate), rounds, by)


def test_noise_is_that_of_the_papers() -> None:
    by_renyi = published([0.5, 1.5, 3.0], 0.02, 50, 6000**-1.1, RENYI)
    np.testing.assert_allclose(by_renyi**2, [2.25, 0.897, 0.532], rtol=5e-3)
    by_pld = published([10.0, 20.0, 30.0], 0.9, 25, 1e-5, PLD)
    np.testing.assert_allclose(by_pld, [2.286, 1.340, 0.999], rtol=2e-3)


@BOTH
@pytest.mark.parametrize("budget", [0.05, 0.5, 3.0, 30.0])
@pytest.mark.parametrize(("rate", "rounds"), [(0.01, 100), (0.3, 10), (1.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_noise_uses_the_whole_budget_and_never_more(
    accountant: Accountant, budget: float, rate: float, rounds: int, delta: float
) -> None:
    args = np.array([budget]), np.array([delta]), np.array([rate])
    sigma = float(noise_multiplier(*args, rounds, accountant)[0])
    used = epsilon(accountant, rate, sigma, rounds, delta) / budget
    assert used <= 1
    assert used >= 0.9995 or sigma == 0.05


@pytest.mark.parametrize("budget", [0.02, 0.5, 3.0, 30.0])
@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 10), (2.0, 100), (8.0, 1)])
def test_rate_uses_the_whole_budget_and_never_more(budget: float, multiplier: float, rounds: int) -> None:
    args = np.array([budget]), np.array([1e-5]), np.array([multiplier])
    rate = float(sampling_rate(*args, rounds)[0])
    assert 0 < rate <= 1
    used = epsilon(PLD, rate, multiplier, rounds, 1e-5) / budget
    assert used <= 1
    assert used >= 0.995 or rate == 1


def test_equal_clients_get_equal_answers_wherever_they_stand() -> None:
    epsilons, deltas = np.array([3.0, 1.0, 3.0, 1.0, 1.0]), np.array([1e-5] * 4 + [1e-6])
    sigma = noise_multiplier(epsilons, deltas, np.full(5, 0.1), 20)
    assert sigma[0] == sigma[2] < sigma[1] == sigma[3] < sigma[4]
    rate = sampling_rate(epsilons, deltas, np.full(5, 2.0), 20)
    assert rate[0] == rate[2] > rate[1] == rate[3] > rate[4]
    back = noise_multiplier(epsilons, deltas, rate, 20)
    np.testing.assert_allclose(back, 2.0, rtol=5e-3)


def test_budgets_beyond_need_get_the_least_noise_and_the_largest_rate() -> None:
    one = np.ones(1)
    assert noise_multiplier(np.array([np.inf]), 1e-5 * one, one, 1).tolist() == [0.05]
    assert noise_multiplier(np.array([1e4]), 1e-5 * one, one, 1).tolist() == [0.05]
    assert sampling_rate(np.array([np.inf]), 1e-5 * one, one, 1).tolist() == [1.0]
    assert sampling_rate(np.array([100.0]), 1e-5 * one, one, 1).tolist() == [1.0]
    assert noise_multiplier(one, 1e-5 * one, 0 * one, 5).tolist() == [0.05]  # nobody comes


def test_budgets_that_no_noise_can_keep_are_refused() -> None:
    one = np.ones(1)
    with pytest.raises(PlanError, match="no noise multiplier up to a million"):
        noise_multiplier(np.array([1e-9]), 1e-12 * one, one, 10**9)


@pytest.mark.parametrize(
    ("budget", "delta", "rate"), [(0.003, 1e-5, 1.0), (0.01, 1e-9, 0.1), (1e-3, 1e-6, 1.0)]
)
def test_the_smallest_budgets_can_be_kept(budget: float, delta: float, rate: float) -> None:
    """Where Rényi accounting cannot go down to the budget at any noise, the exact accountant still can."""
    args = np.array([budget]), np.array([delta]), np.array([rate])
    sigma = float(noise_multiplier(*args, 10)[0])
    assert 0.995 <= epsilon(PLD, rate, sigma, 10, delta) / budget <= 1


@pytest.mark.parametrize("budget", [math.nan, -1.0])
def test_budgets_that_cannot_be_get_no_answer(budget: float) -> None:
    one = np.ones(1)
    with pytest.raises(PlanError):
        noise_multiplier(np.array([budget]), 1e-5 * one, 0.5 * one, 10)
    with pytest.raises(PlanError):
        sampling_rate(np.array([budget]), 1e-5 * one, 2.0 * one, 10)


class Jumping:
    """An accountant whose epsilon jumps: no noise uses the whole budget."""

    name = "jumping"

    def epsilon(self, steps: Steps, delta: np.ndarray) -> np.ndarray:
        return np.where(steps.multiplier[0] < math.pi, 2.0, 0.5)


def test_noise_stays_on_the_safe_side_of_a_jump() -> None:
    one = np.ones(1)
    sigma = float(noise_multiplier(one, 1e-5 * one, one, 1, Jumping())[0])
    assert math.pi <= sigma <= math.pi * (1 + 2e-6)


def test_noise_stays_on_the_safe_side_when_the_search_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    args = np.array([0.5, 3.0]), np.full(2, 1e-5), np.full(2, 0.3)
    answers = 0
    for tries in range(1, 6):
        monkeypatch.setattr("discretion.accounting.search.TRIES", tries)
        try:
            sigma = noise_multiplier(*args, 10, RENYI)
        except PlanError:
            continue
        answers += 1
        assert (RENYI.epsilon(Steps.same(args[2], sigma, 10), args[1]) <= args[0]).all()
    assert 0 < answers < 5


class Stubborn(Jumping):
    """An accountant whose epsilon falls so slowly that the search for it ends without an answer in reach."""

    def epsilon(self, steps: Steps, delta: np.ndarray) -> np.ndarray:
        return np.where(steps.multiplier[0] < 1e300, 2.0, 0.5)


def test_noise_beyond_a_million_is_refused() -> None:
    one = np.ones(1)
    with pytest.raises(PlanError, match="no noise multiplier up to a million"):
        noise_multiplier(one, 1e-5 * one, one, 1, Stubborn())
