"""Privacy-aware selection: draw clients so that the bias of the draw and the noise it brings balance.

Xu, Zhang and Huang, "Tackling privacy heterogeneity in differentially private federated learning" (2025),
Algorithm 1 and Problem 1. Clients are drawn when planning, so that each knows how many noisy steps it will
take. Who needs much noise is drawn less than its share of the data.
Departs from the paper: batches are drawn by coins and noise is calibrated by PLD for the steps really
taken, whose variance has a part that does not grow with the number of turns, so that the choice is made
with the true curve. In paper mode noise is (6) with V_k of (7), and the choice is Problem 1. One scalar,
`tradeoff`, stands for eta D, which the paper leaves open; its default follows from public facts. The
server's step is 1, where line 8 multiplies by the learning rate a second time.
"""

import numpy as np

from discretion.accounting import noise_multiplier
from discretion.accounting.papers import selection as paper
from discretion.methods.details import Details
from discretion.methods.parts import cohort_of, draw, own_phases, shares
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Ints, Population
from discretion.problems import selection as problem

FLATTEST = 1e-3


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    steps: int = 5,
    batch: float = 0.1,
    tradeoff: float = 0.0,
    seed: int = 0,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: draws in a round, as a share of the clients; clip: bound on one record's
    gradient; steps: noisy steps in a turn; batch: chance of a record to be in a step's batch; tradeoff:
    weight of noise against bias, 0 for the default; seed: of the draws; accounting: tight or paper."""
    cohort = cohort_of(population, rate)
    p = probabilities(population, rounds, cohort, steps, batch, tradeoff, accounting)
    turns = draw(p, cohort, rounds, seed)
    return plan_of_turns(
        "privacy_aware",
        population,
        turns,
        clip,
        np.full(len(population), 1 / cohort),
        steps,
        batch,
        accounting,
    )


def explain(
    population: Population,
    rounds: int,
    rate: float,
    steps: int,
    batch: float,
    tradeoff: float,
    accounting: Accounting,
) -> Details:
    """Chances of a draw: Fig. 3 of the paper."""
    cohort = cohort_of(population, rate)
    return Details(chance=probabilities(population, rounds, cohort, steps, batch, tradeoff, accounting))


def probabilities(
    population: Population,
    rounds: int,
    cohort: int,
    steps: int,
    batch: float,
    tradeoff: float,
    accounting: Accounting,
) -> Floats:
    """(N,) the distribution p of a draw: Problem 1."""
    share = shares(population)
    if accounting == "paper":
        rates = np.full(len(population), batch)
        noise = paper.variance(population.epsilon, population.delta, rates, population.size.astype(float))
        return problem.select(share, noise, tradeoff or problem.default_weight(share, noise))
    intercept, slope = noise_curve(population, rounds, cohort, steps, batch)
    weight = tradeoff or problem.default_weight(share, slope, intercept)
    return problem.select_affine(share, intercept, slope, weight)


def noise_curve(
    population: Population, rounds: int, cohort: int, steps: int, batch: float
) -> tuple[Floats, Floats]:
    """(N,) a and (N,) b: drawn with probability p, a client adds the variance a p + b p² to a step.

    sigma²(T) of T noisy steps is nearly a straight line, here through an average client's turns and four
    times as many; noise on a mean gradient is sigma times the clip over the batch that is expected.
    """
    usual = max(1, round(cohort * rounds / len(population))) * steps
    low, high = (multipliers(population, np.full(len(population), t), batch) ** 2 for t in (usual, 4 * usual))
    # where budgets ask for hardly any noise it does not grow with the turns: it is taken to, a little
    slope = np.maximum((high - low) / (3 * usual), FLATTEST * low / usual)
    intercept = np.maximum(low - slope * usual, 0.0)
    size = (batch * population.size) ** 2
    return intercept / (cohort * rounds * steps) / size, slope / size


def multipliers(population: Population, count: Ints, batch: float) -> Floats:
    """(N,) noise multiplier of `count` steps on batches; none for public data."""
    private = np.isfinite(population.epsilon)
    out = np.zeros(len(population))
    rates = np.full(int(private.sum()), batch)
    out[private] = noise_multiplier(
        population.epsilon[private], population.delta[private], rates, np.maximum(count[private], 1)
    )
    return out


def plan_of_turns(
    method: str,
    population: Population,
    turns: Ints,
    clip: float,
    weight: Floats,
    steps: int,
    batch: float,
    accounting: Accounting,
) -> Plan:
    """Noise for exactly the turns that were drawn: it protects each record, from the server too."""
    count = turns.sum(axis=0)
    if accounting == "paper":
        rates = np.full(len(population), batch)
        noise = paper.variance(population.epsilon, population.delta, rates, population.size.astype(float))
        sigma = paper.noise_std(noise, np.maximum(count, 1), steps, 1.0) * batch * population.size
    else:
        sigma = multipliers(population, count * steps, batch)
    return Plan(
        method=method,
        clients=population.client,
        phases=own_phases(turns, clip, clip * sigma, weight, batch, steps),
        noise_at="steps",
        promise="server",
        accounting=accounting,
    )
