"""Lower bounds on epsilon from one run with many canaries, however the canaries interfere with each other.

Each canary was in the run or not, by a fair coin of its own. The attack then guessed of some of them, in a
number that was fixed beforehand, which it was.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import betainc

from discretion.audit.lower_bound import Claim, or_more

ROUNDING = 1e-9  # by which a sum of chances must exceed 1 before it counts as impossible


@dataclass(frozen=True)
class Guesses:
    """How many guesses were made about a run's canaries, and how many were right."""

    correct: int
    made: int
    canaries: int


def any_mechanism(guesses: Guesses, delta: float, chance: float) -> float:
    """Return a lower bound on the epsilon at `delta` of any mechanism that gave these guesses.

    Guarantees:
        If the run is (epsilon, delta)-private for each canary, the bound exceeds epsilon with a chance of at
        most `chance` (Steinke, Nasr and Jagielski 2023, Theorem 5.2).
    """
    low, high = 0.0, 64.0
    if _most_likely(guesses, low, delta) > chance:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _most_likely(guesses, middle, delta) <= chance else (low, middle)
    return low


def _most_likely(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of at least so many correct guesses under (epsilon, delta)-privacy."""
    right = 1 / (1 + math.exp(-epsilon))
    pure = or_more(guesses.correct, guesses.made, right)
    fewer = np.arange(1, guesses.correct)
    between = betainc(guesses.correct - fewer, guesses.made - guesses.correct + fewer + 1, right) - pure
    most = max((between / fewer).max(initial=0.0), (1 - pure) / max(guesses.correct, 1))
    return min(pure + 2 * guesses.canaries * delta * float(most), 1.0)


def refuted(guesses: Guesses, alarms: Callable[[float], float], chance: float) -> bool:
    """Return whether so many correct guesses, or more, are less likely than `chance`, whatever the attack.

    `alarms` is a privacy curve: the least rate of false alarms of an attack on one canary with a given rate
    of hits. It must be convex, and 0 at 0.

    Let p(i) be the chance of i correct guesses, and let a canary be drawn. That it is guessed right while at
    least i others are is an attack on this canary alone; its false alarm is that it is guessed wrong while at
    least i others are right. So, with n guesses about m canaries, the curve binds

        right(i + 1) = sum of j p(j) / m over j > i    and    wrong(i) = sum of (n - j) p(j) / m over j >= i

    by wrong(i) >= alarms(right(i + 1)) (Mahloujifar, Melis and Chaudhuri 2025, Theorem 3.2). Suppose that
    `correct` or more have the chance `chance`. Then the least that p can be from there downwards is found
    step by step: all of that chance at `correct` itself, and for each lower i just what the curve asks for.
    More would raise right(i) and save less than it costs. If all of it exceeds 1, that cannot be.

    Guarantees:
        If the run keeps to the curve for each canary, given all others, the answer is yes with a chance below
        `chance`, however canaries interfere.
    """
    if not 0 < guesses.correct <= guesses.made:
        return False
    each = chance / guesses.canaries
    right, wrong = each * guesses.correct, each * (guesses.made - guesses.correct)
    for i in range(guesses.correct - 1, -1, -1):
        more = alarms(right) - wrong
        if more <= 0:  # and no lower number is asked for, either
            break
        right += i / (guesses.made - i) * more
        wrong += more
        if (right + wrong) * guesses.canaries / guesses.made > 1 + ROUNDING:
            return True
    return False


def contradicts(guesses: Guesses, claim: Claim, chance: float) -> bool:
    """Return whether there are too many correct guesses for the claim to be true of each canary."""
    return refuted(guesses, claim.alarms, chance)


def planned_kind(guesses: Guesses, claim: Claim, delta: float, chance: float) -> float:
    """Return a lower bound on epsilon at `delta` for a mechanism with a curve of the claimed kind.

    The kind: for each canary, given all others, the run is as private as the claimed steps are with some
    multiple of the claimed noise. All multiples are refuted whose epsilon at `delta` is at most the bound.
    Where the steps are not sampled, that kind is Gaussian differential privacy.
    """
    return claim.shown(lambda noise: refuted(guesses, partial(claim.alarms, noise=noise), chance), delta)
