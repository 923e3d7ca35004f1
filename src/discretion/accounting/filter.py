"""Privacy filters: the epsilon of steps that may be chosen in the light of earlier releases.

Two filters divide a client's delta, in shares that are fixed before anything is released. A step is allowed
if either filter allows it. `tight` is exact for the first plan and for steps without sampling;
`renyi_mixture` counts sampled steps of later plans with their sampling.

What both prove. Let L be the privacy loss log dP/dQ of all that was released so far, with and without the
client or the other way round. Each filter keeps a function V >= 0 of L and of what was taken, with

    (1) E_P[V after a step] <= V before the step, whatever the step, as long as it is paid for;
    (2) V at most the filter's share of delta at the start;
    (3) V >= (1 - exp(budget - L))+ after the last step, if the filter allowed that step.

A filter that has not enough left to pay for a step is given up: V = 0 from then on, which keeps (1), and it
allows no further step. By (1) and (2) the sum of the two is at most delta on average, after any number of
steps. By (3) it is at least (1 - exp(budget - L))+, because one of the two filters allowed the last step. So
E_P[(1 - exp(budget - L))+] <= delta, and that is (budget, delta)-privacy of all releases together. Taking the
better filter in hindsight is paid for: neither has the whole of delta.

Rate, multiplier and number of steps may depend on everything released before and on the other clients, but
not in any other way on the client's own data or coins. The budget must be fixed beforehand: these are
filters, not odometers. A client that took no step has L = 0 and nothing to prove.
"""

import math
from dataclasses import dataclass

import numpy as np

from discretion.accounting.accountant import TIGHT
from discretion.accounting.renyi import ORDERS
from discretion.arrays import Floats, Ints
from discretion.plan.steps import Steps

SHARES = (0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)  # of delta, that the tight filter may get
UNSAMPLED = 0.5  # least share of it after a first plan without sampling: others like it may follow
RUNGS = np.array([0.75, 0.9])  # factors on the best (order - 1) of a Gaussian without sampling
BOUNDLESS = 8.0  # epsilon whose ladder is used for infinite budgets
NEWTON = 10  # steps; a bound on the error that they leave is added
ROUNDING_UP = 1e-9  # share of epsilon that is added: many times all rounding errors


@dataclass(frozen=True, eq=False)
class Taken:
    """The steps that clients took, and the first plan of each: that of the first step it paid for."""

    steps: Steps
    first: Ints  # (S, N) releases of the client's whole first plan, in the rows of that plan; elsewhere 0

    def of(self, clients: Ints) -> "Taken":
        """Return what these clients took."""
        return Taken(self.steps.of(clients), self.first[:, clients])

    def finished(self) -> "Taken":
        """Return what is taken once each client has done the whole of its first plan."""
        steps = self.steps
        count = np.where(self.first > 0, self.first, steps.count)
        return Taken(Steps(steps.rate, steps.multiplier, count, steps.unit, steps.adjacency), self.first)

    def then(self, more: Steps, plan: Steps) -> "Taken":
        """Add steps of a further plan, which is the first one of clients that have none.

        `more` holds the first rows of `plan` (S, N), with the counts to be added.
        """
        count = np.zeros_like(plan.count)
        count[: len(more)] = more.count
        first = np.where(self.first.any(axis=0), 0, plan.count)
        steps = self.steps.then(Steps(plan.rate, plan.multiplier, count, plan.unit, plan.adjacency))
        return Taken(steps, np.concatenate([self.first, first]))


def shares(taken: Taken, epsilon: Floats, delta: Floats) -> Floats:
    """Return (N,) the share of delta that goes to the tight filter, by budgets and first plans alone.

    It is the least of SHARES at which the whole first plan stays within the budget, and at least
    UNSAMPLED where that plan has no sampled steps; the least of these if no share keeps the budget.
    Nothing of the plan was released when it was fixed.
    """
    steps = taken.steps
    plan = Steps(steps.rate, steps.multiplier, taken.first, steps.unit, steps.adjacency)
    sampled = ((plan.count > 0) & (plan.rate > 0) & (plan.rate < 1)).any(axis=0)
    least = np.where(sampled, SHARES[0], UNSAMPLED)
    share = np.full(len(delta), math.nan)
    for each in SHARES:
        who = np.flatnonzero(np.isnan(share) & (least <= each))
        fits = TIGHT.epsilon(plan.of(who), each * delta[who]) <= epsilon[who]
        share[who[fits]] = each
    return np.where(np.isnan(share), least, share)


def tight(taken: Taken, delta: Floats) -> Floats:
    """Return (N,) the epsilon at `delta`, exact for the first plan and for steps without sampling.

    As long as a client took steps of its first plan only, it is the epsilon of these steps. After that, it
    is the epsilon of the whole first plan, if that has sampled steps, and of all other steps as if they
    were not sampled.

    Proof (for steps without sampling: Smith and Thakurta 2022, Koskela, Tobaben and Honkela 2023). Set aside,
    before the first step, the first plan, if it has sampled steps, and steps without sampling whose
    1 / multiplier² add up to v. Let Z be the loss of those of the plan's steps that were not taken yet, and
    G ~ N(m/2, m) that of a Gaussian step with what is left of v: m = v - sum of 1 / multiplier². Let

        V(L) = E[(1 - exp(budget - L - Z - G))+],    an average of functions (1 - exp(t - L))+.

    (1) Given what was released before, no step raises the average of (1 - exp(t - L))+, for any t, more than
        the sampled Gaussian step that it is charged as. A step of the plan takes that step's loss out of Z
        and adds it to L: on average, V stays the same. So it does with a step without sampling, as G is the
        sum of N(w/2, w) and N((m - w)/2, m - w), independent of each other, for w = 1 / multiplier².
        A sampled step raises the average of (1 - exp(t - L))+ no more than the same step without
        sampling, for every t and in both directions: this average is jointly convex in the two
        distributions, and sampling mixes one of them with the other.
    (2) At the start V is the true delta, at epsilon = budget, of the plan and a Gaussian step with v. It is
        at most `delta` if the accountant's epsilon is within the budget; v is the largest with that.
    (3) E[exp(-Z - G)] <= 1, so V >= (1 - exp(budget - L))+ by Jensen's inequality.

    If the whole plan exceeds the budget with any v, the steps set aside are those of the plan that the budget
    allows. They follow from the plan as long as no other step is taken; after one, this filter allows none.

    Guarantees:
        For steps without sampling, and for steps of the first plan alone, what PLD says: nothing is lost.
        Never below what PLD says of the same steps; 0 where nothing was spent.
    """
    steps, own = taken.steps, taken.first > 0
    pays = (steps.rate > 0) & (steps.multiplier < math.inf)
    sampled = pays & (steps.rate < 1)
    others = ((steps.count > 0) & pays & ~own).any(axis=0)
    set_aside = others & (sampled & own).any(axis=0)
    rate = np.where(sampled & ~own, 1.0, steps.rate)
    count = np.where(own & set_aside, taken.first, steps.count)
    return TIGHT.epsilon(Steps(rate, steps.multiplier, count, steps.unit, steps.adjacency), delta)


def ladder(epsilon: Floats, delta: Floats) -> Ints:
    """Return (N, rungs) the Rényi orders of each client, as numbers in ORDERS: fixed by its budget alone.

    The orders lie at and below the best order of a Gaussian without sampling at (epsilon, delta): with
    sampling, lower orders are better. An order may occur twice, which does no harm.
    """
    budget = np.where(np.isinf(epsilon), BOUNDLESS, epsilon)[:, None]
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)[:, None]
    most = budget - np.log1p(-1 / ORDERS) + (log_delta + np.log(ORDERS)) / (ORDERS - 1)
    best = ORDERS[np.argmax(most / ORDERS, axis=1)]
    wanted = np.log(best - 1)[:, None] + np.log(RUNGS)
    middles = (np.log(ORDERS[1:] - 1) + np.log(ORDERS[:-1] - 1)) / 2
    return np.asarray(np.searchsorted(middles, wanted), dtype=np.int64)


def renyi_mixture(divergence: Floats, delta: Floats, ladder: Ints) -> Floats:
    """Return (N,) the epsilon at `delta` of adaptively chosen steps, from (N, orders) sums of divergences.

    A refused step is not taken and not added; a smaller one may follow.

    Proof (after Feldman and Zrnic 2021 and Lécuyer 2021, with a mixture in place of one order). Let S_j be
    the sum of the divergences at order a_j of the steps taken, and M the number of rungs. Let

        V(L) = delta W(L, S),    W(L, S) = 1/M sum_j exp((a_j - 1) (L - S_j)).

    (1) Given what was released before, the next step is one fixed sampled Gaussian, so exp((a_j - 1) L)
        grows under P by a factor of at most exp((a_j - 1) its divergence) on average, in both directions,
        as `curve` bounds both. What it is divided by is known before the step.
    (2) W = 1 where L = 0 and nothing was taken.
    (3) The epsilon given here is the least for which 1 - exp(epsilon - l) <= delta W(l, S) at every l.

    The orders have to be fixed before the first step: the best ones in hindsight are no such mean.

    A single order would give the conversion of Canonne, Kamath and Steinke 2020. The mean gives at most the
    least of their conversions over the rungs at delta / M each, and less where several rungs contribute.

    Guarantees:
        Never negative; 0 where nothing was spent; infinite where every rung is.
        Never above the least conversion over the rungs at delta / M.
        Never falls as divergences grow, and does not depend on the order of the steps.
    """
    rungs = ORDERS[ladder]
    total = np.take_along_axis(divergence, ladder, axis=1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = np.log(delta)[:, None] - math.log(ladder.shape[1])
        # epsilon is the largest l + log(1 - delta W(l)), which is concave; there sum_j a_j delta / M
        # exp((a_j - 1) (l - S_j)) = 1, and Newton's steps for its logarithm, which is convex, start above
        start = np.min(total - (share + np.log(rungs)) / (rungs - 1), axis=1)
        loss = start
        for _ in range(NEWTON):
            height, slope, _ = _derivative(loss, total, share, rungs)
            loss = loss - height / slope
        height, _, reach = _derivative(loss, total, share, rungs)
        left = np.expm1(height) / (1 - reach) * height / (rungs.min(axis=1) - 1)  # by the tangent at `loss`
        found = (loss + np.log1p(-reach) + left) * (1 + ROUNDING_UP)
    found = np.where(np.isfinite(start), np.maximum(found, 0.0), np.inf)
    return np.where((total == 0).all(axis=1), 0.0, found)


def _derivative(loss: Floats, total: Floats, share: Floats, rungs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return (N,) log of delta (W + dW/dl) at `loss`, (N,) its slope, and (N,) delta W."""
    logs = share + (rungs - 1) * (loss[:, None] - total)
    terms = np.exp(logs)
    weighed = rungs * terms
    together = weighed.sum(axis=1)
    return np.log(together), (weighed * (rungs - 1)).sum(axis=1) / together, terms.sum(axis=1)
