"""IDP-FedAvg: one noise for all, and for each client the clip or the rate that its own budget allows.

Boenisch, Mühl, Dziedzic, Rinberg and Papernot, "Have it your way: individualized privacy assignment for
DP-SGD", NeurIPS 2023, brought to clients as Algorithm 5 of Kiani et al. 2025. A generous client may be
clipped at a larger norm (`plan_by_clip`) or take part more often (`plan_by_rate`) under the same noise.
Departs from the papers: calibrated by PLD, so that each client's whole budget is used; in paper mode by
Opacus.
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.methods.parts import ACCOUNTANTS, finite
from discretion.phase import Phase
from discretion.plan import Accounting, Plan
from discretion.population import Population
from discretion.problems import pool


def plan_by_clip(
    population: Population, rounds: int, rate: float, clip: float, accounting: Accounting = "tight"
) -> Plan:
    """rounds: how many; rate: each client's chance of taking part in one; clip: mean of the clips;
    accounting: tight or paper."""
    rates, accountant = np.full(len(population), rate), ACCOUNTANTS[accounting]
    # SetPrivacyParams of Algorithm 5: sigma_n for each budget, their harmonic mean sigma,
    # and c_n = c sigma / sigma_n, so that the clips have the mean c
    sigmas = noise_multiplier(finite(population.epsilon), population.delta, rates, rounds, accountant)
    sigma = float(1 / np.mean(1 / sigmas))
    return Plan(
        method="idp_fedavg",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rates, clip * sigma / sigmas, noise=clip * sigma),),
        accounting=accounting,
    )


def plan_by_rate(
    population: Population, rounds: int, rate: float, clip: float, accounting: Accounting = "tight"
) -> Plan:
    """rounds: how many; rate: mean of the clients' rates; clip: bound on every update;
    accounting: tight or paper."""
    rates, sigma = pool.rates(
        finite(population.epsilon), population.delta, rounds, rate, ACCOUNTANTS[accounting]
    )
    clips = np.full(len(population), clip)
    return Plan(
        method="idp_fedavg_sampling",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rates, clips, clip * sigma),),
        accounting=accounting,
    )
