"""FedPCS: a game of rewards sets each client's privacy level, and clients are drawn by their levels.

Yuan and Wang, "A game-theoretic framework for privacy-aware client sampling in federated learning" (2025):
Algorithms 1 and 2 (`plan`), and its baseline of uniform draws (`plan_random`). A level is the rho, of
zero-concentrated privacy, of one upload.
Departs from the paper: gradients are clipped record by record, without which a level means nothing; clients
have a budget for life, and their levels are scaled so that the uploads drawn for them spend it; the
equilibrium is found by dynamic programming, because the printed conditions have none; turns are drawn when
planning; updates count alike, because weights by 1/level amplify noise, unless `weighted`, and then by true
inclusion chances. In paper mode: levels as played, draws without replacement with weights theta / (K x), no
budget for life.
"""

import numpy as np

from discretion.methods.levels import first_levels, levels, lifetime
from discretion.methods.parts import cohort_of, own_phases, shares
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Ints, Population
from discretion.problems import cohorts
from discretion.streams import Purpose, stream


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    reward: float = 5.0,
    weighted: bool = False,
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: cohort of a round, as a share of the clients; clip: bound on one record's
    gradient; reward: for each unit of privacy level; weighted: make up for the draw; seed: of the draws;
    accounting: tight or paper. Traits of the population: rho (first level), privacy_weight."""
    rho = levels(population, rounds, rate, reward)
    x = cohorts.by_level(rho)
    return _drawn("fedpcs", population, rho, x, rate, clip, weighted, seed, accounting)


def plan_random(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: cohort of a round, as a share of the clients; clip: bound on one record's
    gradient; seed: of the draws; accounting: tight or paper. Traits of the population: rho."""
    rho = np.tile(first_levels(population, rounds, rate), (rounds, 1))
    return _drawn(
        "random", population, rho, np.ones_like(rho) / len(population), rate, clip, False, seed, accounting
    )


def _drawn(
    method: str,
    population: Population,
    rho: Floats,
    x: Floats,
    rate: float,
    clip: float,
    weighted: bool,
    seed: int,
    accounting: Accounting,
) -> Plan:
    """Cohorts of one size, drawn from (T, N) x."""
    cohort, random = min(cohort_of(population, rate), len(population)), stream(seed, Purpose.TURNS)
    weight = np.full(rho.shape, 1 / cohort)
    if accounting == "paper":
        drawn = [random.choice(rho.shape[1], cohort, replace=False, p=row) for row in x]
        turns = np.stack([np.isin(np.arange(rho.shape[1]), row) for row in drawn])
        weight = cohorts.importance_weights(shares(population), x, cohort)
    else:
        chances = cohorts.inclusion(x, cohort)
        turns = np.stack([cohorts.systematic(row, float(random.random())) for row in chances])
        if weighted:
            weight = cohorts.unbiased_weights(shares(population), chances)
    return plan_of_levels(method, population, rho, turns.astype(np.int64), clip, weight, accounting)


def plan_of_levels(
    method: str,
    population: Population,
    rho: Floats,
    turns: Ints,
    clip: float,
    weight: Floats,
    accounting: Accounting,
) -> Plan:
    """One noisy gradient of all records for each turn, of multiplier 1 / sqrt(2 rho)."""
    if accounting == "paper":
        sigma = np.sqrt(2 / rho)  # Proposition 1: for 2W, where a record is replaced by another
    else:
        drawn = np.where(turns > 0, rho, 0.0).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(drawn > 0, lifetime(population) / drawn, 1.0)
            sigma = 1 / np.sqrt(2 * rho * scale)
    phases = own_phases(turns, clip, clip * sigma, weight, batch=1.0)
    return Plan(
        method=method,
        clients=population.client,
        phases=phases,
        adjacency="replace" if accounting == "paper" else "add_remove",
        noise_at="steps",
        promise="server",
        accounting=accounting,
    )
