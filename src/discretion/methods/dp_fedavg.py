"""DP-FedAvg: one clip and one noise for all clients, strong enough for the strictest budget.

McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models", ICLR 2018,
Algorithm 1; Algorithm 4 of Kiani et al. 2025. All updates are clipped to the same norm and summed, and the
server adds noise.
Departs from the paper: the noise is calibrated by PLD at the smallest epsilon and the smallest delta, because
that is the least noise that keeps every budget; in paper mode by the Rényi accountant of Opacus.
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.methods.parameters import Accounting, Rate, Rounds, UpdateClip
from discretion.methods.parts import ACCOUNTANTS
from discretion.methods.registry import server_noise_method
from discretion.plan import Phase, Plan, Population


@server_noise_method(
    title="DP-FedAvg",
    idea="One clip and one noise, strong enough for the strictest client.",
    paper="McMahan et al., ICLR 2018",
    reads="the strictest budget",
    order=200,
)
def dp_fedavg(
    population: Population, rounds: Rounds, rate: Rate, clip: UpdateClip, accounting: Accounting = "tight"
) -> Plan:
    everyone = np.ones(len(population))
    strictest = float(population.epsilon.min()), float(population.delta.min())
    sigma = noise_multiplier(*strictest, rate, rounds, ACCOUNTANTS[accounting])
    phase = Phase.one_pool(rounds, rate * everyone, clip * everyone, noise=clip * sigma)
    return Plan("dp_fedavg", population.client, (phase,), accounting=accounting)
