"""Concert: all clients in one sum under one noise, each as often and as loudly as its own budget allows.

Discretion's own method; see docs/method.md. The noise of a sum is paid once, whoever is in it, so the best
that a generous budget can buy is to be in the sum more often: amplification makes rates cheaper than clips.
`plan` solves one noise and a rate for each client at which the mean rate is as asked; whom its budget would
let come more often than always gets a larger clip instead, so that every budget is used up. All add shares of
the noise to a secure sum, so that the server needs no trust. `plan_records` is for
clients whose own noisy work is seen by the server, record by record: nothing can share a noise there. Who
needs much noise is heard less, by the exact cost of a turn, and turns are dealt out instead of drawn, so that
nobody's budget is spread over more turns than its mean. The result is a mean of the released models.
"""

from dataclasses import replace

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.combine import Combine
from discretion.methods.details import Details
from discretion.methods.parts import cohort_of, finite
from discretion.methods.privacy_aware import plan_of_turns, probabilities
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population
from discretion.problems import pool
from discretion.problems.turns import even_turns


def plan(
    population: Population, rounds: int, rate: float, clip: float, average: float = 0.8, dropout: float = 0.0
) -> Plan:
    """rounds: how many; rate: mean of the clients' rates; clip: mean of the clips of those who take part;
    average: the result is a mean of the models, each counting so much less than the next, 0 for the last;
    dropout: share of the clients that may fail to add their shares of the noise in a round."""
    epsilon = finite(population.epsilon)
    rates, _ = pool.rates(epsilon, population.delta, rounds, rate)
    # (N,) what each budget needs at that rate: the same for all but for those who come in every round
    sigmas = noise_multiplier(epsilon, population.delta, rates, rounds)
    clips = clip / sigmas * (rates.sum() / (rates / sigmas).sum())
    made = Plan(
        method="concert",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rates, clips, float((clips * sigmas).max())),),
        noise_at="secure_sum",
        promise="server",
        dropout=dropout,
        combine=Combine(average=average),
    )
    (phase,) = made.phases
    shares = int(made.shares(phase).min())
    shared = 1 / np.sqrt(1 - min(made.colluding, shares - 1) / shares)  # one share may be known
    return replace(made, phases=(replace(phase, noise=phase.noise * shared),))


def plan_records(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    steps: int = 5,
    batch: float = 0.1,
    tradeoff: float = 0.0,
    average: float = 0.8,
    seed: int = 0,
) -> Plan:
    """rounds: how many; rate: turns in a round, as a share of the clients; clip: bound on one record's
    gradient; steps: noisy steps in a turn; batch: chance of a record to be in a step's batch; tradeoff:
    weight of noise against bias, 0 for the default; average: the result is a mean of the models, each
    counting so much less than the next, 0 for the last; seed: of the order of turns."""
    cohort = cohort_of(population, rate)
    p = probabilities(population, rounds, cohort, steps, batch, tradeoff, "tight")
    turns = even_turns(p, cohort, rounds, seed)
    weight = np.full(len(population), 1 / cohort)
    made = plan_of_turns("concert_records", population, turns, clip, weight, steps, batch, "tight")
    return replace(made, combine=Combine(average=average))


def explain_records(
    population: Population, rounds: int, rate: float, steps: int, batch: float, tradeoff: float
) -> Details:
    """Each client's share of the turns."""
    cohort = cohort_of(population, rate)
    return Details(chance=probabilities(population, rounds, cohort, steps, batch, tradeoff, "tight"))
