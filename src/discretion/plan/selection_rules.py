"""Rules that select clients by a statistic of their data, which is declared and charged for.

Each rule sees one (noisy) statistic of each client asked, divided by the client's public number of records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import PlanError
from discretion.plan.phase import LARGEST, SMALLEST

Rule = Literal["largest_loss", "norm", "class_balance", "diversity"]

# what a rule reads of the clients' data
READS: dict[Rule, str] = {
    "largest_loss": "the loss of every record",
    "norm": "the norm of the clients' gradients",
    "class_balance": "the labels",
    "diversity": "the norm of the clients' gradients, and how much they vary",
}
# how many numbers of a statistic one record can change, each by `bound` at most
NUMBERS: dict[Rule, float] = {"largest_loss": 1, "norm": 1, "class_balance": 1, "diversity": 2}
LEAST = 1e-6  # lower limit for statistics: noise may make them negative


@dataclass(frozen=True)
class Reading:
    """How the clients that train are selected among the clients asked."""

    rule: Rule
    choose: int  # number of clients that train
    bound: float  # clipping bound on what one record adds to each number of the statistic

    def __post_init__(self) -> None:
        if self.rule not in READS or self.choose < 1 or not SMALLEST <= self.bound <= LARGEST:
            raise PlanError(
                f"invalid reading: found {self}; expected a rule of {', '.join(READS)}, at least 1 client to "
                f"choose, and a bound from {SMALLEST:g} to {LARGEST:g}"
            )

    @property
    def sensitivity(self) -> float:
        """Sensitivity: how far one record can move the statistic in L2 norm."""
        return self.bound * float(np.sqrt(NUMBERS[self.rule]))

    def pick(self, statistic: Floats, coins: Floats) -> tuple[Ints, Floats]:
        """Return the numbers of the (k, m) statistic's rows that train, and their weights, 1 on average."""
        if len(statistic) <= self.choose:
            return np.arange(len(statistic)), np.ones(len(statistic))
        return _RULES[self.rule](statistic, self.choose, coins)


def _largest(statistic: Floats, choose: int, _: Floats) -> tuple[Ints, Floats]:
    """Select the clients with the largest mean loss: power of choice (Cho, Wang and Joshi 2022)."""
    picked = np.sort(np.argsort(-statistic[:, 0], kind="stable")[:choose])
    return picked, np.ones(choose)


def _by_norm(statistic: Floats, choose: int, coins: Floats) -> tuple[Ints, Floats]:
    """Select by coins of p ~ norm, weighted by 1/p (Chen, Horváth and Richtárik 2022)."""
    p = optimal_chances(np.maximum(statistic[:, 0], LEAST), choose)
    picked = np.flatnonzero(coins < p)
    return picked, choose / len(p) / p[picked]


def optimal_chances(norm: Floats, expected: int) -> Floats:
    """Return (k,) probabilities that sum to `expected`: proportional to the norm, and at most 1.

    With norms in ascending order and n clients, l is the largest with 0 < m + l - n <= sum_(j<=l) norm_j /
    norm_l; then p_i = (m + l - n) norm_i / sum_(j<=l) norm_j for i <= l, and 1 for the others.
    """
    order = np.argsort(norm, kind="stable")
    rising, count = norm[order], len(norm)
    total = np.cumsum(rising)
    left = expected + np.arange(1, count + 1) - count
    last = int(np.flatnonzero((left > 0) & (left <= total / rising))[-1])
    p = np.ones(count)
    p[order[: last + 1]] = left[last] * rising[: last + 1] / total[last]
    return np.minimum(p, 1.0)


def _by_balance(statistic: Floats, choose: int, coins: Floats) -> tuple[Ints, Floats]:
    """Select one client after the other, likelier the better it balances the classes (Zhang et al. 2023).

    The (i + 1)-th client is drawn in proportion to QCID(before)^i / QCID(with the client)^(i + 1), where QCID
    is the squared distance of the classes' shares from even shares.
    """
    counts = np.maximum(statistic, LEAST)
    total, left = np.zeros(counts.shape[1]), np.arange(len(counts))
    for i in range(choose):
        mixed = total + counts[left]
        share = mixed / mixed.sum(axis=1, keepdims=True)
        imbalance = np.square(share - 1 / counts.shape[1]).sum(axis=1) + LEAST
        chance = np.cumsum((imbalance.min() / imbalance) ** (i + 1.0))
        at = int(np.searchsorted(chance[:-1] / chance[-1], coins[i], side="right"))
        total += counts[left[at]]
        left = np.delete(left, at)
    return np.setdiff1d(np.arange(len(counts)), left), np.ones(choose)


def _by_diversity(statistic: Floats, choose: int, coins: Floats) -> tuple[Ints, Floats]:
    """Draw by sqrt(gradient norm² + local variance), with inverse weights: DELTA (Wang et al. 2023)."""
    norm, square = np.maximum(statistic, LEAST).T
    x = np.sqrt(norm**2 + np.maximum(square - norm**2, 0.0))
    x /= x.sum()
    drawn = np.searchsorted(np.cumsum(x)[:-1], coins[:choose], side="right")
    picked, times = np.unique(drawn, return_counts=True)
    return picked, times / (len(x) * x[picked])


_RULES: dict[Rule, Callable[[Floats, int, Floats], tuple[Ints, Floats]]] = {
    "largest_loss": _largest,
    "norm": _by_norm,
    "class_balance": _by_balance,
    "diversity": _by_diversity,
}
