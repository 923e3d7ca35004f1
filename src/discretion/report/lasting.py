"""When budgets run out: after which round how much is spent, and how long a plan could go on as it ends."""

from dataclasses import dataclass, replace

import numpy as np

from discretion.accounting import Pld
from discretion.plan import Plan
from discretion.report.groups import BudgetClass, Group

LONGEST = 10  # times the plan: beyond that it is said to last longer
USED_UP = 0.98  # of a budget: a plan that uses so much of it ends with it
NEAR = 0.01  # relative, of the round that is found


@dataclass(frozen=True)
class Lasting:
    """Of one budget class, its client that uses most of its budget."""

    half: int | None  # the first round after which half of the budget is spent; None: never
    most: int | None  # and nine tenths
    out: int | None  # the last round that the budget would allow; None: longer than is looked for
    known: bool  # whether `out` was looked for: not where turns are public, or a fixed number is drawn


def lasting(part: Group) -> list[Lasting]:
    """For each budget class of a group with finite epsilons, by its first run."""
    found = []
    for k, mine in enumerate(part.classes):
        half, most, plan = _first(mine, 0.5), _first(mine, 0.9), part.first.plan
        known = not part.first.treatment.public and plan.sampling == "poisson"
        ends = not known or mine.curve[-1] >= USED_UP * mine.budget
        found.append(Lasting(half, most, plan.rounds if ends else _longest(part, k), known))
    return found


def _first(mine: BudgetClass, share: float) -> int | None:
    reached = np.flatnonzero(mine.curve >= share * mine.budget)
    return mine.rounds[reached[0]] if len(reached) else None


def _longest(part: Group, k: int) -> int | None:
    run = part.first
    client = run.worst[[k]]
    delta, budget = run.population.delta[client], float(run.population.epsilon[client][0])
    plan = _going_on(run.plan)

    def within(rounds: int) -> bool:
        return bool(Pld().epsilon(plan.steps(rounds).of(client), delta)[0] <= budget)

    low, high = run.plan.rounds, plan.rounds
    if within(high):
        return None
    if not within(low):
        return low
    while high - low > max(1, NEAR * low):
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _going_on(plan: Plan) -> Plan:
    """The plan with its last phase over and over."""
    last = plan.phases[-1]
    longer = replace(last, rounds=last.rounds + (LONGEST - 1) * plan.rounds)
    return replace(plan, phases=(*plan.phases[:-1], longer))
