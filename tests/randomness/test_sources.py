"""Noise has the law it claims, in the tails too; a seed repeats it and a deployment cannot."""

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp, ndtr

from discretion.errors import InputError
from discretion.plan.phase import LARGEST, SMALLEST
from discretion.randomness import discrete, sources
from discretion.randomness.discrete import Draw, discrete_gaussian, gaussian, rounded_gaussian, uniform
from discretion.randomness.sources import RESOLUTION, Cryptographic, Seeded, heads, keystream
from discretion.randomness.streams import Purpose, Words, run_stream

Whole = Callable[[int, float, Draw], np.ndarray]
SIGMAS = [0.3, 0.5, 1.0, 3.7, 40.0, 63.9, 64.0, 127.99, 128.0, 200.1, 1000.3, 2.0**20 + 0.7]


def seeded(round_: int = 1, pool: int = 0) -> Seeded:
    return Seeded(run_stream(3, Purpose.NOISE, "run", "0" * 64, round_, pool))


def given(words: Sequence[int]) -> Draw:
    """These words, in this order; asking for more than there are fails."""
    left = list(words)

    def draw(count: int) -> Words:
        return np.array([left.pop(0) for _ in range(count)], dtype=np.uint64)

    return draw


def discrete_mass(y: np.ndarray, sigma: float) -> np.ndarray:
    every = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    result: np.ndarray = np.exp(-(y**2) / (2 * sigma**2)) / np.exp(-(every**2) / (2 * sigma**2)).sum()
    return result


def rounded_mass(y: np.ndarray, sigma: float) -> np.ndarray:
    result: np.ndarray = ndtr((0.5 - np.abs(y)) / sigma) - ndtr((-0.5 - np.abs(y)) / sigma)
    return result


MASS: dict[Whole, Callable[[np.ndarray, float], np.ndarray]] = {
    discrete_gaussian: discrete_mass,
    rounded_gaussian: rounded_mass,
}


def p_value(drawn: np.ndarray, values: np.ndarray, mass: np.ndarray) -> float:
    """Chi-square over `values`, neighbours taken together until 10 are expected, the last with all others."""
    often = np.bincount(np.clip(drawn - values[0] + 1, 0, len(values) + 1), minlength=len(values) + 2)
    expected = len(drawn) * np.concatenate([[0.0], mass, [0.0]])
    bins = np.floor(np.cumsum(expected) / 10).astype(int)
    seen, wanted = np.bincount(bins, often), np.bincount(bins, expected)
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    wanted[-1] += len(drawn) - wanted.sum()
    return float(stats.chisquare(seen, wanted).pvalue)


# the law


@pytest.mark.parametrize("sampler", MASS, ids=lambda sampler: sampler.__name__)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_whole_numbers_have_their_probabilities(sampler: Whole, sigma: float) -> None:
    drawn = sampler(300_000, sigma, seeded().words)
    assert drawn.dtype == np.int64
    if sigma >= 1:
        assert np.var(drawn) == pytest.approx(sigma**2 + (sampler is rounded_gaussian) / 12, rel=0.01)
    if sigma > 10:
        smooth = drawn + uniform(len(drawn), seeded(2).words) - 0.5
        assert stats.kstest(smooth, "norm", (0, sigma)).pvalue > 1e-3
    if sigma > 1e5:  # too many values to list
        return
    values = np.arange(-math.ceil(9 * sigma), math.ceil(9 * sigma) + 1)
    mass = MASS[sampler](values, sigma)
    assert p_value(drawn, values, mass) > 1e-3
    variance, fourth = (mass * values**2.0).sum(), (mass * values**4.0).sum()
    assert np.var(drawn) == pytest.approx(variance, abs=4 * math.sqrt((fourth - variance**2) / len(drawn)))
    assert abs(drawn.mean()) < 4 * math.sqrt(variance / len(drawn))


@pytest.mark.parametrize("sampler", MASS, ids=lambda sampler: sampler.__name__)
@pytest.mark.parametrize("sigma", [1.0, 20.0, 500.0])
def test_tails_of_whole_numbers(sampler: Whole, sigma: float) -> None:
    drawn = np.abs(sampler(2_000_000, sigma, seeded().words))
    for beyond in (3.0, 3.5, 4.0, 4.5):
        values = np.arange(math.ceil(beyond * sigma), math.ceil(12 * sigma))
        chance = 2 * MASS[sampler](values, sigma).sum()
        found = int((drawn >= values[0]).sum())
        assert stats.binomtest(found, len(drawn), chance).pvalue > 1e-3


@pytest.mark.parametrize("source", [seeded(), Cryptographic()], ids=["seeded", "cryptographic"])
def test_floats_are_normal(source: sources.Source) -> None:
    drawn = source.gaussian(1_000_000, 2.5) / 2.5
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert stats.chisquare(np.histogram(ndtr(drawn), 1000, (0, 1))[0]).pvalue > 1e-6
    assert np.var(drawn) == pytest.approx(1, rel=0.01)
    for beyond in (3.0, 4.0, 4.5):
        for tail in (drawn > beyond, drawn < -beyond):
            assert stats.binomtest(int(tail.sum()), len(drawn), ndtr(-beyond)).pvalue > 1e-6


def test_tails_of_floats_go_beyond_nine_standard_deviations() -> None:
    """One word reaches almost that far, and the last word asks for more words, without end."""
    floors = discrete._table(2.0**discrete.SPLIT).floors
    step = int(np.flatnonzero(np.diff(floors) > 1)[-1]) + 1
    word = int(floors[step]) - 1
    assert gaussian(1, 1.0, given([word, 0, 0]))[0] == step / 128 > 8.5
    assert gaussian(1, 1.0, given([word, 1, 0]))[0] == -step / 128
    assert 13 < gaussian(1, 1.0, given([2**64 - 1, 0, 0, 2**64 - 1, 2**63]))[0] < 13.5


def test_no_noise_is_none_and_extremes_are_handled() -> None:
    words = seeded().words
    for sampler in (discrete_gaussian, rounded_gaussian):
        assert not sampler(10, 0.0, words).any() and len(sampler(0, 3.0, words)) == 0
        assert not sampler(1000, 1e-3, words).any() and not sampler(1000, 5e-324, words).any()
        large = sampler(100_000, 2.0**50, words)
        assert stats.kstest(large / 2.0**50, "norm").pvalue > 1e-3
        assert len(np.unique(large)) == len(large) and abs((large & 1).mean() - 0.5) < 0.01
        for sigma in (-1.0, math.nan, math.inf, 2.0**51):
            with pytest.raises(InputError, match="0 to 2\\^50 steps"):
                sampler(1, sigma, words)
    assert not gaussian(10, 0.0, words).any() and len(gaussian(0, 1.0, words)) == 0
    for std in (SMALLEST, LARGEST):
        assert gaussian(100_000, std, words).std() == pytest.approx(std, rel=0.01)
    for std in (5e-324, 64 * 5e-324, 1e-306, math.inf, math.nan):
        with pytest.raises(InputError, match="cannot be drawn"):
            gaussian(1, std, words)


def test_rare_values_of_little_noise_come_as_often_as_they_should() -> None:
    """sigma 0.25: one in 1,500 is not 0 (discrete), one in 22 (rounded)."""
    for sampler in MASS:
        drawn = sampler(1_000_000, 0.25, seeded().words)
        chance = 1 - MASS[sampler](np.array([0]), 0.25)[0]
        assert stats.binomtest(int((drawn != 0).sum()), len(drawn), chance).pvalue > 1e-3


# exactness


@pytest.mark.parametrize("scale", [0.1, 1.0, 63.7, 64.0, 100.1, 128.0])
@pytest.mark.parametrize("bits", [64, 128])
def test_thresholds_are_exact(scale: float, bits: int) -> None:
    floors = discrete._floors(scale, bits)
    with mpmath.workprec(400):
        rate = 1 / (2 * mpmath.mpf(scale) ** 2)
        weights = [mpmath.exp(-(k**2) * rate) for k in range(int(20 * scale) + 20)]
        sums = list(itertools.accumulate(weights))
        exact = [int(mpmath.floor(one / sums[-1] * 2**bits)) for one in sums[: len(floors)]]
    assert floors == exact
    assert floors == sorted(floors) and floors.index(2**bits - 1) == len(floors) - 1


def test_the_sum_over_all_steps_is_the_theta_function() -> None:
    """The table's first entry is 1 over the sum of all weights, which has a closed form."""
    with mpmath.workprec(200):
        whole = (mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * mpmath.mpf(100) ** 2))) + 1) / 2
        assert discrete._floors(100.0, 64)[0] == int(mpmath.floor(2**64 / whole))


def test_the_guide_is_the_table() -> None:
    table = discrete._table(100.1)
    words = np.concatenate(
        [seeded().words(100_000), table.floors[:600] + np.uint64(1), table.floors[:600] - np.uint64(1)]
    )
    found = discrete._steps(words, table, given([]))
    np.testing.assert_array_equal(found, np.searchsorted(table.floors, words, side="right"))


@pytest.mark.parametrize("scale", [1.0, 20.1])
def test_a_word_on_a_threshold_is_decided_by_the_next(scale: float) -> None:
    table = discrete._table(scale)
    finer = discrete._floors(scale, 128)
    for k in (0, 1, 3):
        word, rest = table.floors[k : k + 1], finer[k] % 2**64
        assert int(word[0]) == finer[k] >> 64
        assert discrete._steps(word, table, given([rest - 1]))[0] == k
        assert discrete._steps(word, table, given([rest + 1]))[0] == k + 1
        assert discrete._steps(word, table, given([rest, 0]))[0] == k  # one more word
        assert discrete._steps(word, table, given([rest, 2**64 - 1]))[0] == k + 1


@pytest.mark.parametrize("sigma", [130.0, 1000.3, 2.0**20])
@pytest.mark.parametrize("sampler", [gaussian, rounded_gaussian, discrete_gaussian])
def test_floats_decide_as_exact_arithmetic_does(
    sampler: Whole, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = sampler(1500, sigma, seeded().words)
    calls = itertools.count()
    kept = discrete._kept
    monkeypatch.setattr(discrete, "MARGIN", 2.0)
    monkeypatch.setattr(discrete, "_kept", lambda *given: (next(calls), kept(*given))[1])
    np.testing.assert_array_equal(sampler(1500, sigma, seeded().words), fast)
    assert next(calls) >= 1500


def test_a_coin_on_its_chance_is_decided_by_the_next_words() -> None:
    scale, step, fraction = 100.1, 77, 5 << 61
    with mpmath.workprec(400):
        x = mpmath.mpf(fraction) / 2**64
        chance = mpmath.exp(-(2 * step + x) * x / (2 * mpmath.mpf(scale) ** 2))
        fine = int(mpmath.floor(chance * 2 ** (63 + 64)))
    coin, rest = fine >> 64, fine % 2**64
    exact = (scale, step, fraction, False)
    assert discrete._kept(*exact, coin - 1, given([])) and not discrete._kept(*exact, coin + 1, given([]))
    assert discrete._kept(*exact, coin, given([rest - 1])) and not discrete._kept(
        *exact, coin, given([rest + 1])
    )
    endless = (scale, step, fraction, True)  # a larger fraction has a smaller chance
    assert discrete._kept(*endless, coin, given([rest - 1, 0]))
    assert not discrete._kept(*endless, coin, given([rest - 1, 2**64 - 1]))


def test_a_fraction_that_may_go_either_way_is_looked_at_more_closely() -> None:
    """The coin is surely below the chance of the fraction so far, and not below that of the next fraction."""
    scale, step = 100.1, 77
    with mpmath.workprec(400):

        def scaled_chance(fraction: int) -> mpmath.mpf:
            x = mpmath.mpf(fraction) / 2**64
            return 2**63 * mpmath.exp(-(2 * step + x) * x / (2 * mpmath.mpf(scale) ** 2))

        either = (f for f in itertools.count(2**62) if int(scaled_chance(f)) > int(scaled_chance(f + 1)))
        fraction = next(either)
        coin = int(mpmath.floor(scaled_chance(fraction))) - 1
    assert not discrete._kept(scale, step, fraction, True, coin, given([2**64 - 1, 2**64 - 1]))
    assert discrete._kept(scale, step, fraction, True, coin, given([2**64 - 1, 0]))


def test_floats_decide_rightly_just_outside_the_margin() -> None:
    scale, count = 100.1, 300
    table = discrete._table(scale)
    words = seeded().words(2 * count).tolist()
    steps = discrete._steps(np.array(words[:count], dtype=np.uint64), table, given([])).tolist()
    for side in (-1, 1):
        coins = []
        for step, fraction in zip(steps, words[count:], strict=True):
            with mpmath.workprec(200):
                x = mpmath.mpf(fraction) / 2**64
                chance = mpmath.exp(-(2 * step + x) * x / (2 * mpmath.mpf(scale) ** 2))
                coins.append(2 * min(int(2**63 * chance) + side * 2**24, 2**63 - 1))
        kept = discrete._pairs(count, table, 64, given(words[:count] + coins + words[count:]))
        assert len(kept[0]) == (count if side < 0 else 0)
    assert discrete.MARGIN * 2**63 == 2**23


def test_exp_is_as_good_as_the_margin_supposes() -> None:
    x = np.concatenate([uniform(2000, seeded().words), 10.0 ** np.arange(-18, 0)])
    with mpmath.workprec(200):
        wrong = [abs(float(mpmath.mpf(float(np.exp(-v))) - mpmath.exp(-mpmath.mpf(float(v))))) for v in x]
    assert max(wrong) < 4 * 2.0**-53 < discrete.MARGIN / 500


# sources


def test_a_seed_repeats_noise_and_no_two_releases_share_it() -> None:
    releases = [(round_, pool) for round_ in (1, 2) for pool in (0, 1)]
    draws: list[Callable[[Seeded], np.ndarray]] = [
        lambda source: source.gaussian(1000, 1.0),
        lambda source: source.words(1000),
        lambda source: rounded_gaussian(1000, 1e9, source.words),
        lambda source: discrete_gaussian(1000, 1e9, source.words),
    ]
    for draw in draws:
        drawn = [draw(seeded(*release)) for release in releases]
        np.testing.assert_array_equal(drawn, [draw(seeded(*release)) for release in releases])
        assert len(np.unique(drawn)) == 4000
    np.testing.assert_array_equal(
        seeded().gaussian(5, 3.0),
        3.0 * run_stream(3, Purpose.NOISE, "run", "0" * 64, 1, 0).standard_normal(5),
    )


def test_a_deployment_never_repeats_and_takes_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cryptographic()
    assert not fields(source) and not vars(source)
    with pytest.raises(TypeError):
        Cryptographic(1)  # type: ignore[call-arg]
    np.random.seed(1)
    first = [source.words(2000), source.words(2000), Cryptographic().words(2000)]
    np.random.seed(1)
    words = np.concatenate([*first, source.words(2000)])
    assert len(np.unique(words)) == 8000
    assert len(np.unique([source.gaussian(1000, 1.0), source.gaussian(1000, 1.0)])) == 2000
    keys: list[bytes] = []
    urandom = os.urandom

    def kept(count: int) -> bytes:
        keys.append(urandom(count))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", kept)
    source.gaussian(3 * discrete.BATCH, 1.0)
    assert len(set(keys)) == len(keys) >= 3 and {len(key) for key in keys} == {32}


def test_blocks_are_independent() -> None:
    source = Cryptographic()
    words = source.words(64_000)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 / 2 / math.sqrt(len(bits))
    assert np.abs(np.corrcoef(bits.T) - np.eye(64)).max() < 6.5 / math.sqrt(len(bits))
    size = 3 * discrete.BATCH
    drawn = np.stack([source.gaussian(size, 1.0), source.gaussian(size, 1.0), seeded().gaussian(size, 1.0)])
    series = [
        drawn[:, : discrete.BATCH],
        drawn[:, discrete.BATCH : -discrete.BATCH],
        drawn[:, -discrete.BATCH :],
    ]
    together = np.corrcoef(np.concatenate([*series, np.abs(series[0]), np.abs(series[1])]))
    together[together > 0.9] = 0.0
    assert np.abs(together).max() < 6 / math.sqrt(discrete.BATCH)
    for lag in (1, 2, 3, discrete.BATCH):
        assert abs(np.corrcoef(drawn[0, lag:], drawn[0, :-lag])[0, 1]) < 6 / math.sqrt(size - lag)


def test_the_keystream_is_chacha20() -> None:
    """RFC 8439: section 2.3.2 and the first, second and third vector of appendix A.1."""
    vectors = [
        (
            bytes(range(32)),
            "01000000 000000090000004a00000000",
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
        ),
        (
            bytes(32),
            "00000000 000000000000000000000000",
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (
            bytes(32),
            "01000000 000000000000000000000000",
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
        (
            bytes(31) + b"\x01",
            "01000000 000000000000000000000000",
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
        ),
    ]
    for key, start, expected in vectors:
        assert keystream(key, bytes.fromhex(start), 8).tobytes().hex() == expected
    two = keystream(bytes(32), bytes(16), 16)  # words are little-endian, blocks follow each other
    assert int(two[0]) == int.from_bytes(bytes.fromhex("76b8e0ada0f13d90"), "little")
    assert two[8:].tobytes().hex() == vectors[2][2]
    with pytest.raises(InputError, match="2\\^32 words"):
        keystream(bytes(32), bytes(16), 2**32 + 1)


def test_uniform_numbers() -> None:
    assert uniform(2, given([0, 2**64 - 1])).tolist() == [0.0, 1 - 2.0**-53]
    assert stats.kstest(uniform(100_000, Cryptographic().words), "uniform").pvalue > 1e-6


# what is claimed of privacy


def sampled_renyi(order: int, rate: float, multiplier_: float) -> float:
    """Of the Gaussian: Mironov, Talwar and Zhang 2019, for a whole order."""
    terms = [
        math.log(math.comb(order, k))
        + k * math.log(rate)
        + (order - k) * math.log1p(-rate)
        + k * (k - 1) / (2 * multiplier_**2)
        for k in range(order + 1)
    ]
    return float(logsumexp(terms)) / (order - 1)


@pytest.mark.parametrize("change", [(1,), (3,), (1, 1), (2, 1)])
@pytest.mark.parametrize("sigma", [0.4, 0.8, 2.0, 6.0])
def test_sampled_discrete_gaussian_costs_no_more_than_the_gaussian(
    change: tuple[int, ...], sigma: float
) -> None:
    axis = np.arange(-80, 81)
    points = np.stack(np.meshgrid(*[axis] * len(change)), axis=-1).reshape(-1, len(change))
    without = -(points**2).sum(axis=1) / (2 * sigma**2)
    without -= logsumexp(without)
    ratio = (2 * points @ np.array(change) - sum(c * c for c in change)) / (2 * sigma**2)
    distance = math.sqrt(sum(c * c for c in change))
    for rate, order in itertools.product([0.001, 0.1, 0.5, 0.9], [2, 3, 5, 9]):
        loss = np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)
        removing = logsumexp(without + order * loss) / (order - 1)
        adding = logsumexp(without + (1 - order) * loss) / (order - 1)
        assert adding <= removing + 1e-12
        assert removing <= sampled_renyi(order, rate, sigma / distance) * (1 + 1e-9) + 1e-12


def hockey_stick(
    mass: Callable[[np.ndarray, float], np.ndarray], sigma: float, rate: float, epsilon: float
) -> float:
    y = np.arange(-60, 61)
    without, with_ = mass(y, sigma), (1 - rate) * mass(y, sigma) + rate * mass(y - 1, sigma)
    return float(np.maximum(with_ - math.exp(epsilon) * without, 0).sum())


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 2.0, 4.0])
def test_only_the_rounded_gaussian_is_dominated_by_the_gaussian(sigma: float) -> None:
    for rate, epsilon in itertools.product([0.05, 0.5, 1.0], [0.0, 0.1, 0.5, 1.0, 3.0]):
        inner = (math.exp(epsilon) - 1 + rate) / rate  # the sampled Gaussian: r > inner where it exceeds
        at = 0.5 / sigma - sigma * math.log(inner)
        continuous = rate * (ndtr(at) - inner * ndtr(at - 1 / sigma))
        assert hockey_stick(rounded_mass, sigma, rate, epsilon) <= continuous + 1e-12
        if epsilon == 0:
            assert hockey_stick(discrete_mass, sigma, rate, 0.0) > continuous


@pytest.mark.parametrize("rate", [0.0, 5e-324, 2.0**-54, 2.0**-53, 0.1, 1 / 3, 1 - 2.0**-53, 1.0])
def test_coins_come_up_no_more_often_than_their_rate(rate: float) -> None:
    """Exactly: of the 2^53 coins, those next to the rate are flipped, and they come up in ascending order."""
    count = math.floor(Fraction(rate) * 2**53)  # how many of the coins 0, 1, … should come up
    near = np.clip(np.arange(-3, 4) + count, 0, 2**53 - 1)
    np.testing.assert_array_equal(heads(np.asarray(near * RESOLUTION, np.float64), rate), near < count)


def test_coins_are_multiples_of_their_resolution() -> None:
    for source in (Seeded(np.random.default_rng(0)), Cryptographic()):
        coins = source.uniform(1000) / RESOLUTION
        np.testing.assert_array_equal(coins, np.floor(coins))
