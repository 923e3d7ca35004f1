"""Integer noise costs no more than the Gaussian noise it is charged as: docs/integer-noise.md, by numbers."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from discretion.accounting import Renyi, certify, renyi
from discretion.arrays import Floats
from discretion.methods import make_plan
from discretion.plan.grid import LEAST_SHARE, SMOOTHING, Grid
from discretion.plan.grid_choice import on_finest_grid
from discretion.plan.population import Population
from discretion.plan.steps import Steps

mpmath.mp.dps = 60
STEP = Grid(1.0, 1)


def density(x: mpmath.mpf, sigma: mpmath.mpf) -> mpmath.mpf:
    return mpmath.exp(-((x / sigma) ** 2) / 2) / (sigma * mpmath.sqrt(2 * mpmath.pi))


def theta(centre: mpmath.mpf, sigma: mpmath.mpf) -> mpmath.mpf:
    """R in the document: the sum of densities over all whole numbers, directly."""
    middle, reach = int(mpmath.nint(centre)), int(18 * sigma) + 2
    return mpmath.fsum(density(middle + k - centre, sigma) for k in range(-reach, reach + 1))


def off(steps: float) -> mpmath.mpf:
    """Z in the document."""
    return 2 * mpmath.fsum(mpmath.exp(-2 * (mpmath.pi * m * steps) ** 2) for m in range(1, 8))


def test_what_the_constants_are_chosen_for() -> None:
    assert off(SMOOTHING) < mpmath.mpf(10) ** -548
    assert LEAST_SHARE**2 / 2 >= SMOOTHING**2  # c² in lemma 2, of two shares that are as small as allowed
    most = 10**6 * 2**53 * 5 * 2**53 * off(SMOOTHING)
    assert most < mpmath.mpf(10) ** -500


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.6])
def test_sums_of_densities_over_the_grid_are_as_bounded(sigma: float) -> None:
    found = [theta(mpmath.mpf(c) / 16, mpmath.mpf(sigma)) - 1 for c in range(17)]
    assert max(map(abs, found)) <= off(sigma) * (1 + mpmath.mpf(10) ** -40)
    assert max(map(abs, found)) >= off(sigma) * (1 - mpmath.mpf(10) ** -40)  # the bound is met at the centre
    assert max(found) == found[0]


@pytest.mark.parametrize(("wide", "narrow"), [(2.0, 0.7), (3.0, 1.0), (1.5, 1.2)])
def test_a_gaussian_rounded_at_random_is_a_discrete_gaussian(wide: float, narrow: float) -> None:
    """Lemma 1 at roundings so narrow that its error can be seen."""
    a, t = mpmath.mpf(wide), mpmath.mpf(narrow)
    s, node = mpmath.sqrt(a**2 + t**2), mpmath.mpf(1) / 32  # the trapezoidal rule is exact to 1e-40
    w = [k * node for k in range(-int(18 * wide * 32), int(18 * wide * 32) + 1)]
    period = [theta(k * node, t) for k in range(32)]
    weight = [density(x, a) / period[k % 32] for k, x in enumerate(w, start=-(len(w) // 2))]
    far = mpmath.mpf(0)
    for x in range(8):
        found = node * mpmath.fsum(each * density(x - at, t) for each, at in zip(weight, w, strict=True))
        far = max(far, abs(mpmath.log(found * theta(mpmath.mpf(0), s) / density(mpmath.mpf(x), s))))
    assert off(narrow) ** 2 < far < 3 * off(narrow)


@pytest.mark.parametrize("shares", [(0.8, 0.8), (0.9, 1.4), (1.0, 1.0, 1.0), (0.9, 2.0, 1.1, 3.0)])
def test_shares_add_up_to_a_discrete_gaussian(shares: tuple[float, ...]) -> None:
    """Lemma 2 at shares so small that its error can be seen."""
    reach, total = 60, {0: mpmath.mpf(1)}
    for share in map(mpmath.mpf, shares):
        each = {k: density(mpmath.mpf(k), share) for k in range(-reach, reach + 1)}
        scale = mpmath.fsum(each.values())
        sums = range(-40, 41)
        total = {
            z: mpmath.fsum(p * each[z - x] for x, p in total.items() if abs(z - x) <= reach) / scale
            for z in sums
        }
    s = mpmath.sqrt(sum(mpmath.mpf(x) ** 2 for x in shares))
    least = min(
        a * b / math.hypot(a, b)
        for a, b in ((math.hypot(*shares[:k]), shares[k]) for k in range(1, len(shares)))
    )
    far = max(
        abs(mpmath.log(total[z] * theta(mpmath.mpf(0), s) / density(mpmath.mpf(z), s))) for z in range(5)
    )
    assert off(least) / 100 < far <= 5 * (len(shares) - 1) * off(least)


def discrete(sigma: float) -> tuple[Floats, Floats]:
    """Whole numbers and their probabilities under the discrete Gaussian, to 1e-16."""
    x = np.arange(-math.ceil(16 * sigma), math.ceil(16 * sigma) + 1)
    mass = np.exp(-((x / sigma) ** 2) / 2)
    return x.astype(np.float64), mass / mass.sum()


def integer_deltas(sigma: float, shift: tuple[int, ...], rate: float, epsilon: Floats) -> Floats:
    """(2, E) delta of one sampled step with a client removed, and added: sums over all outputs."""
    x, mass = discrete(sigma)
    along, chance = np.zeros(1), np.ones(1)
    for each in shift:
        along = (along[:, None] + each * x).ravel()
        chance = (chance[:, None] * mass).ravel()
    ratio = 1 - rate + rate * np.exp((along - sum(s**2 for s in shift) / 2) / sigma**2)
    with_client = np.exp(epsilon)[:, None]
    removed = (np.maximum(ratio - with_client, 0.0) * chance).sum(axis=1)
    return np.stack([removed, (np.maximum(1 - with_client * ratio, 0.0) * chance).sum(axis=1)])


def gaussian_deltas(multiplier: float, rate: float, epsilon: Floats) -> Floats:
    """(2, E) the same of Gaussian noise, in closed form."""
    mu, more = 1 / multiplier, np.exp(epsilon)

    def above(loss: Floats) -> tuple[Floats, Floats]:
        return ndtr(mu / 2 - loss / mu), ndtr(-mu / 2 - loss / mu)

    with_, without = above(np.log((more - 1 + rate) / rate))
    removed = rate * with_ - (more - 1 + rate) * without
    inside = 1 / more - 1 + rate  # the other way round: losses below log(inside / rate)
    with np.errstate(divide="ignore"):
        with_, without = above(np.log(np.maximum(inside, 0.0) / rate))
    added = more * (inside * (1 - without) - rate * (1 - with_))
    return np.stack([removed, np.where(inside > 0, added, 0.0)])


def excesses(corrected: bool) -> Floats:
    """Of random single steps, integer over Gaussian delta, minus 1, where the deltas are not tiny."""
    rng, found = np.random.default_rng(1), []
    for trial in range(150):
        sigma = float(rng.uniform(LEAST_SHARE, 40.0 if trial % 5 == 0 else 120.0))
        few = (int(rng.integers(1, int(3 * sigma))),)
        shift = few if trial % 5 else (*few, int(rng.integers(1, 30)))
        rate = float(rng.choice([0.01, 0.3, 1.0]))
        noise = float(STEP.continuous(np.array(sigma))) if corrected else sigma
        epsilon = rng.uniform(0.0, 6.0, 8) * min(1.0, math.hypot(*shift) / sigma)
        there, here = (
            integer_deltas(sigma, shift, rate, epsilon),
            gaussian_deltas(noise / math.hypot(*shift), rate, epsilon),
        )
        seen = here > 1e-9
        found.append(there[seen] / here[seen] - 1)
    return np.concatenate(found)


def test_no_single_step_loses_more_than_it_is_charged_for() -> None:
    """Both directions, one and two coordinates, with and without sampling."""
    found = excesses(corrected=True)
    assert len(found) > 1000 and found.max() < 1e-9


def test_without_the_correction_steps_lose_more() -> None:
    """Planted: the same standard deviation. The comparison above finds the error."""
    found = excesses(corrected=False)
    assert found.max() > 1e-4 and (found > 1e-9).mean() > 0.1


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize(("sigma", "shift"), [(12.0, 9), (20.0, 31), (1.5, 2)])
def test_renyi_divergences_of_whole_orders_are_exactly_the_gaussian_ones(
    sigma: float, shift: int, rate: float
) -> None:
    x, mass = discrete(sigma)
    ratio = 1 - rate + rate * np.exp((x - shift / 2) * shift / sigma**2)
    expected = renyi.curve(np.array([rate]), np.array([sigma / shift]))[0]
    for order in (2, 3, 4, 5):
        (at,) = np.flatnonzero(order == renyi.ORDERS)
        found = math.log((mass * ratio**order).sum()) / (order - 1)
        assert found == pytest.approx(expected[at], rel=1e-8)


def test_a_certificate_on_a_grid_is_below_the_bound_by_whole_orders() -> None:
    """Which knows nothing of Gaussian noise: the second opinion."""
    population = Population.of([1.0, 2.0, 4.0] * 5, 1e-5, 20)
    options = {"rounds": 20, "rate": 0.3, "clip": 0.5, "dropout": 0.2}
    plan = on_finest_grid(make_plan("concert", population, options), 22_000)
    certificate, (phase,) = certify(plan, population), plan.phases
    shares = plan.shares(phase)
    unknown = phase.noise[0] * np.sqrt((shares - plan.colluding) / shares)
    steps = Steps.same(phase.rate, unknown / plan.sensitivity(phase), plan.rounds)
    whole = renyi.ORDERS % 1 == 0
    second = renyi.convert(renyi.divergence(steps)[:, whole], population.delta, renyi.ORDERS[whole])
    assert (certificate.spent <= population.epsilon).all()
    assert (certificate.spent <= second).all() and (certificate.spent > 0.8 * second).all()
    assert (Renyi().epsilon(plan.steps(), population.delta) <= second * 1.001).all()
