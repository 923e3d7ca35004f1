"""Clients in groups of like budgets: who is in which, how often each is asked, how their sums are weighted.

Rates, weights and ratios as published are in `accounting.papers.groups`; here is what stands around them.
Where a weight is meant, it is that of a group's sum, times the cohort q n: ones are the plain mean.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from discretion.accounting.papers.groups import optimal_rates, weights
from discretion.errors import PlanError
from discretion.population import Floats, Ints


@dataclass(frozen=True, eq=False)
class Groups:
    member: Ints  # (N,) which group a client is in; the strictest is 0
    epsilon: Floats  # (M,) the least budget in each
    size: Ints  # (M,)

    def least(self, value: Floats) -> Floats:
        """(M,) the least of the members' values, such as delta."""
        out = np.full(len(self.size), np.inf)
        np.minimum.at(out, self.member, value)
        return out


def group(epsilon: Floats, most: int) -> Groups:
    """At most `most` groups, each with the budget of its strictest member.

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
    """(M,) the rates of Problem 1 in closed form, none above 1.

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


def objective(
    drawn: Floats, multiplier: Floats, learning_rate: float, local_steps: int, cohort: float, top_k: bool
) -> float:
    """What Problem 1 minimises, as printed:

    sum of omega (mu4 (1 + phi) + mu5 (1 - sqrt(phi)) omega sigma² / r²).

    With `top_k`, phi is phi* of Remark 3, else 0. `cohort` is q n, or 1 for weights that sum to 1.

    Defect: phi is no bound on what Top-k leaves out, which for equal coordinates is sqrt(phi). Nearly all of
    the value is mu4, a constant, so that a solver stops far from the minimum.
    """
    omega, step = weights(drawn) / cohort, learning_rate * local_steps
    mu4 = 32 * step + learning_rate + learning_rate / local_steps
    noise = omega * multiplier**2 / drawn**2
    left_out = np.clip(2 * noise / (step * mu4), 0, 1) if top_k else np.zeros(len(drawn))  # 1 - k*/d
    return float((omega * (mu4 * (1 + left_out**2) + 4 / step * (1 - left_out) * noise)).sum())


def inverse_variance(drawn: Floats, multiplier: Floats, cohort: float) -> Floats:
    """(M,) weights ~ r / sigma², with gain 1.

    At equal rates, strict groups then count for less than their share of clients: see `weight_bias`.

    Guarantees:
        No other weights of the same groups have a smaller ratio of noise to signal.
    """
    share = drawn / multiplier**2
    return np.asarray(cohort * share / (share * drawn).sum())


def weight_bias(drawn: Floats, weight: Floats, size: Ints) -> float:
    """How far groups count for more or less than their share of the clients: 0 is fair, 2 the most."""
    part = weight * drawn
    return float(np.abs(part / part.sum() - size / size.sum()).sum())


def pooled_noise_to_signal(rate: Floats, multiplier: Floats, size: Ints) -> float:
    """Noise to signal, in units of (C / (q n))², if all groups are in one sum under one noise.

    Group m, asked at rate q_m, needs the multiplier sigma_m; one noise is that for a clip ~ 1 / sigma_m.
    With rates chosen so that all sigma_m are equal, the clips are, too, and this is sigma².
    """
    return float((rate * size).sum() / (rate * size / multiplier).sum()) ** 2


def top_k_energy(kept: Floats) -> Floats:
    """(...,) the part of a Gaussian vector's energy in the largest `kept` part of its coordinates.

    So much of the noise Top-k keeps where noise dominates; the paper takes it to be `kept` itself.
    """
    threshold = -ndtri(np.asarray(kept) / 2)
    density = np.exp(-(threshold**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(kept + 2 * threshold * density)


def _starts(value: Floats, count: Ints, most: int) -> Ints:
    """(M,) where groups of the sorted values start, so that sum of count (value - first of group) is least.

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
    """Whether at x, and so further on, line b is no higher than line a."""
    return bool(level[b] - value[b] * x <= level[a] - value[a] * x)


def _below(value: Floats, level: Floats, a: int, b: int, c: int) -> bool:
    """Whether line b is nowhere the least of three, sorted by falling slope."""
    return bool(
        (level[c] - level[a]) * (value[b] - value[a]) <= (level[b] - level[a]) * (value[c] - value[a])
    )
