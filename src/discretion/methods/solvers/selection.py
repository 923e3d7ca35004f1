"""Selection probabilities of clients that balance the bias of the selection and the noise it brings.

Problem 1 of Xu, Zhang and Huang, "Tackling privacy heterogeneity" (2025): over all probabilities p, minimise

    a + sqrt(a² + s sum_k V_k p_k²),    a = sum_k |p_k - u_k|,

where u is the clients' share of the records, V the noise that a client's budget asks for, and s ≥ 0 weighs
noise against bias. The noise that a budget truly asks for is affine in the number of turns, so V_k p_k² may
also be c_k p_k + b_k p_k², with `intercept` c and `slope` b. Then the objective is no longer convex, but it
is at most t exactly where s sum_k (c_k p_k + b_k p_k²) + 2 t a is at most t², which is a convex set. So there
are no local minima but the global one, and

    t <- objective of the p with the least s sum_k (c_k p_k + b_k p_k²) + 2 t a

falls to it, as in Dinkelbach's method (1967). For given t that p is the share, kept between two levels lo and
hi = lo + 4 t / s of what a little more of a client costs in noise, c_k + 2 b_k p_k: clients that cost more
than hi are lowered to it, clients that cost less than lo are raised to it.
"""

from bisect import bisect
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from discretion.arrays import Floats
from discretion.errors import PlanError

NEGLIGIBLE = 1e-100  # noise below this fraction of the largest is none
CLOSE_TO_ONE = 1e-9
ROUNDING = 1e-15  # of a sum that is 1
MOST_STEPS = 100  # about ten are needed


def select(share: Floats, noise: Floats, weight: float) -> Floats:
    """Return the (N,) probabilities of Problem 1, where client k adds V_k p_k² of noise variance.

    A client with V = 0 is public.

    Guarantees:
        No probabilities have a smaller objective, to rounding.
        Every client has a positive probability.
        Up to the weight 4 sum V u² / (max V u - min V u)² the probabilities are the shares themselves.
        Where u and V are equal, so are the probabilities. Public clients keep their proportions.
    """
    return select_affine(share, np.zeros_like(noise), noise, weight)


def select_affine(share: Floats, intercept: Floats, slope: Floats, weight: float) -> Floats:
    """Return the (N,) probabilities where client k adds c_k p_k + b_k p_k²: even a rare turn costs noise.

    Guarantees:
        No probabilities have a smaller objective, to rounding.
        A client whose intercept is high enough gets probability 0.
    """
    if not 0 <= weight < np.inf:
        raise PlanError(
            f"the weight of noise against bias is {weight:g}; expected a finite number, at least 0"
        )
    costs = _Costs.of(share, intercept, slope)
    weight *= costs.highest
    p, least = share.copy(), objective(share, share, costs.slope, weight, costs.intercept)
    spread = float(np.ptp(costs.at_share))
    for _ in range(MOST_STEPS):
        if 4 * least >= weight * spread:
            break
        p = costs.between(4 * least / weight)
        before, least = least, objective(p, share, costs.slope, weight, costs.intercept)
        if least >= before:
            break
    return p


def objective(
    p: Floats, share: Floats, noise: Floats, weight: float, intercept: Floats | float = 0.0
) -> float:
    """Return what Problem 1 minimises."""
    bias = float(np.abs(p - share).sum())
    return bias + float(np.sqrt(bias**2 + weight * _variance(p, noise, intercept)))


def default_weight(share: Floats, noise: Floats, intercept: Floats | float = 0.0) -> float:
    """Return a weight from public facts alone: 1 / (noise variance at p = u).

    The paper's weight is made of the model's dimension, the rounds and a smoothness that nobody knows. This
    one makes the noise of unbiased selection count as much as a bias of 1, half of the largest there is. Then
    a bias of a pays exactly if it removes more than the fraction 2 a of the noise variance. It says nothing
    of how much noise there is: who knows that noise hardly matters, or drowns everything, should set the
    weight. Where there is no noise the weight is 0.

    Guarantees:
        Multiplying all noise by a constant does not change the probabilities: the clip does not matter.
        Nor does it matter how often the whole population is repeated, but for the scale of the probabilities.
        The bias is at most 1/2: at most a quarter of the turns move from one client to another.
    """
    variance = _variance(share, noise, intercept)
    return 1 / variance if variance > 0 else 0.0


def _variance(p: Floats, noise: Floats, intercept: Floats | float) -> float:
    return float(np.sum(p * (intercept + noise * p)))


@dataclass(frozen=True, eq=False)
class _Costs:
    """Marginal noise costs of the clients, in units of the highest such cost where p = u."""

    share: Floats  # (N,)
    intercept: Floats  # (N,) in units of `highest`
    slope: Floats  # (N,) likewise
    reach: Floats  # (N,) change of a client's probability with the level, 1 / (2 slope); infinite if public
    highest: float

    @classmethod
    def of(cls, share: Floats, intercept: Floats, slope: Floats) -> "_Costs":
        for name, column in {"share": share, "intercept": intercept, "slope": slope}.items():
            if column.shape != share.shape or column.ndim != 1:
                raise PlanError(f"{name} has shape {column.shape}; expected one number for each client")
            bad = ~(np.isfinite(column) & (column >= 0))
            if bad.any():
                raise PlanError(f"{name} is {column[bad][0]:g} for a client; expected it finite, at least 0")
        if not (share > 0).all() or abs(share.sum() - 1) > CLOSE_TO_ONE:
            raise PlanError(
                f"the shares are at least {share.min():g} and sum to {share.sum():g}; "
                "expected positive numbers that sum to 1: divide the sizes by their sum"
            )
        highest = float((intercept + 2 * slope * share).max()) or 1.0
        intercept, slope = intercept / highest, slope / highest
        public = slope * share < NEGLIGIBLE
        if (intercept[public] > 0).any():
            raise PlanError(
                "a client has an intercept but no slope; expected noise that grows with its turns"
            )
        reach = np.divide(0.5, slope, out=np.full_like(slope, np.inf), where=~public)
        return cls(share, intercept, slope, reach, highest)

    @cached_property
    def at_share(self) -> Floats:
        """Return (N,) marginal noise costs where p = u."""
        return self.intercept + 2 * self.slope * self.share

    @cached_property
    def _masses(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return levels and the mass that raising to them adds; levels and the mass that lowering frees.

        Linear between levels. A client stops being lowered when nothing is left of it.
        """
        used_up = self.intercept > self.at_share.min()
        level = np.concatenate([self.at_share, self.intercept[used_up]])
        reach = np.concatenate([self.reach, -self.reach[used_up]])
        order = np.argsort(level)
        first = order[order < len(self.share)]
        up, down = level[first], level[order]
        added = np.cumsum(np.diff(up) * np.cumsum(self.reach[first])[:-1])
        freed = np.cumsum(np.diff(down)[::-1] * np.cumsum(reach[order][::-1])[:-1])[::-1]
        return up, np.append(0.0, added), down, np.append(freed, 0.0)

    def between(self, gap: float) -> Floats:
        """Return (N,) shares kept between lo and lo + gap, with lo such that as much is freed as is added."""
        public = np.isinf(self.reach)
        if public.any():  # they take whatever is freed at no cost, so lo = 0
            p = np.minimum(self.share, np.maximum(gap - self.intercept, 0.0) * self.reach)
            freed = float((self.share - p).sum())
            p[public] *= 1 + freed / float(self.share[public].sum())
            return p
        low, excess = self._lowest(gap), np.inf
        for _ in range(MOST_STEPS):
            top = np.maximum((low + gap - self.intercept) * self.reach, 0.0)
            found = np.maximum(np.minimum(self.share, top), (low - self.intercept) * self.reach)
            more = float((found - self.share).sum())
            if abs(more) >= abs(excess):
                break
            p, excess = found, more
            moving = (p != self.share) & (p > 0)
            step = excess / float(self.reach[moving].sum()) if moving.any() else 0.0
            if abs(excess) < ROUNDING:
                break
            low -= step
        # a level is rounded, and where slopes are slight that moves clients far: the last step is theirs
        p[moving] = np.maximum(p[moving] - step * self.reach[moving], 0.0)
        return p

    def _lowest(self, gap: float) -> float:
        """Return lo from the sums over sorted clients: right but for the rounding of long sums."""
        up, added, down, freed = self._masses
        adds, frees = partial(np.interp, xp=up, fp=added), partial(np.interp, xp=down, fp=freed)
        i = bisect(range(len(up) - 1), 0.0, key=lambda i: added[i] - frees(up[i] + gap), lo=1)
        j = bisect(range(len(down) - 1), 0.0, key=lambda j: adds(down[j] - gap) - freed[j], lo=1)
        left, right = max(up[i - 1], down[j - 1] - gap), min(up[i], down[j] - gap)
        at_left, at_right = adds(left) - frees(left + gap), adds(right) - frees(right + gap)
        if at_right <= at_left:  # the same point but for rounding
            return float(left)
        return float(left - at_left * (right - left) / (at_right - at_left))
