"""Combination of the pools' noisy sums into one step: post-processing, which costs no privacy."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.arrays import Floats
from discretion.errors import PlanError

Rule = Literal["sum", "top_k", "project"]
By = Literal["largest", "last_step"]

NOTHING = 1e-9  # share of the longest direction below which a direction is rounding error


@dataclass(frozen=True)
class Combine:
    """How the pools' noisy sums become one step.

    sum: the weighted sum. top_k: keep a share of the coordinates of each pool's sum, either the largest of
    the noisy sum itself, or those that were largest in the full weighted sum of the last round, so that a
    dropped coordinate may come back. project: project the sums of all pools but the last onto the space
    spanned by the last pool's sums of this and earlier rounds.
    """

    rule: Rule = "sum"
    keep: tuple[float, ...] = ()  # top_k: share of the coordinates to keep, for each pool
    by: By = "largest"
    memory: int = 0  # project: number of sums of the last pool, this round's included
    average: float = 0.0  # weight of a model relative to the next in the averaged result; 0: no averaging

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", tuple(self.keep))
        object.__setattr__(self, "average", float(self.average))  # as a plan in JSON has it
        kept = all(0 < share <= 1 for share in self.keep)
        sound = {
            "sum": not self.keep and self.memory == 0,
            "top_k": bool(self.keep) and kept and self.memory == 0,
            "project": not self.keep and self.memory >= 1,
        }
        if not sound[self.rule]:
            raise PlanError(
                f"invalid combine: found {self}; expected shares above 0 and at most 1 (keep) with top_k, a "
                "memory of at least 1 with project, and neither otherwise"
            )
        if not 0 <= self.average < 1:
            raise PlanError(
                f"invalid combine: models averaged with weight {self.average}, expected from 0 to below 1"
            )

    def fits(self, pools: int) -> bool:
        """Return whether a phase with this number of pools can be combined like this."""
        if self.rule == "top_k":
            return len(self.keep) == pools
        return self.rule == "sum" or pools > 1

    def step(self, sums: Floats, weight: Floats, last: Floats, memory: Floats) -> tuple[Floats, Floats]:
        """Return the (d,) step and the (W, d) new memory.

        From (P, d) sums, (P,) weights, the (d,) weighted sum of the last round, and the memory so far.
        """
        if self.rule == "top_k":
            sums = np.stack([self._kept(row, last, k) for row, k in zip(sums, self.keep, strict=True)])
        elif self.rule == "project":
            memory = np.concatenate([memory, sums[-1:]])[-self.memory :]
            axes, length, _ = np.linalg.svd(memory.T, full_matrices=False)
            basis = axes[:, length > NOTHING * length[0]]  # (d, up to W): zero sums span nothing
            sums = np.concatenate([(sums[:-1] @ basis) @ basis.T, sums[-1:]])
        return weight @ sums, memory

    def _kept(self, row: Floats, last: Floats, share: float) -> Floats:
        if self.by == "last_step" and not last.any():
            return row  # there was no last round: keep everything
        guide = np.abs(row if self.by == "largest" else last)
        count = max(1, round(share * len(row)))
        least = np.partition(guide, len(row) - count)[len(row) - count]
        return np.where(guide >= least, row, 0.0)


SUM = Combine()
