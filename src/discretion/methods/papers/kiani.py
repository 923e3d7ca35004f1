"""Cost of a client that saves budget in early rounds, by Kiani et al., "Differentially private federated
learning with time-adaptive privacy spending" (2025).
"""

from dataclasses import dataclass

import numpy as np

from discretion.accounting.renyi import convert
from discretion.accounting.solve import noise_multiplier
from discretion.arrays import Floats, Ints
from discretion.methods.papers.opacus import ORDERS, Opacus, curve
from discretion.plan.steps import Steps


@dataclass(frozen=True, eq=False)
class Saving:
    """Schedule of clients that take part at a saving rate until round T_n, then at the spending rate."""

    rounds: int  # T
    rate: Floats  # (N,) q, the spending rate, on which all noise is based
    saving_rate: Floats  # (N,) q_n
    spend_from: Ints  # (N,) T_n, counted from 1

    def rates(self) -> Floats:
        """Return the (T, N) rates q_n^t."""
        saves = np.arange(1, self.rounds + 1)[:, None] < self.spend_from
        return np.where(saves, self.saving_rate, self.rate)


def set_privacy_params(saving: Saving, epsilon: Floats, delta: Floats) -> Steps:
    """Return rates and noise multipliers of every round: SetPrivacyParams of Algorithm 1.

    Defects: as printed, what is left is divided among T - t rounds, so that round T has no noise; here among
    T - t + 1, as in the text. Line 8 subtracts one converted epsilon from another, so the offset of the
    conversion is paid twice and about a sixth of a budget is never spent.
    """
    rates, multipliers = saving.rates(), []
    divergence = np.zeros((len(epsilon), len(ORDERS)))
    left = epsilon
    for t, rate in enumerate(rates):
        multipliers.append(noise_multiplier(left, delta, saving.rate, saving.rounds - t, Opacus()))  # line 4
        divergence += curve(rate, multipliers[-1])  # lines 6 and 7
        left = epsilon - convert(divergence, delta, ORDERS)  # line 8
    return Steps(rates, np.array(multipliers), np.ones(saving.rounds, dtype=np.int64))


def common_multiplier(multiplier: Floats) -> Floats:
    """Return (...,) sigma^t, the harmonic mean over clients (line 10)."""
    return np.asarray(1 / np.mean(1 / multiplier, axis=-1))


def clips(multiplier: Floats, clip: float) -> Floats:
    """Return (..., N) c_n^t = c sigma^t / sigma_n^t (line 12), with the mean c.

    Defect: the text clips each layer to c_n^t by itself, so that m layers move the sum by sqrt(m) c_n^t.
    """
    return clip * common_multiplier(multiplier)[..., None] / multiplier
