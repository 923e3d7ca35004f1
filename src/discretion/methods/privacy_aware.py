"""Privacy-aware selection: draw clients so that the bias of the draw and the noise it brings balance.

Xu, Zhang and Huang, "Tackling privacy heterogeneity in differentially private federated learning" (2025),
Algorithm 1 and Problem 1. Clients are drawn when planning, so that each knows how many noisy steps it will
take. A client that needs much noise is drawn less than its share of the data.
Departs from the paper: batches are drawn by coins and noise is calibrated by PLD for the steps really
taken; the variance of that noise has a part that does not grow with the number of turns, so clients are
chosen with the true curve. One scalar, `tradeoff`, stands for eta D, which the paper leaves open; its
default follows from public facts. The server's step is 1, because line 8 multiplies by the learning rate a
second time. In paper mode noise is (6) with V_k of (7), and clients are chosen by Problem 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.methods import parameters as given
from discretion.methods.papers import xu_zhang as paper
from discretion.methods.parts import cohort_of, draw, multipliers, own_phases, shares
from discretion.methods.registry import Details, record_method, record_plan
from discretion.methods.solvers import selection as problem
from discretion.plan.plan import Accounting, Plan
from discretion.plan.population import Population

FLATTEST = 1e-3  # least growth of the noise variance with the turns, relative
selection_method = partial(record_method, paper="Xu, Zhang and Huang 2025", reads="budgets and sizes")


@dataclass(frozen=True, eq=False)
class PlannedDraws:
    """Clients drawn when planning; a turn is `steps` noisy steps on batches of a client's records."""

    population: Population
    rounds: int
    rate: float  # draws in a round, as a share of the clients
    steps: int
    batch: float
    accounting: Accounting = "tight"

    @classmethod
    def of(cls, population: Population, parameters: Mapping[str, Any]) -> "PlannedDraws":
        """Return the draws of a plan with these parameters."""
        names = (each.name for each in fields(cls) if each.name in parameters)
        return cls(population, **{name: parameters[name] for name in names})

    @cached_property
    def cohort(self) -> int:
        return cohort_of(self.population, self.rate)

    def probabilities(self, tradeoff: float) -> Floats:
        """Return (N,) chances p of the clients in one draw: Problem 1."""
        share = shares(self.population)
        if self.accounting == "paper":
            noise = self._paper_variance()
            return problem.select(share, noise, tradeoff or problem.default_weight(share, noise))
        intercept, slope = self.noise_curve()
        weight = tradeoff or problem.default_weight(share, slope, intercept)
        return problem.select_affine(share, intercept, slope, weight)

    def noise_curve(self) -> tuple[Floats, Floats]:
        """Return (N,) a and (N,) b: a client drawn with probability p adds variance a p + b p² to a step.

        sigma²(T) of T noisy steps is nearly a straight line, here through an average client's turns and four
        times as many; noise on a mean gradient is sigma times the clip over the expected batch.
        """
        clients, draws = self.population, self.cohort * self.rounds
        usual = max(1, round(draws / len(clients))) * self.steps
        counts = (np.full(len(clients), count) for count in (usual, 4 * usual))
        low, high = (multipliers(clients, count, self.batch) ** 2 for count in counts)
        # where budgets ask for hardly any noise, it does not grow with the turns: a little growth is assumed
        slope = np.maximum((high - low) / (3 * usual), FLATTEST * low / usual)
        intercept = np.maximum(low - slope * usual, 0.0)
        size = (self.batch * clients.size) ** 2
        return intercept / (draws * self.steps) / size, slope / size

    def plan(self, turns: Ints, clip: float, weight: Floats | None = None) -> Plan:
        """Return the plan with noise in every step, calibrated for exactly the (T, N) turns that were drawn.

        An upload counts its (N,) weight, or else one over the cohort.
        """
        clients, count = self.population, turns.sum(axis=0)
        if self.accounting == "paper":
            noise = paper.noise_std(self._paper_variance(), np.maximum(count, 1), self.steps, 1.0)
            sigma = noise * self.batch * clients.size
        else:
            sigma = multipliers(clients, count * self.steps, self.batch)
        if weight is None:
            weight = np.full(len(clients), 1 / self.cohort)
        phases = own_phases(turns, clip, clip * sigma, weight, self.batch, self.steps)
        return record_plan("privacy_aware", clients.client, phases, accounting=self.accounting)

    def _paper_variance(self) -> Floats:
        clients = self.population
        rates = np.full(len(clients), self.batch)
        return paper.variance(clients.epsilon, clients.delta, rates, clients.size.astype(float))


def explain(population: Population, parameters: Mapping[str, Any]) -> Details:
    """Return the chances of a draw: Fig. 3 of the paper."""
    return Details(chance=PlannedDraws.of(population, parameters).probabilities(parameters["tradeoff"]))


@selection_method(
    title="Privacy-aware selection",
    idea="Clients are drawn so that the bias of the draw and the noise that it brings balance.",
    explain=explain,
    order=400,
)
def privacy_aware(
    population: Population,
    rounds: given.Rounds,
    rate: given.DrawRate,
    clip: given.RecordClip,
    steps: given.Steps = 5,
    batch: given.Batch = 0.1,
    tradeoff: given.Tradeoff = 0.0,
    seed: given.Seed = 0,
    accounting: given.Accounting = "tight",
) -> Plan:
    made = PlannedDraws(population, rounds, rate, steps, batch, accounting)
    return made.plan(draw(made.probabilities(tradeoff), made.cohort, rounds, seed), clip)
