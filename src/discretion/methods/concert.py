"""Concert: all clients in one sum under one noise, each as often and as loudly as its own budget allows.

Discretion's own method; see docs/method.md. The noise of a sum is paid once, whoever is in it, so the best
that a generous budget can buy is to be in the sum more often: amplification makes rates cheaper than clips.
`plan` solves one noise and a rate for each client at which the mean rate is as asked; whom its budget would
let come more often than always gets a larger clip instead, so that every budget is used up. All add shares of
the noise to a secure sum, so that the server needs no trust. `plan_records` is for clients whose work is
released one by one, with noise in every step of it: ...
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.methods.parts import finite
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population
from discretion.problems import pool


def plan(population: Population, rounds: int, rate: float, clip: float) -> Plan:
    """rounds: how many; rate: mean of the clients' rates; clip: mean of the clips of those who take part."""
    epsilon = finite(population.epsilon)
    rates, _ = pool.rates(epsilon, population.delta, rounds, rate)
    # (N,) what each budget needs at that rate: the same for all but for those who come in every round
    sigmas = noise_multiplier(epsilon, population.delta, rates, rounds)
    clips = clip / sigmas * (rates.sum() / (rates / sigmas).sum())
    holders = len(population)
    shared = 1 / np.sqrt(1 - min(1, holders - 1) / holders)  # one share may be known
    noise = float((clips * sigmas).max()) * shared
    return Plan(
        method="concert",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rates, clips, noise),),
        noise_at="secure_sum",
        promise="server",
    )
