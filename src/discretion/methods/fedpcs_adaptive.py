"""FedPCS under a budget for each round: as many clients as their privacy levels together allow.

Yuan and Wang, "A game-theoretic framework for privacy-aware client sampling in federated learning" (2025),
Algorithm 3 and Theorem 7: the sampling ratio follows a budget B_t that changes over time.
Departs from the paper: the server's cost has a term that falls with the number of clients, the variance of
the draw, without which Theorem 7 asks nobody, or pays a negative reward; clients are filled in by level.
Otherwise as FedPCS.
"""

import numpy as np

from discretion.methods.fedpcs import plan_of_levels
from discretion.methods.levels import levels
from discretion.methods.parts import cohort_of
from discretion.plan import Accounting, Plan
from discretion.population import Population
from discretion.problems import cohorts
from discretion.streams import Purpose, stream


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    reward: float = 5.0,
    budget_start: float = 0.5,
    budget_end: float = 1.5,
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: cohort of a mean round, as a share of the clients; clip: bound on one
    record's gradient; reward: for each unit of privacy level; budget_start, budget_end: of the first and
    the last round's levels together, over those of a mean cohort; seed: of ties; accounting: tight or
    paper. Traits of the population: rho, privacy_weight."""
    rho = levels(population, rounds, rate, reward)
    cohort, random = cohort_of(population, rate), stream(seed, Purpose.TURNS)
    turns = np.zeros(rho.shape, dtype=np.int64)
    for t, part in enumerate(np.linspace(budget_start, budget_end, rounds)):
        order = random.permutation(len(population))  # among equals chance decides
        level = rho[t][order]
        # the server's cost in units in which a mean cohort would be the best where the budget does not bind
        weight = reward * level.mean() * cohort**2
        chosen, _ = cohorts.within_round(level, float(part * cohort * level.mean()), reward, 0.5, weight)
        turns[t, order[chosen]] = 1
    counts = np.maximum(turns.sum(axis=1, keepdims=True), 1)
    return plan_of_levels(
        "fedpcs_adaptive", population, rho, turns, clip, np.ones_like(rho) / counts, accounting
    )
