"""Unbiased selection: clients are drawn by their share of the data, or weighted to make up for another
draw.

The baselines of Xu, Zhang and Huang (2025): p = p^u, after Li et al., "On the convergence of FedAvg on
non-IID data", ICLR 2020 (`plan`); and importance compensation, any p with weights p^u / p, after Luo et
al., "Tackling system and statistical heterogeneity", INFOCOM 2022 (`plan_compensated`).
Departs from the paper where privacy-aware selection does.
"""

import numpy as np

from discretion.errors import ConfigError
from discretion.methods.details import Details
from discretion.methods.parts import cohort_of, draw, finite, shares
from discretion.methods.privacy_aware import plan_of_turns, probabilities
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Population


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    steps: int = 5,
    batch: float = 0.1,
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: draws in a round, as a share of the clients; clip: bound on one record's
    gradient; steps: noisy steps in a turn; batch: chance of a record to be in a step's batch; seed: of the
    draws; accounting: tight or paper."""
    cohort = cohort_of(population, rate)
    turns = draw(shares(population), cohort, rounds, seed)
    weight = np.full(len(population), 1 / cohort)
    return plan_of_turns("unbiased", population, turns, clip, weight, steps, batch, accounting)


def explain(population: Population) -> Details:
    """Chances of a draw."""
    return Details(chance=shares(population))


def plan_compensated(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    steps: int = 5,
    batch: float = 0.1,
    by: str = "privacy",
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: draws in a round, as a share of the clients; clip: bound on one record's
    gradient; steps: noisy steps in a turn; batch: chance of a record to be in a step's batch; by: draws
    proportional to epsilon, uniform, or as privacy-aware selection (privacy); seed: of the draws;
    accounting: tight or paper."""
    cohort, share = cohort_of(population, rate), shares(population)
    p = _chances(population, rounds, cohort, steps, batch, by, accounting)
    turns = draw(p, cohort, rounds, seed)
    return plan_of_turns(
        "unbiased_compensated",
        population,
        turns,
        clip,
        share / p / cohort,
        steps,
        batch,
        accounting,
    )


def explain_compensated(
    population: Population,
    rounds: int,
    rate: float,
    steps: int,
    batch: float,
    by: str,
    accounting: Accounting,
) -> Details:
    """Chances of a draw."""
    cohort = cohort_of(population, rate)
    return Details(chance=_chances(population, rounds, cohort, steps, batch, by, accounting))


def _chances(
    population: Population,
    rounds: int,
    cohort: int,
    steps: int,
    batch: float,
    by: str,
    accounting: Accounting,
) -> Floats:
    """(N,) of each client in a draw."""
    if by == "privacy":
        p = probabilities(population, rounds, cohort, steps, batch, 0.0, accounting)
        # nobody is left out: who is drawn never has no weight to make up
        p = np.maximum(p, 1e-3 * shares(population))
    elif by == "epsilon":
        p = finite(population.epsilon)
    elif by == "uniform":
        p = np.ones(len(population))
    else:
        raise ConfigError(f"by is {by!r}: expected privacy, epsilon or uniform")
    return np.asarray(p / p.sum())
