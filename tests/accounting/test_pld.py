"""The tight accountant: never too small, hardly too large, against dp-accounting and exact integrals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import rfft
from scipy.special import logsumexp, ndtr

from discretion.accounting import gaussian, losses, pld, reference
from discretion.accounting.losses import UNIT, LossView
from discretion.accounting.pld import Pld
from discretion.accounting.saddle import Compositions
from discretion.errors import PlanError
from discretion.plan.steps import Steps

# Rate, multiplier, count, delta: dp-accounting's optimistic and pessimistic epsilon, by theirs(...) of
# benchmarks/pld.py on the grid of grid_for(...). That grid is coarse for the smallest epsilons, hence ours
# is sometimes a little below the pessimistic one; the exact integrals below decide who is right.
KNOWN = {
    (0.9, 2.286, 25, 1e-05): (9.9960799, 10.000248),
    (0.02, 0.832, 50, 7e-05): (1.4964795, 1.4989796),
    (0.001, 0.6, 10000, 1e-06): (2.6067878, 3.1522305),
    (0.1, 3.0, 5000, 1e-05): (11.690732, 12.754126),
    (0.01, 0.8, 1000, 1e-05): (3.0886542, 3.1410187),
    (0.000138, 0.36, 1, 9e-05): (0.00057195983, 0.00064958861),
    (0.0002, 0.43, 2, 7e-05): (0.011145995, 0.011273915),
    (0.00036, 0.94, 6458, 6e-10): (0.23636603, 0.31703221),  # on a quarter of that grid
    (0.000327, 3.86, 254, 1.6e-10): (0.0053987037, 0.0069679307),
    (0.000391, 34.6, 1, 8.1e-10): (4.0456645e-05, 4.1203789e-05),
    (0.621, 7.23, 29, 3.8e-07): (2.214709, 2.2161591),
    (0.0448, 1.23, 3, 3.3e-05): (0.54821211, 0.54836213),
    (0.048, 4.13, 1849, 7e-07): (2.2628397, 2.355298),
    (0.839, 0.854, 164, 2.4e-07): (149.61348, 150.024),
    (0.00259, 6.19, 8, 4.1e-05): (0.0017659533, 0.0017964862),
    (0.295, 0.58, 73, 8.7e-09): (63.650737, 63.728336),
    (0.000215, 29.4, 52, 1.1e-09): (0.00015882874, 0.00020059752),
    (0.0494, 0.844, 4033, 3.3e-09): (42.830576, 45.92029),
    (0.000136, 0.838, 24, 1.9e-07): (0.016870384, 0.017581886),
    (0.421, 10.6, 22, 1.3e-10): (1.1272615, 1.1283617),
    (0.000436, 49.1, 69, 6.9e-06): (3.6575749e-05, 6.9463674e-05),
    (0.000165, 0.357, 2418, 1.3e-06): (7.2464793, 7.4874407),
    (0.00172, 1.52, 2, 1.6e-09): (0.038211738, 0.038243901),
    (0.000125, 22.0, 73, 7.8e-10): (0.00011066307, 0.00018946099),
    (0.0906, 0.816, 1, 1.5e-06): (3.0464963, 3.0465471),
}

# The same for steps that differ, on a grid of 1e-4.
MIXED = {
    "fifty rounds, rising": (
        [(0.02 + 0.004 * i, 1.0 + 0.02 * i, 1) for i in range(50)],
        1e-5,
        (2.9436314, 2.9461316),
    ),
    "some without sampling": ([(1.0, 8.0, 3), (0.1, 1.2, 40), (0.9, 4.0, 10)], 1e-6, (5.2721692, 5.2748193)),
    "rare and frequent": ([(0.001, 0.7, 500), (0.3, 6.0, 30)], 1e-7, (1.5249425, 1.5510379)),
}


def spent(steps: list[tuple[float, float, int]], delta: float) -> float:
    """By the accountant, without what it remembers."""
    rate, multiplier, count = (np.array(column) for column in zip(*steps, strict=True))
    pld._known.clear()
    return float(Pld().epsilon(Steps(rate[:, None], multiplier[:, None], count), np.array([delta]))[0])


def one(rate: float, multiplier: float, count: int) -> Steps:
    return Steps.same(np.array([rate]), np.array([multiplier]), count)


def changing(rounds: int, clients: int) -> Steps:
    """No two rounds or clients alike."""
    when, who = np.arange(rounds)[:, None] / rounds, np.arange(clients)[None] / clients
    rate = 0.06 + 0.04 * np.sin(7 * when + 6 * who)
    return Steps(rate, 0.8 + who + np.cos(5 * when) ** 2, 1 + np.arange(rounds) % 3)


def column(value: float) -> np.ndarray:
    return np.array([[float(value)]])


def cell(value: float) -> np.ndarray:
    """For one step of one client."""
    return np.array([[[float(value)]]])


def grid_of(
    rate: float, multiplier: float, spacing: float, first: int, bins: int
) -> tuple[losses.Losses, losses.Losses]:
    ends = np.array([[[first]]]), np.array([[[bins]]]), bins
    return losses.discretise(cell(rate), cell(multiplier), cell(spacing), *ends)


def true_curve(rate: float, multiplier: float, epsilon: np.ndarray, way: int) -> np.ndarray:
    """delta(epsilon) of one step in closed form when the client is removed (0) or added (1).

    Less what rounding may have added here: 1e-13 of the first of two terms, more where it is tiny.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.maximum(np.expm1(-epsilon if way else epsilon) / rate + 1, 0.0)
        x = multiplier * np.log(odds) + 0.5 / multiplier  # where the loss is epsilon
    side = 1 if way else -1  # what lies below it, or above
    without, within = ndtr(side * x), ndtr(side * (x - 1 / multiplier))
    p, q = (1 - rate) * without + rate * within, without
    first, second = (q, p) if way else (p, q)
    result: np.ndarray = np.maximum(first * (1 - 1e-13) - np.exp(epsilon) * second - 1e-17, 0.0)
    return result


def discrete_curve(part: losses.Losses, spacing: float, epsilon: np.ndarray) -> np.ndarray:
    loss = part.start[0, 0] + spacing * np.arange(part.mass.shape[2])
    gain = np.maximum(-np.expm1(np.minimum(epsilon[:, None] - loss, 0.0)), 0.0)
    return np.asarray(part.infinite[0, 0] + gain @ part.mass[0, 0])


def true_log_delta(steps: list[tuple[float, float, int]], epsilon: float) -> float | None:
    """log delta(epsilon), exact to about 1e-9, by another way: no grid of losses and no composition.

    delta = (1 / 2 pi i) times the integral of exp(K(z) - z epsilon) / (z (1 + z)) dz along a vertical line,
    K(z) = sum of count * log E[exp(z loss)]. None where that integral converges too slowly.
    """
    worst = -math.inf
    for sign in (1, -1):
        parts = []
        for rate, multiplier, count in steps:
            x = np.linspace(-14, 14 + 1 / multiplier, 1201)
            loss = np.logaddexp(np.log1p(-rate), np.log(rate) + x / multiplier - 0.5 / multiplier**2)
            weight = -(x**2) / 2 - np.log(np.exp(-(x**2) / 2).sum())
            parts.append((sign * loss, weight + loss if sign == 1 else weight, count))

        def cumulant(z: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray, int]] = parts) -> np.ndarray:
            total = np.zeros(z.shape)
            for loss, weight, count in parts:
                total += count * logsumexp(z[:, None] * loss + weight, axis=1)
            return total

        tilt = np.geomspace(1e-4, 1e7, 200)
        height = cumulant(tilt) - tilt * epsilon - np.log(tilt) - np.log1p(tilt)
        t, most = float(tilt[height.argmin()]), float(height.min())
        near = cumulant(t * np.array([1.001, 1.0, 0.999]))
        width = math.sqrt(max(float(near @ [1, -2, 1]), 0.0)) / (0.001 * t)
        step = 2 * math.pi / (60 * width + 60 / t)
        waves = [np.exp(1j * step * np.arange(200)[:, None] * loss) for loss, _, _ in parts]
        total = 0.0
        for block in range(40):
            z = t + 1j * step * (200 * block + np.arange(200))
            composed = np.zeros(200, dtype=np.complex128)
            for wave, (loss, weight, count) in zip(waves, parts, strict=True):
                top = (t * loss + weight).max()
                turned = np.exp(t * loss + weight - top + 1j * step * 200 * block * loss)
                composed += count * (np.log(wave @ turned) + top)
            term = np.exp(composed - z * epsilon - np.log(z) - np.log1p(z) - most)
            total += float(term.real.sum()) - (0.5 * float(term[0].real) if block == 0 else 0.0)
            if np.abs(term[-20:]).max() < 1e-14:
                break
        else:
            return None
        if total > 0:  # an added client cannot lose more than -count * log(1 - rate)
            worst = max(worst, most + math.log(total * step / math.pi))
    return worst


@pytest.mark.parametrize(
    ("rate", "rounds", "delta", "multiplier", "epsilon"),
    [
        (0.9, 25, 1e-5, 2.286, 10.0),
        (0.9, 25, 1e-5, 1.340, 20.0),
        (0.9, 25, 1e-5, 0.999, 30.0),
        (0.02, 50, 6000**-1.1, 1.2757, 0.5),
        (0.02, 50, 6000**-1.1, 0.832, 1.5),
        (0.02, 50, 6000**-1.1, 0.6597, 3.0),
    ],
)
def test_published_noise_multipliers(
    rate: float, rounds: int, delta: float, multiplier: float, epsilon: float
) -> None:
    assert spent([(rate, multiplier, rounds)], delta) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("setting", KNOWN)
def test_between_the_bounds_of_dp_accounting(setting: tuple[float, float, int, float]) -> None:
    rate, multiplier, count, delta = setting
    optimistic, pessimistic = KNOWN[setting]
    epsilon = spent([(rate, multiplier, count)], delta)
    assert optimistic - 1e-9 <= epsilon <= 1.002 * pessimistic
    assert epsilon >= pessimistic - 1e-4
    assert Pld().tight(one(rate, multiplier, count), np.array([delta])).all()


@pytest.mark.parametrize("name", MIXED)
def test_steps_that_differ(name: str) -> None:
    steps, delta, (optimistic, pessimistic) = MIXED[name]
    epsilon = spent(steps, delta)
    assert optimistic - 1e-9 <= epsilon <= 1.002 * pessimistic
    assert epsilon >= pessimistic - 1e-4


def test_true_delta_at_our_epsilon_is_at_most_delta_and_little_less() -> None:
    """The guarantee itself, on settings at random, by an integral that shares nothing with our code."""
    random = np.random.default_rng(3)
    checked = 0
    while checked < 15:
        rate, multiplier = 10 ** random.uniform(-4, 0), 0.3 * (50 / 0.3) ** random.uniform()
        count, delta = int(10 ** random.uniform(0, 4)), 10 ** random.uniform(-10, -3)
        epsilon = spent([(rate, multiplier, count)], delta)
        exact = true_log_delta([(rate, multiplier, count)], epsilon)
        if not 0 < epsilon < 300 or exact is None:
            continue
        lower = true_log_delta([(rate, multiplier, count)], epsilon * 0.998)
        assert exact <= math.log(delta) + 1e-7, (rate, multiplier, count, delta)
        assert lower is None or lower > math.log(delta), (rate, multiplier, count, delta)
        checked += 1


@pytest.mark.parametrize(
    "steps",
    [
        [(0.1, 1.5, 20), (0.03, 0.9, 50), (0.5, 6.0, 10)],
        [(0.02 + 0.001 * i, 0.7 + 0.05 * i, 1 + i % 3) for i in range(40)],
        [(0.5, 3.0 + 0.01 * i, 1) for i in range(20)] + [(1e-4, 0.5, 700), (0.999, 9.0, 2)],
    ],
)
def test_true_delta_of_steps_that_differ(steps: list[tuple[float, float, int]]) -> None:
    epsilon = spent(steps, 1e-7)
    exact, lower = true_log_delta(steps, epsilon), true_log_delta(steps, 0.998 * epsilon)
    assert exact is not None and lower is not None
    assert exact <= math.log(1e-7) + 1e-7 < lower


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-10, 1e-30, 1e-80])
@pytest.mark.parametrize("count", [1, 30, 10_000])
@pytest.mark.parametrize("multiplier", [0.5, 5.0, 300.0])
def test_composition_of_unsampled_steps_is_the_exact_gaussian(
    multiplier: float, count: int, delta: float
) -> None:
    """Through the grid and the transforms, which `Pld` would not use where every rate is 1."""
    steps = Compositions(column(1), column(multiplier), column(count), np.array([delta]))
    exact = gaussian.epsilon_of(np.array([math.sqrt(count) / multiplier]), np.array([delta]))
    found = pld._sampled(steps)[0]
    assert exact * (1 - 1e-12) <= found <= 1.001 * exact + 1e-6


@given(
    rate=st.floats(1e-6, 1.0),
    multiplier=st.floats(0.2, 50.0),
    spacing=st.floats(0.01, 2.0),
    first=st.integers(0, 20),
    bins=st.integers(2, 300),
)
@settings(deadline=None, max_examples=150)
def test_discrete_curves_lie_above_the_true_ones(
    rate: float, multiplier: float, spacing: float, first: int, bins: int
) -> None:
    """On and between grid points, above and below the grid, in both directions; mass is kept."""
    spacing = min(spacing, 300 / bins)  # in exp(spacing) there has to be room
    parts = grid_of(rate, multiplier, spacing, first, bins)
    for way, part in enumerate(parts):
        start, end = part.start[0, 0, 0], part.start[0, 0, 0] + spacing * bins
        epsilon = np.linspace(max(start - 1, -30), min(end + 1, 30), 500)
        blur = 16 * UNIT * (1 + abs(start) + spacing * bins)  # rounding of the grid points themselves
        true = true_curve(rate, multiplier, epsilon + blur, way)
        assert (discrete_curve(part, spacing, epsilon) >= true).all()
        assert part.mass.min() >= 0 and part.infinite.min() >= 0
        assert part.mass.sum() + part.infinite.sum() == pytest.approx(1.0, abs=1e-13)


def test_a_client_with_fewer_bins_than_others_loses_no_mass() -> None:
    two = np.array([[[0.3]], [[0.3]]])
    bins = np.array([[[40]], [[12]]])
    parts = losses.discretise(two, 2 + 0 * two, 0.1 + 0 * two, 0 * bins, bins, 40)
    for part in parts:
        assert part.mass.sum(axis=2) + part.infinite[..., 0] == pytest.approx(1.0, abs=1e-13)
    assert parts[0].infinite[1, 0] > parts[0].infinite[0, 0]
    assert (parts[0].mass[1, 0, 12:] == 0).all()


@given(
    tilt=st.floats(1e-3, 20.0),
    bottom=st.floats(-15.0, 8.0),
    aim=st.floats(0.0, 12.0),
    spacing=st.floats(0.003, 0.3),
    size=st.sampled_from([16, 48, 256, 1024]),
    count=st.integers(1, 40),
)
@settings(deadline=None, max_examples=150)
def test_wherever_one_looks_the_answer_holds(
    tilt: float, bottom: float, aim: float, spacing: float, size: int, count: int
) -> None:
    """Views that are too short, beside the point or badly tilted give larger answers, never smaller."""
    multiplier, delta = 2.0, 1e-6
    first = math.floor(-12 / multiplier / spacing)
    parts = grid_of(1, multiplier, spacing, first, -2 * first)
    exact = gaussian.epsilon_of(np.array(math.sqrt(count) / multiplier), np.array(delta))
    view = LossView(column(tilt), column(bottom), column(aim), column(spacing), size)
    for part in parts:
        assert losses.epsilon([(part, cell(count))], column(delta), view)[0, 0] >= exact


def test_too_small_a_grid_for_one_step_costs_more_and_never_less() -> None:
    exact = gaussian.epsilon_of(np.array(math.sqrt(10) / 2), np.array(1e-6))
    view = LossView(column(3), column(-4), column(8), column(0.02), 2048)
    answers = []
    for reach in (150, 50, 20):
        part, _ = grid_of(1, 2, 0.02, -reach, 2 * reach)
        answers.append(losses.epsilon([(part, cell(10))], column(1e-6), view)[0, 0])
    assert exact <= answers[0] < answers[1] <= answers[2]


def test_infinite_losses_compose() -> None:
    """All that is not infinite is nothing: delta is 1 - (1 - infinite)^count at every epsilon."""
    part = losses.Losses(np.array([[[0.999, 0.0]]]), cell(0), cell(0.001))
    view = LossView(column(10), column(-1), column(0), column(0.1), 64)
    total = 1 - 0.999**10
    assert losses.epsilon([(part, cell(10))], column(1.01 * total), view)[0, 0] < 1.0
    assert math.isinf(losses.epsilon([(part, cell(10))], column(0.99 * total), view)[0, 0])


@pytest.mark.parametrize("size", [256, 350, 660, 1470, 1536, 8192, 98304])
def test_rounding_of_the_transform_is_within_its_bound(size: int) -> None:
    place = np.arange(size)
    for mass in (np.exp(-0.5 * (place / 9) ** 2), 1 / (1.0 + place), np.sin(place) ** 2):
        mass = mass / mass.sum()
        error = np.abs(rfft(mass) - rfft(mass.astype(np.longdouble)))
        norm = math.sqrt(2 * float((error**2).sum()))
        assert norm <= 8 * UNIT * math.log2(size) * math.sqrt(size * float((mass**2).sum()))


def test_rounding_of_normal_tails_is_within_its_bound() -> None:
    """Against Laplace's continued fraction, at arguments whose squares are exact."""
    for t in (1.0, 2.0, 5.0, 9.0, 14.0, 20.0, 30.0):
        fraction = 0.0
        for k in range(4000, 0, -1):
            fraction = k / (t + fraction)
        exact = math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) / (t + fraction)
        assert abs(float(ndtr(-t)) / exact - 1) <= UNIT * (16 + 4 * t * t)


def test_free_and_impossible_steps() -> None:
    steps = Steps(
        rate=np.array([[0.0, 0.5, 0.5, 0.5, 1.0], [0.0, 0.5, 0.0, 0.5, 0.0]]),
        multiplier=np.array([[0.0, math.inf, 0.0, 1.0, 0.0], [1.0, math.inf, 1.0, 1.0, 1.0]]),
        count=np.array([5, 0]),
    )
    found = Pld().epsilon(steps, np.full(5, 1e-5))
    assert found[:2].tolist() == [0.0, 0.0]
    assert np.isinf(found[[2, 4]]).all()
    assert found[3] == spent([(0.5, 1.0, 5)], 1e-5)
    assert Pld().epsilon(Steps.none(3), np.full(3, 1e-5)).tolist() == [0.0, 0.0, 0.0]


def test_delta_at_its_ends() -> None:
    assert math.isinf(spent([(0.5, 1.0, 5)], 0.0))
    assert spent([(0.5, 1.0, 5)], 1.0) == 0.0
    assert spent([(1e-8, 1.0, 100)], 1e-5) == 0.0  # most likely it never takes part


def test_where_every_rate_is_one_it_is_the_exact_gaussian() -> None:
    shift = math.sqrt(3 / 2.0**2 + 7 / 5.0**2)
    exact = gaussian.epsilon_of(np.array(shift), np.array(1e-6))
    assert spent([(1.0, 2.0, 3), (1.0, 5.0, 7)], 1e-6) == pytest.approx(float(exact), rel=1e-14)


def test_a_step_too_steep_for_the_grid_costs_what_it_costs_without_sampling() -> None:
    exact = gaussian.epsilon_of(np.array(math.sqrt(10) / 0.02), np.array(1e-6))
    assert spent([(0.3, 0.02, 10)], 1e-6) == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize(
    ("multiplier", "delta"), [(1e12, 1e-20), (1e200, 1e-5), (2.0, 1e-120), (1e-170, 1e-5)]
)
def test_extremes_cost_what_they_cost_without_sampling(rate: float, multiplier: float, delta: float) -> None:
    exact = float(gaussian.epsilon_of(np.array(math.sqrt(10) / multiplier), np.array(delta)))
    assert spent([(rate, multiplier, 10)], delta) >= exact * (
        1 - 1e-4
    )  # as far as tiny shifts are rounded up


@given(
    rate=st.floats(1e-4, 0.99),
    multiplier=st.floats(0.3, 30.0),
    count=st.integers(1, 300),
    log_delta=st.floats(-9.0, -3.0),
)
@settings(deadline=None, max_examples=40)
def test_more_rate_rounds_and_less_noise_or_delta_cost_more(
    rate: float, multiplier: float, count: int, log_delta: float
) -> None:
    """Up to what the grid adds; and sampling never costs."""
    delta = 10**log_delta
    epsilon = spent([(rate, multiplier, count)], delta)
    slack = 3e-3 * epsilon + 1e-5
    assert spent([(rate, multiplier, 2 * count)], delta) >= epsilon - slack
    assert spent([(min(1.0, 1.2 * rate), multiplier, count)], delta) >= epsilon - slack
    assert spent([(rate, multiplier / 1.2, count)], delta) >= epsilon - slack
    assert spent([(rate, multiplier, count)], delta / 3) >= epsilon - slack
    assert epsilon <= spent([(1.0, multiplier, count)], delta) + slack


def test_equal_steps_are_merged_and_their_order_does_not_matter() -> None:
    once = spent([(0.2, 1.5, 30), (0.1, 1.0, 10)], 1e-6)
    assert spent([(0.1, 1.0, 4), (0.2, 1.5, 30), (0.1, 1.0, 6)], 1e-6) == once


@pytest.mark.parametrize("different", [10, 40, 200])
def test_steps_that_hardly_differ_cost_what_equal_ones_cost(different: int) -> None:
    together = spent([(0.1, 1.2, 400)], 1e-6)
    apart = spent([(0.1, 1.2 + 1e-9 * i, 400 // different) for i in range(different)], 1e-6)
    assert apart == pytest.approx(together, rel=1e-3)


def test_frequencies_that_are_left_out_are_negligible_and_the_others_right() -> None:
    """Against every frequency of every step, in extended precision."""
    random = np.random.default_rng(2)
    size = 1024
    masses = []
    for bins, rows in ((40, 12), (300, 9), (1500, 3)):
        middle, width = random.uniform(0, bins, (rows, 1)), random.uniform(1, 20, (rows, 1))
        mass = np.exp(-0.5 * ((np.arange(bins) - middle) / width) ** 2)[None]
        mass /= mass.sum(axis=2, keepdims=True)
        masses.append((mass, random.integers(1, 9, (1, rows, 1)).astype(float)))
    heard, product = losses._heard(masses, size), np.ones(size // 2 + 1)
    for (mass, count), (spectrum, error, _) in zip(masses, losses._spectra(masses, size), strict=True):
        exact = rfft(losses._fold(mass, size).astype(np.longdouble), axis=2)
        assert spectrum.shape[2] == heard
        missed = np.sqrt(2 * (np.abs(spectrum - exact[..., :heard]) ** 2).sum(axis=2))
        assert (missed <= error[..., 0]).all()
        product *= (np.abs(exact) ** count).prod(axis=(0, 1)).astype(float)
    assert heard < size // 2
    assert product[heard:].max() <= losses.NEGLIGIBLE


@pytest.mark.parametrize(
    ("second", "expected"), [(150.0, 150.0), (1e9, None), (math.nan, None), (math.inf, None), (None, None)]
)
def test_where_it_is_not_tight_it_says_so_and_asks_dp_accounting(
    monkeypatch: pytest.MonkeyPatch, second: float | None, expected: float | None
) -> None:
    def answer(self: object, steps: Steps, delta: np.ndarray) -> np.ndarray:
        assert steps.rate == 0.3 and steps.multiplier == 0.03 and steps.count == 1 and delta == 1e-6
        if second is None:
            raise OverflowError
        return np.array([second])

    monkeypatch.setattr(reference.Reference, "epsilon", answer)
    plain = float(gaussian.epsilon_of(np.array(1 / 0.03), np.array(1e-6)))
    assert spent([(0.3, 0.03, 1)], 1e-6) == pytest.approx(plain if expected is None else expected, rel=1e-14)
    assert not Pld().tight(one(0.3, 0.03, 1), np.array([1e-6])).any()


def test_a_look_that_did_not_settle_is_not_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """This setting needs the finest grids."""
    setting, delta = (0.000138, 0.36, 1), np.array([9e-5])
    settled = spent([setting], 9e-5)
    assert Pld().tight(one(*setting), delta).all()
    monkeypatch.setattr(pld, "CLOSER", (1, 4))
    monkeypatch.setattr(reference.Reference, "epsilon", lambda self, steps, delta: np.array([math.inf]))
    monkeypatch.setattr(pld, "REFERRED", math.inf)
    assert spent([setting], 9e-5) > settled
    assert not Pld().tight(one(*setting), delta).any()


def test_a_view_that_proves_nothing_is_not_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pld, "_evaluate", lambda steps, looks: np.full((1, 2), math.inf))
    monkeypatch.setattr(pld, "REFERRED", 0)
    exact = gaussian.epsilon_of(np.array(math.sqrt(10) / 2), np.array(1e-5))
    assert spent([(0.3, 2.0, 10)], 1e-5) == pytest.approx(float(exact), rel=1e-14)
    assert not Pld().tight(one(0.3, 2.0, 10), np.array([1e-5])).any()


@pytest.mark.parametrize("threads", [1, 3])
def test_nobody_depends_on_company_or_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    steps, delta = changing(30, 5), np.full(5, 1e-5)
    monkeypatch.setattr(pld, "REMEMBERED", -1)  # forget everything between calls
    alone = [Pld().epsilon(steps.of(np.array([i])), delta[:1])[0] for i in range(5)]
    monkeypatch.setattr(pld, "THREADS", threads)
    assert Pld().epsilon(steps, delta).tolist() == alone


def test_many_clients_cost_what_each_costs_alone() -> None:
    """Else what one computes for all could refuse what another computed for one."""
    random = np.random.default_rng(5)
    rate, multiplier = 10 ** random.uniform(-3, 0, 40), 10 ** random.uniform(-0.4, 1, 40)
    delta = 10 ** random.uniform(-9, -4, 40)
    rate[7:9], multiplier[7:9], delta[7:9] = 0.3, 2.0, 1e-5
    pld._known.clear()
    together = Pld().epsilon(Steps.same(rate, multiplier, 60), delta)
    alone = [spent([(q, s, 60)], d) for q, s, d in zip(rate, multiplier, delta, strict=True)]
    assert together == pytest.approx(alone, rel=1e-10)
    assert together[7] == together[8]


def test_what_is_known_is_remembered() -> None:
    pld._known.clear()
    steps = Steps.same(np.array([0.1, 0.1, 0.2]), np.array([1.0, 1.0, 1.0]), 10)
    first = Pld().epsilon(steps, np.full(3, 1e-5))
    assert len(pld._known) == 2
    assert (Pld().epsilon(steps, np.full(3, 1e-5)) == first).all()


@pytest.mark.parametrize(
    ("rate", "multiplier", "count", "delta", "message"),
    [
        (1.1, 1.0, 1, 1e-5, "rate"),
        (math.nan, 1.0, 1, 1e-5, "rate"),
        (0.1, math.nan, 1, 1e-5, "multiplier"),
        (0.1, -1.0, 1, 1e-5, "multiplier"),
        (0.1, 1.0, -1, 1e-5, "count"),
        (0.1, 1.0, 1, math.nan, "delta"),
        (0.1, 1.0, 1, 2.0, "delta"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(
    rate: float, multiplier: float, count: int, delta: float, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        spent([(rate, multiplier, count)], delta)


@pytest.mark.parametrize(("rate", "multiplier", "count", "delta"), [(0.53, 3e5, 1, 0.5), (0.9, 5.0, 1, 0.4)])
def test_a_delta_that_covers_every_difference_costs_nothing(
    rate: float, multiplier: float, count: int, delta: float
) -> None:
    """Where the total variation is within delta, epsilon is 0."""
    assert spent([(rate, multiplier, count)], delta) == 0


def test_nobody_depends_on_who_is_computed_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: a certificate and a ledger must come to the same number in different company."""
    rng = np.random.default_rng(4)
    rate, multiplier = 10 ** rng.uniform(-3, 0, 40), 10 ** rng.uniform(-0.3, 0.5, 40)
    steps, delta = Steps.same(rate, multiplier, 30), np.full(40, 1e-5)
    monkeypatch.setattr("discretion.accounting.pld.REMEMBERED", -1)  # forget everything between calls
    together = Pld().epsilon(steps, delta)
    for i in (0, 7, 21, 39):
        assert Pld().epsilon(steps.of(np.array([i])), delta[:1]) == together[i]
