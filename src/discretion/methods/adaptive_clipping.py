"""Adaptive clipping: one clip for all clients, which follows a quantile of the updates' norms.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially private learning with adaptive clipping", NeurIPS
2021, Algorithm 1, as the baseline of Kiani et al. 2025. Each update comes with a bit that says whether its
norm was within the clip; the noisy share of such updates moves the clip, and the noise with it.
Departs from the papers: bits are centred, +1/2 or -1/2, because bits of 0 and 1 cost twice as much as is
charged; an independent coin decides for each client, because a fixed number of clients cannot be accounted
for; noise is calibrated by PLD at the strictest budget, in paper mode by the accountant of Opacus.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.accounting import noise_multiplier
from discretion.methods.parameters import Accounting, Positive, Rate, Rounds
from discretion.methods.parts import ACCOUNTANTS
from discretion.methods.registry import server_noise_method
from discretion.plan import Plan, Population
from discretion.plan.phase import Clipping, Phase, Quantile


@server_noise_method(
    title="Adaptive clipping",
    idea="DP-FedAvg with a clip that follows a quantile of the updates' norms.",
    paper="Andrew et al., NeurIPS 2021",
    reads="the strictest budget",
    order=201,
)
def adaptive_clipping(
    population: Population,
    rounds: Rounds,
    rate: Rate,
    clip: Annotated[Positive, Field(description="clip of the first round (initial clipping norm)")],
    quantile: Annotated[
        float, Field(gt=0, lt=1, description="quantile of the updates' norms that the clip follows")
    ] = 0.5,
    clip_learning_rate: Annotated[
        Positive, Field(description="how fast the clip follows the quantile")
    ] = 0.2,
    bit_noise: Annotated[
        Positive, Field(description="noise on the share of clients within the clip, at least")
    ] = 0.05,
    accounting: Accounting = "tight",
) -> Plan:
    everyone = np.ones(len(population))
    strictest = float(population.epsilon.min()), float(population.delta.min())
    whole = noise_multiplier(*strictest, rate, rounds, ACCOUNTANTS[accounting])
    # sigma = (sigma_whole^-2 - (2 sigma_b)^-2)^(-1/2): the bit and the update together cost the budget; the
    # bit gets at least the noise at which it costs no more than a tenth of the whole
    bit = max(bit_noise * rate * len(population), whole / 2 * np.sqrt(10))
    sigma = 1 / np.sqrt(whole**-2.0 - (2 * bit) ** -2.0)
    phase = Phase.one_pool(rounds, rate * everyone, clip * everyone, noise=clip * sigma)
    clipping = Clipping(quantile=Quantile(quantile, clip_learning_rate, float(bit)))
    return Plan("adaptive_clipping", population.client, (phase,), clipping=clipping, accounting=accounting)
