"""Rounds that a budget allows by the planned and by the adaptive rule of a ledger, for docs/privacy.md.

Run: python benchmarks/filters.py
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from discretion.accounting import filter, most_rounds, renyi
from discretion.arrays import Ints
from discretion.plan.steps import Steps

Setting = tuple[float, float, float, float]  # budget, delta, sampling rate and noise multiplier
SETTINGS: list[Setting] = [
    (1.0, 1e-5, 1.0, 30.0),
    (4.0, 1e-5, 1.0, 30.0),
    (8.0, 1e-9, 1.0, 30.0),
    (1.0, 1e-5, 0.02, 1.5),
    (4.0, 1e-5, 0.02, 1.5),
    (8.0, 1e-5, 0.02, 1.5),
    (2.0, 1e-5, 0.1, 2.0),
    (8.0, 1e-5, 0.1, 1.0),
    (4.0, 1e-6, 0.3, 2.0),
    (16.0, 1e-5, 0.3, 2.0),
    (8.0, 1e-9, 0.01, 0.8),
    (1.0, 1e-6, 0.001, 0.7),
    (0.1, 1e-6, 0.001, 2.0),
]


def allows(setting: Setting, counts: Ints, first: int) -> bool:
    """By the adaptive rule: steps of a first plan of `first` steps, and of another plan."""
    epsilon, delta, rate, multiplier = setting
    rates, multipliers = np.full((2, 1), rate), np.full((2, 1), multiplier)
    taken = filter.Taken(Steps(rates, multipliers, counts[:, None]), np.array([[first], [0]]))
    budgets, deltas = np.array([epsilon]), np.array([delta])
    share = filter.shares(taken, budgets, deltas)
    rest = (1 - share) * deltas
    by_renyi = filter.renyi_mixture(renyi.divergence(taken.steps), rest, filter.ladder(budgets, rest))
    return bool(np.minimum(filter.tight(taken, share * deltas), by_renyi)[0] <= epsilon)


def allows_many(setting: Setting, rounds: int) -> bool:
    """As many rounds, of which only the first is of the first plan."""
    return allows(setting, np.array([1, rounds - 1]), 1)


def most(allowed: Callable[[int], bool], high: int) -> int:
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def main() -> None:
    print("| epsilon | delta | rate | multiplier | planned | adaptive: first plan | adaptive: later plans |")
    print("|---|---|---|---|---|---|---|")
    for setting in SETTINGS:
        epsilon, delta, rate, multiplier = setting
        planned = most_rounds(epsilon, delta, rate, multiplier)
        first = planned if allows(setting, np.array([planned, 0]), planned) else 0
        later = most(partial(allows_many, setting), planned + 1)
        shares = [f"{n} ({n / planned:.0%})" for n in (first, later)]
        print(f"| {epsilon:g} | {delta:g} | {rate:g} | {multiplier:g} | {planned} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
