"""What the papers charge: each one's own privacy formulas, beside what Rényi and PLD say of the same noise.

`selection` is by Xu, Zhang and Huang, `incentives` by Yuan and Wang, `time_adaptive` by Kiani et al.,
`adaptive_sampling` from the appendix on personalised local privacy, `groups` by Xu, Hu and Kotevska.
None of this certifies anything: it shows what a formula costs or misses.
"""

from discretion.accounting.papers.table import RUNS, Comparison, comparison

__all__ = ["RUNS", "Comparison", "comparison"]
