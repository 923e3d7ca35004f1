"""Lower bounds on epsilon from an attack's guesses: what a privacy claim would have made too unlikely."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from discretion.accounting import Pld
from discretion.arrays import Floats
from discretion.plan.steps import Steps

# at which a claimed privacy curve is compared with the guesses: up to 1, for claims of a large epsilon
_FEW = np.geomspace(1e-9, 0.04, 40)
DELTAS = np.concatenate([_FEW, np.linspace(0.06, 0.94, 23), 1 - _FEW[::-3]])
Bools = NDArray[np.bool_]
NOISE_LEVELS = tuple(np.geomspace(1 / 16, 16.0, 257).tolist())  # tried, relative to the planned noise


@dataclass(frozen=True)
class Tally:
    """How often an attack said "yes" of what was there, and of what was not."""

    hits: int
    there: int
    false_alarms: int
    not_there: int

    @classmethod
    def of(cls, said: Bools, there: Bools) -> "Tally":
        """Count what was said of what was there or not."""
        hits, alarms = int((said & there).sum()), int((said & ~there).sum())
        return cls(hits, int(there.sum()), alarms, int((~there).sum()))

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

    def alarms(self, hits: float, noise: float = 1.0) -> float:
        """Return the least rate of false alarms of an attack with this rate of `hits`.

        Guarantees:
            If the claim is true, no attack has fewer false alarms: hits are at most exp(epsilon) times false
            alarms, plus delta, and so it is with what was not there and what was exchanged.
        """
        epsilon = self.curve(noise)
        with np.errstate(over="ignore", invalid="ignore"):
            one = (hits - DELTAS) * np.exp(-epsilon)
            other = 1 - DELTAS - np.exp(epsilon) * (1 - hits)  # nan where an infinite epsilon allows all
        return float(max(one.max(), np.fmax.reduce(other), 0.0))

    def allows(self, least: float, most: float, noise: float = 1.0) -> bool:
        """Return whether hits at a rate of `least` or more, with false alarms of `most` or less, can be."""
        return self.alarms(least, noise) <= most

    def shown(self, refuted: Callable[[float], bool], delta: float) -> float:
        """Return the epsilon at `delta` of the claimed steps with the least noise that is refuted, or 0.

        More noise must be refuted wherever less is.
        """
        low, high = -1, len(NOISE_LEVELS)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if refuted(NOISE_LEVELS[middle]) else (middle, high)
        if high == len(NOISE_LEVELS):
            return 0.0
        steps = self.at(NOISE_LEVELS[high])
        return float(Pld().epsilon(steps, np.full(steps.rate.shape[1], delta)).max())


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
    bounds = tally.bounds(chance)
    return claim.shown(lambda noise: not claim.allows(*bounds, noise), delta)


def or_more(successes: int, trials: int, rate: float) -> float:
    """Return the chance of this number of successes, or more, in independent trials of the same rate."""
    if not 0 < successes <= trials:
        return float(successes <= 0)
    return float(betainc(successes, trials - successes + 1, rate))
