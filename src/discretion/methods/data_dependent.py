"""Selection by what clients' data say: baselines that pick, among the clients asked, by loss, norm, labels or
variance.

Power of choice (Cho, Wang and Joshi, AISTATS 2022), the biased baseline of Xu, Zhang and Huang (2025); AOCS
(Chen, Horváth and Richtárik, TMLR 2022), Fed-CBS (Zhang et al., ICML 2023) and DELTA (Wang et al., NeurIPS
2023), baselines of Yuan and Wang (2025). Clients are asked at random, by their share of the data, and some
of them train. As published, the methods read raw statistics, and epsilon is infinite. With `read_share`
above 0, statistics are bounded record by record, noised and paid for. A client that is asked pays for
training even if another is picked, because the plan cannot know who will train.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from discretion.accounting import gaussian
from discretion.arrays import Floats, Ints
from discretion.methods.parameters import Accounting, Batch, Part, RecordClip, Rounds, Seed, Share, Steps
from discretion.methods.parts import cohort_of, draw, multipliers, own_phases, schedule_scale, shares
from discretion.methods.registry import record_method, record_plan
from discretion.plan import Plan, Population
from discretion.plan import steps as plan_steps
from discretion.plan.selection_rules import Reading, Rule

MOST_LOSS = 4.0  # a record's loss counts up to here


def _reader(read: str, rule: Rule, bound: float | None = None, **facts: Any) -> Callable[..., Plan]:
    """Register and return the method of these facts, which picks by `rule`.

    A record adds at most `bound`, or else its clipped gradient, to the statistic that is read.
    """

    @record_method(reads=f"{read}, raw unless read_share > 0", reads_raw=True, **facts)
    def plan(
        population: Population,
        rounds: Rounds,
        rate: Annotated[Share, Field(description="clients that train in a round, as a share of all")],
        clip: RecordClip,
        candidates: Annotated[float, Field(ge=1, description="clients asked for each that trains")] = 2.0,
        steps: Steps = 5,
        batch: Batch = 0.1,
        read_share: Annotated[
            Part, Field(description="share of the budget for what is read; 0: read raw, as in paper mode")
        ] = 0.0,
        seed: Seed = 0,
        accounting: Accounting = "tight",
    ) -> Plan:
        share = 0.0 if accounting == "paper" else read_share
        picks = Reading(rule, cohort_of(population, rate), bound or clip)
        asked = max(1, round(candidates * picks.choose))
        turns = np.minimum(draw(shares(population), asked, rounds, seed), 1)  # once a round at most
        sigma, read = _multipliers(population, turns.sum(axis=0), steps, batch, share)
        weight = np.full(len(population), 1 / picks.choose)
        phases = own_phases(turns, clip, clip * sigma, weight, batch, steps, read)
        return record_plan(facts["name"], population.client, phases, reading=picks, accounting=accounting)

    return plan


# fmt: off
power_of_choice = _reader(
    "losses", "largest_loss", MOST_LOSS, name="power_of_choice", title="Power of choice", order=403,
    paper="Cho et al., AISTATS 2022", idea="Of some clients at random, those with the largest loss train.")
aocs = _reader(
    "norms of gradients", "norm", name="aocs", title="AOCS", order=503, paper="Chen et al., TMLR 2022",
    idea="Clients take part with a chance that grows with their update's norm.")
fed_cbs = _reader(
    "labels", "class_balance", 1.0, name="fed_cbs", title="Fed-CBS", order=504,
    paper="Zhang et al., ICML 2023", idea="Clients are picked so that their classes balance.")
delta = _reader(
    "norms and variances", "diversity", name="delta", title="DELTA", order=505,
    paper="Wang et al., NeurIPS 2023",
    idea="Clients with diverse gradients are drawn more, and weighted for it.")
# fmt: on


def _multipliers(
    population: Population, asked: Ints, steps: int, batch: float, share: float
) -> tuple[Floats, Floats]:
    """Return (N,) noise multipliers of training and (N,) of the statistic, 0 where it is read raw.

    Training and statistic together cost the budget.
    """
    count = np.maximum(asked, 1)
    train = multipliers(population, count * steps, batch)
    private = np.isfinite(population.epsilon)
    if share == 0 or not private.any():
        return train, np.zeros(len(population))
    epsilon, delta, times = population.epsilon[private], population.delta[private], count[private]
    alone = np.sqrt(times) / gaussian.shift_of(epsilon, delta) / np.sqrt(share)
    rates = np.stack([np.full(len(alone), batch), np.ones(len(alone))])
    both = plan_steps.Steps(rates, np.stack([train[private], alone]), np.stack([times * steps, times]))
    factor = schedule_scale(epsilon, delta, times, both.of)
    read = np.zeros(len(population))
    train[private], read[private] = train[private] * factor, alone * factor
    return train, read
