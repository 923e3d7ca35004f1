"""The accountants' interface, and what a plan has cost each client so far."""

from typing import Protocol

import numpy as np

from discretion.accounting.pld import Pld
from discretion.arrays import Floats
from discretion.plan.plan import Plan
from discretion.plan.steps import Steps


class Accountant(Protocol):
    """An upper bound on the epsilon of Gaussian steps."""

    @property
    def name(self) -> str: ...

    def epsilon(self, steps: Steps, delta: Floats) -> Floats:
        """Return (N,) an epsilon at (N,) `delta` that is never below the true one."""
        ...


TIGHT: Accountant = Pld()


def spent(
    plan: Plan, delta: float | Floats, rounds: int | None = None, accountant: Accountant = TIGHT
) -> Floats:
    """Return (N,) the epsilon at `delta` that clients are charged for `rounds` rounds, or for all."""
    return accountant.epsilon(plan.steps(rounds), np.broadcast_to(delta, len(plan.clients)))
