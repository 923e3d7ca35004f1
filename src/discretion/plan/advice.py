"""What more participation, or other rounds, would buy at the same privacy: noise against signal of plans.

The noise of a round is the standard deviation of one coordinate of the mean update, over the longest that the
mean update could be: all who are expected, each at its clip, in one direction. Over a run noise adds up as
a root of squares and signal as a sum, so the noise of the run is that of a round over the root of the rounds,
if all rounds are alike. Both are free of the clip. A model of d parameters sees sqrt(d) times as much in
norm: the same factor in every row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from discretion.errors import DiscretionError
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population

FACTORS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # of the rate that was asked for
ROUND_FACTORS = (0.5, 1.0, 2.0)
NEAR = 1.1  # as much noise as this, of the least there is, is near enough


@dataclass(frozen=True)
class Option:
    rate: float
    rounds: int
    updates: float  # that are expected in a round
    noise: float  # of a round, over its signal
    noise_of_run: float


def noise_to_signal(plan: Plan, population: Population) -> tuple[float, float]:
    """Noise over signal, in one coordinate: of the last round, and of the run.

    Guarantees:
        Neither depends on the clip, if all clips and noises have one factor.
        Of the same round T times, the noise of the run is the noise of the round over sqrt(T).
    """
    parts = [round_noise(phase, population) for phase in plan.phases]
    last = next((noise / signal for noise, signal in reversed(parts) if signal > 0), math.inf)
    rounds = [phase.rounds for phase in plan.phases]
    noise = math.sqrt(sum(count * part[0] ** 2 for count, part in zip(rounds, parts, strict=True)))
    signal = sum(count * part[1] for count, part in zip(rounds, parts, strict=True))
    return last, noise / signal if signal > 0 else math.inf


def round_noise(phase: Phase, population: Population) -> tuple[float, float]:
    """Noise and signal of the weighted sum of a round, in one coordinate and in norm."""
    taking = phase.expected * phase.weight[phase.pool]  # (N,)
    if phase.batch is None:
        releases = phase.turns if phase.turns is not None and phase.own_pools else phase.open_pools
        noise = math.sqrt(float((releases * np.square(phase.weight * phase.noise)).sum()))
        clip = np.where(np.isfinite(phase.clip), phase.clip, 0.0)
        return noise, float((taking * clip).sum())
    expected = phase.batch * population.size  # records in a batch, by whose number a step is divided
    each = np.divide(phase.noise, expected, out=np.zeros_like(expected), where=expected > 0)
    turns = phase.expected * np.square(phase.weight * each)
    return math.sqrt(phase.steps * float(turns.sum())), phase.steps * float((taking * phase.clip).sum())


def options(
    make: Callable[[float, int], Plan], population: Population, rate: float, rounds: int
) -> list[Option]:
    """Plans with more and less participation and rounds, every one within all budgets; those that cannot be
    made are left out."""
    rates = sorted({min(1.0, rate * factor) for factor in FACTORS})
    found = []
    for chosen in rates:
        for count in sorted({max(1, round(rounds * factor)) for factor in ROUND_FACTORS}):
            try:
                plan = make(chosen, count)
            except DiscretionError:
                continue
            found.append(Option(chosen, count, plan.cohort, *noise_to_signal(plan, population)))
    return found


def recommended(found: Sequence[Option], rounds: int) -> Option | None:
    """The least participation at these rounds that is near the least noise there is; none without noise."""
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
