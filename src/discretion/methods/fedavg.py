"""FedAvg: federated averaging without privacy, the ceiling that private methods are measured against.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-efficient learning of deep networks
from decentralized data", AISTATS 2017, Algorithm 1. In each round an independent coin decides for each
client whether it takes part; the server averages the updates as they are.
Departs from the paper: clients count equally, because they do in the private methods it is compared with.
"""

import math

import numpy as np

from discretion.methods.parameters import Rate, Rounds
from discretion.methods.registry import method
from discretion.plan import Phase, Plan, Population


@method(
    title="FedAvg",
    idea="Plain averaging without clip or noise: the ceiling that private methods aim at.",
    paper="McMahan et al., AISTATS 2017",
    reads="nothing",
    unit="none",
    noise_at=None,
    promise=None,
    order=0,
)
def fedavg(population: Population, rounds: Rounds, rate: Rate) -> Plan:
    everyone = np.ones(len(population))
    phase = Phase.one_pool(rounds, rate * everyone, math.inf * everyone, noise=0.0)
    return Plan("fedavg", population.client, (phase,))
