"""Rules that pick who trains by something of the clients' data: what they read is declared, and paid for.

Each rule sees one (noisy) statistic for each client asked, divided by the client's public number of records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.errors import PlanError
from discretion.phase import LARGEST, SMALLEST
from discretion.population import Floats, Ints

Rule = Literal["largest_loss", "norm", "class_balance", "diversity"]

# what a rule reads of each record, and so what one record more or less can change: `bound` times this
READS: dict[Rule, str] = {
    "largest_loss": "the loss of every record",
    "norm": "the norm of the clients' gradients",
    "class_balance": "the labels",
    "diversity": "the norm of the clients' gradients, and how much they vary",
}
NUMBERS: dict[Rule, float] = {"largest_loss": 1, "norm": 1, "class_balance": 1, "diversity": 2}
LEAST = 1e-6  # what a statistic counts at least: noise may make it negative


@dataclass(frozen=True)
class Reading:
    """How those who train are picked among those asked."""

    rule: Rule
    choose: int  # how many train
    bound: float  # on what one record adds to each number of the statistic

    def __post_init__(self) -> None:
        if self.rule not in READS or self.choose < 1 or not SMALLEST <= self.bound <= LARGEST:
            raise PlanError(
                f"a rule that reads is one of {', '.join(READS)}; it picks at least 1 client, and what a "
                f"record adds is bounded by a number from {SMALLEST:g} to {LARGEST:g}"
            )

    @property
    def sensitivity(self) -> float:
        """How far one record can move the whole statistic."""
        return self.bound * float(np.sqrt(NUMBERS[self.rule]))

    def pick(self, statistic: Floats, coins: Floats) -> tuple[Ints, Floats]:
        """Which of the (k, m) rows train, and how much each counts: 1 on average."""
        if len(statistic) <= self.choose:
            return np.arange(len(statistic)), np.ones(len(statistic))
        return _RULES[self.rule](statistic, self.choose, coins)


def _largest(statistic: Floats, choose: int, _: Floats) -> tuple[Ints, Floats]:
    """Power of choice (Cho, Wang and Joshi 2022): those with the largest mean loss."""
    picked = np.sort(np.argsort(-statistic[:, 0], kind="stable")[:choose])
    return picked, np.ones(choose)


def _by_norm(statistic: Floats, choose: int, coins: Floats) -> tuple[Ints, Floats]:
    """Optimal client sampling (Chen, Horváth and Richtárik 2022): a coin of p ~ norm, weighted by 1/p."""
    p = optimal_chances(np.maximum(statistic[:, 0], LEAST), choose)
    picked = np.flatnonzero(coins < p)
    return picked, choose / len(p) / p[picked]


def optimal_chances(norm: Floats, expected: int) -> Floats:
    """(k,) chances that sum to `expected`: proportional to the norm, but for those that would pass 1.

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
    """Fed-CBS (Zhang et al. 2023): one after the other, likelier the better it balances the classes.

    The (i + 1)-th client is drawn in proportion to QCID(before)^i / QCID(with it)^(i + 1), where QCID is the
    squared distance of the classes' shares from even ones.
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
    """DELTA (Wang et al. 2023): draws by sqrt(gradient norm² + local variance), weighted for that."""
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
