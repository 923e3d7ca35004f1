"""DP-FedAvg: one clip and one noise for all, strong enough for the strictest budget.

McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models", ICLR 2018;
Algorithm 4 of Kiani et al. 2025. Updates are clipped to the same norm, summed, and the server adds noise.
Departs from the paper: the noise is calibrated by PLD, at the smallest epsilon and the smallest delta; in
paper mode by Opacus.
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.methods.parts import ACCOUNTANTS
from discretion.phase import Phase
from discretion.plan import Accounting, Plan
from discretion.population import Population


def plan(
    population: Population, rounds: int, rate: float, clip: float, accounting: Accounting = "tight"
) -> Plan:
    """rounds: how many; rate: each client's chance of taking part in one; clip: bound on an update;
    accounting: tight or paper."""
    everyone = np.ones(len(population))
    strictest = population.epsilon.min(keepdims=True), population.delta.min(keepdims=True)
    sigma = noise_multiplier(*strictest, np.array([rate]), rounds, ACCOUNTANTS[accounting])[0]
    return Plan(
        method="dp_fedavg",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rate * everyone, clip * everyone, noise=clip * sigma),),
        accounting=accounting,
    )
