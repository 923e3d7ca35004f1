"""What Kiani et al. charge a client that saves budget in early rounds, "Differentially private
federated learning with time-adaptive privacy spending" (2025).
"""

from dataclasses import dataclass

import numpy as np

from discretion.accounting.papers.opacus import ORDERS, Opacus, curve
from discretion.accounting.renyi import convert
from discretion.accounting.solve import noise_multiplier
from discretion.population import Floats, Ints
from discretion.steps import Steps


@dataclass(frozen=True, eq=False)
class Saving:
    """Until round T_n a client takes part at its saving rate, from then on at the spending rate."""

    rounds: int  # T
    rate: Floats  # (N,) q, the spending rate, on which all noise is based
    saving_rate: Floats  # (N,) q_n
    spend_from: Ints  # (N,) T_n, counted from 1

    def rates(self) -> Floats:
        """(T, N) q_n^t."""
        return np.where(self._saves(), self.saving_rate, self.rate)

    def part(self) -> Floats:
        """(T, N) the part of a round's share that is spent, by the paper: (q_n / q)² while saving.

        Defect: divergence grows like q² only for small rates and much noise, not at q = 0.9: while saving,
        a client spends more than this.
        """
        return np.where(self._saves(), (self.saving_rate / self.rate) ** 2, 1.0)

    def _saves(self) -> np.ndarray:
        return np.arange(1, self.rounds + 1)[:, None] < self.spend_from


def set_privacy_params(saving: Saving, epsilon: Floats, delta: Floats, literal: bool = False) -> Steps:
    """Rates and noise multipliers of every round: SetPrivacyParams of Algorithm 1.

    Defects: `literal` divides what is left among T - t rounds as printed, and so has no noise for round T,
    which is left out here; otherwise T - t + 1, as in the text. Line 8 subtracts one converted epsilon from
    another, so the offset of the conversion is paid twice and about a sixth of a budget is never spent.
    """
    noisy = saving.rounds - 1 if literal else saving.rounds
    rates, multipliers = saving.rates()[:noisy], []
    divergence = np.zeros((len(epsilon), len(ORDERS)))
    left = epsilon
    for t, rate in enumerate(rates):
        multipliers.append(noise_multiplier(left, delta, saving.rate, noisy - t, Opacus()))  # line 4
        divergence += curve(rate, multipliers[-1])  # lines 6 and 7
        left = epsilon - convert(divergence, delta, ORDERS)  # line 8
    return Steps(rates, np.array(multipliers), np.ones(noisy, dtype=np.int64))


def spending(saving: Saving) -> Floats:
    """(T, N) the share of the budget spent in each round, by the recursion (1)."""
    return _allotted(saving) * saving.part()


def _allotted(saving: Saving) -> Floats:
    """(T, N) the share that a round at the spending rate would cost: an even part of what is left."""
    shares = []
    left = np.ones(len(saving.rate))
    for t, part in enumerate(saving.part(), start=1):
        shares.append(left / (saving.rounds - t + 1))
        left = left - shares[-1] * part
    return np.array(shares)


def spending_closed_form(saving: Saving) -> Floats:
    """(T, N) the same by Lemma 1. Never falls (Theorem 1)."""
    total, square = saving.rounds, (saving.saving_rate / saving.rate) ** 2
    i = np.arange(1, total)[:, None]
    shares = []
    for t, part in enumerate(saving.part(), start=1):
        last = np.minimum(t, saving.spend_from)  # (N,) no more is saved from there on
        kept = np.where(i < last, 1 - square / (total - last + 1 + i), 1.0).prod(axis=0)
        shares.append(kept * part / (total - last + 1))
    return np.array(shares)


def noise_by_lemma_4(saving: Saving, multiplier: Floats) -> Steps:
    """Each round's noise where divergence is taken as 2 a q² / sigma², as in section 4.1.

    `multiplier` (N,) is what equal rounds at the spending rate would need. Defect: see `Saving.part`; the
    budget is overspent by some per cent.
    """
    noise = multiplier / np.sqrt(saving.rounds * _allotted(saving))
    return Steps(saving.rates(), noise, np.ones(saving.rounds, dtype=np.int64))


def common_multiplier(multiplier: Floats) -> Floats:
    """(...,) sigma^t, the harmonic mean over clients (line 10)."""
    return np.asarray(1 / np.mean(1 / multiplier, axis=-1))


def clips(multiplier: Floats, clip: float) -> Floats:
    """(..., N) c_n^t = c sigma^t / sigma_n^t (line 12), with the mean c.

    Defect: the text clips each layer to c_n^t by itself, so that m layers move the sum by sqrt(m) c_n^t.
    """
    return clip * common_multiplier(multiplier)[..., None] / multiplier
