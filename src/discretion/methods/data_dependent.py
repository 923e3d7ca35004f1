"""Selection by what clients' data say: baselines that pick, among those asked, by loss, norm, labels or
variance.

Power of choice (Cho, Wang and Joshi, AISTATS 2022), the biased baseline of Xu, Zhang and Huang (2025); AOCS
(Chen, Horváth and Richtárik, TMLR 2022), Fed-CBS (Zhang et al., ICML 2023) and DELTA (Wang et al., NeurIPS
2023), baselines of Yuan and Wang (2025). Clients are asked at random, by their share of the data, and some
of those asked train. As published they read raw statistics, and epsilon is infinite. With `read_share`
above 0, statistics are bounded record by record, noised and paid for. Who is asked pays for training even
if another is picked: who trains is not known when planning.
"""

from collections.abc import Callable

import numpy as np

from discretion.accounting import gaussian
from discretion.errors import ConfigError
from discretion.methods.parts import cohort_of, draw, own_phases, schedule_scale, shares
from discretion.methods.privacy_aware import multipliers
from discretion.pick import Reading, Rule
from discretion.plan import Accounting, Plan
from discretion.population import Floats, Ints, Population
from discretion.steps import Steps

MOST_LOSS = 4.0  # a record's loss counts up to here


def _method(name: str, rule: Rule, bound: float | None = None) -> Callable[..., Plan]:
    """The method of that name; a record adds at most `bound`, or else its clipped gradient, to what is
    read."""

    def plan(
        population: Population,
        rounds: int,
        rate: float,
        clip: float,
        candidates: float = 2.0,
        steps: int = 5,
        batch: float = 0.1,
        read_share: float = 0.0,
        seed: int = 0,
        accounting: Accounting = "tight",
    ) -> Plan:
        """rounds: how many; rate: clients that train in a round, as a share; clip: bound on one record's
        gradient; candidates: asked for each that trains; steps: noisy steps in a turn; batch: chance of a
        record to be in a step's batch; read_share: of the budget, for what is read; 0 reads it raw; seed:
        of the draws; accounting: tight, or paper, where it is read raw."""
        if not (candidates >= 1 and 0 <= read_share < 1):
            raise ConfigError(f"{name}: expected candidates of at least 1 and 0 <= read_share < 1")
        share = 0.0 if accounting == "paper" else read_share
        picks = Reading(rule, cohort_of(population, rate), bound or clip)
        asked = max(1, round(candidates * picks.choose))
        turns = np.minimum(draw(shares(population), asked, rounds, seed), 1)  # once a round at most
        sigma, read = _multipliers(population, turns.sum(axis=0), steps, batch, share)
        weight = np.full(len(population), 1 / picks.choose)
        return Plan(
            method=name,
            clients=population.client,
            phases=own_phases(turns, clip, clip * sigma, weight, batch, steps, read),
            noise_at="steps",
            promise="server",
            reading=picks,
            accounting=accounting,
        )

    return plan


power_of_choice = _method("power_of_choice", "largest_loss", MOST_LOSS)
aocs = _method("aocs", "norm")
fed_cbs = _method("fed_cbs", "class_balance", 1.0)
delta = _method("delta", "diversity")


def _multipliers(
    population: Population, asked: Ints, steps: int, batch: float, share: float
) -> tuple[Floats, Floats]:
    """(N,) of training and (N,) of the statistic, 0 if it is read raw; together they cost the budget."""
    count = np.maximum(asked, 1)
    train = multipliers(population, count * steps, batch)
    private = np.isfinite(population.epsilon)
    if share == 0 or not private.any():
        return train, np.zeros(len(population))
    epsilon, delta = population.epsilon[private], population.delta[private]
    alone = np.sqrt(count[private]) / gaussian.shift_of(epsilon, delta) / np.sqrt(share)
    rates = np.stack([np.full(len(alone), batch), np.ones(len(alone))])
    parts = np.stack([train[private], alone])
    counts = np.stack([count[private] * steps, count[private]])
    factor = schedule_scale(
        epsilon, delta, count[private], lambda who: Steps(rates[:, who], parts[:, who], counts[:, who])
    )
    read = np.zeros(len(population))
    train[private], read[private] = train[private] * factor, alone * factor
    return train, read
