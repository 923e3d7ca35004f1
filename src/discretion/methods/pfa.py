"""PFA: what strict groups send is projected on the directions in which generous groups moved the model.

Liu, Lou, Xiong, Liu and Meng, "Projected federated averaging with heterogeneous differential privacy", VLDB
2021, as the baseline of Xu, Hu and Kotevska (2025): groups by budget, each summed under a noise of its own;
the sums of the strict groups are projected on the principal subspace of what the most generous group
released.
Departs from the paper: the subspace is spanned by the generous group's noisy sums of this and the last
rounds, because nobody sees the updates of single clients; otherwise as GDPFed with equal rates.
"""

from dataclasses import replace

from discretion.combine import SUM, Combine
from discretion.methods import gdpfed
from discretion.plan import Accounting, Plan
from discretion.population import Population


def plan(
    population: Population,
    rounds: int,
    rate: float,
    clip: float,
    groups: int = 3,
    memory: int = 10,
    accounting: Accounting = "tight",
) -> Plan:
    """rounds: how many; rate: every client's chance of taking part; clip: bound on an update; groups: how
    many at most; memory: how many noisy sums of the generous group span the subspace; accounting: tight or
    paper."""
    made = gdpfed.plan(population, rounds, rate, clip, groups, accounting)
    return replace(
        made,
        method="pfa",
        combine=Combine("project", memory=memory) if len(made.phases[0].noise) > 1 else SUM,
    )
