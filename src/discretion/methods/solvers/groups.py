"""Sampling rates by budget: of groups with like budgets, each in a sum of its own, or of all clients in one.

Rates, weights and ratios as published are in `methods.papers.xu_hu`. A weight is that of a group's sum, times
the cohort q n: weights of 1 give the plain mean.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from discretion.accounting import Accountant, noise_multiplier, sampling_rate
from discretion.accounting.accountant import TIGHT
from discretion.arrays import Floats, Ints
from discretion.errors import PlanError
from discretion.methods.papers.xu_hu import optimal_rates


@dataclass(frozen=True, eq=False)
class Groups:
    member: Ints  # (N,) which group a client is in; the strictest is 0
    epsilon: Floats  # (M,) the least budget in each
    size: Ints  # (M,)

    def least(self, value: Floats) -> Floats:
        """Return (M,) the least of the members' values, such as delta."""
        out = np.full(len(self.size), np.inf)
        np.minimum.at(out, self.member, value)
        return out


def group(epsilon: Floats, most: int) -> Groups:
    """Return at most `most` groups, each with the budget of its strictest member.

    Guarantees:
        Equal budgets are together, and groups are ranges of budgets.
        With no more distinct budgets than groups, nothing is wasted. With more, no other grouping wastes
        less, a client's waste being the logarithm of its budget over that of its group.
    """
    if most < 1 or not (np.isfinite(epsilon) & (epsilon > 0)).all():
        raise PlanError("expected at least 1 group and budgets that are finite and above 0")
    budget, kind, count = np.unique(epsilon, return_inverse=True, return_counts=True)
    starts = _starts(np.log(budget), count, most)
    member = np.searchsorted(starts, kind, side="right") - 1
    return Groups(member, budget[starts], np.bincount(member))


def capped_rates(epsilon: Floats, delta: Floats, size: Ints, rate: float) -> Floats:
    """Return the (M,) rates of Problem 1 in closed form, none above 1.

    A group whose rate would be larger is asked in every round, and the others share what is left of the
    cohort by the same rule.

    Guarantees:
        The mean over clients is `rate`.
        Where no rate reaches 1, the optimum of Problem 1 with the noise of Theorem 1.
    """
    if not 0 < rate <= 1:
        raise PlanError(f"a mean rate of {rate}: expected more than 0 and at most 1")
    out, open_ = np.ones(len(epsilon)), np.ones(len(epsilon), dtype=bool)
    while open_.any():
        left = rate * size.sum() - size[~open_].sum()
        sizes = size[open_].astype(float)
        out[open_] = optimal_rates(epsilon[open_], delta[open_], sizes, left / sizes.sum())
        if not (out > 1).any():
            break
        open_ &= out < 1
        out[~open_] = 1.0
    return out


def inverse_variance(drawn: Floats, multiplier: Floats, cohort: float) -> Floats:
    """Return (M,) weights ~ r / sigma², with gain 1.

    At equal rates, strict groups then count for less than their share of the clients.

    Guarantees:
        No other weights of the same groups have a smaller ratio of noise to signal.
    """
    share = drawn / multiplier**2
    return np.asarray(cohort * share / (share * drawn).sum())


def shared_noise_rates(
    epsilon: Floats, delta: Floats, rounds: int, rate: float, accountant: Accountant = TIGHT
) -> tuple[Floats, float]:
    """Return each client's rate (N,) under one noise for all clients, and that noise over the clip.

    More noise lets everybody come more often: the noise is looked for at which the mean rate is as asked,
    between what the most generous and what the strictest budget needs when all come equally often.

    Guarantees:
        The mean is at most `rate`, and no rate passes 1 or what the client's budget allows.
    """
    some = spread(epsilon)

    def allowed(sigma: float, who: Ints) -> Floats:
        return sampling_rate(epsilon[who], delta[who], np.full(len(who), sigma), rounds, accountant)

    def mean(sigma: float) -> float:
        try:
            return float(allowed(sigma, some).mean())
        except PlanError:  # so little noise that some could not come at all
            return 0.0

    ends = noise_multiplier(epsilon[some], delta[some], np.full(len(some), rate), rounds, accountant)
    low, high = ends.min() * 0.999, ends.max() * 1.001
    enough = mean(low) >= rate  # even there: budgets so large that hardly any noise is needed
    sigma = low if enough else float(brentq(lambda s: mean(s) - rate, low, high, rtol=1e-4))
    found = allowed(sigma, np.arange(len(epsilon)))
    return found * min(1.0, rate / found.mean()), sigma


def spread(epsilon: Floats, most: int = 64) -> Ints:
    """Return clients that stand for all: everybody if budgets are few, else evenly by sorted budget."""
    if len(np.unique(epsilon)) <= most:
        return np.arange(len(epsilon))
    order = np.argsort(epsilon, kind="stable")
    return np.asarray(order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)])


def _starts(value: Floats, count: Ints, most: int) -> Ints:
    """Return (M,) starts of groups of the sorted values with the least sum of count (value - first of group).

    With `least[j]` the least waste of the first j values, one group more costs for i < j
    least[i] + S_j - S_i - value_i (C_j - C_i), with C and S the running sums of count and count value: lines
    in C_j, falling more steeply with i, so that the least of them is found by walking along their hull.
    """
    total = np.concatenate([[0.0], np.cumsum(count)])
    mass = np.concatenate([[0.0], np.cumsum(count * value)])
    least = mass - value[0] * total  # one group
    back = []  # for one group more each, where the last one starts
    for _ in range(min(most, len(value)) - 1):
        level = least[:-1] - mass[:-1] + value * total[:-1]
        best = np.zeros(len(total), dtype=np.int64)
        hull: deque[int] = deque()
        for j in range(1, len(total)):
            i = j - 1
            while len(hull) > 1 and _below(value, level, hull[-2], hull[-1], i):
                hull.pop()
            hull.append(i)
            while len(hull) > 1 and _passed(value, level, hull[0], hull[1], total[j]):
                hull.popleft()
            best[j] = hull[0]
        least = level[best] - value[best] * total + mass
        back.append(best)
    starts, end = [], len(value)
    for best in reversed(back):
        starts.append(int(best[end]))
        end = starts[-1]
    return np.unique([0, *starts])


def _passed(value: Floats, level: Floats, a: int, b: int, x: float) -> bool:
    """Return whether at x, and so further on, line b is no higher than line a."""
    return bool(level[b] - value[b] * x <= level[a] - value[a] * x)


def _below(value: Floats, level: Floats, a: int, b: int, c: int) -> bool:
    """Return whether line b is nowhere the least of three lines, sorted by falling slope."""
    return bool(
        (level[c] - level[a]) * (value[b] - value[a]) <= (level[b] - level[a]) * (value[c] - value[a])
    )
