"""Adaptive clipping: one clip for all, which follows a quantile of the updates' norms.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially private learning with adaptive clipping", NeurIPS
2021, as the baseline of Kiani et al. 2025. Each update comes with a bit that says whether it was within the
clip; the noisy share of such updates moves the clip, and the noise with it.
Departs from the papers: bits are centred, +1/2 or -1/2, without which they cost twice as much as charged;
coins instead of a fixed number of clients; noise by PLD at the strictest budget, in paper mode by Opacus.
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.methods.parts import ACCOUNTANTS
from discretion.phase import Clipping, Phase, Quantile
from discretion.plan import Accounting, Plan
from discretion.population import Population


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    quantile: float = 0.5,
    clip_learning_rate: float = 0.2,
    bit_noise: float = 0.05,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: each client's chance of taking part in one; clip: where the clip starts;
    quantile: of the norms, that it follows; clip_learning_rate: how fast; bit_noise: on the share of
    clients within the clip; accounting: tight or paper."""
    everyone = np.ones(len(population))
    strictest = population.epsilon.min(keepdims=True), population.delta.min(keepdims=True)
    whole = noise_multiplier(*strictest, np.array([rate]), rounds, ACCOUNTANTS[accounting])[0]
    # sigma = (sigma_whole^-2 - (2 sigma_b)^-2)^(-1/2): the bit and the update together cost the budget; the
    # bit gets at least as much noise as leaves a tenth of the cost to it
    bit = max(bit_noise * rate * len(population), whole / 2 * np.sqrt(10))
    sigma = 1 / np.sqrt(whole**-2.0 - (2 * bit) ** -2.0)
    return Plan(
        method="adaptive_clipping",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rate * everyone, clip * everyone, noise=clip * sigma),),
        clipping=Clipping(quantile=Quantile(quantile, clip_learning_rate, float(bit))),
        accounting=accounting,
    )
