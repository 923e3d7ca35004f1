"""What a plan asks of its clients over rounds, by budget class, as arrays to draw."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discretion.plan import Plan
from discretion.population import Floats, Ints

ALIKE = 1e-3  # relative differences below this cannot be seen


@dataclass(frozen=True)
class OverTime:
    """One value for each stretch of rounds and each budget class; NaN where there is none."""

    start: Ints  # (S,) first round of each stretch
    last: int  # round
    cohort: Floats  # (S,) updates expected in a round
    rate: Floats  # (S, C) mean chance of taking part
    clip: Floats  # (S, C) median
    multiplier: Floats  # (S, C) median


def over_time(plan: Plan, member: Ints) -> OverTime:
    """Of (N,) clients in classes; medians are of those who can take part at all."""
    classes = int(member.max()) + 1
    ends = np.cumsum([phase.rounds for phase in plan.phases])
    cohort, rate, clip, multiplier = [], [], [], []
    for phase in plan.phases:
        cohort.append(float(phase.expected.sum()))
        sums = np.bincount(member, phase.expected, minlength=classes)
        rate.append(sums / np.bincount(member, minlength=classes))
        clip.append(_medians(phase.clip, phase.rate > 0, member))
        multiplier.append(_medians(plan.release(phase)[1], phase.rate > 0, member))
    return OverTime(
        start=np.concatenate([[1], ends[:-1] + 1]),
        last=int(ends[-1]),
        cohort=np.array(cohort),
        rate=np.array(rate),
        clip=np.array(clip),
        multiplier=np.array(multiplier),
    )


def _medians(column: Floats, taking: NDArray[np.bool_], member: Ints) -> Floats:
    """(C,)"""
    found = np.full(int(member.max()) + 1, np.nan)
    for k in range(len(found)):
        mine = column[(member == k) & taking & np.isfinite(column)]
        if mine.size:
            found[k] = np.median(mine)
    return found


def varies(values: Floats) -> bool:
    """Whether there is anything to see along the first axis."""
    known = values[:, ~np.isnan(values).any(axis=0)] if values.ndim == 2 else values[~np.isnan(values)]
    if not known.size:
        return False
    low, high = known.min(axis=0), known.max(axis=0)
    return bool(np.any(high - low > ALIKE * np.abs(high)))


def some(epsilon: Floats, size: Ints, most: int) -> Ints:
    """Clients of finite budget, in order of budget and size; evenly picked where there are too many."""
    order = np.lexsort([size, epsilon])
    order = order[np.isfinite(epsilon[order])]
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]
    return order
