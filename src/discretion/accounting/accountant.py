"""What a plan has cost each client so far, by whichever accountant."""

from typing import Protocol

from discretion.accounting.pld import Pld
from discretion.plan import Plan
from discretion.population import Floats
from discretion.steps import Steps


class Accountant(Protocol):
    """Turns Gaussian steps into an epsilon that is never too small."""

    @property
    def name(self) -> str: ...

    def epsilon(self, steps: Steps, delta: Floats) -> Floats: ...


TIGHT: Accountant = Pld()


def spent(plan: Plan, delta: Floats, rounds: int | None = None, accountant: Accountant = TIGHT) -> Floats:
    """(N,) epsilon at `delta` after the first `rounds` rounds, against who sees every model."""
    return accountant.epsilon(plan.steps(rounds), delta)
