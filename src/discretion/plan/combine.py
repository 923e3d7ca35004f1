"""What the server makes of the pools' noisy sums: post-processing, which costs no privacy."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.errors import PlanError
from discretion.population import Floats

Rule = Literal["sum", "top_k", "project"]
By = Literal["largest", "last_step"]

NOTHING = 1e-9  # a direction so much shorter than the longest is rounding


@dataclass(frozen=True)
class Combine:
    """How sums become one step.

    sum: weighted, as they are. top_k: of each pool's sum only a share of the coordinates is kept, those that
    are largest in it, noise and all, or those that were largest in the weighted sum of the last round, of
    which nothing was left out: so a coordinate that was dropped may come back. project: the sums of all
    pools but the last are projected on the space that the last pool's sums of some rounds span.
    """

    rule: Rule = "sum"
    keep: tuple[float, ...] = ()  # top_k: the share of the coordinates of each pool
    by: By = "largest"
    memory: int = 0  # project: how many sums of the last pool, this round's included
    average: float = 0.0  # the result is a mean of the models, each counting so much less than the next

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
                "this way to combine sums cannot be: top_k keeps a share above 0 of each pool, and project "
                "needs a memory of at least 1"
            )
        if not 0 <= self.average < 1:
            raise PlanError(f"models are averaged with {self.average}: expected at least 0 and less than 1")

    def fits(self, pools: int) -> bool:
        """Whether a phase with so many pools can be combined like this."""
        if self.rule == "top_k":
            return len(self.keep) == pools
        return self.rule == "sum" or pools > 1

    def step(self, sums: Floats, weight: Floats, last: Floats, memory: Floats) -> tuple[Floats, Floats]:
        """(d,) the step, from (P, d) sums, (P,) weights and the (d,) weighted sum of the last round; and the
        (W, d) new memory."""
        if self.rule == "top_k":
            sums = np.stack([self._kept(row, last, k) for row, k in zip(sums, self.keep, strict=True)])
        elif self.rule == "project":
            memory = np.concatenate([memory, sums[-1:]])[-self.memory :]
            axes, length, _ = np.linalg.svd(memory.T, full_matrices=False)
            basis = axes[:, length > NOTHING * length[0]]  # (d, up to W): sums that are zero span nothing
            sums = np.concatenate([(sums[:-1] @ basis) @ basis.T, sums[-1:]])
        return weight @ sums, memory

    def _kept(self, row: Floats, last: Floats, share: float) -> Floats:
        if self.by == "last_step" and not last.any():
            return row  # nothing is known yet: keep everything
        guide = np.abs(row if self.by == "largest" else last)
        count = max(1, round(share * len(row)))
        least = np.partition(guide, len(row) - count)[len(row) - count]
        return np.where(guide >= least, row, 0.0)


SUM = Combine()
