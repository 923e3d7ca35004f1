"""Cross-check of a certificate by an independent accountant, Google's dp-accounting.

The certificate comes from the fast accountant `Pld`. Whoever trusts dp-accounting and this module need not
trust `Pld`: no client's budget is passed by more than the precision of two upper bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np

from discretion.accounting.certificate import Certificate, share_of, worst_of
from discretion.accounting.reference import Reference, countable
from discretion.accounting.renyi import Renyi
from discretion.arrays import Floats, Ints, distinct
from discretion.errors import BudgetError
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps

MOST_KINDS = 100  # kinds of clients, each with a cost of its own, that are counted again
RELATIVE, ABSOLUTE = 5e-3, 2e-3  # how far two upper bounds, on grids of their own, may be apart
MOST = 0.02  # share of a small epsilon that they may be apart, in place of `ABSOLUTE`
MANY = 32  # different steps of a client, from which on steps with nearly equal noise are counted as equal
LEVEL = 1.002  # ratio of the noise multipliers that they are rounded down to


@dataclass(frozen=True)
class CrossCheck:
    """What the independent accountant counted. `counted` is less than `kinds` where a sample had to do."""

    accountant: str  # name and version
    counted: int  # kinds of clients that were counted again
    kinds: int  # kinds of clients there are, of those with something to keep: a finite epsilon
    difference: float  # largest share by which the two accountants differ; 0 where nothing was counted


def cross_check(plan: Plan, population: Population, certificate: Certificate) -> CrossCheck:
    """Count what the plan charges each kind of client again, by dp-accounting; raise where that is too much.

    What a plan charges is no less than what any promised adversary learns (`Plan.release`). Of very many
    kinds of clients a sample is counted (`kinds_of`).

    Guarantees:
        Raises `BudgetError` if, for a client that is counted, dp-accounting's epsilon exceeds the one that
        the certificate says is spent by more than `precision`. An infinite epsilon is not checked.
        Epsilons against single adversaries, which are no more than that if promised, are left to `verify`.
        Nothing is counted where a fixed number of clients is sampled: dp-accounting has no tight bound there.
        Rounding that saves time never understates an epsilon, and an excess is reported only if it is there
        without rounding.
    """
    steps = plan.steps()
    bounded = np.flatnonzero(np.isfinite(certificate.spent) & np.isfinite(population.epsilon))
    chosen, kinds = kinds_of([steps], population, certificate, among=bounded)
    can = countable(steps.of(chosen), population.delta[chosen])
    chosen = chosen[can & (plan.sampling != "fixed_size")]
    limit = certificate.spent[chosen]
    most = limit + precision(limit)
    again = _counted(steps.of(chosen), population.delta[chosen], most)
    over = np.flatnonzero(~(again <= most))
    if len(over):
        worst = over[np.argmax(again[over] / limit[over])]
        client = chosen[worst]
        raise BudgetError(
            f"{plan.method}: dp-accounting contradicts the certificate for {len(over)} of {len(chosen)} "
            f"kinds of clients; worst is client {population.client[client]}: found epsilon "
            f"{again[worst]:.6g}, expected at most {limit[worst]:.6g} at delta "
            f"{population.delta[client]:g}. Nothing was spent. One of the accountants is wrong: please "
            "report this plan as a privacy bug."
        )
    apart = np.abs(again - limit) / np.where(limit > 0, limit, 1.0)
    name = f"{Reference.name} {version('dp-accounting')}"
    return CrossCheck(name, len(chosen), kinds, float(np.max(apart, initial=0.0)))


def precision(limit: Floats) -> Floats:
    """Return how far above `limit` one upper bound may lie where another upper bound is within it."""
    return limit * RELATIVE + np.minimum(ABSOLUTE, MOST * limit)


def kinds_of(
    costs: Sequence[Steps],
    population: Population,
    certificate: Certificate,
    *,
    every: bool = False,
    among: Ints | None = None,
    apart: Sequence[Floats] = (),
) -> tuple[Ints, int]:
    """Return the numbers of one client of each kind, or of a sample of kinds, and how many kinds there are.

    Kinds differ in a cost, in delta, in budget, in an epsilon of the certificate or in a column of `apart`.
    The sample, taken of more than `MOST_KINDS` kinds unless `every` one is asked for, has those that use most
    of their budgets, by the certificate and by Rényi accounting, which shares no code with the accountant to
    be checked, and the worst client of each budget class. `among` has the numbers of the clients to look at;
    by default, all.
    """
    clients = np.arange(len(population)) if among is None else among
    rows = [column for s in costs for column in (*s.rate, *s.multiplier, *s.count.astype(np.float64))]
    rows += [population.delta, population.epsilon, *certificate.epsilon.values(), *apart]
    member = distinct(np.stack(rows)[:, clients])[1]
    first = clients[np.unique(member, return_index=True)[1]]
    if every or len(first) <= MOST_KINDS:
        return first, len(first)
    renyi = [Renyi().epsilon(cost.of(first), population.delta[first]) for cost in costs]
    share = share_of(np.maximum.reduce(renyi), population.epsilon[first])
    by_share = np.argsort(-certificate.share[first], kind="stable")[:MOST_KINDS]
    by_renyi = np.argsort(-share, kind="stable")[: MOST_KINDS // 2]
    worst = first[np.union1d(by_share, by_renyi)]
    of_class = clients[worst_of(population.classes()[1][clients], certificate.share[clients])]
    return np.union1d(worst, of_class), len(first)


def _counted(steps: Steps, delta: Floats, most: Floats) -> Floats:
    """Return (K,) upper bounds on epsilon by dp-accounting, as tight as it takes to be within (K,) `most`."""
    if len(steps) <= MANY:
        return Reference().epsilon(steps, delta)
    with np.errstate(divide="ignore"):
        level = LEVEL ** np.floor(np.log(steps.multiplier) / np.log(LEVEL))
    fewer = replace(steps, multiplier=np.minimum(level, steps.multiplier))
    found = Reference().epsilon(fewer, delta, enough=most)
    over = np.flatnonzero(~(found <= most))
    found[over] = Reference().epsilon(steps.of(over), delta[over])
    return found
