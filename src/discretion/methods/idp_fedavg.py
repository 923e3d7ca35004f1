"""IDP-FedAvg: one noise for all, and for each client the clip or the rate that its own budget allows.

Boenisch, Mühl, Dziedzic, Rinberg and Papernot, "Have it your way: individualized privacy assignment for
DP-SGD", NeurIPS 2023, brought to clients as Algorithm 5 of Kiani et al. 2025. A generous client may be
clipped at a larger norm (`plan_by_clip`) or take part more often (`plan_by_rate`) under the same noise.
Departs from the papers: calibrated by PLD, so that each client's whole budget is used; in paper mode by
Opacus.
"""

import numpy as np
from scipy.optimize import brentq

from discretion.accounting import noise_multiplier, sampling_rate
from discretion.errors import PlanError
from discretion.methods.parts import ACCOUNTANTS, finite, spread
from discretion.phase import Phase
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Ints, Population


def plan_by_clip(
    population: Population, rounds: int, rate: float, clip: float, accounting: Accounting = "tight"
) -> Plan:
    """rounds: how many; rate: each client's chance of taking part in one; clip: mean of the clips;
    accounting: tight or paper."""
    rates, accountant = np.full(len(population), rate), ACCOUNTANTS[accounting]
    # SetPrivacyParams of Algorithm 5: sigma_n for each budget, their harmonic mean sigma,
    # and c_n = c sigma / sigma_n, so that the clips have the mean c
    sigmas = noise_multiplier(finite(population.epsilon), population.delta, rates, rounds, accountant)
    sigma = float(1 / np.mean(1 / sigmas))
    return Plan(
        method="idp_fedavg",
        clients=population.client,
        phases=(Phase.one_pool(rounds, rates, clip * sigma / sigmas, noise=clip * sigma),),
        accounting=accounting,
    )


def plan_by_rate(
    population: Population, rounds: int, rate: float, clip: float, accounting: Accounting = "tight"
) -> Plan:
    """rounds: how many; rate: mean of the clients' rates; clip: bound on every update;
    accounting: tight or paper."""
    epsilon, delta, accountant = finite(population.epsilon), population.delta, ACCOUNTANTS[accounting]

    def rates(sigma: float, who: Ints) -> Floats:
        return sampling_rate(epsilon[who], delta[who], np.full(len(who), sigma), rounds, accountant)

    def mean(sigma: float) -> float:
        try:
            return float(rates(sigma, some).mean())
        except PlanError:  # so little noise that some could not come at all
            return 0.0

    # more noise lets everybody come more often: look for the noise at which the mean rate is as asked,
    # between what the most generous and what the strictest budget needs when all come equally often
    some = spread(epsilon)
    ends = noise_multiplier(epsilon[some], delta[some], np.full(len(some), rate), rounds, accountant)
    low, high = ends.min() * 0.999, ends.max() * 1.001
    enough = mean(low) >= rate  # even there: budgets so large that hardly any noise is needed
    sigma = low if enough else brentq(lambda s: mean(s) - rate, low, high, rtol=1e-4)
    chosen = rates(sigma, np.arange(len(population)))
    return Plan(
        method="idp_fedavg_sampling",
        clients=population.client,
        phases=(
            Phase.one_pool(
                rounds, chosen * min(1.0, rate / chosen.mean()), np.full(len(population), clip), clip * sigma
            ),
        ),
        accounting=accounting,
    )
