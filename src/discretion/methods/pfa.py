"""PFA: what strict groups send is projected on the directions in which generous groups moved the model.

Liu, Lou, Xiong, Liu and Meng, "Projected federated averaging with heterogeneous differential privacy", VLDB
2021, as the baseline of Xu, Hu and Kotevska (2025): groups by budget, each summed under a noise of its own;
the sums of the strict groups are projected on the principal subspace of what the most generous group
released.
Departs from the paper: the subspace is spanned by the generous group's noisy sums of this and the last
rounds, because nobody sees the updates of single clients; otherwise as GDPFed with equal rates.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from discretion.methods.gdpfed import gdpfed
from discretion.methods.parameters import Accounting, Count, Groups, Rate, Rounds, UpdateClip
from discretion.methods.registry import secure_sum_method
from discretion.plan import Plan, Population
from discretion.plan.combine import SUM, Combine


@secure_sum_method(
    title="PFA",
    idea="Strict groups' sums are projected on the directions of the most generous group.",
    paper="Liu et al., VLDB 2021",
    reads="budgets",
    order=303,
)
def pfa(
    population: Population,
    rounds: Rounds,
    rate: Rate,
    clip: UpdateClip,
    groups: Groups = 3,
    memory: Annotated[
        Count, Field(description="noisy sums of the generous group that span the subspace")
    ] = 10,
    accounting: Accounting = "tight",
) -> Plan:
    made = gdpfed(population, rounds, rate, clip, groups, accounting)
    several = len(made.phases[0].noise) > 1
    return replace(made, combine=Combine("project", memory=memory) if several else SUM)
