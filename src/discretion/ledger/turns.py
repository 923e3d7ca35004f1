"""Turns of clients in a plan: the rounds that cost a client anything, in their order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Ints
from discretion.plan.plan import Plan
from discretion.plan.steps import Steps

Mask = NDArray[np.bool_]
Releases = Sequence[tuple[int, Ints]]  # row of the whole plan's steps, and (N,) releases in one round


@dataclass(frozen=True, eq=False)
class Turns:
    """A plan by the cost of its rounds."""

    whole: Steps  # (S, N) of all rounds
    phases: Sequence[tuple[int, Releases]]  # number of rounds, and what each of them costs

    @classmethod
    def of(cls, plan: Plan, clients: Ints) -> "Turns":
        """Return the turns of these clients of a plan, in the rows of `Plan.steps`."""
        phases, rows = [], 0
        for before, phase in zip((None, *plan.phases), plan.phases, strict=False):
            parts = plan.parts(phase)
            if before is None or not phase.treats_as(before):
                rows += len(parts)
            first = rows - len(parts)
            phases.append((phase.rounds, [(first + i, part[2][clients]) for i, part in enumerate(parts)]))
        return cls(plan.steps().of(clients), phases)

    @property
    def count(self) -> Ints:
        """(N,) number of rounds that cost the client anything."""
        found = np.zeros(self.whole.count.shape[1], dtype=np.int64)
        for rounds, releases in self.phases:
            found += rounds * self._costs(releases)
        return found

    def first(self, turns: Ints) -> Steps:
        """Return the steps of each client's first so many (N,) turns, in the rows of the whole plan."""
        count, left = np.zeros_like(self.whole.count), turns.copy()
        for rounds, releases in self.phases:
            taken = np.where(self._costs(releases), np.minimum(left, rounds), 0)
            left -= taken
            for row, each in releases:
                count[row] += taken * each
        return replace(self.whole, count=count)

    def allowed(self, within: Callable[[Steps], Mask]) -> Ints:
        """(N,) how many of its first turns each client may take, if `within` says whose steps are allowed.

        Whoever may take some turns may take fewer. A client that refuses a turn may still take a later one
        that costs less: such turns are not counted.
        """
        high = self.count
        low = np.where(within(self.whole), high, 0)  # most often all are allowed
        while (low < high).any():
            middle = (low + high + 1) // 2
            fits = within(self.first(middle))
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def _costs(self, releases: Releases) -> Ints:
        """(N,) 1 where a round with these releases costs the client anything, else 0."""
        rate, multiplier = self.whole.rate, self.whole.multiplier
        costs = np.zeros(rate.shape[1], dtype=bool)
        for row, each in releases:
            costs |= (each > 0) & (rate[row] > 0) & np.isfinite(multiplier[row])
        return costs.astype(np.int64)
