"""FedAvg: no privacy, the ceiling that private methods are measured against.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-efficient learning of deep networks
from decentralized data", AISTATS 2017. Each round a coin decides for each client whether it takes part;
the server averages the updates as they are.
Departs from the paper: clients count equally, as in the private methods it is compared with.
"""

import math

import numpy as np

from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population


def plan(population: Population, rounds: int, rate: float) -> Plan:
    """rounds: how many; rate: each client's chance of taking part in one."""
    everyone = np.ones(len(population))
    return Plan(
        method="fedavg",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rate * everyone, math.inf * everyone, noise=0.0),),
    )
