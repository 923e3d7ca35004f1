"""Lower bounds on epsilon from an attack's guesses: what a privacy claim would have made too unlikely."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import betainc, betaincinv

from discretion.accounting import Pld
from discretion.arrays import Floats
from discretion.plan.steps import Steps

DELTAS = np.geomspace(1e-9, 0.5, 48)  # at which a claimed privacy curve is compared with the guesses
NOISE_LEVELS = tuple(np.geomspace(1 / 16, 16.0, 257).tolist())  # tried, relative to the planned noise


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
        least = betaincinv(self.hits, self.there - self.hits + 1, chance / 2) if self.hits else 0.0
        missed = self.not_there - self.false_alarms
        most = betaincinv(self.false_alarms + 1, missed, 1 - chance / 2) if missed else 1.0
        return float(least), float(most)


def any_mechanism(tally: Tally, delta: float, chance: float) -> float:
    """Return a lower bound on the epsilon at `delta` of any mechanism that gave these guesses.

    Guarantees:
        Whatever the mechanism, if it is (epsilon, delta)-private the bound exceeds epsilon with a chance of
        at most `chance`: hits are at most exp(epsilon) times false alarms, plus delta.
    """
    least, most = tally.bounds(chance)
    return max(math.log((least - delta) / most), 0.0) if least > delta else 0.0


@dataclass(frozen=True, eq=False)
class Claim:
    """The privacy curve that is claimed of several kinds of clients, with the planned noise or other."""

    kinds: Steps  # (S, K), a column for each kind
    _curves: dict[float, Floats] = field(default_factory=dict)

    def at(self, noise: float) -> Steps:
        """Return the claimed steps with `noise` times the planned noise."""
        return replace(self.kinds, multiplier=self.kinds.multiplier * noise)

    def curve(self, noise: float = 1.0) -> Floats:
        """Return upper bounds on epsilon at each of `DELTAS`: the largest of all kinds."""
        if noise not in self._curves:
            kinds = self.kinds.rate.shape[1]
            steps = self.at(noise).of(np.repeat(np.arange(kinds), len(DELTAS)))
            found = Pld().epsilon(steps, np.tile(DELTAS, kinds))
            self._curves[noise] = found.reshape(kinds, -1).max(axis=0)
        return self._curves[noise]

    def allows(self, least: float, most: float, noise: float = 1.0) -> bool:
        """Return whether hits at a rate of `least` or more, with false alarms of `most` or less, can be."""
        with np.errstate(over="ignore"):
            return not (least > np.exp(self.curve(noise)) * most + DELTAS).any()

    def refuted(self, least: float, most: float) -> int:
        """Return the number of the lowest noise level that does not allow these rates; of all, if none."""
        low, high = -1, len(NOISE_LEVELS)  # more noise allows less
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.allows(least, most, NOISE_LEVELS[middle]) else (low, middle)
        return high


def contradicts(tally: Tally, claim: Claim, chance: float) -> bool:
    """Return whether there are too many hits, with so few false alarms, for the claim to be true.

    Guarantees:
        If the claim is true of each client that was guessed about, and trials are independent, the answer is
        yes with a chance of at most `chance`.
    """
    return not claim.allows(*tally.bounds(chance))


def planned_kind(tally: Tally, claim: Claim, delta: float, chance: float) -> float:
    """Return a lower bound on epsilon at `delta` for a mechanism of the claimed kind, with any noise.

    The bound is the epsilon of the claimed steps with the least noise that the guesses contradict. It is far
    closer to epsilon than `any_mechanism` can be, because it assumes that sampling rates and number of
    releases are as claimed, and that the noise is Gaussian and a common multiple of the claimed one. Where
    the guesses contradict the claim itself, the bound lies above the claimed epsilon.
    """
    level = claim.refuted(*tally.bounds(chance))
    if level == len(NOISE_LEVELS):
        return 0.0
    steps = claim.at(NOISE_LEVELS[level])
    return float(Pld().epsilon(steps, np.full(steps.rate.shape[1], delta)).max())


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
    pure = or_more(correct, guesses, right)
    fewer = np.arange(1, correct + 1)
    between = np.array([or_more(correct - i, guesses, right) for i in fewer.tolist()]) - pure
    return min(pure + 2 * canaries * delta * float((between / fewer).max(initial=0.0)), 1.0)


def or_more(successes: int, trials: int, rate: float) -> float:
    """Return the chance of this number of successes, or more, in independent trials of the same rate."""
    if not 0 < successes <= trials:
        return float(successes <= 0)
    return float(betainc(successes, trials - successes + 1, rate))
