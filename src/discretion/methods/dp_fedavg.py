"""DP-FedAvg: one clip and one noise for all, strong enough for the strictest budget.

McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models", ICLR 2018;
Algorithm 4 of Kiani et al. 2025. Updates are clipped to the same norm, summed, and the server adds noise.
Departs from the paper: the noise is calibrated by PLD, at the smallest epsilon and the smallest delta.
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population


def plan(population: Population, rounds: int, rate: float, clip: float) -> Plan:
    """rounds: how many; rate: each client's chance of taking part in one; clip: bound on an update."""
    everyone = np.ones(len(population))
    strictest = population.epsilon.min(keepdims=True), population.delta.min(keepdims=True)
    sigma = noise_multiplier(*strictest, np.array([rate]), rounds)[0]
    return Plan(
        method="dp_fedavg",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rate * everyone, clip * everyone, noise=clip * sigma),),
        parameters={"rounds": rounds, "rate": rate, "clip": clip},
    )
