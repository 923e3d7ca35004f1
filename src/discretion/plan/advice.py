"""Advice on sampling rate and rounds: the noise-to-signal ratio of alternative plans at the same privacy.

The noise-to-signal ratio of a round is the standard deviation of one coordinate of the mean update, divided
by the largest norm that the mean update could have: every expected client at its clip, all in one direction.
Over a run, noise adds up as the root of squares and signal as a sum, so for equal rounds the ratio of the run
is the ratio of a round over the root of the rounds. Neither depends on the clip. In norm, a model of d
parameters sees sqrt(d) times the noise: the same factor for every plan.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np

from discretion.errors import DiscretionError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

FACTORS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # on the configured sampling rate
ROUND_FACTORS = (0.5, 1.0, 2.0)
NEAR = 1.1  # times the least noise there is: near enough


@dataclass(frozen=True)
class Option:
    rate: float
    rounds: int
    updates: float  # expected number in a round
    noise: float  # noise-to-signal ratio of a round
    noise_of_run: float  # noise-to-signal ratio of the run


def noise_to_signal(plan: Plan, population: Population) -> tuple[float, float]:
    """Return the noise-to-signal ratio, in one coordinate, of the last round and of the run.

    Guarantees:
        Neither changes if all clips and noises are multiplied by one factor.
        For T equal rounds, the ratio of the run is the ratio of a round over sqrt(T).
    """
    parts = [(phase.rounds, *round_noise(phase, population)) for phase in plan.phases]
    last = next((noise / signal for _, noise, signal in reversed(parts) if signal > 0), math.inf)
    noise = math.sqrt(sum(rounds * noise**2 for rounds, noise, _ in parts))
    signal = sum(rounds * signal for rounds, _, signal in parts)
    return last, noise / signal if signal > 0 else math.inf


def round_noise(phase: Phase, population: Population) -> tuple[float, float]:
    """Return noise, in one coordinate, and signal, in norm, of the weighted sum of a round."""
    taking = phase.expected * phase.weight[phase.pool]  # (N,)
    if phase.batch is None:
        noise = math.sqrt(float((phase.pool_releases * np.square(phase.weight * phase.noise)).sum()))
        clip = np.where(np.isfinite(phase.clip), phase.clip, 0.0)
        return noise, float((taking * clip).sum())
    expected = phase.batch * population.size  # records in a batch, by whose number a step is divided
    each = np.divide(phase.noise, expected, out=np.zeros_like(expected), where=expected > 0)
    turns = phase.expected * np.square(phase.weight * each)
    return math.sqrt(phase.steps * float(turns.sum())), phase.steps * float((taking * phase.clip).sum())


def options(
    make: Callable[[float, int], Plan], population: Population, rate: float, rounds: int
) -> list[Option]:
    """Return alternatives with other sampling rates and rounds, without plans that `make` refuses."""
    rates = sorted({min(1.0, rate * factor) for factor in FACTORS})
    counts = sorted({max(1, round(rounds * factor)) for factor in ROUND_FACTORS})
    found = []
    for chosen, count in product(rates, counts):
        with suppress(DiscretionError):
            plan = make(chosen, count)
            found.append(Option(chosen, count, plan.cohort, *noise_to_signal(plan, population)))
    return found


def recommended(found: Sequence[Option], rounds: int) -> Option | None:
    """Return the smallest sampling rate at these rounds with nearly the least noise; None without noise."""
    same = sorted((option for option in found if option.rounds == rounds), key=lambda option: option.rate)
    least = min((option.noise_of_run for option in same), default=0.0)
    if not 0 < least < math.inf:
        return None
    return next(option for option in same if option.noise_of_run <= NEAR * least)


LIMITS = (
    "It knows budgets and noise, not data: it cannot say how long updates are, how well they agree, how "
    "much accuracy a given noise costs on this task, or what a client's work and a message cost. Noise is in "
    "proportion to the clip; take one that shortens most updates, and find it on public data. More rounds "
    "are more chances to move at more noise in each."
)
