"""Each single release, made with and without one unit thousands of times, leaks about what is charged."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from discretion.accounting import Pld
from discretion.arrays import Floats
from discretion.audit.lower_bound import Claim, Tally, contradicts, planned_kind
from discretion.plan.phase import Clipping, Phase, Quantile
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.plan.steps import Steps
from discretion.randomness.sources import Seeded, Source
from discretion.training import release
from discretion.training.orders import Updates
from discretion.training.release import hand_out, hand_out_statistic, noisy_sum

TRIALS, CHANCE, DELTA = 8000, 1e-3, 1e-5
SIZE, CLIP, MULTIPLIER = 3, 0.5, 0.8
LONG = np.array([[30.0, 40.0, 0.0]], np.float32)  # an update far beyond the clip
ALONG = np.array([0.6, 0.8, 0.0])
Mechanism = Callable[[bool, Source], float]  # a release with or without one unit, scored by an attacker


def summed(inside: bool, source: Source) -> float:
    total = CLIP * ALONG if inside else np.zeros(SIZE)
    return float(noisy_sum(total, MULTIPLIER * CLIP, source) @ ALONG)


def handed_out(inside: bool, source: Source) -> float:
    change = LONG if inside else 0 * LONG
    std = np.array([MULTIPLIER * CLIP])
    return float(hand_out(change, np.array([CLIP]), [slice(None)], std, [source])[0] @ ALONG)


def handed_out_in_layers(inside: bool, source: Source) -> float:
    """Both layers are clipped to CLIP / sqrt(2), so the attacker looks along both."""
    change = LONG if inside else 0 * LONG
    layers, std = [slice(0, 1), slice(1, 3)], np.array([MULTIPLIER * CLIP])
    out = hand_out(change, np.array([CLIP]), layers, std, [source])[0]
    return float(out @ np.array([1.0, 1.0, 0.0])) / math.sqrt(2)


def replaced(inside: bool, source: Source) -> float:
    """Under replace adjacency another update takes the place: the sum moves by two clips."""
    std = np.array([2 * MULTIPLIER * CLIP])
    change = LONG if inside else -LONG
    return float(hand_out(change, np.array([CLIP]), [slice(None)], std, [source])[0] @ ALONG)


def statistic(inside: bool, source: Source) -> float:
    """One record more or less moves a sum of losses by the bound of each loss."""
    reading = Reading("largest_loss", choose=1, bound=2.0)
    value = np.array([17.0 + (reading.bound if inside else 0.0)])
    return float(hand_out_statistic(value, MULTIPLIER * reading.sensitivity, source)[0])


def bit(inside: bool, source: Source) -> float:
    """A client that is there, with an update beyond its clip, moves the sum of the bits by 1/2."""
    quantile = Quantile(noise=MULTIPLIER / 2)
    phase = Phase.one_pool(1, np.ones(2), np.full(2, CLIP), 1.0)
    plan = Plan("mine", ("other", "canary"), (phase,), clipping=Clipping(quantile=quantile))
    asked = np.arange(2 if inside else 1)

    def updates() -> Iterator[Updates]:
        yield Updates(asked, np.concatenate([0 * LONG, LONG])[: len(asked)])

    given = (SIZE, 1.0, asked, updates(), lambda pool: source, lambda client, turn: source)
    _, scale = release.release(plan, phase, *given)
    share = quantile.target - math.log(scale) / quantile.learning_rate
    return -(share - 0.5) * float(phase.expected.sum())


MECHANISMS = [summed, handed_out, handed_out_in_layers, replaced, statistic, bit]
CLAIM = Claim(Steps.same(np.ones(1), np.array([MULTIPLIER]), 1))
EPSILON = float(Pld().epsilon(CLAIM.kinds, np.array([DELTA]))[0])


def guessed(mechanism: Mechanism) -> Tally:
    """Say "in" where the score lies beyond the middle of both means, which is fixed on runs of their own."""
    rng = np.random.default_rng(7)
    source = Seeded(rng)
    scores = [np.array([mechanism(inside, source) for _ in range(1000)]) for inside in (False, True)]
    middle = np.mean([score.mean() for score in scores])
    inside = rng.random(TRIALS) < 0.5
    said = np.array([mechanism(bool(there), source) for there in inside]) > middle
    return Tally(
        int((said & inside).sum()), int(inside.sum()), int((said & ~inside).sum()), int((~inside).sum())
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_single_release_leaks_what_is_charged_and_no_more(mechanism: Mechanism) -> None:
    tally = guessed(mechanism)
    assert not contradicts(tally, CLAIM, CHANCE)
    assert 0.75 * EPSILON < planned_kind(tally, CLAIM, DELTA, CHANCE) < EPSILON


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_single_release_with_less_noise_is_found(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaussian = Seeded.gaussian

    def less(self: Seeded, size: int, std: float) -> Floats:
        return gaussian(self, size, 0.7 * std)

    monkeypatch.setattr(Seeded, "gaussian", less)
    assert contradicts(guessed(mechanism), CLAIM, CHANCE)
