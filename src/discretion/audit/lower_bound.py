"""Lower bounds on epsilon from an attack's guesses: what a privacy claim would have made too unlikely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from discretion.accounting import Pld
from discretion.arrays import Floats
from discretion.plan.steps import Steps

DELTAS = np.geomspace(1e-9, 0.5, 48)  # at which a claimed privacy curve is compared with the guesses
LEAST_NOISE, MOST_NOISE = 0.05, 32.0  # noise levels that are tried, relative to the planned one
HALVINGS = 14  # of the ratio between the two, in the search for the noise level that fits


@dataclass(frozen=True)
class Tally:
    """How often an attack said "yes" of what was there, and of what was not."""

    hits: int
    there: int
    false_alarms: int
    not_there: int

    @property
    def turned(self) -> "Tally":
        """The same guesses as an attack that says "no": of what was not there, and of what was."""
        return Tally(self.not_there - self.false_alarms, self.not_there, self.there - self.hits, self.there)

    def bounds(self, chance: float) -> tuple[float, float]:
        """Return the least rate of hits and the largest of false alarms (Clopper and Pearson 1934).

        Guarantees:
            For independent trials both hold at once, except with a chance of at most `chance`.
        """
        least = stats.beta.ppf(chance / 2, self.hits, self.there - self.hits + 1) if self.hits else 0.0
        missed = self.not_there - self.false_alarms
        most = stats.beta.ppf(1 - chance / 2, self.false_alarms + 1, missed) if missed else 1.0
        return float(least), float(most)


def any_mechanism(tally: Tally, delta: float, chance: float) -> float:
    """Return a lower bound on the epsilon at `delta` of any mechanism that gave these guesses.

    Guarantees:
        Whatever the mechanism, if it is (epsilon, delta)-private the bound exceeds epsilon with a chance of
        at most `chance`: hits are at most exp(epsilon) times false alarms, plus delta.
    """
    least, most = tally.bounds(chance)
    return max(math.log((least - delta) / most), 0.0) if least > delta else 0.0


def contradicts(tally: Tally, claim: Sequence[Steps], chance: float) -> bool:
    """Return whether the guesses contradict every claim: too many hits for so few false alarms.

    Guarantees:
        If one of the claims is true of each client that was guessed about, the answer is yes with a chance
        of at most `chance`.
    """
    least, most = tally.bounds(chance)
    curve = np.max([Pld().epsilon(_repeated(steps), DELTAS) for steps in claim], axis=0)
    with np.errstate(over="ignore"):
        return bool((least > np.exp(curve) * most + DELTAS).any())


def planned_kind(tally: Tally, claim: Sequence[Steps], delta: float, chance: float) -> float:
    """Return a lower bound on epsilon at `delta` for a mechanism of the claimed kind, with any noise.

    The bound is the epsilon of the claimed steps with the largest noise that the guesses do not contradict.
    It is far closer to epsilon than `any_mechanism` can be, and assumes that rates and number of releases are
    as claimed. Where the guesses contradict the claim itself, it lies above the claimed epsilon.
    """

    def at(noise: float) -> list[Steps]:
        return [replace(steps, multiplier=steps.multiplier * noise) for steps in claim]

    low, high = LEAST_NOISE, MOST_NOISE
    if not contradicts(tally, at(high), chance):
        return 0.0
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if contradicts(tally, at(middle), chance) else (middle, high)
    return max(float(Pld().epsilon(steps, np.array([delta]))[0]) for steps in at(high))


def one_run(correct: int, guesses: int, canaries: int, delta: float, chance: float) -> float:
    """Return a lower bound on epsilon at `delta` from one training run with many canaries.

    Each of the `canaries` was in the run or not, by a fair coin of its own. Of `guesses` of them the attack
    said which; it was right of `correct`. Canaries may interfere with each other.

    Guarantees:
        If the run is (epsilon, delta)-private, the bound exceeds epsilon with a chance of at most `chance`
        (Steinke, Nasr and Jagielski 2023, Theorem 5.2).
    """
    low, high = 0.0, 64.0
    if _one_run_chance(correct, guesses, canaries, low, delta) > chance:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        unlikely = _one_run_chance(correct, guesses, canaries, middle, delta) <= chance
        low, high = (middle, high) if unlikely else (low, middle)
    return low


def _one_run_chance(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of at least so many correct guesses under (epsilon, delta)-privacy."""
    right = 1 / (1 + math.exp(-epsilon))
    pure = float(stats.binom.sf(correct - 1, guesses, right))
    below = stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right)  # correct - 1, correct - 2, …
    share: Floats = np.cumsum(below) / np.arange(1, len(below) + 1)
    return min(pure + 2 * canaries * delta * float(share.max(initial=0.0)), 1.0)


def _repeated(steps: Steps) -> Steps:
    """Return one client's steps once for each of `DELTAS`."""
    return steps.of(np.zeros(len(DELTAS), dtype=np.int64))
