"""IDP-FedAvg: one noise for all clients, and for each the clip or the rate that its own budget allows.

Boenisch, Mühl, Dziedzic, Rinberg and Papernot, "Have it your way: individualized privacy assignment for
DP-SGD", NeurIPS 2023, brought to clients as Algorithm 5 of Kiani et al. 2025. Under the same noise a generous
client may be clipped at a larger norm (`idp_fedavg`) or take part more often (`idp_fedavg_sampling`).
Departs from the papers: noise is calibrated by PLD, so that each client's whole budget is used; in paper mode
by the Rényi accountant of Opacus.
"""

from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

from discretion.accounting import noise_multiplier
from discretion.methods.parameters import Accounting, MeanRate, Positive, Rate, Rounds, UpdateClip
from discretion.methods.parts import ACCOUNTANTS, finite
from discretion.methods.registry import server_noise_method
from discretion.methods.solvers.groups import shared_noise_rates
from discretion.plan import Phase, Plan, Population

_registered = partial(
    server_noise_method, paper="Boenisch et al., NeurIPS 2023; Kiani et al., ICLR 2025", reads="budgets"
)


@_registered(
    title="IDP-FedAvg (clip)",
    idea="One noise; each client is clipped at the norm that its own budget allows.",
    order=202,
)
def idp_fedavg(
    population: Population,
    rounds: Rounds,
    rate: Rate,
    clip: Annotated[Positive, Field(description="mean of the clients' clips (clipping norms)")],
    accounting: Accounting = "tight",
) -> Plan:
    rates, accountant = np.full(len(population), rate), ACCOUNTANTS[accounting]
    # SetPrivacyParams of Algorithm 5: sigma_n for each budget, their harmonic mean sigma,
    # and c_n = c sigma / sigma_n, so that the clips have the mean c
    sigmas = noise_multiplier(finite(population.epsilon), population.delta, rates, rounds, accountant)
    sigma = float(1 / np.mean(1 / sigmas))
    phase = Phase.one_pool(rounds, rates, clip * sigma / sigmas, noise=clip * sigma)
    return Plan("idp_fedavg", population.client, (phase,), accounting=accounting)


@_registered(
    title="IDP-FedAvg (sampling)",
    idea="One noise and one clip; each client comes as often as its own budget allows.",
    order=203,
)
def idp_fedavg_sampling(
    population: Population, rounds: Rounds, rate: MeanRate, clip: UpdateClip, accounting: Accounting = "tight"
) -> Plan:
    rates, sigma = shared_noise_rates(
        finite(population.epsilon), population.delta, rounds, rate, ACCOUNTANTS[accounting]
    )
    phase = Phase.one_pool(rounds, rates, np.full(len(population), clip), noise=clip * sigma)
    return Plan("idp_fedavg_sampling", population.client, (phase,), accounting=accounting)
